// Table::Snapshot and Table::Loader: the table as a stream of blocks.
#include <algorithm>
#include <mutex>
#include <vector>

#include "mxrec/table/table_impl.h"

namespace mxrec {

Table::Snapshot::Snapshot(const Table* table) : table_(table) { table_->impl_->writer_mutex.lock_shared(); }
Table::Snapshot::~Snapshot() { table_->impl_->writer_mutex.unlock_shared(); }

std::unique_ptr<Table::Snapshot> Table::TakeSnapshot() const { return std::unique_ptr<Snapshot>(new Snapshot(this)); }

uint64_t Table::Snapshot::rows() const { return table_->impl_->row_count.load(); }
uint64_t Table::Snapshot::candidates() const { return table_->impl_->candidate_count.load(); }
uint64_t Table::Snapshot::shard_rows(int shard) const { return table_->impl_->shards[shard].rows; }
uint64_t Table::Snapshot::shard_candidates(int shard) const { return table_->impl_->shards[shard].candidates; }
SlotRecord Table::Snapshot::slots() const { return table_->slots(); }

EvictionState Table::Snapshot::eviction() const {
  const Impl& impl = *table_->impl_;
  if (!impl.evicts()) return {};
  return {.kept = true,
          .by = impl.options.evict_by,
          .time = impl.clock.time(),
          .row_hand = impl.row_hand,
          .candidate_hand = impl.candidate_hand};
}

Status Table::Snapshot::ForEachBlock(int shard_number, size_t max_rows,
                                     const std::function<Status(const RowBlock&)>& block_fn) const {
  const Impl& impl = *table_->impl_;
  const RowLayout& layout = impl.layout;
  const size_t dim = layout.dim, slot_floats = layout.slot_floats;
  std::vector<uint64_t> keys, times;
  std::vector<float> values, slots;
  std::vector<uint32_t> counts, stamps;
  const size_t most = std::min<uint64_t>(max_rows, impl.shards[shard_number].rows);
  keys.reserve(most);
  values.reserve(most * dim);
  slots.reserve(most * slot_floats);
  Status status;
  const auto flush = [&] {
    if (keys.empty()) return true;
    RowBlock block;
    block.count = keys.size();
    block.keys = keys.data();
    block.values = values.data();
    block.slots = slots.data();
    block.use_counts = layout.has_counts ? counts.data() : nullptr;
    block.last_seen_ms = layout.has_times ? times.data() : nullptr;
    block.use_stamps = layout.has_stamps ? stamps.data() : nullptr;
    status = block_fn(block);
    keys.clear();
    values.clear();
    slots.clear();
    counts.clear();
    times.clear();
    stamps.clear();
    return status.ok();
  };
  // Rows lie at random places; take handles a stretch ahead so that their misses overlap.
  constexpr size_t kAhead = 32;
  struct Pending {
    uint64_t key;
    uint32_t handle;
  };
  std::vector<Pending> queue;
  queue.reserve(kAhead);
  const auto drain = [&] {
    for (const Pending& p : queue) {
      const char* row = impl.rows.At(p.handle);
      const auto* floats = reinterpret_cast<const float*>(row);
      keys.push_back(p.key);
      values.insert(values.end(), floats, floats + dim);
      slots.insert(slots.end(), floats + dim, floats + dim + slot_floats);
      if (layout.has_counts) counts.push_back(layout.GetCount(row));
      if (layout.has_times) times.push_back(layout.GetTime(row));
      if (layout.has_stamps) stamps.push_back(layout.GetStamp(row));
      if (keys.size() == max_rows && !flush()) return false;
    }
    queue.clear();
    return true;
  };
  bool going = true;
  impl.shards[shard_number].index.ForEachInHashOrder([&](uint64_t key, uint32_t handle) {
    if (handle & kCandidateBit) return true;
    const char* row = impl.rows.At(handle);
    for (size_t at = 0; at < layout.stride_bytes(); at += 64) __builtin_prefetch(row + at, 0, 2);
    queue.push_back({key, handle});
    if (queue.size() == kAhead) going = drain();
    return going;
  });
  if (going && drain()) flush();
  return status;
}

Status Table::Snapshot::ForEachCandidate(int shard_number,
                                         const std::function<Status(std::span<const Candidate>)>& block_fn) const {
  constexpr size_t kMost = 4096;
  const Impl& impl = *table_->impl_;
  std::vector<Candidate> block;
  Status status;
  const auto flush = [&] {
    if (!block.empty()) status = block_fn(block);
    block.clear();
    return status.ok();
  };
  bool going = true;
  impl.shards[shard_number].index.ForEachInHashOrder([&](uint64_t key, uint32_t handle) {
    if ((handle & kCandidateBit) == 0) return true;
    const CandidateRecord* record = impl.candidate(handle);
    block.push_back({key, record->count, record->last_seen_ms});
    if (block.size() == kMost) going = flush();
    return going;
  });
  if (going) flush();
  return status;
}

Table::Loader::Loader(Table* table, int64_t now_ms) : table_(table), now_ms_(now_ms) {}
Table::Loader::~Loader() {
  if (table_ != nullptr) Abort();
}

Result<std::unique_ptr<Table::Loader>> Table::BeginLoad(const SlotRecord& record, uint64_t expected_rows, int64_t now_ms,
                                                        const EvictionState& eviction) {
  impl_->writer_mutex.lock();
  std::unique_ptr<Loader> loader(new Loader(this, now_ms));
  impl_->ClearAll();
  {
    std::unique_lock lock(impl_->slots_mutex);
    impl_->slots = record;
    impl_->slots_from_load = true;
  }
  MXREC_RETURN_IF_ERROR(impl_->Layout());
  if (impl_->evicts() && eviction.kept && eviction.by == impl_->options.evict_by) {
    loader->take_stamps_ = true;
    impl_->clock.set_time(eviction.time);
    impl_->row_hand = eviction.row_hand;
    impl_->candidate_hand = eviction.candidate_hand;
  }
  if (expected_rows >= kShardCount * 16) {
    // A little above the mean, so that most shards never grow.
    const uint64_t each = expected_rows / kShardCount + expected_rows / kShardCount / 64;
    for (int s = 0; s < kShardCount; ++s) MXREC_RETURN_IF_ERROR(impl_->GrowIndex(s, each));
  }
  return loader;
}

Status Table::Loader::AddRows(const RowBlock& block) {
  Impl& impl = *table_->impl_;
  const RowLayout& layout = impl.layout;
  const size_t dim = layout.dim, slot_floats = layout.slot_floats;
  const uint64_t now = static_cast<uint64_t>(std::max<int64_t>(now_ms_, 0));
  size_t at = 0;
  while (at < block.count) {
    const uint32_t shard_number = ShardOfHash(KeyHash(block.keys[at]));
    size_t end = at + 1;
    while (end < block.count && ShardOfHash(KeyHash(block.keys[end])) == shard_number) ++end;
    Shard& shard = impl.shards[shard_number];
    std::unique_lock lock(shard.mutex);
    MXREC_RETURN_IF_ERROR(shard.row_stock.Reserve(&impl.rows, end - at, 0));
    MXREC_RETURN_IF_ERROR(impl.GrowIndexLocked(static_cast<int>(shard_number), end - at));
    for (size_t i = at; i < end; ++i) {
      if (shard.index.Find(block.keys[i]) != nullptr) {
        return DataLossError("table " + impl.options.name + ": id " + std::to_string(static_cast<int64_t>(block.keys[i])) +
                             " stands twice in the checkpoint");
      }
      const uint32_t handle = shard.row_stock.Take();
      char* row = impl.rows.At(handle);
      auto* floats = reinterpret_cast<float*>(row);
      std::memcpy(floats, block.values + i * dim, dim * sizeof(float));
      if (block.slots != nullptr) {
        std::memcpy(floats + dim, block.slots + i * slot_floats, slot_floats * sizeof(float));
      } else {
        impl.InitSlots(row);
      }
      layout.SetCount(row, block.use_counts != nullptr ? block.use_counts[i] : 0);
      layout.SetTime(row, block.last_seen_ms != nullptr ? block.last_seen_ms[i] : now);
      layout.SetStamp(row, take_stamps_ && block.use_stamps != nullptr ? block.use_stamps[i] : UseClock::kNeverUsed);
      shard.index.Insert(block.keys[i], handle);
      ++shard.rows;
    }
    impl.row_count.fetch_add(end - at);
    at = end;
  }
  if (impl.evicts()) return OkStatus();  // what is too much goes with Commit
  if (impl.options.capacity_policy == CapacityPolicy::kError && impl.row_count.load() > impl.options.capacity_rows) {
    return ResourceExhaustedError("table " + impl.options.name + ": the checkpoint holds more rows than its capacity of " +
                                  std::to_string(impl.options.capacity_rows) + " rows");
  }
  if (impl.options.max_bytes != 0 && impl.BytesInUse() > impl.options.max_bytes) {
    return ResourceExhaustedError("table " + impl.options.name + ": the checkpoint needs more than max_bytes = " +
                                  std::to_string(impl.options.max_bytes) + " bytes");
  }
  return OkStatus();
}

Status Table::Loader::AddCandidates(std::span<const Candidate> candidates) {
  Impl& impl = *table_->impl_;
  if (!impl.admission()) return OkStatus();  // this table admits at once and keeps no candidates
  for (const Candidate& candidate : candidates) {
    const uint32_t shard_number = ShardOfHash(KeyHash(candidate.key));
    Shard& shard = impl.shards[shard_number];
    std::unique_lock lock(shard.mutex);
    if (shard.index.Find(candidate.key) != nullptr) {
      return DataLossError("table " + impl.options.name + ": id " + std::to_string(static_cast<int64_t>(candidate.key)) +
                           " stands twice in the checkpoint");
    }
    MXREC_RETURN_IF_ERROR(shard.candidate_stock.Reserve(&impl.candidates, 1, 63));
    MXREC_RETURN_IF_ERROR(impl.GrowIndexLocked(static_cast<int>(shard_number), 1));
    const uint32_t handle = shard.candidate_stock.Take();
    *impl.candidate(handle) = {candidate.last_seen_ms, candidate.count, 0};
    shard.index.Insert(candidate.key, handle | kCandidateBit);
    ++shard.candidates;
    impl.candidate_count.fetch_add(1);
  }
  return OkStatus();
}

uint64_t Table::Loader::Commit() {
  Table* table = std::exchange(table_, nullptr);
  if (table->impl_->evicts()) table->impl_->TrimToCapacity();
  table->impl_->NoteChange();
  const uint64_t content_id = table->content_id();
  table->impl_->writer_mutex.unlock();
  return content_id;
}

void Table::Loader::Abort() {
  Table* table = std::exchange(table_, nullptr);
  table->impl_->ClearAll();
  table->impl_->ResetSlots();
  table->impl_->writer_mutex.unlock();
}

}  // namespace mxrec
