// Table::Update and Insert: the writing half. See table.cc for the whole picture.
//
// Update goes through five stages; only the last one changes rows.
//   merge     the distinct keys of all parts in shard order, with their counts, known handles and first rows
//   occur     which gradient rows belong to which key, in order (counting sort)
//   check     non-finite sums, if the policy wants them refused or skipped
//   plan      probe the keys whose handle is not known, find capacity and memory for the new ones, attach slots
//   carry out group by group, in parallel: insert, count, stamp, sum and update
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "mxrec/kernels/float_mode.h"
#include "mxrec/kernels/non_finite.h"
#include "mxrec/table/gradients.h"
#include "mxrec/table/new_rows.h"
#include "mxrec/table/occurrences.h"
#include "mxrec/table/scratch.h"
#include "mxrec/table/table_impl.h"
#include "mxrec/table/touch.h"
#include "mxrec/table/update_check.h"

namespace mxrec {
namespace {

constexpr uint32_t kInsertAhead = 24;   // new keys whose buckets are fetched before they are needed
constexpr uint32_t kRecordsAhead = 16;  // freed rows that are fetched before they are filled
constexpr size_t kSlice = 16384;        // keys that one task goes through
constexpr size_t kBlock = 64;           // rows touched, then handed to the updater at once

// What becomes of a key whose handle the lookup did not know (or may not be trusted).
enum class Fate : uint8_t { kHasRow, kNewRow, kAdmit, kCount, kNewCandidate, kForget };

struct UpdateScratch {
  std::vector<uint64_t> all_keys, keys;
  std::vector<uint32_t> handles, counts, pending;
  OccurrenceSort occurrences;
  std::vector<int32_t> merged_of;  // of each part's keys, one part after the other
  std::vector<const float*> first_rows;
  std::vector<Fate> fates;
  std::vector<uint8_t> skipped;
  ShardVictims row_victims, candidate_victims;
  RecordSet used_rows, used_candidates, admitted, gone;
  KeyBatch batch;
};

struct BlockScratch {
  std::vector<float> sums;
};

class Updating {
 public:
  // With `admit_all` the admission rule does not hold (Insert).
  Updating(Table::Impl* impl, std::span<const UpdatePart> parts, RowUpdater* updater, const UpdateOptions& options,
           Executor* executor, bool admit_all)
      : impl_(*impl),
        parts_(parts),
        updater_(updater),
        options_(options),
        executor_(executor),
        dim_(impl->options.dim),
        admission_(impl->admission() && !admit_all),
        admit_all_(admit_all),
        gradients_(parts, impl->options.dim) {}

  Status Run(UpdateReport* report) {
    SlotRecord record = impl_.slots;
    MXREC_RETURN_IF_ERROR(updater_->Begin(&record));
    bool attach = false;
    if (!record.optimizer_kind.empty()) {
      MXREC_ASSIGN_OR_RETURN(attach, impl_.NeedsAttach(record));
    }
    MXREC_ASSIGN_OR_RETURN(
        const PartsSummary parts,
        CheckParts(impl_.options.name, parts_, impl_.generation.load(std::memory_order_acquire), impl_.rows.allocated()));
    stale_ = attach || parts.stale;  // with an attach, rows may be about to get new handles
    some_never_trained_ = parts.some_never_trained;
    scaled_ = parts.scaled;
    gradient_count_ = parts.gradients;
    Merge();
    MXREC_RETURN_IF_ERROR(Occur());
    MXREC_RETURN_IF_ERROR(CheckFinite());
    ListPending();
    // With new slots: first see whether all will fit and take everything else, then lay the rows out: the last thing that can
    // fail. Then find them again.
    MXREC_RETURN_IF_ERROR(Plan(attach ? impl_.LayoutWith(record) : impl_.layout));
    const bool rows_move = attach && impl_.AttachMovesRows(record);
    MXREC_RETURN_IF_ERROR(Reserve(/*rows=*/!rows_move));
    if (attach) {
      const std::string kind_before = impl_.slots.optimizer_kind;
      MXREC_RETURN_IF_ERROR(impl_.Attach(record, new_rows_, impl_.evicts() ? &scratch_->row_victims : nullptr));
      if (!kind_before.empty()) updater_->OnSlotsReplaced(kind_before);
      if (rows_move) FindMovedRows();
    }
    impl_.NoteChange();
    Adopt(&record);
    if (impl_.evicts()) MakeRoom(rows_move);
    CarryOut();
    if (impl_.evicts() && evicted_any_) {
      // Before this call ends: handles of the victims are stale now, and may name new rows.
      impl_.generation.fetch_add(1, std::memory_order_release);
      impl_.TidyIndexes();
    }
    Finish(report);
    return OkStatus();
  }

