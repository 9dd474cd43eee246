// Eviction by capacity: which rows go, how much memory there is, and that nothing else may decide.
#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/table/table.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

using testing::Contents;
using testing::CopyInto;
using testing::Found;
using testing::Has;
using ::testing::HasSubstr;
using testing::LookUp;
using testing::MakeTable;
using testing::PartOf;
using testing::Range;
using testing::RowOf;
using testing::SlottedStep;
using testing::SmallOptions;
using testing::Spread;
using testing::SubtractGradient;
using testing::Train;

TableOptions Evicting(uint32_t dim, uint64_t capacity, EvictBy by = EvictBy::kLru) {
  TableOptions options = SmallOptions(dim);
  options.capacity_policy = CapacityPolicy::kEvict;
  options.capacity_rows = capacity;
  options.evict_by = by;
  return options;
}

constexpr uint64_t kNoRowLimit = std::numeric_limits<uint32_t>::max();

uint64_t Bytes(const TableStats& stats) {
  return stats.bytes_index + stats.bytes_rows + stats.bytes_slots + stats.bytes_candidates;
}

size_t Present(const Table& table, const std::vector<uint64_t>& ids) {
  const auto found = std::make_unique<bool[]>(ids.size());
  table.Find(ids, nullptr, found.get(), nullptr);
  return static_cast<size_t>(std::count(found.get(), found.get() + ids.size(), true));
}

// The first float of each row's slots.
std::map<uint64_t, float> Slots(const Table& table) {
  std::map<uint64_t, float> slots;
  const auto snapshot = table.TakeSnapshot();
  const size_t width = snapshot->slots().slot_floats(table.options().dim);
  for (int s = 0; s < kShardCount; ++s) {
    EXPECT_TRUE(snapshot
                    ->ForEachBlock(s, 100,
                                   [&](const RowBlock& block) {
                                     for (size_t i = 0; i < block.count; ++i) slots[block.keys[i]] = block.slots[i * width];
                                     return OkStatus();
                                   })
                    .ok());
  }
  return slots;
}

