#include "mxrec/kernels/scatter_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "mxrec/kernels/simd_targets.h"

namespace mxrec {
namespace {

constexpr int32_t kSums = 11;
constexpr size_t kRows = 40;

using Scatter = decltype(&ScatterSumRows);

// The sums, with one float before and after that must stay, and what was seen.
struct Outcome {
  std::vector<float> sums;
  std::vector<uint8_t> seen;
  bool operator==(const Outcome& other) const {
    return seen == other.seen && std::memcmp(sums.data(), other.sums.data(), sums.size() * sizeof(float)) == 0;
  }
};

struct Input {
  Input(size_t dim, std::mt19937* random) : dim(dim), rows(kRows * dim), index(kRows) {
    std::normal_distribution<float> normal;
    for (float& x : rows) x = normal(*random);
    for (int32_t& u : index) u = static_cast<int32_t>((*random)() % (kSums - 1));  // nothing for the last one
  }
  Outcome Run(Scatter scatter, std::vector<std::pair<int32_t, int32_t>> ranges, bool placed = false) const {
    Outcome outcome{std::vector<float>(kSums * dim + 2, -5.0f), std::vector<uint8_t>(kSums)};
    std::vector<float*> places;
    for (int32_t u = 0; u < kSums; ++u) places.push_back(outcome.sums.data() + 1 + static_cast<size_t>(u) * dim);
    const ScatterTarget to{placed ? nullptr : outcome.sums.data() + 1, placed ? places.data() : nullptr};
    for (const auto& [first, last] : ranges) {
      scatter(rows.data(), index.data(), kRows, dim, first, last, outcome.seen.data(), to);
    }
    return outcome;
  }

  size_t dim;
  std::vector<float> rows;
  std::vector<int32_t> index;
};

TEST(ScatterSumRowsTest, EveryTargetEqualsTheReferenceToTheBitForManyWidths) {
  std::mt19937 random(5);
  ForEachSimdTarget([&](const char* target) {
    for (size_t dim = 0; dim <= 140; ++dim) {
      const Input in(dim, &random);
      const Outcome expected = in.Run(ScatterSumRowsReference, {{0, kSums}});
      ASSERT_TRUE(in.Run(ScatterSumRows, {{0, kSums}}) == expected) << target << " dim " << dim;
      ASSERT_TRUE(in.Run(ScatterSumRows, {{0, kSums}}, /*placed=*/true) == expected) << target << " dim " << dim;
    }
  });
}

TEST(ScatterSumRowsTest, RangesGiveTheBitsOfTheWholeAndTouchNothingElse) {
  std::mt19937 random(6);
  const Input in(19, &random);
  const Outcome whole = in.Run(ScatterSumRows, {{0, kSums}});
  EXPECT_TRUE(in.Run(ScatterSumRows, {{7, kSums}, {0, 3}, {3, 7}}) == whole);
  const Outcome part = in.Run(ScatterSumRows, {{3, 7}});
  for (int32_t u = 0; u < kSums; ++u) {
    const bool inside = u >= 3 && u < 7;
    EXPECT_EQ(part.seen[static_cast<size_t>(u)], inside);
    EXPECT_EQ(part.sums[1 + static_cast<size_t>(u) * 19], inside ? whole.sums[1 + static_cast<size_t>(u) * 19] : -5.0f);
  }
  EXPECT_EQ(whole.sums[1 + (kSums - 1) * 19], -5.0f);
}

TEST(AddRowsOntoTest, EveryTargetEqualsTheReferenceToTheBitAndTouchesNothingElse) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const std::vector<int32_t> from{30, 12, 13, 14, 39, 38, 2, 31, 33, 32, 20}, onto{1, 5, 5, 5, 0, 36, 36, 7, 8, 9, 1};
  ForEachSimdTarget([&](const char* target) {
    for (size_t dim = 0; dim <= 140; ++dim) {
      std::vector<float> rows(kRows * dim);
      for (float& x : rows) x = normal(random);
      std::vector<float> expected = rows;
      AddRowsOntoReference(expected.data(), from.data(), onto.data(), from.size(), dim);
      AddRowsOnto(rows.data(), from.data(), onto.data(), from.size(), dim);
      ASSERT_TRUE(rows == expected) << target << " dim " << dim;
    }
  });
}

}  // namespace
}  // namespace mxrec
