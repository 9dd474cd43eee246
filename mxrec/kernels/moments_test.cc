#include "mxrec/kernels/moments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace mxrec {
namespace {

TEST(MomentsTest, SumsOfEveryLengthAreThoseOfTheNumbers) {
  for (size_t n = 0; n < 60; ++n) {
    std::vector<float> x(n);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(i) - 7;
      sum += static_cast<double>(x[i]);
      squares += (static_cast<double>(x[i]) - 0.5) * (static_cast<double>(x[i]) - 0.5);
    }
    const std::vector<double> wide(x.begin(), x.end());
    EXPECT_EQ(Sum(x.data(), n), sum);
    EXPECT_EQ(Sum(wide.data(), n), sum);
    EXPECT_EQ(SquareSum(x.data(), n, 0.5), squares);
    EXPECT_EQ(SquareSum(wide.data(), n, 0.5), squares);
  }
}

TEST(MomentsTest, SmallNumbersBesideLargeOnesCount) {
  std::vector<float> x(1 << 20, 1.0f);
  x[0] = 16777216.0f * 16;  // float32 sums would stop here
  EXPECT_EQ(Sum(x.data(), x.size()), 268435456.0 + (1 << 20) - 1);
}

TEST(MomentsTest, StandardizedNumbersAreRoundedOnceAndNaNStays) {
  const float x[3] = {1, 2, std::nanf("")};
  float y[4] = {0, 0, 0, 9};
  Standardize(x, 3, 0.5, 3.0, y);
  EXPECT_EQ(y[0], 1.5f);
  EXPECT_EQ(y[1], 4.5f);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 9.0f);
}

}  // namespace
}  // namespace mxrec
