// Admission and eviction: candidates, counts, times.
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/table/table.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

using testing::Contents;
using testing::Found;
using testing::Has;
using ::testing::HasSubstr;
using testing::LookUp;
using testing::MakeTable;
using testing::PartOf;
using testing::RowOf;
using testing::SmallOptions;
using testing::Spread;
using testing::SubtractGradient;
using testing::Train;

TEST(TableTest, ACandidateErasedBeforeItsUpdateStartsFromNothing) {
  TableOptions options = SmallOptions(2);
  options.keep_counts = true;
  options.min_used_times = 3;
  auto table = MakeTable(options);
  SubtractGradient updater(2);
  ASSERT_TRUE(Train(table.get(), {1, 1}, 1.0f, &updater).ok());
  EXPECT_EQ(table->size(), 0u);
  const Found found = LookUp(*table, {1});  // the third occurrence: admitted
  EXPECT_EQ(found.handles[0], kUnseen);
  const std::vector<uint64_t> keys = {1};
  EXPECT_EQ(table->Erase(keys), 0u);
  ASSERT_TRUE(Train(table.get(), {2, 3, 4, 5}, 1.0f, &updater).ok());  // take its record over
  const std::vector<float> gradients(2, 1.0f);
  const UpdatePart part = PartOf(found, gradients);
  ASSERT_TRUE(table->Update({&part, 1}, &updater, {}, nullptr, nullptr).ok());
  EXPECT_EQ(table->size(), 0u);
  EXPECT_EQ(table->stats().candidates, 5u);
  EXPECT_THAT(Contents(*table), HasSubstr("1:1@"));
}

TEST(TableTest, AdmissionGoesByTheSumAndDropsWhatTheDefaultAnswered) {
  TableOptions options = SmallOptions(1);
  options.keep_counts = true;
  options.min_used_times = 4;
  auto table = MakeTable(options);
  SubtractGradient updater(1);
  const std::vector<float> first = RowOf(*table, 8);
  // 1 + 4 occurrences in two lookups: the first alone is below the threshold, the second is not.
  const Found a = LookUp(*table, {8}), b = LookUp(*table, {8, 8, 8, 8});
  EXPECT_EQ(a.handles[0], kNotAdmitted);
  EXPECT_EQ(a.rows[0], 0.0f);
  EXPECT_EQ(b.handles[0], kUnseen);
  EXPECT_EQ(b.rows[0], first[0]);
  const std::vector<float> ga = {100.0f}, gb = {1.0f, 2.0f, 3.0f, 4.0f};
  std::vector<UpdatePart> parts = {PartOf(a, ga), PartOf(b, gb)};
  UpdateReport report;
  ASSERT_TRUE(table->Update(parts, &updater, {}, nullptr, &report).ok());
  EXPECT_EQ(report.inserted, 1u);
  EXPECT_EQ(report.admitted, 0u);  // was no candidate
  EXPECT_EQ(RowOf(*table, 8)[0], first[0] - 10.0f);
  // 2 + 2: admitted by the sum, all answered by the default: a row with its first values.
  const Found c = LookUp(*table, {9, 9}), d = LookUp(*table, {9, 9});
  const std::vector<float> gc = {100.0f, 100.0f};
  parts = {PartOf(c, gc), PartOf(d, gc)};
  const std::vector<float> first9 = RowOf(*table, 9);
  ASSERT_TRUE(table->Update(parts, &updater, {}, nullptr, &report).ok());
  EXPECT_EQ(report.inserted, 1u);
  EXPECT_EQ(report.updated, 0u);
  EXPECT_TRUE(Has(*table, 9));
  EXPECT_EQ(RowOf(*table, 9), first9);
}

