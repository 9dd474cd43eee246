#include "mxrec/kernels/first_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "mxrec/kernels/simd_targets.h"

namespace mxrec {
namespace {

constexpr FirstRowFormula kFormulas[] = {
    {Distribution::kUniform, -0.25f, 0.75f},       {Distribution::kNormal, 0.0f, 1.0f},
    {Distribution::kNormal, 3.0f, 0.01f},          {Distribution::kTruncatedNormal, 0.0f, 0.05f},
    {Distribution::kTruncatedNormal, -1.0f, 2.0f},
};

TEST(FirstRowTest, PhiloxGivesThePublishedAnswers) {
  // Known answers of the authors' own tests (Random123, kat_vectors: philox4x32 10).
  struct Case {
    uint32_t counter[4], key[2], expected[4];
  };
  const Case cases[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}},
      {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}},
      {{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
       {0xa4093822u, 0x299f31d0u},
       {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}},
  };
  for (const Case& c : cases) {
    uint32_t out[4];
    Philox4x32(c.counter, c.key, out);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], c.expected[i]);
  }
}

TEST(FirstRowTest, EveryTargetEqualsTheReferenceToTheBitForManyWidths) {
  std::vector<uint64_t> keys = {0, 1, ~uint64_t{0}, uint64_t{1} << 63, 0xFFFFFFFFu, 0x100000000u};
  for (uint64_t k = 0; k < 5; ++k) keys.push_back(k * 0x9E3779B97F4A7C15u);
  for (const FirstRowFormula& formula : kFormulas) {
    for (size_t dim = 1; dim <= 130; ++dim) {
      const size_t stride = dim + dim % 4;
      std::vector<float> expected(keys.size() * stride + 2, -5.0f);
      const std::vector<float> untouched = expected;
      FirstRowsReference(formula, 77, keys.data(), keys.size(), dim, expected.data() + 1, stride);
      ForEachSimdTarget([&](const char* target) {
        std::vector<float> out = untouched;
        FirstRows(formula, 77, keys.data(), keys.size(), dim, out.data() + 1, stride);
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected[i]))
              << target << " dim " << dim << " position " << i << " distribution " << static_cast<int>(formula.distribution);
        }
      });
    }
  }
}

TEST(FirstRowTest, ManyRowsGiveTheSameBitsOnEveryTargetWithTheTailsOfTheNormalDistribution) {
  // 2^21 words reach about 5 deviations; chunks of odd sizes move the rows through all lanes.
  const FirstRowFormula formula{Distribution::kNormal, 0.0f, 1.0f};
  std::vector<uint64_t> keys(1 << 15);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i * 0x9E3779B97F4A7C15u;
  const size_t dim = 64;
  std::vector<float> expected(keys.size() * dim);
  FirstRowsReference(formula, 5, keys.data(), keys.size(), dim, expected.data(), dim);
  ForEachSimdTarget([&](const char* target) {
    std::vector<float> out(expected.size());
    for (size_t first = 0; first < keys.size(); first += 37) {
      FirstRows(formula, 5, keys.data() + first, std::min<size_t>(37, keys.size() - first), dim, out.data() + first * dim, dim);
    }
    ASSERT_EQ(out, expected) << target;
  });
}

// Phi^-1(0.5 + x/2) for x = (k + 0.5) 2^-31 in float64: Newton steps on erfc from the float32 answer.
double ExactNormal(double half_width_tail, double start) {
  double z = start;
  for (int i = 0; i < 4; ++i) {
    const double tail = 0.5 * std::erfc(z / std::sqrt(2.0));
    const double density = std::exp(-0.5 * z * z) / std::sqrt(2.0 * 3.14159265358979323846);
    z += (tail - half_width_tail) / density;
  }
  return z;
}

