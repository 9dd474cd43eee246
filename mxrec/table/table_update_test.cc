// Updates of a table: sums by key, limits, refusals that change nothing, NaN and Inf, stale handles.
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/base/hash.h"
#include "mxrec/table/table.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

using testing::Contents;
using testing::CopyInto;
using ::testing::ElementsAre;
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

TEST(TableTest, D7ThreePartsOfDifferentSizesAreSummedByKey) {
  auto table = MakeTable(SmallOptions(2));
  const std::vector<uint64_t> ids[] = {{1, 2, 3, 2, 1, 7, 8, 9, 10, 11, 12}, {2}, {3, 3, 2, 40}};
  std::map<uint64_t, float> sums;
  std::map<uint64_t, std::vector<float>> before;
  std::vector<Found> found;
  std::vector<std::vector<float>> gradients;
  float next = 1.0f;
  for (const auto& part : ids) {
    found.push_back(LookUp(*table, part));
    gradients.emplace_back();
    for (const uint64_t id : part) {
      sums[id] += next;
      before[id] = RowOf(*table, id);
      gradients.back().insert(gradients.back().end(), 2, next);
      next += 1.0f;
    }
  }
  std::vector<UpdatePart> parts;
  for (size_t p = 0; p < 3; ++p) parts.push_back(PartOf(found[p], gradients[p]));
  SubtractGradient updater(2);
  UpdateReport report;
  ASSERT_TRUE(table->Update(parts, &updater, {}, nullptr, &report).ok());
  EXPECT_EQ(report.inserted, sums.size());
  EXPECT_EQ(report.updated, sums.size());
  for (const auto& [id, sum] : sums) EXPECT_THAT(RowOf(*table, id), ElementsAre(before[id][0] - sum, before[id][1] - sum)) << id;
}

TEST(TableTest, D17AnIdInTwoFeaturesIsUpdatedOnceWithTheSum) {
  auto table = MakeTable(SmallOptions(1));
  SlottedStep updater("slotted", 1, 1, 0.0f);
  const Found a = LookUp(*table, {5, 5}), b = LookUp(*table, {5, 6});
  const std::vector<float> gradients = {2.0f, 3.0f};
  const std::vector<UpdatePart> parts = {PartOf(a, gradients), PartOf(b, gradients)};
  ASSERT_TRUE(table->Update(parts, &updater, {}, nullptr, nullptr).ok());
  const auto snapshot = table->TakeSnapshot();
  std::map<uint64_t, float> slot;
  for (int s = 0; s < kShardCount; ++s) {
    ASSERT_TRUE(snapshot
                    ->ForEachBlock(s, 10,
                                   [&](const RowBlock& block) {
                                     for (size_t i = 0; i < block.count; ++i) slot[block.keys[i]] = block.slots[i];
                                     return OkStatus();
                                   })
                    .ok());
  }
  EXPECT_EQ(slot[5], 49.0f);  // (2 + 3 + 2)^2, one step
  EXPECT_EQ(slot[6], 9.0f);
}

TEST(TableTest, D8CapacityIsExactAlsoForKeysOfOneBucket) {
  TableOptions options = SmallOptions(2);
  options.capacity_policy = CapacityPolicy::kError;
  options.capacity_rows = 1024;
  for (const bool adversarial : {false, true}) {
    auto table = MakeTable(options);
    std::vector<uint64_t> keys;
    for (uint64_t i = 0; i < 1024; ++i) keys.push_back(adversarial ? Unmix64((uint64_t{7} << 58) | i) : Mix64(i));
    ASSERT_TRUE(table->Insert(keys, nullptr, 0, nullptr, nullptr).ok());
    for (const uint64_t key : keys) ASSERT_TRUE(Has(*table, key));
    EXPECT_EQ(table->size(), 1024u);
    EXPECT_EQ(table->Insert(std::vector<uint64_t>{1u << 30}, nullptr, 0, nullptr, nullptr).code(), StatusCode::kResourceExhausted);
  }
}

// An update that must fail leaves everything as it was: also when it would have been the first one, which attaches slots.
void ExpectRefused(TableOptions options, const std::vector<uint64_t>& present, const std::vector<uint64_t>& ids, StatusCode code,
                   const std::vector<std::string>& says, const std::function<void(UpdatePart*, UpdateOptions*)>& spoil = nullptr,
                   float gradient = 1.0f) {
  for (const bool trained : {true, false}) {
    SCOPED_TRACE(trained ? "trained before" : "never trained");
    auto table = MakeTable(options);
    SlottedStep updater("slotted", options.dim, 1);
    if (trained) {
      ASSERT_TRUE(Train(table.get(), present, 1.0f, &updater).ok());
    } else {
      ASSERT_TRUE(table->Insert(present, nullptr, 5, nullptr, nullptr).ok());
    }
    const std::string before = Contents(*table);
    const TableStats stats_before = table->stats();
    const Found found = LookUp(*table, ids);
    const std::vector<float> gradients(ids.size() * options.dim, gradient);
    UpdatePart part = PartOf(found, gradients);
    UpdateOptions update;
    update.now_ms = 99;
    if (spoil) spoil(&part, &update);
    UpdateReport report;
    const Status status = table->Update({&part, 1}, &updater, update, nullptr, &report);
    ASSERT_EQ(status.code(), code) << status;
    for (const std::string& text : says) EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_TRUE(Contents(*table) == before);
    EXPECT_EQ(table->size(), present.size());
    EXPECT_EQ(table->stats().inserts, stats_before.inserts);
    EXPECT_EQ(table->stats().updates, stats_before.updates);
    EXPECT_EQ(report.inserted, 0u);
    // And it is in working order.
    ASSERT_TRUE(Train(table.get(), {present[0], present[1]}, 1.0f, &updater).ok());
    EXPECT_EQ(table->slots().step, trained ? 2u : 1u);
  }
}

