// Table: rows of float32 addressed by 64-bit keys. The heart of the engine.
//
//   keys --hash--> 64 shards --> index (cache-line buckets: 5 x (key, 4-byte handle)) --> row slab
//
// Every one of the 2^64 keys is an ordinary key. A row is contiguous: values [dim], slot 0, slot 1, ..., then (only if the
// table counts, times or evicts) use count uint32, last-seen uint64 milliseconds, use stamp uint32, unaligned. Rows never move
// while they live (attaching optimizer slots, once per table, is the exception); a handle stays valid until its row is erased,
// which changes generation().
//
// Order: the distinct keys of a batch come out shard by shard, within a shard by first occurrence. So every result,
// every row and every checkpoint is the same for any number of threads.
//
// A lookup never changes a table. An unseen key is answered with its first row (a pure function of seed and key), or
// with the default row; inserting, counting, time-stamping and eviction by capacity happen in Update.
//
// Threads. Any number of Lookup, size, stats and one writer (Update, Insert, Erase, EvictCold, Clear, Load*) or any number of
// Snapshots may overlap; writers and snapshots exclude each other inside (the caller need not). Lookups see each row as
// before or after an update, never torn. Design essay: table.cc. Layout of the index: bucket_index.h.
#ifndef MXREC_TABLE_TABLE_H_
#define MXREC_TABLE_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mxrec/base/executor.h"
#include "mxrec/base/status.h"
#include "mxrec/table/initializer.h"

namespace mxrec {

inline constexpr int kShardCount = 64;
// Handles of keys that own no row, as a lookup reports them.
inline constexpr uint32_t kUnseen = 0xFFFFFFFFu;       // answered with the first row; Update inserts it
inline constexpr uint32_t kNotAdmitted = 0xFFFFFFFEu;  // answered with the default row; Update only counts it
// In place of any of these, and of a row's handle: a key that its lookup excludes from training. Update leaves it out.
inline constexpr uint32_t kNeverTrained = 0xFFFFFFFDu;

// What a table does that is full. kGrow: nothing is full but a byte cap, which is an error. kError: the step fails. kEvict: the
// step's new rows take the place of the rows that EvictBy says, never of a row that the step itself uses; only a step that alone
// needs more rows than fit fails. See evict.cc.
enum class CapacityPolicy : uint8_t { kGrow = 0, kError = 1, kEvict = 2 };

// kLru: the row that was not used for the longest time goes first. kLfu: the one that was used least often, where a use counts
// half as much as one that is a half life younger. Used means: in an update or insert.
enum class EvictBy : uint8_t { kLru = 0, kLfu = 1 };

struct TableOptions {
  std::string name;
  uint32_t dim = 0;
  uint64_t seed = 0;
  InitializerSpec initializer;
  CapacityPolicy capacity_policy = CapacityPolicy::kGrow;
  uint64_t capacity_rows = 0;  // the declared vocabulary; a limit under kError and kEvict only
  uint64_t max_bytes = 0;      // cap on index + rows + candidates; 0 = none
  EvictBy evict_by = EvictBy::kLru;
  uint64_t evict_half_life = 10000;  // kLfu: updates, at least 1
  bool keep_counts = false;          // min_used_times given (0 included)
  uint32_t min_used_times = 0;       // <= 1 admits at once
  uint64_t max_cold_secs = 0;        // 0 = no time stamps, no cold eviction
};

// Slots and optimizer state that live in the table, attached by its first update; the table does not interpret them beyond
// the slots' widths and start values. Another kind of optimizer on a table is kFailedPrecondition naming both, unless what is there
// came from a checkpoint and was not trained since: then rows stay and slots start afresh. Attaching to a filled table lays its
// rows out anew, once.
struct SlotRecord {
  std::string optimizer_kind;  // empty = nothing attached yet
  std::vector<std::string> slot_names;
  std::vector<float> slot_initial_values;  // one per slot
  std::vector<uint32_t> slot_widths;       // floats of each slot in a row; empty = dim each
  uint64_t step = 0;
  std::vector<std::string> scalar_names;
  std::vector<float> scalars;