 private:
  // Fills shard_begin_ for keys that come shard by shard; false when they do not.
  bool FindShards(std::span<const uint64_t> keys) {
    const size_t n = keys.size();
    const auto shard_of = [keys](size_t i) { return ShardOfHash(KeyHash(keys[i])); };
    std::atomic<bool> in_order{true};
    shard_begin_[0] = 0;
    ForGroups(executor_, n, (n + kSlice - 1) / kSlice, [&](size_t slice) {
      const size_t begin = slice * kSlice, end = std::min(n, begin + kSlice);
      uint32_t shard = begin == 0 ? 0 : shard_of(begin - 1);
      for (size_t i = begin; i < end; ++i) {
        const uint32_t s = shard_of(i);
        if (s < shard) {
          in_order = false;
          return;
        }
        while (shard < s) shard_begin_[++shard] = static_cast<uint32_t>(i);
      }
    });
    if (!in_order) return false;
    for (uint32_t shard = n == 0 ? 0 : shard_of(n - 1); shard < kShardCount;) shard_begin_[++shard] = static_cast<uint32_t>(n);
    return true;
  }

  // A handle from the lookup that still names a row.
  bool Trusted(uint32_t handle) const { return !stale_ && (handle & kCandidateBit) == 0; }

  // What is known of a key from its lookup: its row, that it takes no part, or nothing.
  uint32_t Known(uint32_t handle) const { return Trusted(handle) || handle == kNeverTrained ? handle : BucketIndex::kAbsent; }

  void Merge() {
    UpdateScratch& s = *scratch_;
    if (parts_.size() == 1 && FindShards(parts_[0].keys)) {  // as a lookup delivers them
      const UpdatePart& part = parts_[0];
      unique_ = part.keys.size();
      keys_ = part.keys.data();
      identity_ = true;
      uint32_t* handles = Ensure(&s.handles, unique_);
      uint32_t* counts = Ensure(&s.counts, unique_);
      ForGroups(executor_, unique_, kShardCount, [&](size_t shard) {
        const uint32_t begin = shard_begin_[shard], end = shard_begin_[shard + 1];
        for (uint32_t i = begin; i < end; ++i) handles[i] = Known(part.handles[i]);
        if (part.counts.empty()) {
          std::fill(counts + begin, counts + end, 1u);
        } else {
          std::copy(part.counts.begin() + begin, part.counts.begin() + end, counts + begin);
        }
      });
      return;
    }
    size_t total = 0;
    for (const UpdatePart& part : parts_) total += part.keys.size();
    uint64_t* all = Ensure(&s.all_keys, total);
    size_t at = 0;
    for (const UpdatePart& part : parts_) {
      std::copy(part.keys.begin(), part.keys.end(), all + at);
      at += part.keys.size();
    }
    s.batch.Build({all, total}, executor_);
    unique_ = s.batch.unique();
    uint64_t* keys = Ensure(&s.keys, unique_);
    uint32_t* handles = Ensure(&s.handles, unique_);
    uint32_t* counts = Ensure(&s.counts, unique_);
    const float** first_rows = Ensure(&s.first_rows, unique_);
    int32_t* merged_of = Ensure(&s.merged_of, total);
    std::fill_n(handles, unique_, kNeverTrained);  // until a part wants the key
    std::fill_n(counts, unique_, 0u);
    std::fill_n(first_rows, unique_, nullptr);
    for (const KeyGroup& group : s.batch.groups()) {
      std::copy_n(s.batch.unique_keys(group), group.unique_count, keys + group.unique_begin);
      for (uint32_t j = group.ids_begin; j < group.ids_end; ++j) {
        merged_of[s.batch.positions()[j]] = static_cast<int32_t>(group.unique_begin + s.batch.local()[j]);
      }
    }
    at = 0;
    for (const UpdatePart& part : parts_) {
      for (size_t i = 0; i < part.keys.size(); ++i) {
        const auto m = static_cast<size_t>(merged_of[at + i]);
        const uint32_t known = Known(part.handles[i]);
        if (known == kNeverTrained) continue;
        const uint64_t sum = uint64_t{counts[m]} + (part.counts.empty() ? 1 : part.counts[i]);
        counts[m] = static_cast<uint32_t>(std::min<uint64_t>(sum, 0xFFFFFFFFu));
        if (handles[m] == kNeverTrained || known != BucketIndex::kAbsent) handles[m] = known;
        if (part.handles[i] == kUnseen && part.first_rows != nullptr) first_rows[m] = part.first_rows + i * dim_;
      }
      at += part.keys.size();
    }
    keys_ = keys;
    MXREC_CHECK(FindShards({keys_, unique_})) << "a batch comes shard by shard";
  }

