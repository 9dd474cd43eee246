#include "mxrec/shard/route.h"

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "mxrec/base/thread_pool.h"

namespace mxrec {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

struct Routed {
  std::vector<uint64_t> keys;
  std::vector<uint32_t> counts;
  std::vector<int32_t> inverse;
  std::vector<int64_t> splits;
};

Routed Route(const std::vector<uint64_t>& ids, int ranks, OwnerRule rule = OwnerRule::kMod) {
  Routed routed;
  routed.inverse.resize(ids.size());
  routed.splits.resize(static_cast<size_t>(ranks));
  const Status status = RouteIds(ids, ranks, rule, routed.inverse.data(), routed.splits, [&](size_t unique) -> Result<RoutedKeys> {
    routed.keys.resize(unique);
    routed.counts.resize(unique);
    return RoutedKeys{routed.keys.data(), routed.counts.data()};
  });
  EXPECT_TRUE(status.ok()) << status;
  return routed;
}

// Acceptance fact 11: ids 1,2,1,3 and 2,6,1,5 of two ranks: owner 0 receives 2,2,6 and owner 1 receives 1,3,1,5.
TEST(RouteIdsTest, Fact11KeysTravelOwnerAfterOwnerByFirstOccurrence) {
  const Routed first = Route({1, 2, 1, 3}, 2), second = Route({2, 6, 1, 5}, 2);
  EXPECT_THAT(first.keys, ElementsAre(2, 1, 3));
  EXPECT_THAT(first.splits, ElementsAre(1, 2));
  EXPECT_THAT(first.counts, ElementsAre(1, 2, 1));
  EXPECT_THAT(first.inverse, ElementsAre(1, 0, 1, 2));
  EXPECT_THAT(second.keys, ElementsAre(2, 6, 1, 5));
  EXPECT_THAT(second.splits, ElementsAre(2, 2));
}

// Acceptance fact 12: -3 of 4 ranks goes to floor-mod owner 1.
TEST(OwnerOfTest, Fact12NegativeKeysGoToTheFloorModOwner) {
  EXPECT_EQ(OwnerOf(static_cast<uint64_t>(int64_t{-3}), 4, OwnerRule::kMod), 1u);
  EXPECT_EQ(OwnerOf(static_cast<uint64_t>(int64_t{-1}), 4, OwnerRule::kMod), 3u);
  EXPECT_EQ(OwnerOf(static_cast<uint64_t>(std::numeric_limits<int64_t>::min()), 3, OwnerRule::kMod), 1u);
  EXPECT_EQ(OwnerOf(static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), 2, OwnerRule::kMod), 1u);
}

TEST(OwnerOfTest, TheHashRuleSpreadsMultiplesOfTheRankCount) {
  for (const int ranks : {2, 3, 4, 7, 8}) {
    std::vector<int> owned(static_cast<size_t>(ranks));
    constexpr int kKeys = 20000;
    for (int k = 0; k < kKeys; ++k) {
      const uint32_t owner =
          OwnerOf(static_cast<uint64_t>(k) * static_cast<uint64_t>(ranks), static_cast<uint32_t>(ranks), OwnerRule::kHash);
      ASSERT_LT(owner, static_cast<uint32_t>(ranks));
      ++owned[owner];
    }
    const auto [least, most] = std::minmax_element(owned.begin(), owned.end());
    EXPECT_GT(*least, kKeys / ranks * 0.9) << ranks;
    EXPECT_LT(*most, kKeys / ranks * 1.1) << ranks;
  }
}

TEST(RouteIdsTest, EmptyAndOneRank) {
  const Routed empty = Route({}, 3);
  EXPECT_TRUE(empty.keys.empty());
  EXPECT_THAT(empty.splits, ElementsAre(0, 0, 0));
  const Routed alone = Route({5, 5, 0, ~uint64_t{0}}, 1);
  EXPECT_THAT(alone.keys, ElementsAre(5, 0, ~uint64_t{0}));
  EXPECT_THAT(alone.splits, ElementsAre(3));
}

TEST(RouteIdsTest, RandomBatchesKeepEveryIdAndItsOwner) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 8);
    const OwnerRule rule = random() % 2 == 0 ? OwnerRule::kMod : OwnerRule::kHash;
    std::vector<uint64_t> ids(random() % 3000);
    const uint64_t span = 1 + random() % 4000;
    for (uint64_t& id : ids) id = random() % span - span / 2;
    const Routed routed = Route(ids, ranks, rule);
    std::map<uint64_t, uint32_t> counts;
    for (size_t i = 0; i < ids.size(); ++i) {
      ++counts[ids[i]];
      ASSERT_EQ(routed.keys[static_cast<size_t>(routed.inverse[i])], ids[i]);
    }
    ASSERT_EQ(routed.keys.size(), counts.size());
    size_t at = 0;
    for (int r = 0; r < ranks; ++r) {
      for (int64_t k = 0; k < routed.splits[static_cast<size_t>(r)]; ++k, ++at) {
        ASSERT_EQ(OwnerOf(routed.keys[at], static_cast<uint32_t>(ranks), rule), static_cast<uint32_t>(r));
        ASSERT_EQ(routed.counts[at], counts[routed.keys[at]]);
      }
    }
    ASSERT_EQ(at, routed.keys.size());
  }
}