  uint64_t slot_width(size_t slot, uint64_t dim) const { return slot_widths.empty() ? dim : slot_widths[slot]; }
  // Floats of all slots of a row.
  uint64_t slot_floats(uint64_t dim) const {
    uint64_t floats = 0;
    for (size_t s = 0; s < slot_names.size(); ++s) floats += slot_width(s, dim);
    return floats;
  }
  // Whether rows of that width look the same under both, so that slots can be taken over.
  bool SameSlots(const SlotRecord& other, uint64_t dim) const {
    if (optimizer_kind != other.optimizer_kind || slot_names != other.slot_names) return false;
    for (size_t s = 0; s < slot_names.size(); ++s) {
      if (slot_width(s, dim) != other.slot_width(s, dim)) return false;
    }
    return true;
  }
};

struct TableStats {
  uint64_t rows = 0, candidates = 0;
  uint64_t bytes_index = 0, bytes_rows = 0, bytes_slots = 0, bytes_candidates = 0;  // reserved for live use
  double load = 0;                                                                  // keys / places of the index
  double mean_probe_length = 0;                                                     // buckets read per present key
  uint64_t max_probe_length = 0;
  uint64_t inserts = 0, erases = 0, evictions = 0, admissions = 0, hits = 0, misses = 0, updates = 0;
  uint64_t generation = 0;
};

// Where a lookup writes what it finds of the `unique` distinct keys. Pointers may be null when not wanted.
struct UniqueOutputs {
  float* rows = nullptr;        // [unique, dim]
  uint64_t* keys = nullptr;     // [unique]
  uint32_t* handles = nullptr;  // [unique]: a row, kUnseen, kNotAdmitted or kNeverTrained
  uint32_t* counts = nullptr;   // [unique]: occurrences in this batch
};

enum class LookupMode : uint8_t {
  kTrain,    // unseen: first row (or default when below the admission threshold, counting this batch's occurrences)
  kPredict,  // unseen or not admitted: default row
};

struct LookupOptions {
  LookupMode mode = LookupMode::kTrain;
  std::span<const float> default_row;  // [dim], or empty = zeros
  // Keys (few) that are read but not to be trained, as ids that fill a batch up are. Unseen they get the default row; their
  // handle is kNeverTrained.
  std::span<const uint64_t> never_trained;
  // How often each id counts, one number an id; empty: once each. For ids of which somebody else counted the repetitions, as the ranks
  // of a sharded table do. Admission and `counts` go by it.
  std::span<const uint32_t> occurrences;
};

// One lookup's share of an update.
struct UpdatePart {
  std::span<const uint64_t> keys;     // as the lookup reported them: distinct
  std::span<const uint32_t> handles;  // same length
  std::span<const uint32_t> counts;   // same length; empty = 1 each
  uint64_t generation = 0;            // as the lookup reported it
  const float* first_rows = nullptr;  // the lookup's rows [keys, dim]; null: generated again (same bits)
  // Gradient, either per occurrence: values [index.size(), dim], value j belongs to keys[index[j]];
  // or dense: index empty, dense = true, values [keys.size(), dim].
  std::span<const int32_t> index;
  const float* values = nullptr;
  bool dense = false;
  // With value_rows, occurrences share rows of `values` [value_count, dim], as the ids of a bag share the gradient of the row
  // they were pooled to: the gradient of occurrence j is scales[j] * values[value_rows[j]]. Not with dense.
  std::span<const int32_t> value_rows;  // [index.size()], or empty
  std::span<const float> scales;        // [index.size()], or empty: 1 each
  size_t value_count = 0;
};

// Applies gradients to rows: implemented by the engine over an Optimizer.
class RowUpdater {
 public:
  virtual ~RowUpdater() = default;
  // Called first, under the writer's lock, with the table's slot record. *record is what the record shall be after this
  // update: unchanged, with step and scalars advanced, or (nothing attached yet) the optimizer's own. A failure ends the update.
  virtual Status Begin(SlotRecord* record) = 0;
  // Told that slots which came from a checkpoint were replaced by fresh ones.
  virtual void OnSlotsReplaced(const std::string& kind_before) {}
  // rows[i]: values and slots; grads[i]: [dim]. Returns the number of rows with a non-finite value afterwards. Called from
  // several threads at once on different rows.
  virtual size_t UpdateRows(float* const* rows, const float* const* grads, size_t count) const = 0;
};

enum class NonFinitePolicy : uint8_t { kApply, kSkip, kError };

struct UpdateOptions {
  NonFinitePolicy non_finite = NonFinitePolicy::kApply;
  int64_t now_ms = 0;
};

struct UpdateReport {
  uint64_t inserted = 0, admitted = 0, updated = 0, skipped = 0, evicted = 0;
  uint64_t non_finite_rows = 0;
  bool has_non_finite_key = false;
  uint64_t non_finite_key = 0;  // smallest such key
};

// A run of rows as a snapshot hands it out and a load takes it in: columns of `count` records.
struct RowBlock {
  size_t count = 0;
  const uint64_t* keys = nullptr;
  const float* values = nullptr;           // [count, dim]
  const float* slots = nullptr;            // [count, SlotRecord::slot_floats]
  const uint32_t* use_counts = nullptr;    // null unless the table keeps counts
  const uint64_t* last_seen_ms = nullptr;  // null unless the table keeps times
  const uint32_t* use_stamps = nullptr;    // null unless the table evicts: see use_clock.h
};

// What eviction by capacity knows beside the rows' stamps.
struct EvictionState {
  bool kept = false;  // whether the table evicts
  EvictBy by = EvictBy::kLru;
  uint64_t time = 0;                          // of the clock of uses
  uint32_t row_hand = 0, candidate_hand = 0;  // where the search for victims goes on
};

// A candidate (counted, not yet admitted).
struct Candidate {
  uint64_t key;
  uint32_t count;
  uint64_t last_seen_ms;
};

class Table {
 public:
  // kInvalidArgument for dim = 0.
  static Result<std::unique_ptr<Table>> Create(TableOptions options);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const TableOptions& options() const;
  uint64_t size() const;  // rows
  uint64_t generation() const;
  // A number that changes with every change of what a checkpoint holds: rows, slots, counts, times, candidates, optimizer
  // state. No two tables and no two contents of this process have the same one. Stable while a Snapshot lives.
  uint64_t content_id() const;
  TableStats stats() const;
  // Copy of the slot record.
  SlotRecord slots() const;

