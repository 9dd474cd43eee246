// Updates whose parts are more than one gradient row an occurrence: shared gradient rows, and keys that are never trained.
#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/table/table.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

using testing::Contents;
using testing::Found;
using ::testing::HasSubstr;
using testing::LookUp;
using testing::MakeTable;
using testing::PartOf;
using testing::SeedText;
using testing::SlottedStep;
using testing::SmallOptions;
using testing::SubtractGradient;
using testing::TestSeed;

// Bags of ids: which gradient row each occurrence takes, with which scale.
struct Bags {
  std::vector<uint64_t> ids;
  std::vector<int32_t> rows;
  std::vector<float> scales, gradients;  // gradients: [bags, dim]
  size_t count = 0;

  Bags(std::mt19937_64* random, size_t bags, size_t keys, size_t dim) : count(bags) {
    std::normal_distribution<float> normal;
    for (size_t bag = 0; bag < bags; ++bag) {
      for (size_t i = (*random)() % 6; i > 0; --i) {
        ids.push_back((*random)() % keys);
        rows.push_back(static_cast<int32_t>(bag));
        scales.push_back(normal(*random));
      }
    }
    for (size_t i = 0; i < bags * dim; ++i) gradients.push_back(normal(*random));
  }
  // The gradient of each occurrence, written out.
  std::vector<float> Expanded(size_t dim, bool scaled) const {
    std::vector<float> out;
    for (size_t j = 0; j < ids.size(); ++j) {
      for (size_t d = 0; d < dim; ++d) {
        const float g = gradients[static_cast<size_t>(rows[j]) * dim + d];
        out.push_back(scaled ? scales[j] * g : g);
      }
    }
    return out;
  }
  UpdatePart Shared(const Found& found, bool scaled) const {
    UpdatePart part = PartOf(found, gradients);
    part.value_rows = rows;
    part.value_count = count;
    if (scaled) part.scales = scales;
    return part;
  }
};

TEST(UpdateTest, SharedGradientRowsEqualOneWrittenOutGradientAnOccurrenceToTheBit) {
  const uint64_t seed = TestSeed(11);
  SCOPED_TRACE(SeedText(seed));
  std::mt19937_64 random(seed);
  ThreadPool pool(3);
  for (const size_t bags : {0u, 1u, 40u, 3000u}) {
    for (const size_t dim : {1u, 5u, 16u}) {
      for (const bool scaled : {false, true}) {
        const Bags a(&random, bags, 500, dim), b(&random, bags, 500, dim), c(&random, bags, 500, dim);
        auto shared = MakeTable(SmallOptions(static_cast<uint32_t>(dim)));
        auto written_out = MakeTable(SmallOptions(static_cast<uint32_t>(dim)));
        SlottedStep updater("slotted", dim, 1);
        for (int step = 0; step < 3; ++step) {
          // One part, then one of each kind: shared and scaled, shared, one row an occurrence.
          const Found fa = LookUp(*shared, a.ids), fb = LookUp(*shared, b.ids), fc = LookUp(*shared, c.ids);
          const std::vector<float> ga = a.Expanded(dim, scaled), gb = b.Expanded(dim, false), gc = c.Expanded(dim, true);
          std::vector<UpdatePart> parts = {a.Shared(fa, scaled)}, same = {PartOf(fa, ga)};
          if (step > 0) {
            parts.push_back(b.Shared(fb, false));
            parts.push_back(PartOf(fc, gc));
            same.push_back(PartOf(fb, gb));
            same.push_back(PartOf(fc, gc));
          }
          ASSERT_TRUE(shared->Update(parts, &updater, {}, step == 2 ? &pool : nullptr, nullptr).ok());
          ASSERT_TRUE(written_out->Update(same, &updater, {}, nullptr, nullptr).ok());
          ASSERT_TRUE(Contents(*shared) == Contents(*written_out)) << bags << " bags, dim " << dim << ", step " << step;
        }
      }
    }
  }
}