  const float* FirstRow(size_t m) const {
    if (!identity_) return scratch_->first_rows[m];
    const UpdatePart& part = parts_[0];
    return part.handles[m] == kUnseen && part.first_rows != nullptr ? part.first_rows + m * dim_ : nullptr;
  }

  Status Occur() {
    OccurrenceSort* sort = &scratch_->occurrences;
    MXREC_RETURN_IF_ERROR(sort->Run({.table = impl_.options.name,
                                     .parts = parts_,
                                     .merged_of = identity_ ? nullptr : scratch_->merged_of.data(),
                                     .unique = unique_,
                                     .skip_not_admitted = admission_,
                                     .some_never_trained = some_never_trained_,
                                     .scaled = scaled_},
                                    executor_));
    gradients_.SetOrder(*sort, scaled_);
    return OkStatus();
  }

  void NoteNonFinite(uint64_t key) {
    std::lock_guard<std::mutex> lock(non_finite_mutex_);
    ++non_finite_rows_;
    if (!has_non_finite_key_ || key < non_finite_key_) non_finite_key_ = key;
    has_non_finite_key_ = true;
  }

  Status CheckFinite() {
    if (options_.non_finite == NonFinitePolicy::kApply) return OkStatus();
    UpdateScratch& s = *scratch_;
    uint8_t* skipped = Ensure(&s.skipped, unique_);
    std::fill_n(skipped, unique_, uint8_t{0});
    ForGroups(executor_, unique_, kShardCount, [&](size_t shard) {
      const ScopedIeeeFloat ieee;  // sums must not depend on the thread
      ScratchLease<BlockScratch> block;
      float* sum = Ensure(&block->sums, dim_);
      for (uint32_t m = shard_begin_[shard]; m < shard_begin_[shard + 1]; ++m) {
        if (!gradients_.Has(m) || FirstNonFinite(gradients_.Sum(m, sum), dim_) == dim_) continue;
        skipped[m] = 1;
        NoteNonFinite(keys_[m]);
      }
    });
    if (has_non_finite_key_ && options_.non_finite == NonFinitePolicy::kError) {
      return InvalidArgumentError("table " + impl_.options.name + ": the gradient of id " +
                                  std::to_string(static_cast<int64_t>(non_finite_key_)) + " holds NaN or Inf (" +
                                  std::to_string(non_finite_rows_) + " such ids in this step); nothing was applied");
    }
    skipped_ = skipped;
    return OkStatus();
  }

  // The keys whose row has to be looked for, shard by shard.
  void ListPending() {
    UpdateScratch& s = *scratch_;
    const uint32_t* handles = s.handles.data();
    uint32_t* pending = Ensure(&s.pending, unique_);
    ForGroups(executor_, unique_, kShardCount, [&](size_t shard) {
      uint32_t end = shard_begin_[shard];
      for (uint32_t m = shard_begin_[shard]; m < shard_begin_[shard + 1]; ++m) {
        if (handles[m] == BucketIndex::kAbsent) pending[end++] = m;
      }
      pending_end_[shard] = end;
    });
    pending_count_ = 0;
    for (int shard = 0; shard < kShardCount; ++shard) pending_count_ += pending_end_[shard] - shard_begin_[shard];
    fates_ = Ensure(&s.fates, unique_);
  }