std::vector<uint64_t> Joined(std::vector<uint64_t> a, const std::vector<uint64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(CapacityTest, TheRowsThatWereNotUsedForTheLongestTimeGo) {
  auto table = MakeTable(Evicting(2, 100));
  SubtractGradient updater(2);
  ASSERT_TRUE(Train(table.get(), Range(0, 100), 1.0f, &updater).ok());
  EXPECT_EQ(table->stats().evictions, 0u);
  ASSERT_TRUE(Train(table.get(), Range(0, 50), 1.0f, &updater).ok());
  UpdateReport report;
  ASSERT_TRUE(Train(table.get(), Range(100, 140), 1.0f, &updater, {}, nullptr, &report).ok());
  EXPECT_EQ(report.inserted, 40u);
  EXPECT_EQ(report.evicted, 40u);
  EXPECT_EQ(table->size(), 100u);
  EXPECT_EQ(Present(*table, Range(0, 50)), 50u);
  EXPECT_EQ(Present(*table, Range(50, 100)), 10u);
  EXPECT_EQ(Present(*table, Range(100, 140)), 40u);
  ASSERT_TRUE(Train(table.get(), Range(200, 230), 1.0f, &updater).ok());  // the ten, and twenty of the fifty
  EXPECT_EQ(Present(*table, Range(50, 100)), 0u);
  EXPECT_EQ(Present(*table, Range(0, 50)), 30u);
  EXPECT_EQ(Present(*table, Range(100, 140)), 40u);
  EXPECT_EQ(table->stats().evictions, 70u);
  EXPECT_EQ(table->stats().erases, 0u);
}

TEST(CapacityTest, ARowThatComesBackStartsAfresh) {
  auto table = MakeTable(Evicting(1, 2));
  SlottedStep step("k", 1, 1);
  const std::vector<float> first = RowOf(*table, 1);
  ASSERT_TRUE(Train(table.get(), {1, 2}, 1.0f, &step).ok());
  ASSERT_TRUE(Train(table.get(), {3, 4}, 1.0f, &step).ok());
  EXPECT_FALSE(Has(*table, 1));
  ASSERT_TRUE(Train(table.get(), {1}, 0.0f, &step).ok());
  EXPECT_EQ(RowOf(*table, 1), first);
  for (const auto& [key, slot] : Slots(*table)) EXPECT_EQ(slot, key == 1 ? 0.5f : 1.5f);
}

TEST(CapacityTest, TheRowsThatWereUsedLeastGoAndOldUsesCountLess) {
  TableOptions options = Evicting(1, 100, EvictBy::kLfu);
  options.evict_half_life = 100;
  auto table = MakeTable(options);
  SubtractGradient updater(1);
  for (int step = 0; step < 20; ++step) ASSERT_TRUE(Train(table.get(), Range(0, 10), 1.0f, &updater).ok());
  // 20 uses each. Eight passes of other ids, once each, do not drive them out; LRU would with the second.
  uint64_t next = 1000;
  for (int step = 0; step < 16; ++step, next += 45) {
    ASSERT_TRUE(Train(table.get(), Range(next, next + 45), 1.0f, &updater).ok());
  }
  EXPECT_EQ(Present(*table, Range(0, 10)), 10u);
  // 600 updates later their 20 uses weigh 20 / 64.
  for (int step = 0; step < 600; ++step, ++next) ASSERT_TRUE(Train(table.get(), {next}, 1.0f, &updater).ok());
  EXPECT_EQ(Present(*table, Range(0, 10)), 0u);
}

TEST(CapacityTest, OccurrencesWithinAStepCountAsUses) {
  auto table = MakeTable(Evicting(1, 4, EvictBy::kLfu));
  SubtractGradient updater(1);
  ASSERT_TRUE(Train(table.get(), {1, 2, 2, 2, 3, 4, 4}, 1.0f, &updater).ok());
  ASSERT_TRUE(Train(table.get(), {5, 5, 5, 5, 5, 6, 6, 6, 6, 6}, 1.0f, &updater).ok());
  EXPECT_TRUE(Has(*table, 2));
  EXPECT_TRUE(Has(*table, 4));
}

TEST(CapacityTest, D08ATableTakesJustItsCapacity) {
  for (const bool adversarial : {false, true}) {
    auto table = MakeTable(Evicting(1, 1024));
    SubtractGradient updater(1);
    std::vector<uint64_t> ids;
    for (uint64_t id = 0; ids.size() < 1024; ++id) {
      if (!adversarial || Mix64(id) >> 58 == 5) ids.push_back(id);  // all in one shard
    }
    ASSERT_TRUE(Train(table.get(), ids, 1.0f, &updater).ok());
    EXPECT_EQ(Present(*table, ids), 1024u);
    EXPECT_EQ(table->stats().evictions, 0u);
    ASSERT_TRUE(Train(table.get(), {~uint64_t{0}}, 1.0f, &updater).ok());
    EXPECT_EQ(table->size(), 1024u);
  }
}

// Shards that are empty again must cost nothing: with 64 of them a bucket each is more than such caps.
TEST(CapacityTest, ACapOfAFewRowsHoldsToo) {
  for (const uint64_t cap : {300, 1000, 3000, 6000, 8000}) {
    for (const uint32_t min_used_times : {1, 2}) {
      TableOptions options = Evicting(4, kNoRowLimit);
      options.max_bytes = cap;
      options.min_used_times = min_used_times;
      options.keep_counts = min_used_times > 1;
      auto table = MakeTable(options);
      SlottedStep step("k", 4, 2);
      for (uint64_t id = 0; id < 500; ++id) {
        ASSERT_TRUE(Train(table.get(), {Mix64(id), Mix64(id)}, 1.0f, &step).ok()) << cap << " " << id;
        ASSERT_LE(Bytes(table->stats()), cap) << id;
        ASSERT_TRUE(Has(*table, Mix64(id))) << cap;
      }
      auto source = MakeTable(SmallOptions(4));
      ASSERT_TRUE(Train(source.get(), Spread(0, 2000), 1.0f, &step).ok());
      auto loaded = MakeTable(options);
      ASSERT_TRUE(CopyInto(*source, loaded.get()).ok());
      EXPECT_GT(loaded->size(), 0u) << cap;
      EXPECT_LE(Bytes(loaded->stats()), cap);
    }
  }
}

TEST(CapacityTest, AStepThatAloneNeedsMoreThanFitsFailsAndChangesNothing) {
  TableOptions options = Evicting(2, 100);
  options.keep_counts = true;
  auto table = MakeTable(options);
  SubtractGradient updater(2);
  ASSERT_TRUE(Train(table.get(), Range(0, 60), 1.0f, &updater).ok());
  const std::string before = Contents(*table);
  const uint64_t generation = table->generation(), content = table->content_id();
  for (const auto& ids : {Range(1000, 1250), Range(0, 101), Joined(Range(0, 60), Range(1000, 1041))}) {
    const Status status = Train(table.get(), ids, 1.0f, &updater);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("table user holds at most 100 rows (device_vocabulary_size = 100), this step alone uses "));
    EXPECT_EQ(Contents(*table), before);
    EXPECT_EQ(table->generation(), generation);
    EXPECT_EQ(table->content_id(), content);
  }
  EXPECT_EQ(table->stats().evictions, 0u);
  ASSERT_TRUE(Train(table.get(), Joined(Range(0, 60), Range(1000, 1040)), 1.0f, &updater).ok());
  ASSERT_TRUE(Train(table.get(), Joined(Range(0, 60), Range(2000, 2040)), 1.0f, &updater).ok());
  EXPECT_EQ(Present(*table, Joined(Range(0, 60), Range(2000, 2040))), 100u);
}

