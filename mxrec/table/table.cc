// How a table works, in one page.
//
// Index and rows are apart: the index maps a key to a 4-byte handle, the handle names a row in a slab. So growing the index
// copies 12 bytes a key and never a row, a lookup can hand its handles to the update of the same step (no second probe), and
// optimizer slots lie behind the values they belong to (one place to touch a row).
//
// 64 shards, picked by the top bits of the key's hash, are the unit of locking, of growth and of parallel work. All batch
// operations first bring their keys into shard order (batch.h). A shard's run of keys is then probed with its bucket and
// row misses overlapped (probe_kernels.h), under one lock operation.
//
// One writer at a time (writer_mutex). It finds out what it needs (new keys, memory, capacity) before it changes anything,
// and fails only in that first part: an update is done whole or not at all. What a failed attempt reserved stays reserved
// and is used by the next one.
//
// Erased rows go to their shard's stock and are handed out again; whoever holds handles from before learns it by
// generation(), which changes after the last row of an erase has gone and before the next writer, the only one who trusts handles.
#include "mxrec/table/table.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "mxrec/table/table_impl.h"

namespace mxrec {
namespace {

constexpr auto kAllShards = [](int) { return true; };

}  // namespace

Status RecordStock::Reserve(RowSlab* slab, uint64_t count, uint32_t spare) {
  const uint64_t available = freed_.size() + reserved_;
  if (available >= count) return OkStatus();
  uint64_t missing = count - available + spare;
  while (missing > 0) {
    const uint32_t run = static_cast<uint32_t>(std::min<uint64_t>(missing, uint64_t{1} << 24));
    MXREC_ASSIGN_OR_RETURN(const uint32_t first, slab->AllocateRun(run));
    if (!runs_.empty() && runs_.back().end == first) {
      runs_.back().end += run;
    } else {
      runs_.push_back({first, first + run});
    }
    reserved_ += run;
    missing -= run;
  }
  return OkStatus();
}

uint32_t RecordStock::Take() {
  if (!freed_.empty()) {
    const uint32_t handle = freed_.back();
    freed_.pop_back();
    return handle;
  }
  MXREC_DCHECK(reserved_ > 0);
  --reserved_;
  Run& run = runs_.front();
  const uint32_t handle = run.next++;
  if (run.next == run.end) runs_.erase(runs_.begin());
  return handle;
}

Result<std::unique_ptr<Table>> Table::Create(TableOptions options) {
  if (options.dim == 0) return InvalidArgumentError("table " + options.name + ": dimension must be at least 1, found 0");
  std::unique_ptr<Table> table(new Table(std::move(options)));
  MXREC_RETURN_IF_ERROR(table->impl_->Layout());
  MXREC_ASSIGN_OR_RETURN(table->impl_->candidates, RowSlab::Create(sizeof(CandidateRecord)));
  return table;
}

Table::Table(TableOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->clock = UseClock(impl_->options.evict_by, impl_->options.evict_half_life);
  for (Shard& shard : impl_->shards) shard.index = BucketIndex(&impl_->index_memory);
}
Table::~Table() = default;

const TableOptions& Table::options() const { return impl_->options; }
uint64_t Table::size() const { return impl_->row_count.load(std::memory_order_relaxed); }
uint64_t Table::content_id() const { return impl_->content_id.load(std::memory_order_acquire); }
uint64_t Table::generation() const { return impl_->generation.load(std::memory_order_acquire); }

SlotRecord Table::slots() const {
  std::shared_lock lock(impl_->slots_mutex);
  return impl_->slots;
}

TableStats Table::stats() const {
  TableStats stats;
  uint64_t keys = 0, places = 0, total_length = 0;
  for (const Shard& shard : impl_->shards) {
    std::shared_lock lock(shard.mutex);
    keys += shard.index.size();
    places += uint64_t{shard.index.bucket_count()} * Bucket::kPlaces;
    stats.bytes_index += shard.index.bytes();
    stats.rows += shard.rows;
    stats.candidates += shard.candidates;
    shard.index.ProbeLengths(&total_length, &stats.max_probe_length);
  }
  const uint64_t dim_bytes = impl_->options.dim * sizeof(float);
  stats.bytes_slots = stats.rows * slots().slot_floats(impl_->options.dim) * sizeof(float);
  const uint64_t metadata = (impl_->options.keep_counts ? 4 : 0) + (impl_->keep_times() ? 8 : 0) + (impl_->evicts() ? 4 : 0);
  stats.bytes_rows = stats.rows * (dim_bytes + metadata);
  stats.bytes_candidates = stats.candidates * sizeof(CandidateRecord);
  stats.load = places == 0 ? 0 : static_cast<double>(keys) / static_cast<double>(places);
  stats.mean_probe_length = keys == 0 ? 0 : static_cast<double>(total_length) / static_cast<double>(keys);
  stats.inserts = impl_->inserts;
  stats.erases = impl_->erases;
  stats.evictions = impl_->evictions;
  stats.admissions = impl_->admissions;
  stats.hits = impl_->hits;
  stats.misses = impl_->misses;
  stats.updates = impl_->updates;
  stats.generation = generation();
  return stats;
}

void Table::Impl::InitSlots(char* row) const {
  float* slot = reinterpret_cast<float*>(row) + layout.dim;
  for (size_t s = 0; s < slots.slot_names.size(); ++s) {
    slot = std::fill_n(slot, slots.slot_width(s, layout.dim), slots.slot_initial_values[s]);
  }
}

void Table::Impl::InitRow(char* row, uint64_t key, const float* values, uint32_t count, uint64_t now_ms) const {
  if (values != nullptr) {
    std::memcpy(row, values, layout.dim * sizeof(float));
  } else {
    GenerateFirstRows(options.initializer, options.seed, &key, 1, layout.dim, reinterpret_cast<float*>(row), layout.dim);
  }
  InitBehindValues(row, count, now_ms);
}

void Table::Impl::InitBehindValues(char* row, uint32_t count, uint64_t now_ms) const {
  InitSlots(row);
  layout.SetCount(row, count);
  layout.SetTime(row, now_ms);
  layout.SetStamp(row, UseClock::kNeverUsed);
}

Status Table::Impl::Layout(const std::array<uint64_t, kShardCount>& extra, const ShardVictims* victims, bool keep_slots) {
  const RowLayout wanted = LayoutWith(slots);
  MXREC_ASSIGN_OR_RETURN(RowSlab slab, RowSlab::Create(wanted.stride_bytes()));
  std::array<RecordStock, kShardCount> stocks;
  for (int s = 0; s < kShardCount; ++s) {
    const uint64_t going = victims != nullptr ? (*victims)[s].size() : 0;
    MXREC_RETURN_IF_ERROR(stocks[s].Reserve(&slab, shards[s].rows - going + extra[s], 0));
  }
  if (options.max_bytes != 0 && row_count.load() != 0 && !evicts()) {
    const uint64_t needed = BytesInUse(wanted);
    if (needed > options.max_bytes) {
      return ResourceExhaustedError("table " + options.name + ": " + std::to_string(row_count.load()) + " rows with " +
                                    std::to_string(slots.slot_names.size()) + " optimizer slots need " + std::to_string(needed) +
                                    " bytes, above max_bytes = " + std::to_string(options.max_bytes));
    }
  }
  ShardLocks<true, decltype(kAllShards)> locks(&shards, 0, kShardCount, kAllShards);
  for (int s = 0; s < kShardCount; ++s) {
    Shard& shard = shards[s];
    if (victims != nullptr) EraseVictimsLocked(s, (*victims)[s]);
    shard.index.ForEach([&](uint64_t, uint32_t& handle) {
      if (handle & kCandidateBit) return;
      const char* from = rows.At(handle);
      const uint32_t to_handle = stocks[s].Take();
      char* to = slab.At(to_handle);
      std::memcpy(to, from, keep_slots ? wanted.float_bytes() : wanted.dim * sizeof(float));
      if (!keep_slots) InitSlots(to);
      wanted.SetCount(to, layout.GetCount(from));
      wanted.SetTime(to, layout.GetTime(from));
      wanted.SetStamp(to, layout.GetStamp(from));
      handle = to_handle;
    });
    shard.row_stock = std::move(stocks[s]);
  }
  rows = std::move(slab);
  layout = wanted;
  generation.fetch_add(1, std::memory_order_release);
  return OkStatus();
}

Status Table::Impl::GrowIndex(int shard_number, uint64_t extra) {
  Shard& shard = shards[shard_number];
  const uint64_t before = shard.index.bytes();
  // Built beside the old one (only a writer changes it, and we are the writer), swapped in under the lock.
  MXREC_ASSIGN_OR_RETURN(BucketIndex grown, shard.index.Grown(extra, static_cast<uint32_t>(shard_number)));
  if (grown.bucket_count() == 0) return OkStatus();
  {
    std::unique_lock lock(shard.mutex);
    std::swap(shard.index, grown);
  }
  index_bytes.fetch_add(shard.index.bytes() - before);
  return OkStatus();
}

Status Table::Impl::GrowIndexLocked(int shard_number, uint64_t extra) {
  BucketIndex& index = shards[shard_number].index;
  const uint64_t before = index.bytes();
  MXREC_ASSIGN_OR_RETURN(BucketIndex grown, index.Grown(extra, static_cast<uint32_t>(shard_number)));
  if (grown.bucket_count() == 0) return OkStatus();
  std::swap(index, grown);
  index_bytes.fetch_add(index.bytes() - before);
  return OkStatus();
}

Status Table::Impl::CheckRoom(const RowLayout& as, uint64_t new_rows, uint64_t new_candidates,
                              const std::array<uint64_t, kShardCount>& new_keys) {
  const uint64_t rows_now = row_count.load();
  if (options.capacity_policy == CapacityPolicy::kError && new_rows > 0 && rows_now + new_rows > options.capacity_rows) {
    return ResourceExhaustedError("table " + options.name + " is full: capacity " + std::to_string(options.capacity_rows) +
                                  " rows, used " + std::to_string(rows_now) + ", this step needs " + std::to_string(new_rows) +
                                  " more; raise device_vocabulary_size or use capacity_policy=\"grow\"");
  }
  if (options.max_bytes == 0) return OkStatus();
  uint64_t needed = new_rows * as.stride_bytes() + new_candidates * sizeof(CandidateRecord);
  for (int s = 0; s < kShardCount; ++s) {
    const BucketIndex& index = shards[s].index;
    needed += (uint64_t{index.BucketsAfter(new_keys[s], static_cast<uint32_t>(s))} - index.bucket_count()) * sizeof(Bucket);
  }
  uint64_t used = BytesInUse(as);
  const uint64_t droppable = candidate_count.load() * sizeof(CandidateRecord);
  if (used + needed > options.max_bytes && used + needed - droppable <= options.max_bytes) {
    DropOldestCandidates(used + needed - options.max_bytes);
    used = BytesInUse(as);
  }
  if (used + needed > options.max_bytes) {
    return ResourceExhaustedError("table " + options.name +
                                  " is at its byte cap: max_bytes = " + std::to_string(options.max_bytes) + ", used " +
                                  std::to_string(used) + " by " + std::to_string(rows_now) + " rows, this step needs " +
                                  std::to_string(needed) + " more for " + std::to_string(new_rows) + " new rows");
  }
  return OkStatus();
}

bool Table::Impl::EraseKey(Shard* shard, uint64_t key, bool* was_row) {
  const uint32_t handle = shard->index.Erase(key);
  if (handle == BucketIndex::kAbsent) return false;
  *was_row = (handle & kCandidateBit) == 0;
  if (*was_row) {
    shard->row_stock.Give(handle);
    --shard->rows;
    row_count.fetch_sub(1);
  } else {
    shard->candidate_stock.Give(handle & ~kCandidateBit);
    --shard->candidates;
    candidate_count.fetch_sub(1);
  }
  return true;
}

void Table::Impl::RebuildIfWanted(int shard_number) {
  if (shards[shard_number].index.WantsRebuild(static_cast<uint32_t>(shard_number))) Rebuild(shard_number);
}

void Table::Impl::Rebuild(int shard_number) {
  const uint64_t before = shards[shard_number].index.bytes();
  Result<BucketIndex> rebuilt = shards[shard_number].index.Rebuilt(static_cast<uint32_t>(shard_number));
  if (!rebuilt.ok()) return;  // only a matter of speed; the next erase tries again
  {
    std::unique_lock lock(shards[shard_number].mutex);
    std::swap(shards[shard_number].index, *rebuilt);
  }
  index_bytes.fetch_add(shards[shard_number].index.bytes() - before);
}

void Table::Impl::DropOldestCandidates(uint64_t bytes_wanted) {
  struct Aged {
    uint64_t last_seen_ms, key;
    int shard;
  };
  std::vector<Aged> aged;
  for (int s = 0; s < kShardCount; ++s) {
    shards[s].index.ForEach([&](uint64_t key, uint32_t handle) {
      if (handle & kCandidateBit) aged.push_back({candidate(handle)->last_seen_ms, key, s});
    });
  }
  // At least an eighth at once, so that a stream of new candidates pays for a scan only now and then.
  const uint64_t drop = std::min<uint64_t>(
      aged.size(), std::max<uint64_t>(aged.size() / 8, (bytes_wanted + sizeof(CandidateRecord) - 1) / sizeof(CandidateRecord)));
  std::nth_element(aged.begin(), aged.begin() + static_cast<ptrdiff_t>(drop), aged.end(), [](const Aged& a, const Aged& b) {
    return a.last_seen_ms != b.last_seen_ms ? a.last_seen_ms < b.last_seen_ms : a.key < b.key;
  });
  for (uint64_t i = 0; i < drop; ++i) {
    Shard& shard = shards[aged[i].shard];
    std::unique_lock lock(shard.mutex);
    bool was_row = false;
    EraseKey(&shard, aged[i].key, &was_row);
  }
  if (drop == 0) return;
  NoteErased();
  for (int s = 0; s < kShardCount; ++s) RebuildIfWanted(s);
}

uint64_t Table::Erase(std::span<const uint64_t> keys) {
  std::unique_lock writer(impl_->writer_mutex);
  uint64_t erased_rows = 0, erased_any = 0;
  for (const uint64_t key : keys) {
    Shard& shard = impl_->shards[ShardOfHash(KeyHash(key))];
    std::unique_lock lock(shard.mutex);
    bool was_row = false;
    if (!impl_->EraseKey(&shard, key, &was_row)) continue;
    ++erased_any;
    erased_rows += was_row;
  }
  if (erased_any > 0) impl_->NoteErased();
  impl_->erases.fetch_add(erased_rows);
  for (int s = 0; s < kShardCount; ++s) impl_->RebuildIfWanted(s);
  return erased_rows;
}

uint64_t Table::EvictCold(int64_t now_ms, Executor* executor) {
  if (!impl_->keep_times()) return 0;
  std::unique_lock writer(impl_->writer_mutex);
  const uint64_t limit_secs = impl_->options.max_cold_secs;
  // Whole elapsed seconds; a clock that went backwards evicts nothing.
  const auto is_cold = [now_ms, limit_secs](uint64_t last_seen_ms) {
    const uint64_t now = static_cast<uint64_t>(std::max<int64_t>(now_ms, 0));
    return now > last_seen_ms && (now - last_seen_ms) / 1000 > limit_secs;
  };
  std::atomic<uint64_t> rows_gone{0}, any_gone{0};
  ForGroups(executor, impl_->row_count + impl_->candidate_count, kShardCount, [&](size_t s) {
    Shard& shard = impl_->shards[s];
    std::vector<uint64_t> cold;
    shard.index.ForEach([&](uint64_t key, uint32_t handle) {
      const uint64_t seen =
          (handle & kCandidateBit) ? impl_->candidate(handle)->last_seen_ms : impl_->layout.GetTime(impl_->rows.At(handle));
      if (is_cold(seen)) cold.push_back(key);
    });
    if (cold.empty()) return;
    uint64_t rows = 0;
    {
      std::unique_lock lock(shard.mutex);
      for (const uint64_t key : cold) {
        bool was_row = false;
        impl_->EraseKey(&shard, key, &was_row);
        rows += was_row;
      }
    }
    rows_gone.fetch_add(rows);
    any_gone.fetch_add(cold.size());
  });
  if (any_gone > 0) impl_->NoteErased();
  impl_->evictions.fetch_add(rows_gone);
  for (int s = 0; s < kShardCount; ++s) impl_->RebuildIfWanted(s);
  return rows_gone;
}

void Table::Impl::ClearAll() {
  ShardLocks<true, decltype(kAllShards)> locks(&shards, 0, kShardCount, kAllShards);
  for (Shard& shard : shards) {
    shard.index.Clear();
    shard.rows = shard.candidates = 0;
    shard.row_stock.Clear();
    shard.candidate_stock.Clear();
  }
  rows.Clear(layout.stride_bytes());
  candidates.Clear(sizeof(CandidateRecord));
  row_count = candidate_count = index_bytes = 0;
  clock.Reset();
  row_hand = candidate_hand = 0;
  NoteErased();
}

void Table::Impl::ResetSlots() {
  {
    std::unique_lock lock(slots_mutex);
    slots = SlotRecord();
    slots_from_load = false;
  }
  // Rows without slots are the shortest there are, so the slab of the longer ones will do.
  ShardLocks<true, decltype(kAllShards)> locks(&shards, 0, kShardCount, kAllShards);
  layout = LayoutWith(slots);
  rows.Clear(layout.stride_bytes());
  NoteErased();
}

void Table::Clear() {
  std::unique_lock writer(impl_->writer_mutex);
  impl_->ClearAll();
  impl_->ResetSlots();
}

bool Table::ConfirmLoaded(uint64_t content_id) {
  std::unique_lock writer(impl_->writer_mutex);
  if (this->content_id() != content_id) return false;
  std::unique_lock lock(impl_->slots_mutex);
  impl_->slots_from_load = true;
  return true;
}

Result<bool> Table::Impl::NeedsAttach(const SlotRecord& record) const {
  if (slots.SameSlots(record, options.dim)) return false;
  if (!slots.optimizer_kind.empty() && !slots_from_load) {
    return FailedPreconditionError("table " + options.name + " is trained by optimizer " + slots.optimizer_kind + "; optimizer " +
                                   record.optimizer_kind +
                                   " keeps other slots and cannot take over. Use one kind of optimizer per table");
  }
  return true;
}

Status Table::Impl::Attach(const SlotRecord& record, const std::array<uint64_t, kShardCount>& new_rows,
                           const ShardVictims* victims) {
  SlotRecord before;
  {
    std::unique_lock lock(slots_mutex);
    before = std::exchange(slots, record);
  }
  if (!AttachMovesRows(record)) return OkStatus();  // the rows are as they shall be
  if (Status status = Layout(new_rows, victims); !status.ok()) {
    std::unique_lock lock(slots_mutex);
    slots = std::move(before);
    return status;
  }
  return OkStatus();
}

}  // namespace mxrec
