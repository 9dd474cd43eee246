// Inside of Table, shared by table.cc, lookup.cc, update.cc, update_check.cc, evict.cc and snapshot.cc only.
//
// Lock order: writer_mutex (writers exclusive, snapshots shared) before shard mutexes, shard mutexes in ascending order.
// Only the holder of writer_mutex in exclusive mode changes anything; it takes the exclusive lock of a shard for each change
// that a concurrent lookup could see. So a writer may read every shard without its lock.
#ifndef MXREC_TABLE_TABLE_IMPL_H_
#define MXREC_TABLE_TABLE_IMPL_H_

#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "mxrec/base/shared_mutex.h"
#include "mxrec/table/batch.h"
#include "mxrec/table/bucket_index.h"
#include "mxrec/table/probe_kernels.h"
#include "mxrec/table/row_slab.h"
#include "mxrec/table/table.h"
#include "mxrec/table/use_clock.h"

namespace mxrec {

static_assert(kShardCount == kBatchShards);

inline constexpr uint32_t kCandidateBit = 0x80000000u;

// What a candidate's handle (kCandidateBit | record number) points to.
struct CandidateRecord {
  uint64_t last_seen_ms;
  uint32_t count;
  uint32_t next_free;
};
static_assert(sizeof(CandidateRecord) == 16);

// Where things stand in a row.
struct RowLayout {
  size_t dim = 0;
  size_t slot_floats = 0;
  bool has_counts = false;
  bool has_times = false;
  bool has_stamps = false;

  size_t float_bytes() const { return (dim + slot_floats) * sizeof(float); }
  size_t stamp_offset() const { return float_bytes() + (has_counts ? 4 : 0) + (has_times ? 8 : 0); }
  size_t stride_bytes() const { return stamp_offset() + (has_stamps ? 4 : 0); }

  uint32_t GetCount(const char* row) const { return has_counts ? Load<uint32_t>(row + float_bytes()) : 0; }
  void SetCount(char* row, uint32_t count) const {
    if (has_counts) std::memcpy(row + float_bytes(), &count, 4);
  }
  uint64_t GetTime(const char* row) const { return has_times ? Load<uint64_t>(row + float_bytes() + (has_counts ? 4 : 0)) : 0; }
  void SetTime(char* row, uint64_t ms) const {
    if (has_times) std::memcpy(row + float_bytes() + (has_counts ? 4 : 0), &ms, 8);
  }
  uint32_t GetStamp(const char* row) const { return has_stamps ? Load<uint32_t>(row + stamp_offset()) : 0; }
  void SetStamp(char* row, uint32_t stamp) const {
    if (has_stamps) std::memcpy(row + stamp_offset(), &stamp, 4);
  }

 private:
  template <typename T>
  static T Load(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
};

// A shard's own stock of unused records of a slab: freed ones and runs reserved ahead, so that taking one never fails and never
// waits for another shard. Freed ones are listed outside of the records: a list through them would make each Take wait for memory.
class RecordStock {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFFu;

  uint64_t available() const { return freed_.size() + reserved_; }
  // Makes Take() work `count` more times. `spare` more are fetched when the slab has to be asked anyway.
  Status Reserve(RowSlab* slab, uint64_t count, uint32_t spare);
  uint32_t Take();
  void Give(uint32_t handle) { freed_.push_back(handle); }
  // The freed record that comes up `ahead` Takes after the next one, or kNone: what to prefetch.
  uint32_t Peek(size_t ahead) const { return ahead < freed_.size() ? freed_[freed_.size() - 1 - ahead] : kNone; }
  void Clear() { *this = RecordStock(); }

 private:
  struct Run {
    uint32_t next, end;
  };
  std::vector<uint32_t> freed_;
  uint64_t reserved_ = 0;  // in runs_
  std::vector<Run> runs_;
};

// A row or candidate that has to go. `age`: the smallest goes first; equal ones by key.
struct Victim {
  uint64_t age, key;
  uint32_t handle;
  friend bool operator<(const Victim& a, const Victim& b) { return a.age != b.age ? a.age < b.age : a.key < b.key; }
};
using ShardVictims = std::array<std::vector<Victim>, kShardCount>;

// A set of record numbers.
class RecordSet {
 public:
  // Empty, for numbers below `records`. Costs what was in it.
  void Reset(uint64_t records) {
    for (const uint32_t record : records_) bits_[record >> 6] = 0;
    records_.clear();
    if (bits_.size() * 64 < records) bits_.resize((records + 63) / 64);
  }
  // REQUIRES: not in it.
  void Add(uint32_t record) {
    bits_[record >> 6] |= uint64_t{1} << (record & 63);
    records_.push_back(record);
  }
  bool Has(uint32_t record) const { return !records_.empty() && (bits_[record >> 6] >> (record & 63) & 1) != 0; }
  uint64_t count() const { return records_.size(); }

