// OwnerOf: which rank owns a key. Saved shards mean the same for every program because this never changes.
#ifndef MXREC_TABLE_OWNER_H_
#define MXREC_TABLE_OWNER_H_

#include <cstdint>

#include "mxrec/base/hash.h"

namespace mxrec {

enum class OwnerRule : uint8_t {
  // The key as a signed 64-bit number modulo rank_count, rounded down: in [0, rank_count) for negative keys too. The original's.
  kMod = 0,
  // By bits of a hash that neither the shards nor the index of a table use: for keys that are multiples of rank_count, of which
  // kMod would give all to one rank.
  kHash = 1,
};

// rank_count >= 1.
constexpr uint32_t OwnerOf(uint64_t key, uint32_t rank_count, OwnerRule rule = OwnerRule::kMod) {
  if (rank_count == 1) return 0;
  if (rule == OwnerRule::kHash) {
    // The constant makes it another hash than the one that places the key within its table; its upper half is scaled to the range.
    return static_cast<uint32_t>(((Mix64(key ^ 0x9E3779B97F4A7C15u) >> 32) * rank_count) >> 32);
  }
  const int64_t remainder = static_cast<int64_t>(key) % static_cast<int64_t>(rank_count);
  return static_cast<uint32_t>(remainder < 0 ? remainder + rank_count : remainder);
}

}  // namespace mxrec

#endif  // MXREC_TABLE_OWNER_H_