  // Finds the pending keys and decides their fates; fails when what is new does not fit with rows laid out like `layout`.
  Status Plan(const RowLayout& layout) {
    UpdateScratch& s = *scratch_;
    uint32_t* handles = s.handles.data();
    const uint32_t* pending = s.pending.data();
    std::array<uint64_t, kShardCount>&new_rows = new_rows_, &new_candidates = new_candidates_, &new_keys = new_keys_;
    new_rows = new_candidates = new_keys = {};
    ForGroups(executor_, pending_count_, kShardCount, [&](size_t shard) {
      const uint32_t count = pending_end_[shard] - shard_begin_[shard];
      if (count == 0) return;
      std::vector<uint64_t> keys(count);
      std::vector<uint32_t> found(count);
      const uint32_t* list = pending + shard_begin_[shard];
      for (uint32_t i = 0; i < count; ++i) keys[i] = keys_[list[i]];
      ProbeShard views[kShardCount];
      impl_.View(views, static_cast<int>(shard), static_cast<int>(shard) + 1, [](int) { return true; });
      ProbeHandles(impl_.Probe(views, keys.data(), count), found.data());
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t m = list[i];
        const bool absent = found[i] == BucketIndex::kAbsent;
        Fate fate = Fate::kNewRow;
        if (!absent && (found[i] & kCandidateBit) == 0) {
          fate = Fate::kHasRow;
        } else if (admit_all_) {
          fate = absent ? Fate::kNewRow : Fate::kAdmit;
        } else if (admission_) {
          const uint64_t before = absent ? 0 : impl_.candidate(found[i])->count;
          const bool admitted = before + s.counts[m] >= impl_.options.min_used_times;
          fate = absent ? (admitted ? Fate::kNewRow : Fate::kNewCandidate) : (admitted ? Fate::kAdmit : Fate::kCount);
        }
        handles[m] = found[i];
        fates_[m] = fate;
        new_rows[shard] += fate == Fate::kNewRow || fate == Fate::kAdmit;
        new_candidates[shard] += fate == Fate::kNewCandidate;
        new_keys[shard] += absent;
      }
    });
    uint64_t rows = 0, candidates = 0;
    for (int shard = 0; shard < kShardCount; ++shard) {
      rows += new_rows[shard];
      candidates += new_candidates[shard];
    }
    if (impl_.evicts()) return PlanEviction(layout, rows, candidates);
    const uint64_t generation = impl_.generation.load();
    if (Status status = impl_.CheckRoom(layout, rows, candidates, new_keys); !status.ok()) {
      // Candidates are what may be lost under a byte cap: without them the rows may still fit.
      if (candidates == 0 || impl_.options.max_bytes == 0) return status;
      Forget(candidates, candidates);
      MXREC_RETURN_IF_ERROR(impl_.CheckRoom(layout, rows, 0, new_keys));
    }
    // Dropping old candidates may have dropped some of ours: find out anew (rows are not dropped, so this ends).
    return impl_.generation.load() != generation ? Plan(layout) : OkStatus();
  }

  // Plan for a table that evicts: what has to go for the new rows and candidates, with rows laid out like `layout`.
  Status PlanEviction(const RowLayout& layout, uint64_t new_rows, uint64_t new_candidates) {
    UpdateScratch& s = *scratch_;
    const uint64_t limit = impl_.RowLimit(layout), rows_now = impl_.row_count.load(), candidates_now = impl_.candidate_count.load();
    // What this step uses.
    RecordSet &used_rows = s.used_rows, &used_candidates = s.used_candidates, &admitted = s.admitted;
    used_rows.Reset(impl_.rows.allocated());
    used_candidates.Reset(impl_.candidates.allocated());
    admitted.Reset(impl_.candidates.allocated());
    for (size_t m = 0; m < unique_; ++m) {
      const uint32_t handle = s.handles[m];
      if (handle == kNeverTrained || handle == BucketIndex::kAbsent) continue;
      if ((handle & kCandidateBit) == 0) {
        used_rows.Add(handle);
        continue;
      }
      used_candidates.Add(handle & ~kCandidateBit);
      if (fates_[m] == Fate::kAdmit) admitted.Add(handle & ~kCandidateBit);
    }
    if (used_rows.count() + new_rows > limit) {
      const bool by_bytes = limit < impl_.options.capacity_rows;
      return ResourceExhaustedError("table " + impl_.options.name + " holds at most " + std::to_string(limit) + " rows (" +
                                    (by_bytes ? "max_bytes = " + std::to_string(impl_.options.max_bytes)
                                              : "device_vocabulary_size = " + std::to_string(impl_.options.capacity_rows)) +
                                    "), this step alone uses " + std::to_string(used_rows.count() + new_rows) + ", " +
                                    std::to_string(new_rows) + " of them new; raise " +
                                    (by_bytes ? "max_bytes" : "device_vocabulary_size") + " or make the batch smaller");
    }
    const uint64_t row_need = rows_now + new_rows > limit ? rows_now + new_rows - limit : 0;
    row_hand_ = impl_.row_hand;
    impl_.ChooseVictims(/*of_rows=*/true, row_need, used_rows, executor_, &row_hand_, &s.row_victims);

    const uint64_t candidate_limit = impl_.CandidateLimit(layout, rows_now + new_rows - row_need);
    const uint64_t then = candidates_now + new_candidates - admitted.count();
    uint64_t candidate_need = then > candidate_limit ? then - candidate_limit : 0;
    uint64_t others = candidates_now - used_candidates.count();
    const RecordSet* spared = &used_candidates;
    if (candidate_need > others) {
      // Old ones first, then new ones, then those that this step only counts.
      const uint64_t forget = std::min(candidate_need - others, new_candidates);
      Forget(new_candidates, forget);
      candidate_need -= forget;
      if (candidate_need > others) spared = &admitted;
    }
    candidate_hand_ = impl_.candidate_hand;
    impl_.ChooseVictims(/*of_rows=*/false, candidate_need, *spared, executor_, &candidate_hand_, &s.candidate_victims);
    if (spared == &admitted) ForgetVictims();
    return OkStatus();
  }