TEST(UpdateTest, SharedGradientRowsAreCheckedBeforeAnythingChanges) {
  auto table = MakeTable(SmallOptions(2, "city"));
  SubtractGradient updater(2);
  const Found found = LookUp(*table, {1, 2, 1});
  const std::vector<float> gradients = {1, 2, 3, 4};
  const std::vector<int32_t> rows = {0, 1, 1};
  const std::vector<float> scales = {1, 2, 3};
  UpdatePart good = PartOf(found, gradients);
  good.value_rows = rows;
  good.value_count = 2;
  good.scales = scales;
  const auto refused = [&](const UpdatePart& part, const std::vector<std::string>& says) {
    const Status status = table->Update({&part, 1}, &updater, {}, nullptr, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    for (const std::string& text : says) EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_EQ(table->size(), 0u);
  };
  for (const int32_t bad : {2, -1, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    std::vector<int32_t> wrong = rows;
    wrong[2] = bad;
    UpdatePart part = good;
    part.value_rows = wrong;
    refused(part, {"city", "part 0", "occurrence 2 takes value row " + std::to_string(bad), "0 to 2"});
  }
  UpdatePart part = good;
  part.value_rows = part.value_rows.first(2);
  refused(part, {"city", "3 occurrences", "2 value rows"});
  part = good;
  part.scales = part.scales.first(1);
  refused(part, {"3 value rows and 1 scales"});
  part = good;
  part.value_rows = {};
  refused(part, {"0 value rows and 3 scales"});
  part = good;
  part.dense = true;
  part.index = {};
  refused(part, {"0 occurrences"});
  ASSERT_TRUE(table->Update({&good, 1}, &updater, {}, nullptr, nullptr).ok());
  EXPECT_EQ(table->size(), 2u);
}

TEST(UpdateTest, AKeyThatIsNeverTrainedIsReadButNeitherInsertedCountedNorMoved) {
  TableOptions options = SmallOptions(2);
  options.keep_counts = true;
  auto table = MakeTable(options);
  SubtractGradient updater(2);
  const std::vector<uint64_t> padding = {7, 900};
  const std::vector<float> defaults = {5.0f, 6.0f};
  LookupOptions lookup;
  lookup.never_trained = padding;
  lookup.default_row = defaults;
  const std::vector<uint64_t> ids = {7, 1, 7, 2, 900, 1};
  Found found = LookUp(*table, ids, lookup);
  // Unseen: the default row; other ids their first rows.
  EXPECT_TRUE(std::ranges::equal(found.row_of(0, 2), defaults));
  EXPECT_TRUE(std::ranges::equal(found.row_of(4, 2), defaults));
  EXPECT_FALSE(std::ranges::equal(found.row_of(1, 2), defaults));
  EXPECT_EQ(found.handles[static_cast<size_t>(found.inverse[0])], kNeverTrained);
  EXPECT_EQ(found.handles[static_cast<size_t>(found.inverse[1])], kUnseen);
  const std::vector<float> gradients(ids.size() * 2, 1.0f);
  UpdatePart part = PartOf(found, gradients);
  UpdateReport report;
  ASSERT_TRUE(table->Update({&part, 1}, &updater, {}, nullptr, &report).ok());
  EXPECT_EQ(report.inserted, 2u);
  EXPECT_EQ(report.updated, 2u);
  EXPECT_EQ(table->size(), 2u);

  // Present: its row, which stays as it is, with its count; another lookup of the step may train it.
  const uint64_t seven = 7;
  const std::vector<float> row = {1.0f, 2.0f};
  ASSERT_TRUE(table->Insert({&seven, 1}, row.data(), 0, nullptr, nullptr).ok());
  const std::string before = Contents(*table);
  found = LookUp(*table, {7, 7}, lookup);
  EXPECT_TRUE(std::ranges::equal(found.row_of(0, 2), row));
  part = PartOf(found, gradients);
  ASSERT_TRUE(table->Update({&part, 1}, &updater, {}, nullptr, nullptr).ok());
  EXPECT_TRUE(Contents(*table) == before);
  for (const bool padded_first : {true, false}) {
    const Found trained = LookUp(*table, {7});
    found = LookUp(*table, {7, 7}, lookup);
    std::vector<UpdatePart> parts = {PartOf(found, gradients), PartOf(trained, gradients)};
    if (!padded_first) std::swap(parts[0], parts[1]);
    ASSERT_TRUE(table->Update(parts, &updater, {}, nullptr, nullptr).ok());
  }
  EXPECT_EQ(table->size(), 3u);
  std::vector<float> after(2);
  table->Find({&seven, 1}, after.data(), nullptr, nullptr);
  EXPECT_THAT(after, ::testing::ElementsAre(-1.0f, 0.0f));  // moved once a step
  // A new key that one lookup trains and another pads is inserted with its own first row.
  const Found trained = LookUp(*table, {900});
  found = LookUp(*table, {900}, lookup);
  const std::vector<UpdatePart> parts = {PartOf(found, gradients), PartOf(trained, gradients)};
  ASSERT_TRUE(table->Update(parts, &updater, {}, nullptr, nullptr).ok());
  const uint64_t nine_hundred = 900;
  table->Find({&nine_hundred, 1}, after.data(), nullptr, nullptr);
  EXPECT_THAT(after, ::testing::ElementsAre(trained.rows[0] - 1.0f, trained.rows[1] - 1.0f));
}

TEST(UpdateTest, AKeyThatIsNeverTrainedBecomesNoCandidateAndIsNeverAdmitted) {
  TableOptions options = SmallOptions(1);
  options.keep_counts = true;
  options.min_used_times = 2;
  auto table = MakeTable(options);
  SubtractGradient updater(1);
  const uint64_t padding = 7;
  LookupOptions lookup;
  lookup.never_trained = {&padding, 1};
  const std::vector<float> gradients(4, 1.0f);
  for (int step = 0; step < 3; ++step) {
    const Found found = LookUp(*table, {7, 7, 7, 3}, lookup);
    EXPECT_EQ(found.row_of(0, 1)[0], 0.0f);
    const UpdatePart part = PartOf(found, gradients);
    ASSERT_TRUE(table->Update({&part, 1}, &updater, {}, nullptr, nullptr).ok());
  }
  EXPECT_EQ(table->size(), 1u);
  EXPECT_EQ(table->stats().candidates, 0u);
}

TEST(UpdateTest, ExpandedRowsOfKeysThatAreNeverTrainedAreTheDefaultToo) {
  auto table = MakeTable(SmallOptions(2));
  const std::vector<uint64_t> ids = {4, 5, 4};
  const uint64_t padding = 4;
  LookupOptions lookup;
  lookup.never_trained = {&padding, 1};
  std::vector<float> expanded(6, -1.0f);
  const auto nothing = [](size_t) -> Result<UniqueOutputs> { return UniqueOutputs{}; };
  ASSERT_TRUE(table->Lookup(ids, lookup, nullptr, expanded.data(), nothing, nullptr, nullptr).ok());
  EXPECT_EQ(expanded[0], 0.0f);
  EXPECT_EQ(expanded[5], 0.0f);
  EXPECT_NE(expanded[2], 0.0f);
}

}  // namespace
}  // namespace mxrec
