// Lookups of a table: rows, default rows, what they leave alone.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/table/memory.h"
#include "mxrec/table/table.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

using testing::Contents;
using testing::CopyInto;
using ::testing::ElementsAre;
using testing::Found;
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

TEST(TableTest, ALookupNeverChangesTheTable) {
  auto table = MakeTable(SmallOptions(4));
  ASSERT_TRUE(Train(table.get(), Range(0, 100), 0.5f, std::make_unique<SubtractGradient>(4).get()).ok());
  const std::string before = Contents(*table);
  const uint64_t generation = table->generation();
  LookUp(*table, Range(0, 1000));
  EXPECT_EQ(table->size(), 100u);
  EXPECT_EQ(table->generation(), generation);
  EXPECT_EQ(Contents(*table), before);
}

TEST(TableTest, D5ANewIdHasOneFirstRowInAllLookupsOfAStepAndInTheStore) {
  auto table = MakeTable(SmallOptions(5));
  const Found first = LookUp(*table, {9, 9, 9});
  const Found second = LookUp(*table, {4, 9});
  ASSERT_EQ(first.keys.size(), 1u);
  EXPECT_EQ(first.counts[0], 3u);
  const auto row = first.row_of(0, 5);
  EXPECT_TRUE(std::ranges::equal(first.row_of(2, 5), row));
  EXPECT_TRUE(std::ranges::equal(second.row_of(1, 5), row));
  const std::vector<float> zeros(15, 0.0f);
  const std::vector<UpdatePart> parts = {PartOf(first, zeros), PartOf(second, zeros)};
  SubtractGradient updater(5);
  ASSERT_TRUE(table->Update(parts, &updater, {}, nullptr, nullptr).ok());
  EXPECT_EQ(table->size(), 2u);
  EXPECT_TRUE(std::ranges::equal(RowOf(*table, 9), row));
}

