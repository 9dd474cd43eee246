#include "mxrec/table/batch.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "mxrec/table/scratch.h"

namespace mxrec {
namespace {

constexpr size_t kIdsPerGroup = 1024;
constexpr size_t kIdsPerChunk = 16384;

}  // namespace

void ForGroups(Executor* executor, size_t ids, size_t n, const std::function<void(size_t)>& body) {
  if (executor == nullptr || n <= 1 || ids < kParallelIds || executor->concurrency() == 1) {
    for (size_t i = 0; i < n; ++i) body(i);
  } else {
    executor->ParallelFor(n, body);
  }
}

void KeyBatch::Partition(std::span<const uint64_t> ids, Executor* executor) {
  const size_t n = ids.size();
  uint64_t* keys = Ensure(&keys_, n);
  uint32_t* positions = Ensure(&positions_, n);
  uint8_t* shard_of = Ensure(&shard_of_, n);
  const int width = executor == nullptr ? 1 : executor->concurrency();
  const size_t chunks = width == 1 ? 1 : std::clamp<size_t>(n / kIdsPerChunk, 1, 4 * static_cast<size_t>(width));
  uint32_t* histograms = Ensure(&histograms_, chunks * kBatchShards);
  const auto begin_of = [n, chunks](size_t chunk) { return n * chunk / chunks; };
  ForGroups(executor, n, chunks, [&](size_t chunk) {
    uint32_t histogram[kBatchShards] = {};
    for (size_t i = begin_of(chunk), end = begin_of(chunk + 1); i < end; ++i) {
      const uint32_t shard = ShardOfHash(KeyHash(ids[i]));
      shard_of[i] = static_cast<uint8_t>(shard);
      ++histogram[shard];
    }
    std::memcpy(histograms + chunk * kBatchShards, histogram, sizeof(histogram));
  });
  uint32_t next = 0;
  for (int shard = 0; shard < kBatchShards; ++shard) {
    shard_begin_[shard] = next;
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
      const uint32_t count = histograms[chunk * kBatchShards + shard];
      histograms[chunk * kBatchShards + shard] = next;
      next += count;
    }
  }
  shard_begin_[kBatchShards] = next;
  ForGroups(executor, n, chunks, [&](size_t chunk) {
    uint32_t at[kBatchShards];
    std::memcpy(at, histograms + chunk * kBatchShards, sizeof(at));
    for (size_t i = begin_of(chunk), end = begin_of(chunk + 1); i < end; ++i) {
      const uint32_t to = at[shard_of[i]]++;
      keys[to] = ids[i];
      positions[to] = static_cast<uint32_t>(i);
    }
  });
}

void KeyBatch::DedupeGroup(KeyGroup* group) {
  const size_t n = group->ids_end - group->ids_begin;
  group->unique_count = 0;
  if (n == 0) return;
  static thread_local std::vector<uint32_t> slots_storage;
  const size_t slot_count = std::bit_ceil(2 * n);
  uint32_t* slots = Ensure(&slots_storage, slot_count);
  std::memset(slots, 0xFF, slot_count * sizeof(uint32_t));
  const uint64_t mask = slot_count - 1;
  const uint64_t* keys = keys_.data() + group->ids_begin;
  uint64_t* unique_keys = unique_keys_.data() + group->ids_begin;
  uint32_t* counts = counts_.data() + group->ids_begin;
  uint32_t* local = local_.data() + group->ids_begin;
  uint32_t unique = 0;
  for (size_t j = 0; j < n; ++j) {
    const uint64_t key = keys[j];
    uint64_t slot = KeyHash(key) & mask;
    for (;; slot = (slot + 1) & mask) {
      const uint32_t seen = slots[slot];
      if (seen == 0xFFFFFFFFu) {
        slots[slot] = unique;
        unique_keys[unique] = key;
        counts[unique] = 1;
        local[j] = unique++;
        break;
      }
      if (unique_keys[seen] == key) {
        ++counts[seen];
        local[j] = seen;
        break;
      }
    }
  }
  group->unique_count = unique;
}

void KeyBatch::Build(std::span<const uint64_t> ids, Executor* executor) {
  const size_t n = ids.size();
  Partition(ids, executor);
  Ensure(&unique_keys_, n);
  Ensure(&counts_, n);
  Ensure(&local_, n);
  group_count_ = std::clamp<size_t>(std::bit_floor(n / kIdsPerGroup), 1, kBatchShards);
  const int shards_each = kBatchShards / static_cast<int>(group_count_);
  for (size_t g = 0; g < group_count_; ++g) {
    KeyGroup& group = groups_[g];
    group.first_shard = static_cast<int>(g) * shards_each;
    group.last_shard = group.first_shard + shards_each;
    group.ids_begin = shard_begin_[group.first_shard];
    group.ids_end = shard_begin_[group.last_shard];
  }
  ForGroups(executor, n, group_count_, [this](size_t g) { DedupeGroup(&groups_[g]); });
  uint32_t next = 0;
  for (size_t g = 0; g < group_count_; ++g) {
    groups_[g].unique_begin = next;
    next += groups_[g].unique_count;
  }
  unique_ = next;
}

}  // namespace mxrec
