#include "mxrec/kernels/narrow_floats.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "mxrec/kernels/float_mode.h"
#include "mxrec/kernels/simd_targets.h"
#include "mxrec/numeric/half.h"

namespace mxrec {
namespace {

TEST(NarrowFloatsTest, EveryPatternOf16BitsWidensAsTheReferenceOnEveryTarget) {
  const ScopedIeeeFloat ieee;
  std::vector<uint16_t> in(65536);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint16_t>(i);
  ForEachSimdTarget([&](const char* target) {
    std::vector<float> half(in.size()), bfloat(in.size());
    HalfToFloats(in.data(), in.size(), half.data());
    BFloat16ToFloats(in.data(), in.size(), bfloat.data());
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(half[i]), std::bit_cast<uint32_t>(HalfToFloat(in[i]))) << target << " half " << i;
      ASSERT_EQ(std::bit_cast<uint32_t>(bfloat[i]), std::bit_cast<uint32_t>(BFloat16ToFloat(in[i]))) << target << " bfloat16 " << i;
    }
  });
}

TEST(NarrowFloatsTest, NarrowingRoundsAsTheReferenceOnEveryTarget) {
  const ScopedIeeeFloat ieee;
  std::vector<float> in;
  // All values of the upper 16 bits with lower bits around the ties, then random patterns.
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x0FFFu, 0x1000u, 0x1001u, 0x7FFFu, 0x8000u, 0x8001u, 0xEFFFu, 0xF000u, 0xFFFFu}) {
      in.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 100001; ++i) in.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  ForEachSimdTarget([&](const char* target) {
    std::vector<uint16_t> half(in.size()), bfloat(in.size());
    FloatsToHalf(in.data(), in.size(), half.data());
    FloatsToBFloat16(in.data(), in.size(), bfloat.data());
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(half[i], FloatToHalf(in[i])) << target << " " << std::bit_cast<uint32_t>(in[i]);
      ASSERT_EQ(bfloat[i], FloatToBFloat16(in[i])) << target << " " << std::bit_cast<uint32_t>(in[i]);
    }
  });
}

TEST(NarrowFloatsTest, NothingBehindTheEndIsWritten) {
  for (size_t n = 0; n < 40; ++n) {
    std::vector<float> wide(n + 1, 5.0f);
    std::vector<uint16_t> narrow(n + 1, 7);
    HalfToFloats(narrow.data(), n, wide.data());
    EXPECT_EQ(wide[n], 5.0f);
    FloatsToHalf(wide.data(), n, narrow.data());
    EXPECT_EQ(narrow[n], 7);
    BFloat16ToFloats(narrow.data(), n, wide.data());
    EXPECT_EQ(wide[n], 5.0f);
    FloatsToBFloat16(wide.data(), n, narrow.data());
    EXPECT_EQ(narrow[n], 7);
  }
}

}  // namespace
}  // namespace mxrec