TEST(TableTest, D9MoreNewIdsThanTheCapacityAreRefusedWhole) {
  TableOptions options = SmallOptions(3, "city");
  options.keep_counts = true;
  options.capacity_policy = CapacityPolicy::kError;
  options.capacity_rows = 100;
  ExpectRefused(options, Range(0, 60), Range(59, 101), StatusCode::kResourceExhausted, {"city", "100", "used 60", "41"});
  ExpectRefused(options, Range(0, 60), Range(1000, 1250), StatusCode::kResourceExhausted, {"city", "100", "used 60", "250"});
}

TEST(TableTest, AByteCapInTheMiddleOfABatchLeavesNoHalfAppliedState) {
  TableOptions options = SmallOptions(16, "city");
  options.max_bytes = 200'000;
  ExpectRefused(options, Spread(0, 500), Spread(400, 3000), StatusCode::kResourceExhausted, {"city", "200000", "500 rows"});
}

TEST(TableTest, AttachingSlotsThatDoNotFitUnderTheByteCapIsRefusedAndLeavesTheTableAsItWas) {
  TableOptions options = SmallOptions(16, "city");
  options.max_bytes = 100'000;
  auto table = MakeTable(options);
  ASSERT_TRUE(table->Insert(Spread(0, 1000), nullptr, 0, nullptr, nullptr).ok());
  const std::string before = Contents(*table);
  SlottedStep updater("slotted", 16, 2);
  const Status status = Train(table.get(), {Mix64(1)}, 1.0f, &updater);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(Contents(*table) == before);
}

TEST(TableTest, ABadIndexInAGradientIsRefusedByPartAndRow) {
  std::vector<int32_t> index;
  for (const int32_t bad : {-1, 5, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    ExpectRefused(SmallOptions(3, "city"), Range(0, 10), Range(8, 13), StatusCode::kInvalidArgument,
                  {"city", "part 0", "gradient row 4", std::to_string(bad), "0 to 5"}, [&](UpdatePart* part, UpdateOptions*) {
                    index.assign(part->index.begin(), part->index.end());
                    index[4] = bad;
                    part->index = index;
                  });
  }
}

TEST(TableTest, AHandleThatNamesNoRowIsRefused) {
  std::vector<uint32_t> handles;
  ExpectRefused(SmallOptions(3, "city"), Range(0, 10), Range(8, 13), StatusCode::kInvalidArgument,
                {"city", "part 0", "handle 12345 names no row"}, [&](UpdatePart* part, UpdateOptions*) {
                  handles.assign(part->handles.begin(), part->handles.end());
                  handles[1] = 12345;
                  part->handles = handles;
                });
}

TEST(TableTest, CountsAndHandlesOfAnotherLengthAreRefused) {
  ExpectRefused(SmallOptions(3), Range(0, 10), Range(8, 13), StatusCode::kInvalidArgument, {"5 keys", "4 handles"},
                [](UpdatePart* part, UpdateOptions*) { part->handles = part->handles.first(4); });
  ExpectRefused(SmallOptions(3), Range(0, 10), Range(8, 13), StatusCode::kInvalidArgument, {"5 keys", "2 counts"},
                [](UpdatePart* part, UpdateOptions*) { part->counts = part->counts.first(2); });
}

TEST(TableTest, ANonFiniteGradientUnderErrorChangesNothing) {
  const auto error = [](UpdatePart*, UpdateOptions* update) { update->non_finite = NonFinitePolicy::kError; };
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ExpectRefused(SmallOptions(3, "city"), Range(5, 10), Range(8, 13), StatusCode::kInvalidArgument, {"city", "5 such ids", "id 8"},
                  error, bad);
  }
}

TEST(TableTest, AFailureToBeginEndsTheUpdate) {
  class Refusing final : public RowUpdater {
    Status Begin(SlotRecord* record) override {
      record->step = 77;
      return CancelledError("not today");
    }
    size_t UpdateRows(float* const*, const float* const*, size_t) const override { return 0; }
  };
  auto table = MakeTable(SmallOptions(3));
  Refusing updater;
  const std::string before = Contents(*table);
  EXPECT_EQ(Train(table.get(), {1}, 1.0f, &updater), CancelledError("not today"));
  EXPECT_EQ(Contents(*table), before);
}