TEST(TableTest, AdmissionGoesByTheOccurrencesThatALookupIsTold) {
  TableOptions options = SmallOptions(1);
  options.keep_counts = true;
  options.min_used_times = 4;
  auto table = MakeTable(options);
  // Two ranks asked for 8, one of them for 9: 1 + 3 occurrences of the one, 3 of the other.
  const std::vector<uint32_t> occurrences = {1, 3, 3};
  const Found found = LookUp(*table, {8, 9, 8}, {.default_row = {}, .never_trained = {}, .occurrences = occurrences});
  ASSERT_EQ(found.keys.size(), 2u);
  for (size_t u = 0; u < 2; ++u) {
    const bool eight = found.keys[u] == 8;
    EXPECT_EQ(found.counts[u], eight ? 4u : 3u);
    EXPECT_EQ(found.handles[u], eight ? kUnseen : kNotAdmitted);
  }
  const std::vector<uint64_t> ids = {8, 9};
  const Status status = table->Lookup(
      ids, {.default_row = {}, .never_trained = {}, .occurrences = occurrences}, nullptr, nullptr,
      [](size_t) -> Result<UniqueOutputs> { return UniqueOutputs{}; }, nullptr, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a lookup of 2 ids has 3 numbers of occurrences"));
}

TEST(TableTest, UnderAByteCapTheOldestCandidatesGoFirstAndRowsStay) {
  TableOptions options = SmallOptions(4);
  options.keep_counts = true;
  options.min_used_times = 2;
  options.max_bytes = 100'000;
  auto table = MakeTable(options);
  SubtractGradient updater(4);
  UpdateOptions update;
  std::vector<uint64_t> twice = Spread(0, 200);
  twice.insert(twice.end(), twice.begin(), twice.end());
  ASSERT_TRUE(Train(table.get(), twice, 0.0f, &updater, update).ok());
  EXPECT_EQ(table->size(), 200u);
  for (uint64_t step = 1; step < 200; ++step) {
    update.now_ms = static_cast<int64_t>(step * 1000);
    ASSERT_TRUE(Train(table.get(), Spread(step * 1000, step * 1000 + 300), 0.0f, &updater, update).ok());
    const TableStats stats = table->stats();
    ASSERT_LE(stats.bytes_index + stats.bytes_rows + stats.bytes_candidates, options.max_bytes);
  }
  EXPECT_EQ(table->size(), 200u);
  const TableStats stats = table->stats();
  EXPECT_GT(stats.candidates, 1000u);
  EXPECT_LT(stats.mean_probe_length, 3.0) << "dropping candidates must not wear the index out";
  EXPECT_THAT(Contents(*table), HasSubstr("@199000;"));
  EXPECT_THAT(Contents(*table), ::testing::Not(HasSubstr("@1000;")));
}

TEST(TableTest, ColdRowsAndCandidatesGoAfterWholeSecondsAboveTheLimit) {
  TableOptions options = SmallOptions(1);
  options.keep_counts = true;
  options.min_used_times = 2;
  options.max_cold_secs = 10;
  auto table = MakeTable(options);
  SubtractGradient updater(1);
  UpdateOptions update;
  update.now_ms = 5'000;
  ASSERT_TRUE(Train(table.get(), {1, 1, 2}, 0.0f, &updater, update).ok());
  update.now_ms = 5'001;
  ASSERT_TRUE(Train(table.get(), {3, 3}, 0.0f, &updater, update).ok());
  EXPECT_EQ(table->EvictCold(0, nullptr), 0u) << "a clock that went back";
  EXPECT_EQ(table->EvictCold(std::numeric_limits<int64_t>::min(), nullptr), 0u);
  EXPECT_EQ(table->EvictCold(15'999, nullptr), 0u) << "10 whole seconds are not more than 10";
  const uint64_t generation = table->generation();
  EXPECT_EQ(table->EvictCold(16'000, nullptr), 1u);
  EXPECT_NE(table->generation(), generation);
  EXPECT_FALSE(Has(*table, 1));
  EXPECT_TRUE(Has(*table, 3));
  EXPECT_EQ(table->stats().candidates, 0u);
  EXPECT_EQ(table->stats().evictions, 1u);
}

TEST(TableTest, ATimeFromAFarFutureIsNotCold) {
  TableOptions options = SmallOptions(1);
  options.max_cold_secs = 10;
  auto table = MakeTable(options);
  const auto loader = table->BeginLoad({}, 1, 0).value();
  const uint64_t key = 1, time = ~uint64_t{0};
  const float value = 0;
  ASSERT_TRUE(loader->AddRows({.count = 1, .keys = &key, .values = &value, .last_seen_ms = &time}).ok());
  loader->Commit();
  EXPECT_EQ(table->EvictCold(std::numeric_limits<int64_t>::max(), nullptr), 0u);
}

}  // namespace
}  // namespace mxrec