  // Looks ids up. inverse[i] (may be null) receives the position of ids[i] among the distinct keys. `outputs` is called
  // once, with the number of distinct keys, before anything of its result is written; its failure is returned.
  // If expanded is not null it receives [ids.size(), dim], the row of every occurrence, and `rows` of the outputs may be null.
  // *generation receives the generation that the handles belong to.
  Status Lookup(std::span<const uint64_t> ids, const LookupOptions& options, int32_t* inverse, float* expanded,
                const std::function<Result<UniqueOutputs>(size_t unique)>& outputs, uint64_t* generation, Executor* executor) const;

  // Rows of keys (duplicates allowed) without counting: values [keys, dim]; found[i] says whether the key owns a row; the
  // others get their first row. For tools and tests.
  void Find(std::span<const uint64_t> keys, float* values, bool* found, Executor* executor) const;

  // Inserts new keys, counts, stamps, sums gradients of the same key over all parts in order and updates each row once.
  // All or nothing: on an error (capacity, byte cap, non-finite under kError, bad index) the table is as before.
  Status Update(std::span<const UpdatePart> parts, RowUpdater* updater, const UpdateOptions& options, Executor* executor,
                UpdateReport* report);

  // Inserts keys that are absent with `values` [keys, dim] (null: their first rows) and overwrites the values of present ones
  // (null: leaves them). The last of duplicate keys wins. Slots of new rows are fresh. All or nothing.
  Status Insert(std::span<const uint64_t> keys, const float* values, int64_t now_ms, Executor* executor, uint64_t* inserted);
  // Erases rows and candidates; absent keys are ignored. Returns how many rows went.
  uint64_t Erase(std::span<const uint64_t> keys);
  // Erases rows and candidates whose whole idle seconds exceed max_cold_secs. Returns how many rows went.
  uint64_t EvictCold(int64_t now_ms, Executor* executor);
  // Forgets all rows and candidates, resets slots to "nothing attached".
  void Clear();

  // A stable view: while the snapshot lives no writer runs. ForEach* calls are made in a canonical order: by shard, then by
  // hash of the key; so equal contents give equal sequences. A thread takes one snapshot of a table at a time: a second one
  // would wait for a writer that waits for the first.
  class Snapshot {
   public:
    ~Snapshot();
    uint64_t rows() const;
    uint64_t candidates() const;
    uint64_t shard_rows(int shard) const;
    uint64_t shard_candidates(int shard) const;
    SlotRecord slots() const;
    EvictionState eviction() const;
    // Calls `block` with at most max_rows rows at a time; stops at its first failure and returns it. Thread-safe for
    // different shards.
    Status ForEachBlock(int shard, size_t max_rows, const std::function<Status(const RowBlock&)>& block) const;
    Status ForEachCandidate(int shard, const std::function<Status(std::span<const Candidate>)>& block) const;

   private:
    friend class Table;
    explicit Snapshot(const Table* table);
    const Table* table_;
  };
  std::unique_ptr<Snapshot> TakeSnapshot() const;

  // Loading. Begin clears the table, takes the writer's place and sets the slot record; Add* may be called from several
  // threads; exactly one of Commit or Abort (which leaves the table empty) ends it. The destructor aborts.
  class Loader {
   public:
    ~Loader();
    // Keys must be new to the table; kDataLoss names a duplicate. `block.slots` null: fresh slots. Counts and times missing
    // in the block start at 0 and at now_ms; those the table does not keep are dropped. Use stamps count only if the eviction
    // state of BeginLoad goes by the same rule as the table; else the rows count as never used. Rows above the capacity of a
    // table that evicts go with Commit.
    Status AddRows(const RowBlock& block);
    Status AddCandidates(std::span<const Candidate> candidates);
    uint64_t Commit();  // the content_id() of what was loaded
    void Abort();

   private:
    friend class Table;
    Loader(Table* table, int64_t now_ms);
    Table* table_;
    int64_t now_ms_;
    bool take_stamps_ = false;
  };
  // expected_rows is a hint for the first size of the index.
  Result<std::unique_ptr<Loader>> BeginLoad(const SlotRecord& record, uint64_t expected_rows, int64_t now_ms,
                                            const EvictionState& eviction = {});

  // For a load of what the table holds already: true when content_id() is still `content_id`; the optimizer state then counts
  // as loaded (see SlotRecord), and nothing else changes.
  bool ConfirmLoaded(uint64_t content_id);

  struct Impl;  // table_impl.h

 private:
  explicit Table(TableOptions options);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mxrec

#endif  // MXREC_TABLE_TABLE_H_