TEST(CapacityTest, InsertEvictsToo) {
  auto table = MakeTable(Evicting(1, 10));
  uint64_t inserted = 0;
  ASSERT_TRUE(table->Insert(Range(0, 10), nullptr, 0, nullptr, &inserted).ok());
  ASSERT_TRUE(table->Insert(Range(0, 5), nullptr, 0, nullptr, &inserted).ok());  // an insert is a use
  ASSERT_TRUE(table->Insert(Range(20, 25), nullptr, 0, nullptr, &inserted).ok());
  EXPECT_EQ(inserted, 5u);
  EXPECT_EQ(Present(*table, Joined(Range(0, 5), Range(20, 25))), 10u);
  EXPECT_EQ(table->Insert(Range(0, 11), nullptr, 0, nullptr, &inserted).code(), StatusCode::kResourceExhausted);
}

// Handles of a lookup that an eviction has overtaken must not write into rows of other ids.
TEST(CapacityTest, HandlesFromBeforeAnEvictionAreNotTrusted) {
  auto table = MakeTable(Evicting(1, 2));
  SubtractGradient updater(1);
  ASSERT_TRUE(Train(table.get(), {1, 2}, 0.0f, &updater).ok());
  const Found old = LookUp(*table, {1});
  ASSERT_EQ(old.handles[0] >> 31, 0u);
  ASSERT_TRUE(Train(table.get(), {3, 4}, 0.0f, &updater).ok());
  EXPECT_NE(table->generation(), old.generation);
  const std::vector<float> first3 = RowOf(*table, 3), first4 = RowOf(*table, 4), first1 = RowOf(*table, 1);
  const std::vector<float> gradient = {1.0f};
  const UpdatePart part = PartOf(old, gradient);
  ASSERT_TRUE(table->Update({&part, 1}, &updater, {}, nullptr, nullptr).ok());
  EXPECT_EQ(RowOf(*table, 1)[0], first1[0] - 1.0f);
  EXPECT_EQ(RowOf(*table, 3), first3);
  EXPECT_EQ(RowOf(*table, 4), first4);
  EXPECT_EQ(table->size(), 2u);
}