TEST(RouteIdsTest, HotKeysLieBehindThoseThatTheRankOwns) {
  const std::vector<uint64_t> ids = {9, 4, 7, 9, 1, 2, 4, 5};  // 3 ranks; 4, 5 and 9 are hot, and so is 8, which is not there
  const std::vector<HotKey> hot = {{4, 2}, {5, 0}, {8, 1}, {9, 3}};
  const std::vector<std::vector<uint64_t>> expected = {{9, 4, 5, 7, 1, 2}, {7, 1, 9, 4, 5, 2}, {7, 1, 2, 9, 4, 5}};
  const std::vector<std::vector<int64_t>> expected_splits = {{3, 2, 1}, {0, 5, 1}, {0, 2, 4}};
  for (int me = 0; me < 3; ++me) {
    std::vector<int32_t> inverse(ids.size()), found = {77};
    std::vector<int64_t> splits(3);
    std::vector<uint64_t> keys;
    std::vector<uint32_t> counts;
    const HotRoute route{hot, me, &found};
    ASSERT_TRUE(RouteIds(
                    ids, 3, OwnerRule::kMod, inverse.data(), splits,
                    [&](size_t unique) -> Result<RoutedKeys> {
                      keys.resize(unique);
                      counts.resize(unique);
                      return RoutedKeys{keys.data(), counts.data()};
                    },
                    &route)
                    .ok());
    EXPECT_EQ(keys, expected[static_cast<size_t>(me)]) << me;
    EXPECT_EQ(splits, expected_splits[static_cast<size_t>(me)]) << me;
    EXPECT_THAT(found, ElementsAre(3, 2, 0));
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(keys[static_cast<size_t>(inverse[i])], ids[i]);
    for (size_t u = 0; u < keys.size(); ++u) EXPECT_EQ(counts[u], keys[u] == 9 || keys[u] == 4 ? 2u : 1u);
  }
}

TEST(RouteIdsTest, SaysWhatIsWrongWithItsArguments) {
  std::vector<int64_t> splits(2);
  const auto none = [](size_t) -> Result<RoutedKeys> { return RoutedKeys{}; };
  const Status status = RouteIds({}, 3, OwnerRule::kMod, nullptr, splits, none);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 ranks and 2 splits"));
}

// Acceptance fact 13: ids 7,7,9 with a loss that sums rows: the gradient of 7 is exactly twice that of 9.
TEST(SumRoutedGradientsTest, Fact13EqualIdsAddUp) {
  const std::vector<int32_t> index = {0, 0, 1};
  const std::vector<float> ones(6, 1.0f);
  std::vector<float> sums(4, -1.0f);
  ASSERT_TRUE(SumRoutedGradients(index, ones.data(), 2, 2, {sums.data()}, nullptr).ok());
  EXPECT_THAT(sums, ElementsAre(2, 2, 1, 1));
}

TEST(SumRoutedGradientsTest, TheSumIsInOrderOfOccurrenceForAnyNumberOfThreads) {
  std::mt19937 random(3);
  constexpr size_t kUnique = 5000, kOccurrences = 20000, kDim = 7;
  std::vector<int32_t> index(kOccurrences);
  std::vector<float> values(kOccurrences * kDim);
  for (int32_t& i : index) i = static_cast<int32_t>(random() % (kUnique - 1));  // the last one has none
  for (float& v : values) v = static_cast<float>(random()) / 1e6f;
  std::vector<float> expected(kUnique * kDim, 0.0f), alone(kUnique * kDim), shared(kUnique * kDim);
  for (size_t j = 0; j < kOccurrences; ++j) {
    for (size_t c = 0; c < kDim; ++c) expected[static_cast<size_t>(index[j]) * kDim + c] += values[j * kDim + c];
  }
  ASSERT_TRUE(SumRoutedGradients(index, values.data(), kUnique, kDim, {alone.data()}, nullptr).ok());
  ThreadPool pool(3);
  ASSERT_TRUE(SumRoutedGradients(index, values.data(), kUnique, kDim, {shared.data()}, &pool).ok());
  EXPECT_THAT(alone, ElementsAreArray(expected));
  EXPECT_EQ(alone, shared);
}

TEST(SumRoutedGradientsTest, AnIndexOutsideIsNamed) {
  const std::vector<int32_t> index = {0, 3};
  const std::vector<float> values(2);
  std::vector<float> sums(3);
  const Status status = SumRoutedGradients(index, values.data(), 3, 1, {sums.data()}, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("index[1] of a gradient is 3, expected 0 <= index < 3"));
}

}  // namespace
}  // namespace mxrec
