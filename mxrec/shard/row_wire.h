// Rows and candidates as they travel from the rank that owns them to the one that writes them: columns, as the memory of the ranks
// holds them (the ranks of a job are machines of one kind, as for every exchange of rows).
#ifndef MXREC_SHARD_ROW_WIRE_H_
#define MXREC_SHARD_ROW_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/table/table.h"

namespace mxrec::internal {

// A RowBlock that owns its columns; absent ones are empty.
struct OwnedRows {
  std::vector<uint64_t> keys, last_seen_ms;
  std::vector<float> values, slots;
  std::vector<uint32_t> use_counts, use_stamps;

  size_t size() const { return keys.size(); }
  // Takes row i of `from` to the end; columns that it lacks stay empty.
  void Append(const RowBlock& from, size_t i, size_t dim, size_t slot_floats);
  RowBlock block() const;
  void clear();
};

std::string EncodeRows(const RowBlock& rows, size_t dim, size_t slot_floats);
// DataLoss unless the bytes are rows of that width.
Result<OwnedRows> DecodeRows(std::string_view bytes, size_t dim, size_t slot_floats);

std::string EncodeCandidates(std::span<const Candidate> candidates);
Result<std::vector<Candidate>> DecodeCandidates(std::string_view bytes);

}  // namespace mxrec::internal

#endif  // MXREC_SHARD_ROW_WIRE_H_
