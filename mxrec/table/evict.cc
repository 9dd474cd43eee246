// Eviction by capacity: which rows go when a step's new ones do not fit, and the bookkeeping around it.
//
// Every row has a stamp (use_clock.h); the smallest goes first, the key decides between equal ones. Exact order over a large
// table would cost a list through all rows, two cache misses for every row that is used. Instead the hash order of keys is a
// circle, the same one in every shard, and a hand goes round it: a step that needs n places looks at the next window, about
// 4 n rows and at least 1,024, and takes the n oldest of those. Work and memory are proportional to n in every single step (no
// sweep, no backlog), a table of up to 1,024 rows is in exact order, and in a larger one a row goes when it is among the oldest
// quarter of its surroundings, which the hand visits four times in the time that it takes to replace all rows.
//
// What is in a window depends on hashes alone, not on where rows and index entries lie. So victims are a function of contents,
// stamps and hand: the same for any number of threads, and after a save and a load, which keep them.
//
// Limits are functions of the options and the row's width, for the same reason. Under max_bytes an index is charged with the
// most that this number of keys can need, whatever size it has by history; should it really be larger, it is rebuilt.
// Under a byte cap with an admission rule, candidates use what rows leave free and yield to rows, but a sixteenth of the cap stays
// theirs: else nothing new could ever be admitted to a full table.
//
// Rows that go hand their records to the shards that want some (ShareStocks), so a full table takes no further memory.
#include <algorithm>
#include <mutex>
#include <utility>

#include "mxrec/table/table_impl.h"

namespace mxrec {
namespace {

constexpr uint64_t kLooksPerVictim = 4;
constexpr uint64_t kLeastWindow = 1024;
constexpr uint64_t kCandidateShare = 16;  // one in so many bytes of the cap
constexpr uint64_t kCircle = uint64_t{1} << 32;
constexpr size_t kAhead = 16;

// The largest n in [0, most] for which fits(n), given that fits is true up to some number; 0 if for none.
template <typename Fits>
uint64_t Largest(uint64_t most, Fits fits) {
  uint64_t low = 0;
  while (low < most) {
    const uint64_t middle = most - (most - low) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      most = middle - 1;
    }
  }
  return low;
}

uint64_t IndexCharge(uint64_t keys) { return BucketIndex::MostBuckets(keys, kShardCount) * sizeof(Bucket); }

}  // namespace

uint64_t Table::Impl::RowLimit(const RowLayout& as) const {
  if (options.max_bytes == 0) return options.capacity_rows;
  const uint64_t cap = options.max_bytes - (admission() ? options.max_bytes / kCandidateShare : 0);
  const uint64_t most = std::min(options.capacity_rows, cap / as.stride_bytes());
  return Largest(most, [&](uint64_t rows) { return rows * as.stride_bytes() + IndexCharge(rows) <= cap; });
}

uint64_t Table::Impl::CandidateLimit(const RowLayout& as, uint64_t rows_then) const {
  if (options.max_bytes == 0) return UINT64_MAX;
  return Largest(options.max_bytes / sizeof(CandidateRecord), [&](uint64_t n) {
    return rows_then * as.stride_bytes() + n * sizeof(CandidateRecord) + IndexCharge(rows_then + n) <= options.max_bytes;
  });
}

void Table::Impl::ChooseVictims(bool of_rows, uint64_t need, const RecordSet& spared, Executor* executor, uint32_t* hand,
                                ShardVictims* victims) const {
  for (std::vector<Victim>& list : *victims) list.clear();
  if (need == 0) return;
  const uint64_t eligible = (of_rows ? row_count.load() : candidate_count.load()) - spared.count();
  MXREC_CHECK(eligible >= need) << eligible << " " << need;
  const uint64_t window = std::max(need * kLooksPerVictim, kLeastWindow);
  const uint64_t stretch = window >= eligible ? kCircle : window * kCircle / eligible + 1;
  const auto look = [&](size_t s, uint64_t first, uint64_t end) {  // places [first, end) of the circle
    std::vector<Victim>& found = (*victims)[s];
    const size_t begin = found.size();
    const Shard& shard = shards[s];
    shard.index.ForEachPlacedIn(static_cast<uint32_t>(first), static_cast<uint32_t>(end - 1), [&](uint64_t key, uint32_t handle) {
      if (((handle & kCandidateBit) == 0) != of_rows || spared.Has(handle & ~kCandidateBit)) return;
      found.push_back({0, key, handle});
    });
    const size_t offset = of_rows ? layout.stamp_offset() : 0;
    const auto record = [&](const Victim& v) { return of_rows ? rows.At(v.handle) : candidates.At(v.handle & ~kCandidateBit); };
    for (size_t i = begin; i < std::min(begin + kAhead, found.size()); ++i) __builtin_prefetch(record(found[i]) + offset);
    for (size_t i = begin; i < found.size(); ++i) {
      if (i + kAhead < found.size()) __builtin_prefetch(record(found[i + kAhead]) + offset);
      found[i].age = of_rows ? layout.GetStamp(rows.At(found[i].handle)) : candidate(found[i].handle)->last_seen_ms;
    }
  };
  uint64_t looked = 0, found = 0;
  while (found < need && looked < kCircle) {
    const uint64_t length = std::min(stretch, kCircle - looked);
    const uint64_t first = static_cast<uint32_t>(*hand + looked);
    const uint64_t end = first + length;
    ForGroups(executor, window, kShardCount, [&](size_t s) {
      look(s, first, std::min(end, kCircle));
      if (end > kCircle) look(s, 0, end - kCircle);
    });
    looked += length;
    found = 0;
    for (const std::vector<Victim>& list : *victims) found += list.size();
  }
  MXREC_CHECK(found >= need) << found << " " << need;
  *hand = static_cast<uint32_t>(*hand + looked);
  if (found == need) return;
  std::vector<Victim> all;
  all.reserve(found);
  for (const std::vector<Victim>& list : *victims) all.insert(all.end(), list.begin(), list.end());
  std::nth_element(all.begin(), all.begin() + static_cast<ptrdiff_t>(need), all.end());
  const Victim stays = all[need];  // the first that stays
  for (std::vector<Victim>& list : *victims) std::erase_if(list, [&stays](const Victim& v) { return !(v < stays); });
}

