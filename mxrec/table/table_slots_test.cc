// Optimizer slots of a table: attaching, another kind, loading, clearing.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/table/table.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

using testing::Contents;
using testing::CopyInto;
using ::testing::ElementsAre;
using testing::Has;
using ::testing::HasSubstr;
using testing::MakeTable;
using testing::Range;
using testing::RowOf;
using testing::SlottedStep;
using testing::SmallOptions;
using testing::Spread;
using testing::SubtractGradient;
using testing::Train;

TEST(TableTest, AttachingSlotsToAFilledTableKeepsItsValuesCountsAndTimes) {
  TableOptions options = SmallOptions(5);
  options.keep_counts = true;
  options.max_cold_secs = 100;
  auto table = MakeTable(options), same = MakeTable(options);
  SubtractGradient plain(5);
  UpdateOptions update;
  update.now_ms = 1234;
  for (Table* t : {table.get(), same.get()}) ASSERT_TRUE(Train(t, Spread(0, 3000), 0.25f, &plain, update).ok());
  SlottedStep slotted("slotted", 5, 2, 0.75f);
  ASSERT_TRUE(table->Update({}, &slotted, update, nullptr, nullptr).ok());
  std::map<uint64_t, std::vector<float>> values;
  const auto expected = same->TakeSnapshot(), found = table->TakeSnapshot();
  for (int s = 0; s < kShardCount; ++s) {
    std::vector<uint64_t> keys, times;
    std::vector<uint32_t> counts;
    std::vector<float> rows;
    ASSERT_TRUE(expected
                    ->ForEachBlock(s, 100'000,
                                   [&](const RowBlock& b) {
                                     keys.assign(b.keys, b.keys + b.count);
                                     rows.assign(b.values, b.values + b.count * 5);
                                     counts.assign(b.use_counts, b.use_counts + b.count);
                                     times.assign(b.last_seen_ms, b.last_seen_ms + b.count);
                                     return OkStatus();
                                   })
                    .ok());
    ASSERT_TRUE(found
                    ->ForEachBlock(s, 100'000,
                                   [&](const RowBlock& b) {
                                     EXPECT_TRUE(std::equal(keys.begin(), keys.end(), b.keys, b.keys + b.count));
                                     EXPECT_TRUE(std::equal(rows.begin(), rows.end(), b.values));
                                     EXPECT_TRUE(std::equal(counts.begin(), counts.end(), b.use_counts));
                                     EXPECT_TRUE(std::equal(times.begin(), times.end(), b.last_seen_ms));
                                     for (size_t i = 0; i < b.count * 10; ++i) EXPECT_EQ(b.slots[i], 0.75f);
                                     return OkStatus();
                                   })
                    .ok());
  }
}

TEST(TableTest, AnotherKindOfOptimizerIsRefusedAndReplacedOnlyAfterALoad) {
  auto table = MakeTable(SmallOptions(2, "item"));
  SlottedStep adam("adam", 2, 2), sgd("sgd", 2, 0);
  ASSERT_TRUE(Train(table.get(), Range(0, 50), 1.0f, &adam).ok());
  const std::string before = Contents(*table);
  const Status refused = Train(table.get(), {1, 99}, 1.0f, &sgd);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), ::testing::AllOf(HasSubstr("item"), HasSubstr("adam"), HasSubstr("sgd")));
  EXPECT_EQ(Contents(*table), before);

  auto loaded = MakeTable(SmallOptions(2, "item"));
  ASSERT_TRUE(CopyInto(*table, loaded.get()).ok());
  EXPECT_EQ(Contents(*loaded), before);
  const std::vector<float> row = RowOf(*loaded, 7);
  // What does not train does not decide which optimizer it is.
  ASSERT_TRUE(loaded->Insert(Range(0, 60), nullptr, 0, nullptr, nullptr).ok());
  ASSERT_TRUE(Train(loaded.get(), {7}, 1.0f, &sgd).ok());
  EXPECT_EQ(sgd.replaced(), "adam");
  EXPECT_THAT(RowOf(*loaded, 7), ElementsAre(row[0] - 1, row[1] - 1));
  EXPECT_EQ(loaded->slots().optimizer_kind, "sgd");
  EXPECT_EQ(loaded->slots().step, 1u);
  EXPECT_EQ(Train(loaded.get(), {7}, 1.0f, &adam).code(), StatusCode::kFailedPrecondition);
}

