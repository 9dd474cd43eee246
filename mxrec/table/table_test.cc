// Table by example: what each call promises, one promise a test. Streams: table_stream_test.cc. Threads: table_concurrency_test.cc.
#include "mxrec/table/table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/base/hash.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/table/memory.h"
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
using testing::SlottedStep;
using testing::SmallOptions;
using testing::Spread;
using testing::SubtractGradient;
using testing::Train;

std::vector<uint64_t> Range(uint64_t begin, uint64_t end) {
  std::vector<uint64_t> ids;
  for (uint64_t id = begin; id < end; ++id) ids.push_back(id);
  return ids;
}

std::vector<float> RowOf(const Table& table, uint64_t key) {
  std::vector<float> row(table.options().dim);
  table.Find({&key, 1}, row.data(), nullptr, nullptr);
  return row;
}

bool Has(const Table& table, uint64_t key) {
  bool found = false;
  table.Find({&key, 1}, nullptr, &found, nullptr);
  return found;
}

TEST(TableTest, ATableWithoutColumnsIsRefusedByName) {
  const auto table = Table::Create(SmallOptions(0, "item"));
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("item"));
}

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
