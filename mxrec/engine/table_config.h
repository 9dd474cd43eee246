// What a table is made from, and its JSON form: the text a TensorFlow graph carries.
#ifndef MXREC_ENGINE_TABLE_CONFIG_H_
#define MXREC_ENGINE_TABLE_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "mxrec/base/status.h"
#include "mxrec/table/owner.h"
#include "mxrec/table/table.h"

namespace mxrec {

// Where the rows of a table live when several ranks train it. kNone: one process. kSharded ("MP"): each row at the rank that owns
// its key. kReplicated ("DP"): every row at every rank.
enum class Distribution : uint8_t { kNone = 0, kSharded = 1, kReplicated = 2 };

struct EmbeddingTableConfig {
  TableOptions table;
  NonFinitePolicy non_finite = NonFinitePolicy::kApply;
  bool check_lookups = false;  // report NaN/Inf among looked-up rows
  Distribution distribution = Distribution::kNone;
  OwnerRule owner = OwnerRule::kMod;  // kSharded only

  // Fields (all but name, dim and vocabulary may be absent):
  //   {"name": str, "dim": int >= 1, "vocabulary": int >= 1,
  //    "seed": int (64-bit) | {"initializer_seed": int|null, "graph_seed": int|null},       default: both null
  //    "initializer": {"name": str, "params": {name: number|str}},                           default: random_normal
  //    "min_used_times": int >= 0 | null, "max_cold_secs": int >= 0 | null,
  //    "capacity_policy": "grow"|"error"|"evict", "max_bytes": int >= 0, "non_finite": "apply"|"skip"|"error",
  //    "check_lookups": bool, "distribution": "none"|"MP"|"DP", "owner": "mod"|"hash", and with "evict" only: "evict_by":
  //    "lru"|"lfu", "evict_half_life": int >= 1 (updates)}
  // Unknown fields, wrong types and values out of range: kInvalidArgument naming table and field.
  static Result<EmbeddingTableConfig> FromJson(std::string_view text);
  // Canonical text, with the seed as one number and the initializer resolved; equal configs give equal texts.
  std::string ToJson() const;
  // "" when both are the same, else "dim: 8 against 16": the first field that differs.
  std::string FirstDifference(const EmbeddingTableConfig& other) const;
};

}  // namespace mxrec

#endif  // MXREC_ENGINE_TABLE_CONFIG_H_
