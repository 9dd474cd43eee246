#include "mxrec/numeric/ulp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace mxrec {
namespace {

template <typename T>
class UlpTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(UlpTest, Types);

TYPED_TEST(UlpTest, CountsSteps) {
  using T = TypeParam;
  const T infinity = std::numeric_limits<T>::infinity();
  for (const T start : {T(1), T(-1), T(0.1), T(1e30), std::numeric_limits<T>::denorm_min(), T(0)}) {
    EXPECT_EQ(UlpDistance(start, start), 0u);
    T value = start;
    for (uint64_t steps = 1; steps <= 100; ++steps) {
      value = std::nextafter(value, infinity);
      ASSERT_EQ(UlpDistance(start, value), steps) << start;
      ASSERT_EQ(UlpDistance(value, start), steps) << start;
    }
  }
}

TYPED_TEST(UlpTest, ZerosAreEqualAndStepsCrossThem) {
  using T = TypeParam;
  const T tiny = std::numeric_limits<T>::denorm_min();
  EXPECT_EQ(UlpDistance(T(0), -T(0)), 0u);
  EXPECT_EQ(UlpDistance(tiny, -tiny), 2u);
  EXPECT_EQ(UlpDistance(-T(0), tiny), 1u);
  // The two largest numbers are as far apart as can be without overflow.
  const T max = std::numeric_limits<T>::max();
  EXPECT_LT(UlpDistance(max, -max), kUlpNever);
  EXPECT_EQ(UlpDistance(max, -max), 2 * UlpDistance(max, T(0)));
}

TYPED_TEST(UlpTest, NanAndInfinityAreDefined) {
  using T = TypeParam;
  const T nan = std::numeric_limits<T>::quiet_NaN(), infinity = std::numeric_limits<T>::infinity();
  EXPECT_EQ(UlpDistance(nan, nan), 0u);
  EXPECT_EQ(UlpDistance(nan, -nan), 0u);
  EXPECT_EQ(UlpDistance(nan, T(1)), kUlpNever);
  EXPECT_EQ(UlpDistance(nan, infinity), kUlpNever);
  EXPECT_EQ(UlpDistance(infinity, infinity), 0u);
  EXPECT_EQ(UlpDistance(infinity, -infinity), kUlpNever);
  EXPECT_EQ(UlpDistance(infinity, std::numeric_limits<T>::max()), kUlpNever);
}

}  // namespace
}  // namespace mxrec