  // Does not keep `forget` of the `total` new candidates, evenly over the batch.
  void Forget(uint64_t total, uint64_t forget) {
    UpdateScratch& s = *scratch_;
    uint64_t seen = 0;
    for (int shard = 0; shard < kShardCount; ++shard) {
      for (uint32_t i = shard_begin_[shard]; i < pending_end_[shard]; ++i) {
        const uint32_t m = s.pending[i];
        if (fates_[m] != Fate::kNewCandidate) continue;
        const bool forgotten = (seen + 1) * forget / total != seen * forget / total;
        ++seen;
        if (!forgotten) continue;
        fates_[m] = Fate::kForget;
        --new_keys_[shard];
        --new_candidates_[shard];
      }
    }
  }

  // Candidates that were to be counted and have to go.
  void ForgetVictims() {
    UpdateScratch& s = *scratch_;
    RecordSet& gone = s.gone;
    gone.Reset(impl_.candidates.allocated());
    for (const std::vector<Victim>& list : s.candidate_victims) {
      for (const Victim& victim : list) gone.Add(victim.handle & ~kCandidateBit);
    }
    for (int shard = 0; shard < kShardCount; ++shard) {
      for (uint32_t i = shard_begin_[shard]; i < pending_end_[shard]; ++i) {
        const uint32_t m = s.pending[i];
        if (fates_[m] == Fate::kCount && gone.Has(s.handles[m] & ~kCandidateBit)) fates_[m] = Fate::kForget;
      }
    }
  }

  // Erases the victims, unless rows were just laid out without them, and hands their records to the shards that want some.
  void MakeRoom(bool rows_moved) {
    UpdateScratch& s = *scratch_;
    impl_.row_hand = row_hand_;
    impl_.candidate_hand = candidate_hand_;
    for (int shard = 0; shard < kShardCount; ++shard) {
      evicted_ += s.row_victims[shard].size();
      evicted_any_ = evicted_any_ || !s.row_victims[shard].empty() || !s.candidate_victims[shard].empty();
    }
    if (!rows_moved) {
      impl_.EraseVictims(s.row_victims, executor_);
      impl_.ShareStocks(/*of_rows=*/true, new_rows_);
    }
    impl_.EraseVictims(s.candidate_victims, executor_);
    impl_.ShareStocks(/*of_rows=*/false, new_candidates_);
    impl_.TickClock();
  }

  // The handles of rows after Attach has laid them out anew; all else is as Plan found it.
  void FindMovedRows() {
    UpdateScratch& s = *scratch_;
    ForGroups(executor_, pending_count_, kShardCount, [&](size_t shard) {
      for (uint32_t i = shard_begin_[shard]; i < pending_end_[shard]; ++i) {
        const uint32_t m = s.pending[i];
        if (fates_[m] == Fate::kHasRow) s.handles[m] = *impl_.shards[shard].index.Find(keys_[m]);
      }
    });
  }

  // Index places and records for what Plan found to be new; without `rows`, the records of rows come with Attach.
  Status Reserve(bool rows) {
    if (impl_.evicts()) return ReserveForEviction(rows);
    return ForPendingShards([&](int shard) -> Status {
      if (new_rows_[shard] + new_candidates_[shard] == 0) return OkStatus();
      Shard& of = impl_.shards[shard];
      const uint32_t spare = static_cast<uint32_t>(std::min<uint64_t>(of.rows / 64, 64));
      MXREC_RETURN_IF_ERROR(impl_.GrowIndex(shard, new_keys_[shard]));
      if (rows) MXREC_RETURN_IF_ERROR(of.row_stock.Reserve(&impl_.rows, new_rows_[shard], spare));
      return of.candidate_stock.Reserve(&impl_.candidates, new_candidates_[shard], 16);
    });
  }