// A stream with ten times more ids than fit: half of each step's ids are fresh, the others come again.
struct Stream {
  std::mt19937_64 random{1};
  uint64_t fresh = 0;
  std::vector<uint64_t> Next(size_t count) {
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < count; ++i) {
      const bool again = fresh > 0 && i % 2 == 0;
      ids.push_back(Mix64(again ? fresh - 1 - std::min<uint64_t>(fresh - 1, random() % 3000) : fresh++));
    }
    return ids;
  }
};

struct StreamCase {
  const char* name;
  EvictBy by;
  uint64_t capacity, max_bytes;
  uint32_t min_used_times;
};

class CapacityStreamTest : public ::testing::TestWithParam<StreamCase> {
 protected:
  static TableOptions Options() {
    TableOptions options = Evicting(4, GetParam().capacity, GetParam().by);
    options.max_bytes = GetParam().max_bytes;
    options.min_used_times = GetParam().min_used_times;
    options.keep_counts = options.min_used_times > 1;
    options.evict_half_life = 20;
    return options;
  }
};

TEST_P(CapacityStreamTest, MemoryIsNeverAboveTheLimitAndAStepsOwnIdsAreThere) {
  auto table = MakeTable(Options());
  SlottedStep step("k", 4, 2);
  Stream stream;
  uint64_t most_rows = 0, most_bytes = 0;
  for (int i = 0; i < 300; ++i) {
    const std::vector<uint64_t> ids = stream.Next(300);
    UpdateOptions options;
    options.now_ms = i;
    ASSERT_TRUE(Train(table.get(), ids, 1.0f, &step, options).ok());
    const TableStats stats = table->stats();
    ASSERT_LE(stats.rows, GetParam().capacity);
    ASSERT_LE(Bytes(stats), GetParam().max_bytes != 0 ? GetParam().max_bytes : UINT64_MAX) << "step " << i;
    ASSERT_GE(Present(*table, ids), GetParam().min_used_times <= 1 ? ids.size() : 0);
    ASSERT_LT(stats.mean_probe_length, 2.0) << "evictions must not wear the index out";
    most_rows = std::max(most_rows, stats.rows);
    most_bytes = std::max(most_bytes, Bytes(stats));
  }
  const TableStats stats = table->stats();
  EXPECT_GE(stream.fresh, 45000u);
  EXPECT_GT(stats.evictions, GetParam().min_used_times > 1 ? 0u : 9 * most_rows);
  EXPECT_EQ(stats.inserts - stats.evictions, stats.rows);
  EXPECT_GT(most_bytes, GetParam().max_bytes * 85 / 100) << "the cap is made use of";
}

