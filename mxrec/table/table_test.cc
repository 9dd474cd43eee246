// Table by example: inserting, statistics, memory. Lookups, updates, admission and slots have files of their own;
// streams: table_stream_test.cc; threads: table_concurrency_test.cc.
#include "mxrec/table/table.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

using ::testing::HasSubstr;
using testing::LookUp;
using testing::MakeTable;
using testing::RowOf;
using testing::SlottedStep;
using testing::SmallOptions;
using testing::Spread;
using testing::SubtractGradient;
using testing::Train;

TEST(TableTest, ATableWithoutColumnsIsRefusedByName) {
  const auto table = Table::Create(SmallOptions(0, "item"));
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("item"));
}

TEST(TableTest, InsertLetsTheLastOfEqualKeysWinAndDoesNotCount) {
  TableOptions options = SmallOptions(1);
  options.keep_counts = true;
  options.min_used_times = 3;
  auto table = MakeTable(options);
  SubtractGradient updater(1);
  ASSERT_TRUE(Train(table.get(), {4, 4}, 1.0f, &updater).ok());  // a candidate of 2
  const std::vector<uint64_t> keys = {4, 5, 4};
  const std::vector<float> values = {10, 20, 30};
  uint64_t inserted = 0;
  ASSERT_TRUE(table->Insert(keys, values.data(), 0, nullptr, &inserted).ok());
  EXPECT_EQ(inserted, 2u);
  EXPECT_EQ(RowOf(*table, 4)[0], 30.0f);
  EXPECT_EQ(RowOf(*table, 5)[0], 20.0f);
  EXPECT_EQ(table->stats().candidates, 0u);
  EXPECT_EQ(table->stats().updates, 0u);
  ASSERT_TRUE(table->Insert(keys, nullptr, 0, nullptr, &inserted).ok());
  EXPECT_EQ(inserted, 0u);
  EXPECT_EQ(RowOf(*table, 4)[0], 30.0f);
}

TEST(TableTest, StatsSayWhatHappened) {
  TableOptions options = SmallOptions(4);
  options.keep_counts = true;
  options.min_used_times = 2;
  options.max_cold_secs = 1;
  auto table = MakeTable(options);
  SlottedStep updater("slotted", 4, 2);
  std::vector<uint64_t> ids = Spread(0, 1000);
  ids.insert(ids.end(), ids.begin(), ids.begin() + 600);
  UpdateOptions update;
  update.now_ms = 1000;
  ASSERT_TRUE(Train(table.get(), ids, 1.0f, &updater, update).ok());               // 600 rows, 400 candidates
  LookUp(*table, Spread(500, 700));                                                // 100 found, 100 not
  ASSERT_TRUE(Train(table.get(), Spread(600, 700), 1.0f, &updater, update).ok());  // admits 100
  EXPECT_EQ(table->Erase(Spread(0, 50)), 50u);
  const TableStats stats = table->stats();
  EXPECT_EQ(stats.rows, 650u);
  EXPECT_EQ(stats.rows, table->size());
  EXPECT_EQ(stats.candidates, 300u);
  EXPECT_EQ(stats.inserts, 700u);
  EXPECT_EQ(stats.admissions, 100u);
  EXPECT_EQ(stats.erases, 50u);
  EXPECT_EQ(stats.evictions, 0u);
  EXPECT_EQ(stats.updates, 700u);
  EXPECT_EQ(stats.hits, 100u);
  EXPECT_EQ(stats.misses, 1000u + 100u + 100u);
  EXPECT_EQ(stats.bytes_rows, 650u * (16 + 4 + 8));
  EXPECT_EQ(stats.bytes_slots, 650u * 32);
  EXPECT_EQ(stats.bytes_candidates, 300u * 16);
  EXPECT_GE(stats.bytes_index * 5, 950u * 64);
  EXPECT_NEAR(stats.load, 950.0 / (static_cast<double>(stats.bytes_index) / 64 * 5), 1e-9);
  EXPECT_GE(stats.mean_probe_length, 1.0);
  EXPECT_GE(static_cast<double>(stats.max_probe_length), stats.mean_probe_length);
  EXPECT_EQ(stats.generation, table->generation());
  EXPECT_EQ(table->EvictCold(10'000, nullptr), 650u);
  EXPECT_EQ(table->stats().evictions, 650u);
  EXPECT_EQ(table->stats().rows + table->stats().candidates, 0u);
}

TEST(TableTest, TheIndexTakesAtMost20BytesAKeyAtEverySize) {
  auto table = MakeTable(SmallOptions(1));
  double worst = 0;
  for (uint64_t rows = 0; rows < 400'000;) {
    const uint64_t more = rows < 10'000 ? 10'000 - rows : rows / 50;
    ASSERT_TRUE(table->Insert(Spread(rows, rows + more), nullptr, 0, nullptr, nullptr).ok());
    rows += more;
    worst = std::max(worst, static_cast<double>(table->stats().bytes_index) / static_cast<double>(rows));
  }
  RecordProperty("worst_bytes_a_key_x100", static_cast<int>(worst * 100));
  EXPECT_LE(worst, 20.0);
}

TEST(TableTest, ErasedRowsAreUsedAgainAndTheIndexShrinks) {
  auto table = MakeTable(SmallOptions(4));
  SubtractGradient updater(4);
  uint64_t largest = 0;
  for (uint64_t round = 0; round < 30; ++round) {
    ASSERT_TRUE(Train(table.get(), Spread(round * 5000, round * 5000 + 5000), 0.0f, &updater).ok());
    if (round > 0) {
      EXPECT_EQ(table->Erase(Spread(round * 5000 - 5000, round * 5000)), 5000u);
    }
    if (round == 2) largest = table->stats().bytes_index;
  }
  const TableStats stats = table->stats();
  EXPECT_EQ(stats.rows, 5000u);
  EXPECT_LE(stats.bytes_index, largest * 5 / 4);
  EXPECT_LT(stats.mean_probe_length, 3.0);
}

// --- memory, measured in a child process so that nothing else counts ---

}  // namespace
}  // namespace mxrec
