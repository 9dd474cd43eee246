#include "mxrec/shard/merged_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <vector>

namespace mxrec {
namespace {

constexpr size_t kDim = 3;

struct World {
  std::vector<uint64_t> keys;
  std::vector<int64_t> counts;
  std::vector<float> rows;
};

// `range` says how many of the ids ranks share.
World Make(std::span<const int64_t> counts, uint64_t range, std::mt19937* random) {
  World world;
  std::normal_distribution<float> normal;
  for (const int64_t count : counts) {
    std::set<uint64_t> distinct;
    while (std::ssize(distinct) < count) distinct.insert((*random)() % range);
    std::vector<uint64_t> mine(distinct.begin(), distinct.end());
    std::shuffle(mine.begin(), mine.end(), *random);
    world.keys.insert(world.keys.end(), mine.begin(), mine.end());
    world.counts.push_back(count);
  }
  for (size_t i = 0; i < world.keys.size() * kDim; ++i) world.rows.push_back(normal(*random));
  return world;
}

struct Outcome {
  std::vector<uint64_t> keys;
  std::vector<float> rows;
  bool operator==(const Outcome&) const = default;
};

Outcome Merge(const World& world, size_t me, DistinctIds* ids, MergedRows* merged) {
  const size_t before =
      static_cast<size_t>(std::accumulate(world.counts.begin(), world.counts.begin() + static_cast<ptrdiff_t>(me), int64_t{0}));
  std::vector<int32_t> numbers(static_cast<size_t>(world.counts[me]));
  ids->Start();
  ids->Add(std::span(world.keys).subspan(before, numbers.size()), numbers.data());
  merged->LayOut(world.keys, world.counts, me, ids);
  Outcome outcome{world.keys, world.rows};
  merged->Move(outcome.keys.data());
  merged->AddUp(outcome.rows.data(), kDim);
  outcome.keys.resize(merged->size());
  outcome.rows.resize(merged->size() * kDim);
  return outcome;
}

TEST(MergedRowsTest, EveryIndexHasItsSumInTheOrderOfRanksTheSameOnAllRanks) {
  std::mt19937 random(7);
  DistinctIds ids;
  MergedRows merged;
  const std::vector<std::vector<int64_t>> worlds{{0, 0},    {5, 0},      {0, 5},       {1, 1},          {50, 50},       {300, 40},
                                                 {40, 300}, {50, 0, 30}, {60, 60, 60}, {1, 200, 3, 90}, {500, 500, 500}};
  for (const auto& counts : worlds) {
    // From all shared to hardly any.
    for (const uint64_t range : {500, 900, 100'000}) {
      const World world = Make(counts, range, &random);
      std::map<uint64_t, std::vector<float>> expected;
      for (size_t i = 0; i < world.keys.size(); ++i) {
        std::vector<float>& sum = expected[world.keys[i]];
        for (size_t c = 0; c < kDim; ++c) {
          if (sum.size() < kDim) {
            sum.push_back(world.rows[i * kDim + c]);
          } else {
            sum[c] += world.rows[i * kDim + c];
          }
        }
      }
      const Outcome first = Merge(world, 0, &ids, &merged);
      ASSERT_EQ(first.keys.size(), expected.size());
      for (size_t u = 0; u < first.keys.size(); ++u) {
        const auto found = expected.find(first.keys[u]);
        ASSERT_NE(found, expected.end()) << first.keys[u];
        EXPECT_EQ(std::vector(first.rows.begin() + static_cast<ptrdiff_t>(u * kDim),
                              first.rows.begin() + static_cast<ptrdiff_t>((u + 1) * kDim)),
                  found->second);
        expected.erase(found);
      }
      for (size_t me = 1; me < counts.size(); ++me) EXPECT_TRUE(Merge(world, me, &ids, &merged) == first) << "rank " << me;
    }
  }
}

TEST(MergedRowsTest, RowsStayWhereTheyAreUnlessThereIsAPlaceBeforeThem) {
  const World world{{7, 8, 9, 8, 5, 7, 6}, {3, 4}, std::vector<float>(7 * kDim)};
  DistinctIds ids;
  MergedRows merged;
  EXPECT_EQ(Merge(world, 1, &ids, &merged).keys, (std::vector<uint64_t>{7, 8, 9, 6, 5}));
  EXPECT_EQ(merged.touched(), 3u);
}

}  // namespace
}  // namespace mxrec