void Table::Impl::EraseVictimsLocked(int shard_number, const std::vector<Victim>& victims) {
  Shard& shard = shards[shard_number];
  for (size_t i = 0; i < victims.size(); ++i) {
    if (i + kAhead < victims.size()) shard.index.PrefetchForInsert(victims[i + kAhead].key);
    bool was_row = false;
    EraseKey(&shard, victims[i].key, &was_row);
  }
}

void Table::Impl::EraseVictims(const ShardVictims& victims, Executor* executor) {
  size_t count = 0;
  for (const std::vector<Victim>& list : victims) count += list.size();
  if (count == 0) return;
  ForGroups(executor, count, kShardCount, [&](size_t s) {
    if (victims[s].empty()) return;
    std::unique_lock lock(shards[s].mutex);
    EraseVictimsLocked(static_cast<int>(s), victims[s]);
  });
}

Status Table::Impl::ReserveTogether(bool of_rows, const std::array<uint64_t, kShardCount>& wanted, const ShardVictims& victims) {
  std::array<uint64_t, kShardCount> lacks{};
  uint64_t lack = 0, surplus = 0;
  for (int s = 0; s < kShardCount; ++s) {
    const RecordStock& stock = shards[s].stock(of_rows);
    const uint64_t has = stock.available() + victims[s].size();
    lacks[s] = wanted[s] > has ? wanted[s] - has : 0;
    lack += lacks[s];
    surplus += has > wanted[s] ? has - wanted[s] : 0;
  }
  for (int s = 0; s < kShardCount && lack > surplus; ++s) {
    if (lacks[s] == 0) continue;
    RecordStock& stock = shards[s].stock(of_rows);
    const uint64_t take = std::min(lacks[s], lack - surplus);
    MXREC_RETURN_IF_ERROR(stock.Reserve(of_rows ? &rows : &candidates, stock.available() + take, 0));
    lack -= take;
  }
  return OkStatus();
}

void Table::Impl::ShareStocks(bool of_rows, const std::array<uint64_t, kShardCount>& wanted) {
  const auto surplus = [&](int s) {
    const uint64_t has = shards[s].stock(of_rows).available();
    return has > wanted[s] ? has - wanted[s] : 0;
  };
  int giver = 0;
  for (int s = 0; s < kShardCount; ++s) {
    RecordStock& taker = shards[s].stock(of_rows);
    while (taker.available() < wanted[s]) {
      while (giver < kShardCount && surplus(giver) == 0) ++giver;
      MXREC_CHECK(giver < kShardCount) << "reserved before";
      const uint64_t count = std::min(wanted[s] - taker.available(), surplus(giver));
      for (uint64_t i = 0; i < count; ++i) taker.Give(shards[giver].stock(of_rows).Take());
    }
  }
}

void Table::Impl::TidyIndexes() {
  for (int s = 0; s < kShardCount; ++s) RebuildIfWanted(s);
  if (options.max_bytes == 0) return;
  const uint64_t charge = IndexCharge(row_count.load() + candidate_count.load());
  for (int s = 0; s < kShardCount && index_bytes.load() > charge; ++s) Rebuild(s);
}

void Table::Impl::TickClock() {
  clock.Tick();
  const uint32_t excess = clock.Excess();
  if (excess == 0) return;
  for (Shard& shard : shards) {
    shard.index.ForEach([&](uint64_t, uint32_t handle) {
      if (handle & kCandidateBit) return;
      char* row = rows.At(handle);
      const uint32_t stamp = layout.GetStamp(row);
      layout.SetStamp(row, stamp > excess ? stamp - excess : UseClock::kNeverUsed);
    });
  }
  clock.GoBack(excess);
}

void Table::Impl::TrimToCapacity() {
  const RecordSet none;
  ShardVictims victims;
  const uint64_t row_limit = RowLimit(layout), rows_now = row_count.load();
  if (rows_now > row_limit) {
    ChooseVictims(/*of_rows=*/true, rows_now - row_limit, none, nullptr, &row_hand, &victims);
    // Laid out anew, the rows that stay give the memory of the others back. Without memory for that, the others just go.
    if (!Layout({}, &victims, /*keep_slots=*/true).ok()) EraseVictims(victims, nullptr);
    evictions.fetch_add(rows_now - row_limit);
    generation.fetch_add(1, std::memory_order_release);
  }
  const uint64_t candidate_limit = CandidateLimit(layout, row_count.load()), candidates_now = candidate_count.load();
  if (candidates_now > candidate_limit) {
    ChooseVictims(/*of_rows=*/false, candidates_now - candidate_limit, none, nullptr, &candidate_hand, &victims);
    EraseVictims(victims, nullptr);
    generation.fetch_add(1, std::memory_order_release);
  }
  TidyIndexes();
}

}  // namespace mxrec
