// OccurrenceSort: brings the gradients of an update to their keys.
//
// A gradient ("occurrence") belongs to a key by the index of its part. The sort lists for each key its occurrences in order of
// parts and, within a part, of position, which is the order in which they are summed. A counting sort in two levels, so that
// threads can share it: occurrences go to the bin of their key (a range of keys), and within each bin to their key. The result
// does not depend on the threads.
#ifndef MXREC_TABLE_OCCURRENCES_H_
#define MXREC_TABLE_OCCURRENCES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mxrec/base/executor.h"
#include "mxrec/base/status.h"
#include "mxrec/table/table.h"

namespace mxrec {

// Gradients of a part, and the rows of `values` that they are made from.
inline size_t OccurrenceCount(const UpdatePart& part) { return part.dense ? part.keys.size() : part.index.size(); }
inline size_t ValueRowCount(const UpdatePart& part) { return part.value_rows.empty() ? OccurrenceCount(part) : part.value_count; }

struct OccurrenceInput {
  const std::string& table;  // for errors
  std::span<const UpdatePart> parts;
  const int32_t* merged_of;  // [keys of all parts]: the merged key of each; null: one part, whose keys are the merged ones
  size_t unique;             // merged keys
  bool skip_not_admitted;    // leave out what the lookup answered with the default row
  bool some_never_trained;   // some handle is kNeverTrained: its occurrences are left out
  bool scaled;               // some part has scales
};

class OccurrenceSort {
 public:
  // kInvalidArgument names part and gradient row when an index points outside of its part's keys.
  Status Run(const OccurrenceInput& in, Executor* executor);

  // offsets()[m] .. offsets()[m + 1]: the occurrences of key m, for m < unique.
  const uint32_t* offsets() const { return offsets_.data(); }
  // Per occurrence: its row of values, numbered over all parts, and its scale (where some part has scales).
  const uint32_t* value_rows() const { return value_rows_.data(); }
  const float* scales() const { return scales_.data(); }

 private:
  std::vector<uint32_t> offsets_, value_rows_, bin_begins_, binned_keys_, binned_rows_;
  std::vector<float> scales_, binned_scales_;
};

}  // namespace mxrec

#endif  // MXREC_TABLE_OCCURRENCES_H_