  // The same for a table that evicts: the index will have fewer keys by then, and all shards share the records.
  Status ReserveForEviction(bool rows) {
    const UpdateScratch& s = *scratch_;
    Status status = ForPendingShards([&](int shard) -> Status {
      const uint64_t going = s.row_victims[shard].size() + s.candidate_victims[shard].size();
      return new_keys_[shard] <= going ? OkStatus() : impl_.GrowIndex(shard, new_keys_[shard] - going);
    });
    if (status.ok() && rows) status = OfTable(impl_.ReserveTogether(/*of_rows=*/true, new_rows_, s.row_victims));
    if (status.ok()) status = OfTable(impl_.ReserveTogether(/*of_rows=*/false, new_candidates_, s.candidate_victims));
    return status;
  }

  // Runs body(shard) for all shards; returns one of the failures, if there are some.
  template <typename Body>
  Status ForPendingShards(const Body& body) {
    std::mutex mutex;
    Status failed;
    ForGroups(executor_, pending_count_, kShardCount, [&](size_t shard) {
      if (Status status = body(static_cast<int>(shard)); !status.ok()) {
        std::lock_guard<std::mutex> lock(mutex);
        failed = OfTable(std::move(status));
      }
    });
    return failed;
  }

  // A failure with the table's name.
  Status OfTable(Status status) const {
    if (status.ok()) return status;
    return Status(status.code(), "table " + impl_.options.name + ": " + std::string(status.message()));
  }

  // From here on nothing fails.
  void Adopt(SlotRecord* record) {
    std::unique_lock lock(impl_.slots_mutex);
    impl_.slots.step = record->step;
    impl_.slots.scalars = std::move(record->scalars);
    if (admit_all_ || record->optimizer_kind.empty()) return;
    impl_.slots.slot_initial_values = std::move(record->slot_initial_values);
    impl_.slots_from_load = false;  // trained by the optimizer that is attached
  }

  void CarryOut() {
    // Runs of shards with about 1,024 keys each; the same runs for any number of threads.
    const size_t groups = std::clamp<size_t>(std::bit_floor(unique_ / 1024), 1, kShardCount);
    const int shards_each = kShardCount / static_cast<int>(groups);
    ForGroups(executor_, std::max(unique_, gradient_count_), groups, [&](size_t g) {
      const ScopedIeeeFloat ieee;  // sums must not depend on the thread
      const int first = static_cast<int>(g) * shards_each, last = first + shards_each;
      const auto wanted = [this](int s) { return shard_begin_[s] != shard_begin_[s + 1]; };
      ShardLocks<true, decltype(wanted)> locks(&impl_.shards, first, last, wanted);
      for (int s = first; s < last; ++s) {
        if (pending_end_[s] != shard_begin_[s]) CarryOutPending(s);
      }
      UpdateRange(shard_begin_[first], shard_begin_[last]);
    });
  }

