#include "mxrec/kernels/float_mode.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <limits>

namespace mxrec {
namespace {

float Third() {
  volatile float one = 1.0f, three = 3.0f;
  return one / three;
}

TEST(FloatModeTest, InsideTheScopeRoundingIsToNearestAndAfterItTheFormerModeIsBack) {
  const float nearest = Third();
  ASSERT_EQ(std::fesetround(FE_DOWNWARD), 0);
  const float downward = Third();
  float inside = 0;
  {
    const ScopedIeeeFloat ieee;
    inside = Third();
  }
  const float after = Third();
  std::fesetround(FE_TONEAREST);
  EXPECT_NE(nearest, downward);
  EXPECT_EQ(inside, nearest);
  EXPECT_EQ(after, downward);
}

#if defined(__x86_64__)
float HalfOfSmallestNormal() {
  volatile float smallest = std::numeric_limits<float>::min(), half = 0.5f;
  return smallest * half;
}

TEST(FloatModeTest, InsideTheScopeDenormalsAreKept) {
  uint32_t former = 0;
  asm volatile("stmxcsr %0" : "=m"(former));
  const uint32_t flushing = former | 0x8040u;
  asm volatile("ldmxcsr %0" ::"m"(flushing));
  const float outside = HalfOfSmallestNormal();
  float inside = 0;
  {
    const ScopedIeeeFloat ieee;
    inside = HalfOfSmallestNormal();
  }
  const float after = HalfOfSmallestNormal();
  asm volatile("ldmxcsr %0" ::"m"(former));
  EXPECT_EQ(outside, 0.0f);
  EXPECT_GT(inside, 0.0f);
  EXPECT_EQ(after, 0.0f);
}
#endif

}  // namespace
}  // namespace mxrec
