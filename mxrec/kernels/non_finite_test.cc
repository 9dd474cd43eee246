#include "mxrec/kernels/non_finite.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "mxrec/kernels/simd_targets.h"

namespace mxrec {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(NonFiniteTest, EveryTargetFindsTheFirstAtEveryPosition) {
  ForEachSimdTarget([&](const char* target) {
    for (size_t n = 0; n <= 150; ++n) {
      std::vector<float> values(n, std::numeric_limits<float>::max());
      ASSERT_EQ(FirstNonFinite(values.data(), n), n) << target;
      for (size_t i = 0; i < n; ++i) {
        const float bad = i % 3 == 0 ? kInf : i % 3 == 1 ? -kInf : std::numeric_limits<float>::quiet_NaN();
        values[i] = bad;
        values[n - 1] = bad;
        ASSERT_EQ(FirstNonFinite(values.data(), n), i) << target << " n " << n;
        ASSERT_EQ(FirstNonFiniteReference(values.data(), n), i);
        values[i] = -0.0f;
        values[n - 1] = std::numeric_limits<float>::denorm_min();
      }
    }
  });
}

TEST(NonFiniteTest, SignallingNaNWithOneBitSetIsFound) {
  const uint32_t bits = 0x7F800001u;
  std::vector<float> values(64, 0.0f);
  std::memcpy(&values[37], &bits, sizeof(bits));
  ForEachSimdTarget([&](const char* target) { EXPECT_EQ(FirstNonFinite(values.data(), values.size()), 37u) << target; });
}

TEST(NonFiniteTest, BytesAfterTheEndAreNotLookedAt) {
  std::vector<float> values(64, kInf);
  for (size_t n = 0; n < 40; ++n) {
    std::fill_n(values.begin(), n, 1.0f);
    EXPECT_EQ(FirstNonFinite(values.data(), n), n);
  }
}

}  // namespace
}  // namespace mxrec
