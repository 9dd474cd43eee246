// CheckParts: what can be wrong with the parts of an update, said before anything is changed.
#ifndef MXREC_TABLE_UPDATE_CHECK_H_
#define MXREC_TABLE_UPDATE_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "mxrec/base/status.h"
#include "mxrec/table/table.h"

namespace mxrec {

// What the parts of an update have in common.
struct PartsSummary {
  bool stale = false;               // some handles are of another generation
  bool some_never_trained = false;  // some handle is kNeverTrained
  bool scaled = false;              // some part has scales
  size_t gradients = 0;             // occurrences of all parts
};

// For a table of that name and generation whose slab has handed out `allocated` rows. kInvalidArgument names table and part, what
// was expected and what was found.
Result<PartsSummary> CheckParts(const std::string& table, std::span<const UpdatePart> parts, uint64_t generation,
                                uint64_t allocated);

}  // namespace mxrec

#endif  // MXREC_TABLE_UPDATE_CHECK_H_