  void CarryOutPending(int shard_number) {
    UpdateScratch& s = *scratch_;
    Shard& shard = impl_.shards[shard_number];
    const uint64_t now = static_cast<uint64_t>(std::max<int64_t>(options_.now_ms, 0));
    uint64_t rows = 0, admitted = 0, new_candidates = 0;
    const size_t row_bytes = impl_.layout.stride_bytes();
    NewRows new_rows(&impl_, now);
    const uint32_t end = pending_end_[shard_number];
    for (uint32_t i = shard_begin_[shard_number]; i < end; ++i) {
      if (i + kInsertAhead < end) {
        shard.index.PrefetchForInsert(keys_[s.pending[i + kInsertAhead]]);
      }
      if (const uint32_t record = shard.row_stock.Peek(kRecordsAhead); record != RecordStock::kNone) {
        const char* row = impl_.rows.At(record);
        for (size_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(row + at, 1, 2);
      }
      const uint32_t m = s.pending[i];
      const uint64_t key = keys_[m];
      const uint32_t count = s.counts[m];
      switch (fates_[m]) {
        case Fate::kHasRow:
        case Fate::kForget:
          break;
        case Fate::kNewRow: {
          const uint32_t handle = shard.row_stock.Take();
          // Counted and stamped with the others in UpdateRange.
          if (const float* first_row = FirstRow(m); first_row != nullptr) {
            impl_.InitRow(impl_.rows.At(handle), key, first_row, 0, now);
          } else {
            new_rows.Add(key, impl_.rows.At(handle));
          }
          shard.index.Insert(key, handle);
          s.handles[m] = handle;
          ++rows;
          break;
        }
        case Fate::kAdmit: {
          uint32_t* place = shard.index.Find(key);
          const uint32_t candidate = *place;
          const uint32_t before = impl_.candidate(candidate)->count;
          const uint32_t handle = shard.row_stock.Take();
          impl_.InitRow(impl_.rows.At(handle), key, FirstRow(m), before, now);
          *place = handle;
          shard.candidate_stock.Give(candidate & ~kCandidateBit);
          s.handles[m] = handle;
          ++rows;
          ++admitted;
          break;
        }
        case Fate::kCount: {
          CandidateRecord* record = impl_.candidate(s.handles[m]);
          record->count = static_cast<uint32_t>(std::min<uint64_t>(uint64_t{record->count} + count, 0xFFFFFFFFu));
          record->last_seen_ms = now;
          break;
        }
        case Fate::kNewCandidate: {
          const uint32_t handle = shard.candidate_stock.Take();
          *impl_.candidate(handle) = {now, count, 0};
          shard.index.Insert(key, handle | kCandidateBit);
          s.handles[m] = handle | kCandidateBit;
          ++new_candidates;
          break;
        }
      }
    }
    new_rows.Flush();
    shard.rows += rows;
    shard.candidates += new_candidates - admitted;
    impl_.row_count.fetch_add(rows);
    impl_.candidate_count.fetch_add(new_candidates - admitted);
    inserted_.fetch_add(rows);
    admitted_.fetch_add(admitted);
  }

  void TouchBlock(uint32_t begin, uint32_t end, size_t row_bytes) const {
    const uint32_t* handles = scratch_->handles.data();
    const char* rows[kBlock];
    size_t count = 0;
    for (uint32_t m = begin; m < end; ++m) {
      if ((handles[m] & kCandidateBit) == 0) rows[count++] = impl_.rows.At(handles[m]);
    }
    for (size_t i = 0; i < count; ++i) TouchRange(rows[i], row_bytes);
    gradients_.Touch(begin, end);
  }

  void UpdateRange(uint32_t begin, uint32_t end) {
    ScratchLease<BlockScratch> scratch;
    const uint32_t* handles = scratch_->handles.data();
    const uint32_t* counts = scratch_->counts.data();
    float* sums = Ensure(&scratch->sums, kBlock * dim_);
    const RowLayout& layout = impl_.layout;
    const size_t row_bytes = layout.stride_bytes();
    const bool metadata = layout.has_counts || layout.has_times || layout.has_stamps;
    if (gradient_count_ == 0 && !metadata) return;  // an insert without values: nothing to touch again
    const uint64_t now = static_cast<uint64_t>(std::max<int64_t>(options_.now_ms, 0));
    float* rows[kBlock];
    const float* grads[kBlock];
    uint64_t updated = 0, skipped = 0;
    const auto block_end = [end](uint32_t at) { return std::min<uint32_t>(at + kBlock, end); };
    for (uint32_t at = begin; at < end; at = block_end(at)) {
      TouchBlock(at, block_end(at), row_bytes);
      size_t count = 0;
      for (uint32_t m = at; m < block_end(at); ++m) {
        if (handles[m] & kCandidateBit) continue;
        char* row = impl_.rows.At(handles[m]);
        if (metadata) {
          layout.SetCount(row, static_cast<uint32_t>(std::min<uint64_t>(uint64_t{layout.GetCount(row)} + counts[m], 0xFFFFFFFFu)));
          layout.SetTime(row, now);
          if (layout.has_stamps) layout.SetStamp(row, impl_.clock.Stamp(layout.GetStamp(row), counts[m]));
        }
        if (!gradients_.Has(m)) continue;
        if (skipped_ != nullptr && skipped_[m]) {
          ++skipped;
          continue;
        }
        rows[count] = reinterpret_cast<float*>(row);
        grads[count] = gradients_.Sum(m, sums + count * dim_);
        ++count;
      }
      if (count == 0) continue;
      updated += count;
      if (updater_->UpdateRows(rows, grads, count) == 0) continue;
      for (uint32_t m = at; m < block_end(at); ++m) {
        if ((handles[m] & kCandidateBit) || !gradients_.Has(m) || (skipped_ != nullptr && skipped_[m])) continue;
        const auto* row = reinterpret_cast<const float*>(impl_.rows.At(handles[m]));
        if (FirstNonFinite(row, dim_) != dim_) NoteNonFinite(keys_[m]);
      }
    }
    updated_.fetch_add(updated);
    skipped_count_.fetch_add(skipped);
  }

  void Finish(UpdateReport* report) {
    impl_.inserts.fetch_add(inserted_);
    impl_.admissions.fetch_add(admitted_);
    impl_.evictions.fetch_add(evicted_);
    if (!admit_all_) impl_.updates.fetch_add(updated_);
    if (report == nullptr) return;
    *report = {inserted_, admitted_, updated_, skipped_count_, evicted_, non_finite_rows_, has_non_finite_key_, non_finite_key_};
  }

  Table::Impl& impl_;
  std::span<const UpdatePart> parts_;
  RowUpdater* updater_;
  UpdateOptions options_;
  Executor* executor_;
  size_t dim_;
  bool admission_, admit_all_;
  Gradients gradients_;

  mutable ScratchLease<UpdateScratch> scratch_storage_;
  UpdateScratch* scratch_ = &*scratch_storage_;
  bool stale_ = false, identity_ = false, some_never_trained_ = false, scaled_ = false;
  size_t unique_ = 0, gradient_count_ = 0;
  const uint64_t* keys_ = nullptr;
  const uint8_t* skipped_ = nullptr;
  Fate* fates_ = nullptr;
  std::array<uint32_t, kShardCount + 1> shard_begin_{};
  // The pending keys of a shard: scratch_->pending from shard_begin_[shard] to pending_end_[shard].
  std::array<uint32_t, kShardCount> pending_end_{};
  size_t pending_count_ = 0;
  std::array<uint64_t, kShardCount> new_rows_{}, new_candidates_{}, new_keys_{};
  uint32_t row_hand_ = 0, candidate_hand_ = 0;  // of impl_, once the victims have gone
  uint64_t evicted_ = 0;
  bool evicted_any_ = false;

  std::atomic<uint64_t> inserted_{0}, admitted_{0}, updated_{0}, skipped_count_{0};
  std::mutex non_finite_mutex_;
  uint64_t non_finite_rows_ = 0, non_finite_key_ = 0;
  bool has_non_finite_key_ = false;
};

// Overwrites the values of rows; what Insert updates with.
class OverwriteValues final : public RowUpdater {
 public:
  explicit OverwriteValues(size_t dim) : dim_(dim) {}
  Status Begin(SlotRecord*) override { return OkStatus(); }
  size_t UpdateRows(float* const* rows, const float* const* values, size_t count) const override {
    for (size_t i = 0; i < count; ++i) std::memcpy(rows[i], values[i], dim_ * sizeof(float));
    return 0;
  }