TEST(TableTest, ANonFiniteGradientUnderSkipLeavesItsRowAndUpdatesTheOthers) {
  auto table = MakeTable(SmallOptions(2));
  SubtractGradient updater(2);
  ASSERT_TRUE(Train(table.get(), {1, 2}, 0.0f, &updater).ok());
  const std::vector<float> row1 = RowOf(*table, 1), row2 = RowOf(*table, 2), row3 = RowOf(*table, 3);
  const Found found = LookUp(*table, {1, 2, 1, 3});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> gradients = {1, 1, 1, 1, 1, nan, nan, 1};
  const UpdatePart part = PartOf(found, gradients);
  UpdateOptions options;
  options.non_finite = NonFinitePolicy::kSkip;
  UpdateReport report;
  ASSERT_TRUE(table->Update({&part, 1}, &updater, options, nullptr, &report).ok());
  EXPECT_EQ(RowOf(*table, 1), row1);
  EXPECT_THAT(RowOf(*table, 2), ElementsAre(row2[0] - 1, row2[1] - 1));
  EXPECT_EQ(RowOf(*table, 3), row3);
  EXPECT_EQ(report.skipped, 2u);
  EXPECT_EQ(report.updated, 1u);
  EXPECT_TRUE(report.has_non_finite_key);
  EXPECT_EQ(report.non_finite_key, 1u);
  EXPECT_EQ(report.non_finite_rows, 2u);
}

TEST(TableTest, ANonFiniteGradientUnderApplyIsAppliedAndReported) {
  auto table = MakeTable(SmallOptions(2));
  SubtractGradient updater(2);
  UpdateReport report;
  ASSERT_TRUE(Train(table.get(), {30, 20, 10}, std::numeric_limits<float>::infinity(), &updater, {}, nullptr, &report).ok());
  EXPECT_EQ(report.updated, 3u);
  EXPECT_EQ(report.non_finite_rows, 3u);
  EXPECT_EQ(report.non_finite_key, 10u);
  EXPECT_TRUE(std::isinf(RowOf(*table, 20)[1]));
}

TEST(TableTest, StaleHandlesNeverReachRowsOfOtherKeys) {
  auto table = MakeTable(SmallOptions(2));
  SubtractGradient updater(2);
  const std::vector<uint64_t> ids = Range(0, 500);
  ASSERT_TRUE(Train(table.get(), ids, 0.0f, &updater).ok());
  const Found before = LookUp(*table, ids);
  EXPECT_EQ(table->Erase(ids), 500u);
  ASSERT_TRUE(Train(table.get(), Range(1000, 1500), 0.0f, &updater).ok());  // takes the rows over
  const std::vector<float> gradients(ids.size() * 2, 1.0f);
  const UpdatePart part = PartOf(before, gradients);
  UpdateReport report;
  ASSERT_TRUE(table->Update({&part, 1}, &updater, {}, nullptr, &report).ok());
  EXPECT_EQ(report.inserted, 500u);
  EXPECT_EQ(table->size(), 1000u);
  auto fresh = MakeTable(SmallOptions(2));
  for (uint64_t id = 0; id < 500; ++id) {
    const std::vector<float> first = RowOf(*fresh, id);
    ASSERT_THAT(RowOf(*table, id), ElementsAre(first[0] - 1, first[1] - 1));
    ASSERT_EQ(RowOf(*table, id + 1000), RowOf(*fresh, id + 1000));
  }
}

TEST(TableTest, HandlesFromBeforeAClearOrALoadOrNewSlotsAreStaleToo) {
  auto table = MakeTable(SmallOptions(2));
  SubtractGradient plain(2);
  ASSERT_TRUE(Train(table.get(), Range(0, 100), 0.0f, &plain).ok());
  const std::vector<float> gradients(200, 1.0f);
  Found found = LookUp(*table, Range(0, 100));
  table->Clear();
  UpdatePart part = PartOf(found, gradients);
  UpdateReport report;
  ASSERT_TRUE(table->Update({&part, 1}, &plain, {}, nullptr, &report).ok());
  EXPECT_EQ(report.inserted, 100u);
  found = LookUp(*table, Range(0, 100));
  auto other = MakeTable(SmallOptions(2));
  ASSERT_TRUE(Train(other.get(), Range(50, 150), 0.0f, &plain).ok());
  ASSERT_TRUE(CopyInto(*other, table.get()).ok());
  part = PartOf(found, gradients);
  ASSERT_TRUE(table->Update({&part, 1}, &plain, {}, nullptr, &report).ok());
  EXPECT_EQ(report.inserted, 50u);
  found = LookUp(*table, Range(0, 100));
  SlottedStep slotted("slotted", 2, 1);
  part = PartOf(found, gradients);
  ASSERT_TRUE(table->Update({&part, 1}, &slotted, {}, nullptr, &report).ok());
  EXPECT_EQ(report.inserted, 0u);
  const std::vector<float> first = RowOf(*MakeTable(SmallOptions(2)), 70);
  EXPECT_THAT(RowOf(*table, 70), ElementsAre(first[0] - 1 - 1, first[1] - 1 - 1));
}

}  // namespace
}  // namespace mxrec
