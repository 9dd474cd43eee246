#include "mxrec/kernels/dropout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "mxrec/kernels/simd_targets.h"

namespace mxrec {
namespace {

size_t CountBits(const std::vector<uint8_t>& mask) {
  size_t count = 0;
  for (const uint8_t byte : mask) count += static_cast<size_t>(std::popcount(byte));
  return count;
}

TEST(DropoutTest, EveryTargetEqualsTheReferenceToTheBit) {
  for (const double keep : {0.5, 0.9, 1e-9, 1.0, 0.123}) {
    for (const uint64_t first : {uint64_t{0}, uint64_t{16}, uint64_t{0xFFFFFFE0u}, ~uint64_t{0} - 1023}) {
      const DropoutStream stream{0x123456789ABCDEFu, 0xFEDCBA9876543210u, first, DropoutThreshold(keep)};
      const size_t groups = 37;
      std::vector<uint8_t> expected(8 * groups);
      DropoutMaskReference(stream, 3, groups, expected.data());
      ForEachSimdTarget([&](const char* target) {
        std::vector<uint8_t> found(8 * groups, 0xAA);
        DropoutMask(stream, 3, groups, found.data());
        ASSERT_EQ(found, expected) << target << " keep " << keep << " first " << first;
      });
    }
  }
}

TEST(DropoutTest, TheBitsArePinned) {
  // Another answer here changes every seeded run of every user.
  std::vector<uint8_t> mask(16);
  DropoutMask({7, 9, 32, DropoutThreshold(0.5)}, 1, 2, mask.data());
  uint64_t words[2];
  std::memcpy(words, mask.data(), 16);
  EXPECT_EQ(words[0], 15256901289684883493u);
  EXPECT_EQ(words[1], 6700049357628423429u);
}

TEST(DropoutTest, PartsOfAMaskEqualTheWhole) {
  const DropoutStream stream{1, 2, 48, DropoutThreshold(0.3)};
  std::vector<uint8_t> whole(8 * 50), parts(8 * 50);
  DropoutMask(stream, 0, 50, whole.data());
  for (size_t g = 0; g < 50; g += 7) DropoutMask(stream, g, std::min<size_t>(7, 50 - g), parts.data() + 8 * g);
  EXPECT_EQ(whole, parts);
}

TEST(DropoutTest, TheShareOfKeptElementsIsTheProbability) {
  const size_t groups = 1 << 16;
  const double n = 64.0 * groups;
  std::vector<uint8_t> mask(8 * groups);
  for (const double keep : {0.01, 0.25, 0.5, 0.9, 0.999}) {
    DropoutMask({11, 0, 0, DropoutThreshold(keep)}, 0, groups, mask.data());
    const double sigma = std::sqrt(keep * (1 - keep) / n), found = static_cast<double>(CountBits(mask)) / n;
    printf("keep %.3f: %.2f standard deviations off\n", keep, (found - keep) / sigma);
    EXPECT_LT(std::abs(found - keep), 5 * sigma);
  }
  DropoutMask({11, 0, 0, DropoutThreshold(1.0)}, 0, groups, mask.data());
  EXPECT_EQ(CountBits(mask), 64 * groups);
}

TEST(DropoutTest, ThresholdsRoundToNearestAndNeverReachZero) {
  EXPECT_EQ(DropoutThreshold(1.0), uint64_t{1} << 32);
  EXPECT_EQ(DropoutThreshold(0.5), uint64_t{1} << 31);
  EXPECT_EQ(DropoutThreshold(1e-30), 1u);
  EXPECT_EQ(DropoutThreshold(std::nextafter(1.0, 0.0)), uint64_t{1} << 32);
}

template <typename T>
void CheckApply() {
  for (size_t n = 0; n <= 200; ++n) {
    std::vector<uint8_t> mask(8 * 4);
    DropoutMask({n, 0, 0, DropoutThreshold(0.5)}, 0, 4, mask.data());
    mask.resize((n + 7) / 8);  // nothing behind it may be read
    std::vector<T> x(n), expected(n + 1, T{-5}), out;
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<T>(i) - T{40};
    if (n > 100) {
      x[99] = std::numeric_limits<T>::quiet_NaN();
      x[98] = std::numeric_limits<T>::infinity();
    }
    DropoutApplyReference(x.data(), mask.data(), n, T{0.7f}, expected.data());
    ForEachSimdTarget([&](const char* target) {
      out.assign(n + 1, T{-5});
      DropoutApply(x.data(), mask.data(), n, T{0.7f}, out.data());
      EXPECT_EQ(std::memcmp(out.data(), expected.data(), (n + 1) * sizeof(T)), 0) << target << " n " << n;
      out = x;
      DropoutApply(out.data(), mask.data(), n, T{0.7f}, out.data());  // in place
      EXPECT_EQ(std::memcmp(out.data(), expected.data(), n * sizeof(T)), 0) << target << " n " << n;
    });
    for (size_t i = 0; i < n; ++i) {
      if ((mask[i / 8] >> (i % 8) & 1) == 0) {
        EXPECT_EQ(expected[i], T{0}) << "also of NaN";
      }
    }
  }
}

TEST(DropoutTest, AppliedMasksEqualTheReferenceOnEveryTargetAndDropNaN) {
  CheckApply<float>();
  CheckApply<double>();
}

}  // namespace
}  // namespace mxrec