 private:
  size_t dim_;
};

}  // namespace

Status Table::Update(std::span<const UpdatePart> parts, RowUpdater* updater, const UpdateOptions& options, Executor* executor,
                     UpdateReport* report) {
  std::unique_lock writer(impl_->writer_mutex);
  return Updating(impl_.get(), parts, updater, options, executor, false).Run(report);
}

Status Table::Insert(std::span<const uint64_t> keys, const float* values, int64_t now_ms, Executor* executor, uint64_t* inserted) {
  // An update whose "gradients" overwrite: of repeated keys the last one's values.
  const size_t dim = impl_->options.dim;
  if (keys.size() > 0x7FFFFFFFu) {
    return InvalidArgumentError("table " + impl_->options.name + ": insert takes at most 2147483647 keys");
  }
  KeyBatch batch;
  batch.Build(keys, executor);
  std::vector<uint64_t> distinct(batch.unique());
  std::vector<float> rows(values != nullptr ? batch.unique() * dim : 0);
  for (const KeyGroup& group : batch.groups()) {
    std::copy_n(batch.unique_keys(group), group.unique_count, distinct.data() + group.unique_begin);
    if (values == nullptr) continue;
    for (uint32_t j = group.ids_begin; j < group.ids_end; ++j) {
      std::copy_n(values + batch.positions()[j] * dim, dim, rows.data() + (group.unique_begin + batch.local()[j]) * dim);
    }
  }
  const std::vector<uint32_t> handles(distinct.size(), kUnseen), counts(distinct.size(), 0);
  UpdatePart part;
  part.keys = distinct;
  part.handles = handles;
  part.counts = counts;
  part.first_rows = part.values = values != nullptr ? rows.data() : nullptr;
  part.dense = values != nullptr;
  OverwriteValues updater(dim);
  UpdateOptions options;
  options.now_ms = now_ms;
  UpdateReport report;
  std::unique_lock writer(impl_->writer_mutex);
  MXREC_RETURN_IF_ERROR(Updating(impl_.get(), {&part, 1}, &updater, options, executor, true).Run(&report));
  if (inserted != nullptr) *inserted = report.inserted;
  return OkStatus();
}

}  // namespace mxrec
