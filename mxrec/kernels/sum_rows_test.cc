#include "mxrec/kernels/sum_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "mxrec/kernels/simd_targets.h"

namespace mxrec {
namespace {

struct Input {
  std::vector<float> rows, scales;
  std::vector<uint32_t> which;
};

Input MakeInput(size_t dim, size_t count, std::mt19937* random) {
  constexpr size_t kRows = 9;
  std::normal_distribution<float> normal;
  Input in{std::vector<float>(kRows * dim), std::vector<float>(count), std::vector<uint32_t>(count)};
  for (float& x : in.rows) x = normal(*random);
  for (float& x : in.scales) x = normal(*random);
  for (uint32_t& w : in.which) w = (*random)() % kRows;
  return in;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(SumRowsTest, EveryTargetEqualsTheReferenceToTheBitForManyWidths) {
  std::mt19937 random(3);
  ForEachSimdTarget([&](const char* target) {
    for (size_t dim = 1; dim <= 140; ++dim) {
      for (const size_t count : {1, 2, 3, 23}) {
        const Input in = MakeInput(dim, count, &random);
        for (const bool scaled : {false, true}) {
          for (const bool onto : {false, true}) {
            // One float before and after must stay as they are.
            std::vector<float> sum(dim + 2, -5.0f), expected = sum;
            const float* scales = scaled ? in.scales.data() : nullptr;
            SumRows(in.rows.data(), in.which.data(), scales, count, dim, onto, sum.data() + 1);
            SumRowsReference(in.rows.data(), in.which.data(), scales, count, dim, onto, expected.data() + 1);
            ASSERT_TRUE(SameBits(sum, expected)) << target << " dim " << dim << " rows " << count << " scaled " << scaled;
          }
        }
      }
    }
  });
}

TEST(SumRowsTest, AListSummedInPiecesGivesTheBitsOfTheWholeList) {
  std::mt19937 random(4);
  constexpr size_t kDim = 23, kCount = 40;
  const Input in = MakeInput(kDim, kCount, &random);
  std::vector<float> whole(kDim), pieces(kDim);
  SumRows(in.rows.data(), in.which.data(), in.scales.data(), kCount, kDim, false, whole.data());
  size_t at = 0;
  for (const size_t count : {1, 7, 32}) {
    SumRows(in.rows.data(), in.which.data() + at, in.scales.data() + at, count, kDim, at != 0, pieces.data());
    at += count;
  }
  ASSERT_EQ(at, kCount);
  EXPECT_TRUE(SameBits(whole, pieces));
}

TEST(SumRowsTest, KeepsASingleNegativeZero) {
  const float zero = -0.0f;
  const uint32_t which = 0;
  float sum = 1;
  SumRows(&zero, &which, nullptr, 1, 1, false, &sum);
  EXPECT_TRUE(std::signbit(sum));
}

}  // namespace
}  // namespace mxrec
