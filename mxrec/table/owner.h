// OwnerOf: which rank owns a key. Saved shards mean the same for every program because this never changes.
#ifndef MXREC_TABLE_OWNER_H_
#define MXREC_TABLE_OWNER_H_

#include <cstdint>

namespace mxrec {

// The key as a signed 64-bit number modulo rank_count, rounded down: in [0, rank_count) for negative keys too. rank_count >= 1.
constexpr uint32_t OwnerOf(uint64_t key, uint32_t rank_count) {
  if (rank_count == 1) return 0;
  const int64_t remainder = static_cast<int64_t>(key) % static_cast<int64_t>(rank_count);
  return static_cast<uint32_t>(remainder < 0 ? remainder + rank_count : remainder);
}

}  // namespace mxrec

#endif  // MXREC_TABLE_OWNER_H_