TEST(FirstRowTest, NormalAgreesWithTheInverseDistributionToSevenDigits) {
  double worst = 0, worst_truncated = 0;
  const auto check = [&](uint32_t k) {
    const double x = (k + 0.5) * 0x1p-31;
    const double rest = (0x7FFFFFFFu - k + 0.5) * 0x1p-31;
    const float z = NormalFromWord(k);
    EXPECT_EQ(NormalFromWord(k | 0x80000000u), -z);
    const double exact = ExactNormal(0.5 * rest, z);
    worst = std::max(worst, std::fabs(z - exact) / exact);
    const double within = std::erf(std::sqrt(2.0));
    const float t = TruncatedNormalFromWord(k);
    EXPECT_EQ(TruncatedNormalFromWord(k | 0x80000000u), -t);
    EXPECT_LE(t, 2.0f);
    const double exact_t = ExactNormal(0.5 - 0.5 * x * within, t);
    worst_truncated = std::max(worst_truncated, std::fabs(t - exact_t) / exact_t);
  };
  // Below this the float64 difference 0.5 - tail loses more digits than float32 has; there z = x sqrt(pi / 2).
  for (uint64_t k = 1 << 12; k < (uint64_t{1} << 31); k += 4999) check(static_cast<uint32_t>(k));
  for (uint32_t k = 0x7FFFFFFFu; k > 0x7FFFF000u; --k) check(k);
  for (uint32_t bit = 8; bit < 31; ++bit) check(0x7FFFFFFFu - (1u << bit));
  std::printf("worst relative error: normal %.3g, truncated normal %.3g\n", worst, worst_truncated);
  EXPECT_LT(worst, 5e-7);
  EXPECT_LT(worst_truncated, 5e-7);
  for (uint32_t k = 0; k < 4096; ++k) {
    EXPECT_NEAR(NormalFromWord(k), (k + 0.5) * 0x1p-31 * std::sqrt(3.14159265358979323846 / 2), 1e-6 * NormalFromWord(k));
  }
}

TEST(FirstRowTest, NormalNearlyNeverDecreasesAndStaysWithinItsLargestValue) {
  float largest_drop = 0, former = 0;
  for (uint64_t k = 0; k < (uint64_t{1} << 31); k += 997) {
    const float z = NormalFromWord(static_cast<uint32_t>(k));
    ASSERT_TRUE(std::isfinite(z));
    largest_drop = std::max(largest_drop, former - z);
    former = z;
  }
  EXPECT_LT(largest_drop, 2e-6f);
  EXPECT_NEAR(NormalFromWord(0x7FFFFFFFu), 6.338f, 0.01f);
  EXPECT_NEAR(TruncatedNormalFromWord(0x7FFFFFFFu), 2.0f, 1e-6f);
}

TEST(FirstRowTest, UniformNeverReachesItsUpperBound) {
  // With a large offset most sums round; the highest would round up to b.
  for (const FirstRowFormula formula :
       {FirstRowFormula{Distribution::kUniform, 0.0f, 1.0f}, FirstRowFormula{Distribution::kUniform, 16777214.0f, 16777216.0f},
        FirstRowFormula{Distribution::kUniform, -1.0f, 0.0f},
        FirstRowFormula{Distribution::kUniform, 1.0f, std::nextafter(1.0f, 2.0f)}}) {
    std::vector<uint64_t> keys(4096);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
    std::vector<float> out(keys.size() * 16), expected(out.size());
    FirstRowsReference(formula, 3, keys.data(), keys.size(), 16, expected.data(), 16);
    ForEachSimdTarget([&](const char* target) {
      FirstRows(formula, 3, keys.data(), keys.size(), 16, out.data(), 16);
      EXPECT_EQ(out, expected) << target;
    });
    for (float x : out) {
      ASSERT_GE(x, formula.a);
      ASSERT_LT(x, formula.b);
    }
  }
}

TEST(FirstRowTest, NoRowsWriteNothing) {
  FirstRows(kFormulas[1], 1, nullptr, 0, 16, nullptr, 16);
  const uint64_t key = 4;
  float out = -5;
  FirstRows(kFormulas[1], 1, &key, 1, 0, &out, 0);
  EXPECT_EQ(out, -5);
}

}  // namespace
}  // namespace mxrec