TEST(TableTest, D12RowsNeverShowMemoryThatNobodyWrote) {
  PoisonFreshMemoryForTesting(true);
  TableOptions options = SmallOptions(8);
  options.keep_counts = true;
  options.max_cold_secs = 10;
  auto table = MakeTable(options);
  SlottedStep updater("slotted", 8, 2);
  ThreadPool pool(2);
  const std::vector<uint64_t> ids = Spread(0, 100'000);
  const Found found = LookUp(*table, ids, {}, &pool);
  double sum = 0, squares = 0;
  for (const float v : found.rows) {
    ASSERT_TRUE(std::isfinite(v));
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const double n = static_cast<double>(found.rows.size());
  EXPECT_NEAR(sum / n, 0.0, 0.01);
  EXPECT_NEAR(squares / n, 1.0, 0.02);
  ASSERT_TRUE(Train(table.get(), ids, 0.125f, &updater, {}, &pool).ok());
  const std::vector<uint64_t> half(ids.begin(), ids.begin() + 50'000);
  EXPECT_EQ(table->Erase(half), 50'000u);
  ASSERT_TRUE(table->Insert(Spread(200'000, 260'000), nullptr, 0, &pool, nullptr).ok());
  auto copy = MakeTable(options);
  ASSERT_TRUE(CopyInto(*table, copy.get()).ok());
  PoisonFreshMemoryForTesting(false);
  for (const Table* of : {table.get(), copy.get()}) {
    const auto snapshot = of->TakeSnapshot();
    for (int s = 0; s < kShardCount; ++s) {
      ASSERT_TRUE(snapshot
                      ->ForEachBlock(s, 500,
                                     [&](const RowBlock& block) {
                                       for (size_t i = 0; i < block.count * 8; ++i) EXPECT_TRUE(std::isfinite(block.values[i]));
                                       for (size_t i = 0; i < block.count * 16; ++i) EXPECT_TRUE(std::isfinite(block.slots[i]));
                                       for (size_t i = 0; i < block.count; ++i) EXPECT_LE(block.use_counts[i], 1u);
                                       return OkStatus();
                                     })
                      .ok());
    }
  }
}

TEST(TableTest, D13NoIdsAndNoPartsAreFine) {
  auto table = MakeTable(SmallOptions(4));
  size_t unique = 99;
  uint64_t generation = 0;
  const auto outputs = [&](size_t n) -> Result<UniqueOutputs> {
    unique = n;
    return UniqueOutputs();
  };
  ASSERT_TRUE(table->Lookup({}, {}, nullptr, nullptr, outputs, &generation, nullptr).ok());
  EXPECT_EQ(unique, 0u);
  SlottedStep updater("slotted", 4, 1);
  UpdateReport report;
  ASSERT_TRUE(table->Update({}, &updater, {}, nullptr, &report).ok());
  EXPECT_EQ(report.inserted + report.updated, 0u);
  const UpdatePart empty;
  const Found some = LookUp(*table, {1, 2});
  const std::vector<float> gradients(8, 1.0f);
  const std::vector<UpdatePart> parts = {empty, PartOf(some, gradients), empty};
  ASSERT_TRUE(table->Update(parts, &updater, {}, nullptr, &report).ok());
  EXPECT_EQ(report.inserted, 2u);
  EXPECT_EQ(table->slots().step, 2u);
  EXPECT_EQ(table->Erase({}), 0u);
  ASSERT_TRUE(table->Insert({}, nullptr, 0, nullptr, nullptr).ok());
}

TEST(TableTest, D14PredictionOverUnseenIdsAnswersTheDefaultAndKeepsNothing) {
  auto table = MakeTable(SmallOptions(3));
  SlottedStep updater("slotted", 3, 1);
  ASSERT_TRUE(Train(table.get(), {1}, 0.0f, &updater).ok());
  const std::string before = Contents(*table);
  LookupOptions options;
  options.mode = LookupMode::kPredict;
  const std::vector<float> otherwise = {1.0f, 2.0f, 3.0f};
  Found found = LookUp(*table, {2, 1, 3}, options);
  EXPECT_THAT(found.row_of(0, 3), ElementsAre(0.0f, 0.0f, 0.0f));
  options.default_row = otherwise;
  found = LookUp(*table, {2, 1, 3}, options);
  EXPECT_THAT(found.row_of(2, 3), ElementsAre(1.0f, 2.0f, 3.0f));
  EXPECT_EQ(found.handles[found.inverse[0]], kNotAdmitted);
  EXPECT_EQ(Contents(*table), before);
}

TEST(TableTest, ADefaultRowOfTheWrongSizeIsRefused) {
  auto table = MakeTable(SmallOptions(3));
  LookupOptions options;
  const std::vector<float> wrong = {1.0f};
  options.default_row = wrong;
  const Status status = table->Lookup(
      {}, options, nullptr, nullptr, [](size_t) -> Result<UniqueOutputs> { return UniqueOutputs(); }, nullptr, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected 3"));
}

TEST(TableTest, AFailureOfTheCallersOutputsIsReturned) {
  auto table = MakeTable(SmallOptions(3));
  const std::vector<uint64_t> ids = {1};
  const Status status = table->Lookup(
      ids, {}, nullptr, nullptr, [](size_t) -> Result<UniqueOutputs> { return CancelledError("no"); }, nullptr, nullptr);
  EXPECT_EQ(status, CancelledError("no"));
}

TEST(TableTest, ExpandedRowsEqualRowsByInverseWithAndWithoutRows) {
  for (const uint32_t dim : {1u, 7u, 16u, 33u}) {
    TableOptions table_options = SmallOptions(dim);
    table_options.keep_counts = true;
    table_options.min_used_times = 3;
    auto table = MakeTable(table_options);
    ThreadPool pool(2);
    SubtractGradient updater(dim);
    std::vector<uint64_t> ids = Spread(0, 3000);
    for (int i = 0; i < 2; ++i) ids.insert(ids.end(), ids.begin(), ids.begin() + 1000);
    ASSERT_TRUE(Train(table.get(), ids, 0.5f, &updater, {}, &pool).ok());
    const std::vector<uint64_t> more = Spread(2500, 5500);
    ids.insert(ids.end(), more.begin(), more.end());
    const Found found = LookUp(*table, ids, {}, &pool);
    std::vector<float> alone(ids.size() * dim), together(ids.size() * dim), rows(found.rows.size());
    const auto none = [](size_t) -> Result<UniqueOutputs> { return UniqueOutputs(); };
    ASSERT_TRUE(table->Lookup(ids, {}, nullptr, alone.data(), none, nullptr, &pool).ok());
    const auto both = [&rows](size_t) -> Result<UniqueOutputs> { return UniqueOutputs{.rows = rows.data()}; };
    ASSERT_TRUE(table->Lookup(ids, {}, nullptr, together.data(), both, nullptr, &pool).ok());
    std::vector<uint32_t> handles(found.handles.size());
    const auto only_handles = [&handles](size_t) -> Result<UniqueOutputs> { return UniqueOutputs{.handles = handles.data()}; };
    ASSERT_TRUE(table->Lookup(ids, {}, nullptr, nullptr, only_handles, nullptr, &pool).ok());
    EXPECT_EQ(rows, found.rows);
    EXPECT_EQ(together, alone);
    EXPECT_EQ(handles, found.handles);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto row = found.row_of(i, dim);
      ASSERT_TRUE(std::equal(row.begin(), row.end(), alone.begin() + static_cast<ptrdiff_t>(i * dim)));
    }
  }
}

}  // namespace
}  // namespace mxrec