 private:
  std::vector<uint64_t> bits_;
  std::vector<uint32_t> records_;
};

struct alignas(64) Shard {
  mutable SharedMutex mutex;
  BucketIndex index;
  uint64_t rows = 0;
  uint64_t candidates = 0;
  RecordStock row_stock, candidate_stock;

  RecordStock& stock(bool of_rows) { return of_rows ? row_stock : candidate_stock; }
};

struct Table::Impl {
  TableOptions options;
  mutable SharedMutex writer_mutex;
  ExtentPool index_memory;  // before the shards, which take from it
  std::array<Shard, kShardCount> shards;
  RowLayout layout;
  RowSlab rows, candidates;
  SlotRecord slots;
  bool slots_from_load = false;
  mutable SharedMutex slots_mutex;  // slots alone, for slots()

  UseClock clock;  // under kEvict
  uint32_t row_hand = 0, candidate_hand = 0;

  std::atomic<uint64_t> generation{1};
  std::atomic<uint64_t> content_id{NextContentId()};
  std::atomic<uint64_t> row_count{0}, candidate_count{0}, index_bytes{0};
  std::atomic<uint64_t> inserts{0}, erases{0}, evictions{0}, admissions{0}, updates{0};
  mutable std::atomic<uint64_t> hits{0}, misses{0};

  static uint64_t NextContentId() {
    static std::atomic<uint64_t> next{1};
    return next.fetch_add(1, std::memory_order_relaxed);
  }
  // For the holder of writer_mutex, with every change.
  void NoteChange() { content_id.store(NextContentId(), std::memory_order_release); }
  // The same where rows or candidates have gone: handles from before are stale.
  void NoteErased() {
    NoteChange();
    generation.fetch_add(1, std::memory_order_release);
  }

  bool admission() const { return options.min_used_times > 1; }
  bool keep_times() const { return options.max_cold_secs > 0; }
  bool evicts() const { return options.capacity_policy == CapacityPolicy::kEvict; }

  CandidateRecord* candidate(uint32_t handle) const {
    return reinterpret_cast<CandidateRecord*>(candidates.At(handle & ~kCandidateBit));
  }
  ProbeInput Probe(const ProbeShard* views, const uint64_t* keys, size_t count) const {
    return {views, keys, count, rows.directory(), rows.shift(), rows.stride_bytes(), options.dim};
  }
  // Views of the shards for which wanted(shard) holds: those whose lock the caller has (or, for the writer, any).
  template <typename Wanted>
  void View(ProbeShard* views, int first, int last, Wanted wanted) const {
    for (int s = first; s < last; ++s) {
      if (wanted(s)) views[s] = {shards[s].index.buckets(), shards[s].index.bucket_count()};
    }
  }
  // Bytes in live use, index, rows, candidates, if rows were laid out like `as`.
  uint64_t BytesInUse(const RowLayout& as) const {
    return index_bytes.load() + row_count.load() * as.stride_bytes() + candidate_count.load() * sizeof(CandidateRecord);
  }
  uint64_t BytesInUse() const { return BytesInUse(layout); }
  RowLayout LayoutWith(const SlotRecord& record) const {
    return {options.dim, record.slot_floats(options.dim), options.keep_counts, keep_times(), evicts()};
  }

