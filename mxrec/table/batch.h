// KeyBatch: the distinct keys of a list of ids, shard by shard, within a shard by first occurrence.
//
// First the ids are partitioned by shard (a stable counting sort), then runs of neighbouring shards ("groups", each about
// 1,024 ids or more) are deduped in small tables that fit the first-level cache. The result does not depend on threads.
#ifndef MXREC_TABLE_BATCH_H_
#define MXREC_TABLE_BATCH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "mxrec/base/executor.h"
#include "mxrec/table/bucket_index.h"

namespace mxrec {

inline constexpr int kBatchShards = 64;

struct KeyGroup {
  int first_shard, last_shard;  // [first, last)
  uint32_t ids_begin, ids_end;  // its ids in `keys`, `positions`, `local`
  uint32_t unique_begin;        // its first distinct key in the batch's order
  uint32_t unique_count;
};

class KeyBatch {
 public:
  // REQUIRES: ids.size() < 2^31.
  void Build(std::span<const uint64_t> ids, Executor* executor);

  size_t unique() const { return unique_; }
  std::span<const KeyGroup> groups() const { return {groups_.data(), group_count_}; }
  // The distinct keys of a group and how often each occurs: unique_count elements.
  const uint64_t* unique_keys(const KeyGroup& group) const { return unique_keys_.data() + group.ids_begin; }
  const uint32_t* unique_counts(const KeyGroup& group) const { return counts_.data() + group.ids_begin; }
  // For occurrence j in [ids_begin, ids_end): where it stood among the ids, and its key's number within the group.
  const uint32_t* positions() const { return positions_.data(); }
  const uint32_t* local() const { return local_.data(); }

 private:
  void Partition(std::span<const uint64_t> ids, Executor* executor);
  void DedupeGroup(KeyGroup* group);

  std::array<uint32_t, kBatchShards + 1> shard_begin_{};
  std::vector<uint64_t> keys_, unique_keys_;
  std::vector<uint32_t> positions_, local_, counts_;
  std::vector<uint8_t> shard_of_;
  std::vector<uint32_t> histograms_;
  std::array<KeyGroup, kBatchShards> groups_{};
  size_t group_count_ = 0;
  size_t unique_ = 0;
};

// Runs body(i) for i in [0, n) on the executor when the batch is large enough to pay, else on the caller's thread.
inline constexpr size_t kParallelIds = 4096;
void ForGroups(Executor* executor, size_t ids, size_t n, const std::function<void(size_t)>& body);

}  // namespace mxrec

#endif  // MXREC_TABLE_BATCH_H_