TEST(TableTest, ALoadedTableGoesOnWithTheSlotsItCameWith) {
  auto table = MakeTable(SmallOptions(2)), loaded = MakeTable(SmallOptions(2));
  SlottedStep adam("adam", 2, 2), other("adamw", 2, 2);
  ASSERT_TRUE(Train(table.get(), Range(0, 50), 1.0f, &adam).ok());
  ASSERT_TRUE(CopyInto(*table, loaded.get()).ok());
  for (Table* t : {table.get(), loaded.get()}) ASSERT_TRUE(Train(t, Range(20, 90), 0.5f, &adam).ok());
  EXPECT_EQ(Contents(*loaded), Contents(*table));
  EXPECT_EQ(Train(loaded.get(), {7}, 1.0f, &other).code(), StatusCode::kFailedPrecondition) << "trained since the load";
}

TEST(TableTest, ARefusedStepAfterALoadKeepsTheLoadedSlots) {
  TableOptions options = SmallOptions(2);
  options.capacity_policy = CapacityPolicy::kError;
  options.capacity_rows = 50;
  auto table = MakeTable(options), loaded = MakeTable(options);
  SlottedStep adam("adam", 2, 2), sgd("sgd", 2, 0);
  ASSERT_TRUE(Train(table.get(), Range(0, 50), 1.0f, &adam).ok());
  ASSERT_TRUE(CopyInto(*table, loaded.get()).ok());
  EXPECT_EQ(Train(loaded.get(), {100}, 1.0f, &sgd).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Train(loaded.get(), {100}, 1.0f, &adam).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Contents(*loaded) == Contents(*table));
  EXPECT_TRUE(sgd.replaced().empty());
  ASSERT_TRUE(Train(loaded.get(), {7}, 1.0f, &sgd).ok()) << "still not trained since the load";
}

TEST(TableTest, ALoadRefusesDoubleKeysAndTooManyRowsAndLeavesTheTableEmpty) {
  TableOptions options = SmallOptions(1, "item");
  options.capacity_policy = CapacityPolicy::kError;
  options.capacity_rows = 3;
  auto table = MakeTable(options);
  ASSERT_TRUE(table->Insert(Range(0, 3), nullptr, 0, nullptr, nullptr).ok());
  const float values[4] = {};
  {
    const auto loader = table->BeginLoad({}, 4, 0).value();
    const uint64_t twice[] = {5, 6, 5};
    const Status status = loader->AddRows({.count = 3, .keys = twice, .values = values});
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), ::testing::AllOf(HasSubstr("item"), HasSubstr("id 5")));
  }
  EXPECT_EQ(table->size(), 0u);
  {
    const auto loader = table->BeginLoad({}, 4, 0).value();
    const uint64_t keys[] = {1, 2, 3, 4};
    EXPECT_EQ(loader->AddRows({.count = 4, .keys = keys, .values = values}).code(), StatusCode::kResourceExhausted);
    loader->Abort();
  }
  EXPECT_EQ(table->size(), 0u);
  EXPECT_EQ(table->stats().bytes_index, 0u);
  ASSERT_TRUE(table->Insert(Range(0, 3), nullptr, 0, nullptr, nullptr).ok());
}

TEST(TableTest, ClearForgetsRowsCandidatesAndTheOptimizer) {
  TableOptions options = SmallOptions(2);
  options.keep_counts = true;
  options.min_used_times = 2;
  auto table = MakeTable(options);
  const std::string empty = Contents(*table);
  SlottedStep adam("adam", 2, 2), sgd("sgd", 2, 0);
  ASSERT_TRUE(Train(table.get(), {1, 1, 2}, 1.0f, &adam).ok());
  table->Clear();
  EXPECT_EQ(Contents(*table), empty);
  EXPECT_FALSE(Has(*table, 1));
  ASSERT_TRUE(Train(table.get(), {1, 1, 2}, 1.0f, &sgd).ok());
}

}  // namespace
}  // namespace mxrec