  // --- for the holder of writer_mutex ---
  // Rows laid out anew for `slots` (values and metadata kept, slots at their start), with room for `extra` more rows of each shard,
  // once `victims` (rows, or null) have gone. With keep_slots (they are those of the layout now) slots are kept too: the table then
  // holds the memory that it needs and no more.
  Status Layout(const std::array<uint64_t, kShardCount>& extra = {}, const ShardVictims* victims = nullptr,
                bool keep_slots = false);
  // Whether an update with this record needs Attach: other slots than the table has. kFailedPrecondition when they may not change.
  Result<bool> NeedsAttach(const SlotRecord& record) const;
  // Whether Attach lays the rows out anew.
  bool AttachMovesRows(const SlotRecord& record) const { return !record.slot_names.empty() || layout.slot_floats != 0; }
  // Makes the record the table's own, with fresh slots, and takes care of `new_rows` of each shard and of `victims` (rows) if rows
  // move. On failure nothing has changed.
  Status Attach(const SlotRecord& record, const std::array<uint64_t, kShardCount>& new_rows, const ShardVictims* victims);
  // Index of a shard with room for `extra` more keys; readers are kept out only for the swap.
  Status GrowIndex(int shard, uint64_t extra);
  // The same for who holds the exclusive lock of the shard already.
  Status GrowIndexLocked(int shard, uint64_t extra);
  // Whether the table may grow so, its rows laid out like `as`. Under a byte cap old candidates may be dropped for it.
  Status CheckRoom(const RowLayout& as, uint64_t new_rows, uint64_t new_candidates,
                   const std::array<uint64_t, kShardCount>& new_keys);
  // Fills a taken row: values (null: first row), slots at their start, count and time.
  void InitRow(char* row, uint64_t key, const float* values, uint32_t count, uint64_t now_ms) const;
  void InitSlots(char* row) const;
  // All but the values: slots at their start, count and time, no use yet.
  void InitBehindValues(char* row, uint32_t count, uint64_t now_ms) const;
  // REQUIRES: exclusive lock of the shard. False when the key is absent.
  bool EraseKey(Shard* shard, uint64_t key, bool* was_row);
  void DropOldestCandidates(uint64_t bytes_wanted);
  void RebuildIfWanted(int shard);
  void Rebuild(int shard);  // the index, to the size that fits now; without memory for it, it stays as it is

  // --- evict.cc: eviction by capacity; for the holder of writer_mutex ---
  // How many rows may be there, laid out like `as`; and how many candidates beside that many rows.
  uint64_t RowLimit(const RowLayout& as) const;
  uint64_t CandidateLimit(const RowLayout& as, uint64_t rows_then) const;
  // The `need` oldest rows (or candidates) out of a window behind *hand, which goes on. None of `spared`. REQUIRES: that many
  // others are there.
  void ChooseVictims(bool of_rows, uint64_t need, const RecordSet& spared, Executor* executor, uint32_t* hand,
                     ShardVictims* victims) const;
  // Erases them. REQUIRES (Locked): exclusive lock of the shard.
  void EraseVictims(const ShardVictims& victims, Executor* executor);
  void EraseVictimsLocked(int shard, const std::vector<Victim>& victims);
  // Takes care that all shards together have `wanted` unused records, counting those of the victims.
  Status ReserveTogether(bool of_rows, const std::array<uint64_t, kShardCount>& wanted, const ShardVictims& victims);
  // Gives each shard what it wants of them.
  void ShareStocks(bool of_rows, const std::array<uint64_t, kShardCount>& wanted);
  // After an eviction: rebuilds indexes that are worn out or larger than the byte cap allows.
  void TidyIndexes();
  // Makes the clock of uses tick.
  void TickClock();
  // Rows and candidates of a table that was just loaded, down to what may be there.
  void TrimToCapacity();
  void ClearAll();    // rows, candidates, index
  void ResetSlots();  // REQUIRES: empty. Neither of the two fails
};

// Locks the shards [first, last) for which wanted(shard) holds, in ascending order, for the scope.
template <bool kExclusive, typename Wanted>
class ShardLocks {
 public:
  ShardLocks(const std::array<Shard, kShardCount>* shards, int first, int last, Wanted wanted) : shards_(shards), first_(first) {
    for (int s = first; s < last; ++s) {
      if (!wanted(s)) continue;
      if constexpr (kExclusive) {
        (*shards)[s].mutex.lock();
      } else {
        (*shards)[s].mutex.lock_shared();
      }
      held_ |= uint64_t{1} << s;
    }
  }
  ~ShardLocks() {
    for (int s = first_; s < kShardCount; ++s) {
      if ((held_ >> s & 1) == 0) continue;
      if constexpr (kExclusive) {
        (*shards_)[s].mutex.unlock();
      } else {
        (*shards_)[s].mutex.unlock_shared();
      }
    }
  }
  ShardLocks(const ShardLocks&) = delete;
  ShardLocks& operator=(const ShardLocks&) = delete;

 private:
  const std::array<Shard, kShardCount>* shards_;
  int first_;
  uint64_t held_ = 0;
};

}  // namespace mxrec

#endif  // MXREC_TABLE_TABLE_IMPL_H_
