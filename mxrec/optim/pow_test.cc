#include "mxrec/optim/pow.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include "mxrec/numeric/ulp.h"

namespace mxrec {
namespace {

using internal::PositivePower;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(PositivePowerTest, IsThePowerInFloat64RoundedToFloat32) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> exponents(-37.0f, 37.0f), powers(-8.0f, 8.0f);
  uint64_t worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const float x = std::pow(10.0f, exponents(random)), y = powers(random);
    const float expected = static_cast<float>(std::pow(static_cast<double>(x), static_cast<double>(y)));
    const uint64_t ulp = UlpDistance(PositivePower(x, y), expected);
    worst = std::max(worst, ulp);
    ASSERT_LE(ulp, 1u) << x << " ^ " << y;
  }
  std::printf("200000 powers: at most %llu ulp from the one of float64\n", static_cast<unsigned long long>(worst));
}

TEST(PositivePowerTest, SquareRootsOfSquaresAndWholePowersAreExact) {
  for (int i = 1; i < 1000; ++i) {
    const float x = static_cast<float>(i);
    EXPECT_EQ(PositivePower(x * x, 0.5f), x);
    EXPECT_EQ(PositivePower(x, 1.0f), x);
    EXPECT_EQ(PositivePower(x, 2.0f), x * x);
  }
}

TEST(PositivePowerTest, EndsOfTheRangeAreDefined) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(PositivePower(0.0f, 0.0f), 1.0f);
  EXPECT_EQ(PositivePower(nan, 0.0f), 1.0f);
  EXPECT_EQ(PositivePower(0.0f, 0.7f), 0.0f);
  EXPECT_EQ(PositivePower(-0.0f, 0.7f), 0.0f);
  EXPECT_EQ(PositivePower(0.0f, -0.7f), kInfinity);
  EXPECT_EQ(PositivePower(kInfinity, 0.7f), kInfinity);
  EXPECT_EQ(PositivePower(kInfinity, -0.7f), 0.0f);
  EXPECT_EQ(PositivePower(3e38f, 2.0f), kInfinity);
  EXPECT_EQ(PositivePower(3e38f, -8.0f), 0.0f);
  EXPECT_EQ(PositivePower(2.0f, kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(PositivePower(-1.0f, 0.5f)));
  EXPECT_TRUE(std::isnan(PositivePower(nan, 0.5f)));
  EXPECT_TRUE(std::isnan(PositivePower(2.0f, nan)));
  EXPECT_TRUE(std::isnan(PositivePower(1.0f, kInfinity)));
  const float smallest = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(PositivePower(smallest, 1.0f), smallest);
  EXPECT_EQ(PositivePower(smallest, 0.5f), std::sqrt(smallest));
}

}  // namespace
}  // namespace mxrec