TEST_P(CapacityStreamTest, ContentsDoNotDependOnThreads) {
  const auto run = [](int threads) {
    ThreadPool pool(threads);
    TableOptions larger = Options();  // large enough for the work to be shared
    larger.capacity_rows = std::min(larger.capacity_rows * 6, kNoRowLimit);
    larger.max_bytes *= 6;
    auto table = MakeTable(larger);
    SlottedStep step("k", 4, 1);
    Stream stream;
    for (int i = 0; i < 12; ++i) {
      UpdateOptions options;
      options.now_ms = i;
      EXPECT_TRUE(Train(table.get(), stream.Next(12'000), 1.0f, &step, options, &pool).ok());
    }
    return Contents(*table) + std::to_string(table->stats().evictions);
  };
  const std::string one = run(1);
  for (const int threads : {2, 4, 16}) EXPECT_TRUE(run(threads) == one) << threads;
}

TEST_P(CapacityStreamTest, AfterSaveAndLoadTheSameRowsGo) {
  auto table = MakeTable(Options());
  SlottedStep step("k", 4, 1), step_again("k", 4, 1);
  Stream stream;
  UpdateOptions options;
  for (int i = 0; i < 60; ++i) {
    options.now_ms = i;
    ASSERT_TRUE(Train(table.get(), stream.Next(500), 1.0f, &step, options).ok());
  }
  auto again = MakeTable(Options());
  ASSERT_TRUE(CopyInto(*table, again.get()).ok());
  ASSERT_TRUE(Contents(*again) == Contents(*table));
  for (int i = 60; i < 100; ++i) {
    options.now_ms = i;
    const std::vector<uint64_t> ids = stream.Next(500);
    UpdateReport report, report_again;
    ASSERT_TRUE(Train(table.get(), ids, 1.0f, &step, options, nullptr, &report).ok());
    ASSERT_TRUE(Train(again.get(), ids, 1.0f, &step_again, options, nullptr, &report_again).ok());
    EXPECT_EQ(report.evicted, report_again.evicted);
    ASSERT_TRUE(Contents(*again) == Contents(*table)) << "step " << i;
  }
  EXPECT_GT(table->stats().evictions, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, CapacityStreamTest,
                         ::testing::Values(StreamCase{"LruRows", EvictBy::kLru, 4000, 0, 0},
                                           StreamCase{"LfuRows", EvictBy::kLfu, 4000, 0, 0},
                                           StreamCase{"LruBytes", EvictBy::kLru, kNoRowLimit, 300'000, 0},
                                           StreamCase{"LfuBytes", EvictBy::kLfu, kNoRowLimit, 300'000, 0},
                                           StreamCase{"LruBytesAdmission", EvictBy::kLru, kNoRowLimit, 300'000, 2},
                                           StreamCase{"LfuBothAdmission", EvictBy::kLfu, 2000, 200'000, 3}),
                         [](const auto& info) { return std::string(info.param.name); });

// Ids that come in every second step stay, with all that they were trained, while everything else flows through.
TEST(CapacityTest, HotIdsThatAreTrainedStay) {
  for (const EvictBy by : {EvictBy::kLru, EvictBy::kLfu}) {
    auto table = MakeTable(Evicting(1, 10'000, by));
    SubtractGradient updater(1);
    const std::vector<uint64_t> hot = Spread(0, 2000);
    uint64_t cold = 1'000'000;
    std::vector<float> first;
    for (const uint64_t id : hot) first.push_back(RowOf(*table, id)[0]);
    for (int i = 0; i < 200; ++i, cold += 600) {
      const std::vector<uint64_t> fresh = Spread(cold, cold + 600);
      ASSERT_TRUE(Train(table.get(), i % 2 == 0 ? Joined(hot, fresh) : fresh, 1.0f, &updater).ok());
    }
    EXPECT_EQ(table->stats().inserts, 2000u + 200 * 600) << "no hot id was ever inserted again";
    EXPECT_EQ(Present(*table, hot), 2000u);
    size_t right = 0;
    for (size_t i = 0; i < hot.size(); ++i) {
      float expected = first[i];
      for (int n = 0; n < 100; ++n) expected -= 1.0f;
      right += RowOf(*table, hot[i])[0] == expected;
    }
    EXPECT_EQ(right, hot.size());
  }
}

// In a table too large for exact order a row lives about as long as it takes to replace all rows.
TEST(CapacityTest, InALargeTableRowsGoNearTheEndOfTheirLife) {
  auto table = MakeTable(Evicting(1, 50'000));
  SubtractGradient updater(1);
  uint64_t next = 0;
  for (int i = 0; i < 300; ++i, next += 1000) ASSERT_TRUE(Train(table.get(), Spread(next, next + 1000), 1.0f, &updater).ok());
  // 50 steps fill the table.
  EXPECT_EQ(Present(*table, Spread(next - 30'000, next)), 30'000u);
  EXPECT_LT(Present(*table, Spread(0, next - 80'000)), 100u);
}

TEST(CapacityTest, PaddingIdsAreNotSpared) {
  auto table = MakeTable(Evicting(1, 2));
  SubtractGradient updater(1);
  ASSERT_TRUE(Train(table.get(), {7}, 1.0f, &updater).ok());
  ASSERT_TRUE(Train(table.get(), {8}, 1.0f, &updater).ok());
  const std::vector<uint64_t> never = {7};
  LookupOptions lookup;
  lookup.never_trained = never;
  const Found found = LookUp(*table, {7, 9}, lookup);
  const std::vector<float> gradients(2, 1.0f);
  const UpdatePart part = PartOf(found, gradients);
  ASSERT_TRUE(table->Update({&part, 1}, &updater, {}, nullptr, nullptr).ok());
  EXPECT_FALSE(Has(*table, 7));
  EXPECT_TRUE(Has(*table, 9));
}

TEST(CapacityTest, CandidatesGoBeforeRowsAndAFullTableStillAdmits) {
  TableOptions options = Evicting(4, kNoRowLimit);
  options.keep_counts = true;
  options.min_used_times = 2;
  options.max_bytes = 100'000;
  auto table = MakeTable(options);
  SubtractGradient updater(4);
  UpdateOptions update;
  const auto train = [&](const std::vector<uint64_t>& ids) {
    ++update.now_ms;
    const Status status = Train(table.get(), ids, 0.0f, &updater, update);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_LE(Bytes(table->stats()), options.max_bytes);
  };
  const auto twice = [](const std::vector<uint64_t>& ids) { return Joined(ids, ids); };
  for (uint64_t i = 0; i < 40; ++i) train(Spread(i * 100, i * 100 + 100));  // candidates only: they fill the cap
  const uint64_t candidates = table->stats().candidates;
  EXPECT_GT(candidates, 2000u);
  EXPECT_EQ(Present(*table, Spread(0, 4000)), 0u);
  train(Spread(3900, 4000));  // the last ones were still counted
  EXPECT_EQ(table->size(), 100u);
  uint64_t next = 10'000;
  for (; table->stats().evictions == 0; next += 100) train(twice(Spread(next, next + 100)));
  EXPECT_LT(table->stats().candidates, candidates / 8) << "rows go only when candidates are down to their share";
  EXPECT_GT(table->stats().candidates, 0u);
  // Full of rows. Ids seen once each in two steps are admitted all the same.
  const std::vector<uint64_t> late = Spread(90'000, 90'050);
  train(late);
  train(late);
  EXPECT_EQ(Present(*table, late), 50u);
  // More new ids than candidates fit: some are counted.
  train(Spread(200'000, 205'000));
  EXPECT_GT(table->stats().candidates, 0u);
}

TEST(CapacityTest, SlotsThatAreAttachedToAFullTableCostRows) {
  TableOptions options = Evicting(8, kNoRowLimit);
  options.max_bytes = 200'000;
  auto table = MakeTable(options);
  for (uint64_t i = 0; i < 60; ++i) {
    ASSERT_TRUE(table->Insert(Spread(i * 100, i * 100 + 100), nullptr, 0, nullptr, nullptr).ok());
  }
  const uint64_t before = table->size(), evicted_before = table->stats().evictions;
  EXPECT_GT(before, 1500u);
  SlottedStep step("k", 8, 2);
  const std::vector<uint64_t> ids = Joined(Spread(5990, 6000), Spread(8000, 8010));
  const std::vector<float> kept = RowOf(*table, ids[0]);
  ASSERT_TRUE(Train(table.get(), ids, 0.0f, &step).ok());
  EXPECT_LT(table->size(), before / 2);
  EXPECT_EQ(Present(*table, ids), ids.size());
  EXPECT_EQ(RowOf(*table, ids[0]), kept);
  EXPECT_LE(Bytes(table->stats()), options.max_bytes);
  EXPECT_GT(Bytes(table->stats()), options.max_bytes * 85 / 100);
  EXPECT_EQ(table->stats().evictions - evicted_before, before + 10 - table->size());
}

TEST(CapacityTest, ALoadIntoASmallerTableKeepsTheRowsThatWouldHaveStayed) {
  auto large = MakeTable(Evicting(1, 5000));
  SubtractGradient updater(1);
  SlottedStep step("k", 1, 1);
  for (uint64_t i = 0; i < 50; ++i) ASSERT_TRUE(Train(large.get(), Spread(i * 100, i * 100 + 100), 1.0f, &step).ok());
  auto small = MakeTable(Evicting(1, 2000));
  const Found before = LookUp(*small, {1});
  ASSERT_TRUE(CopyInto(*large, small.get()).ok());
  EXPECT_EQ(small->size(), 2000u);
  EXPECT_EQ(Present(*small, Spread(4500, 5000)), 500u);
  EXPECT_EQ(small->stats().evictions, 3000u);
  std::vector<float> kept(500), trained(500);
  small->Find(Spread(4500, 5000), kept.data(), nullptr, nullptr);
  large->Find(Spread(4500, 5000), trained.data(), nullptr, nullptr);
  EXPECT_EQ(kept, trained);
  for (const auto& [key, slot] : Slots(*small)) EXPECT_EQ(slot, 1.5f) << key;
  EXPECT_NE(small->generation(), before.generation);
  // Stamps of another rule, or none, mean nothing: all loaded rows are older than what comes.
  for (const bool other_rule : {false, true}) {
    TableOptions options = Evicting(1, 5000, EvictBy::kLfu);
    if (!other_rule) options.capacity_policy = CapacityPolicy::kGrow;
    auto from = MakeTable(options);
    ASSERT_TRUE(Train(from.get(), Spread(0, 1000), 1.0f, &updater).ok());
    auto to = MakeTable(Evicting(1, 1000));
    ASSERT_TRUE(CopyInto(*from, to.get()).ok());
    ASSERT_TRUE(Train(to.get(), Spread(0, 500), 1.0f, &updater).ok());
    ASSERT_TRUE(Train(to.get(), Spread(2000, 2500), 1.0f, &updater).ok());
    EXPECT_EQ(Present(*to, Joined(Spread(0, 500), Spread(2000, 2500))), 1000u);
  }
}

TEST(CapacityTest, TheClockMayRunToTheEndOfItsRange) {
  auto table = MakeTable(Evicting(1, 100));
  EvictionState late;
  late.kept = true;
  late.time = uint64_t{0xDFFFFFF0u} << 32;
  const std::vector<uint64_t> keys = Range(0, 100);
  const std::vector<float> values(100, 1.0f);
  std::vector<uint32_t> stamps;
  for (uint32_t i = 0; i < 100; ++i) stamps.push_back(i < 50 ? i + 1 : 0xDFFFFF00u + i);
  const auto loader = table->BeginLoad({}, 100, 0, late).value();
  RowBlock block{.count = 100, .keys = keys.data(), .values = values.data(), .slots = nullptr};
  block.use_stamps = stamps.data();
  ASSERT_TRUE(loader->AddRows(block).ok());
  loader->Commit();
  SubtractGradient updater(1);
  uint64_t next = 1000;
  for (int i = 0; i < 75; ++i, ++next) ASSERT_TRUE(Train(table.get(), {next}, 1.0f, &updater).ok());
  EXPECT_LT(table->TakeSnapshot()->eviction().time, late.time);
  EXPECT_EQ(Present(*table, Range(0, 50)), 0u);
  EXPECT_EQ(Present(*table, Range(75, 100)), 25u);
  EXPECT_EQ(Present(*table, Range(1000, 1075)), 75u);
}

TEST(CapacityTest, LookupsGoOnWhileRowsAreEvicted) {
  TableOptions options = Evicting(8, 2000);
  options.initializer = {.kind = InitializerSpec::Kind::kConstant, .a = 1.0, .b = 0.0};
  auto table = MakeTable(options);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 4; ++t) {
    readers.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      while (!stop) {
        const uint64_t from = random() % 30'000;
        const Found found = LookUp(*table, Spread(from, from + 200));
        // A row holds eight times the same number; whoever reads another id's row half written sees two.
        for (size_t i = 0; i < found.rows.size(); ++i) wrong += found.rows[i] != found.rows[i / 8 * 8];
      }
    });
  }
  SubtractGradient updater(8);
  for (uint64_t i = 0; i < 150; ++i) EXPECT_TRUE(Train(table.get(), Spread(i * 200, i * 200 + 500), 1.0f, &updater).ok());
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(table->size(), 2000u);
}

}  // namespace
}  // namespace mxrec
