#include "mxrec/kernels/gelu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "mxrec/kernels/simd_targets.h"

namespace mxrec {
namespace {

constexpr GeluFormula kFormulas[] = {GeluFormula::kTanh, GeluFormula::kSigmoid, GeluFormula::kQuadratic};

template <typename T>
std::vector<T> Inputs() {
  std::vector<T> x;
  for (int i = -40000; i <= 40000; ++i) x.push_back(static_cast<T>(i) / T{1000});
  std::mt19937 random(3);
  for (int i = 0; i < 20003; ++i) {
    if constexpr (sizeof(T) == 4) {
      x.push_back(std::bit_cast<T>(static_cast<uint32_t>(random())));
    } else {
      x.push_back(std::bit_cast<T>(static_cast<uint64_t>(random()) << 32 | random()));
    }
  }
  using Limits = std::numeric_limits<T>;
  for (const T special : {T{0}, Limits::infinity(), Limits::quiet_NaN(), Limits::max(), Limits::min(), Limits::denorm_min()}) {
    x.push_back(special);
    x.push_back(-special);
  }
  return x;
}

template <typename T>
bool SameBits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0 || (std::isnan(a) && std::isnan(b));
}

template <typename T>
void CheckTargets() {
  const std::vector<T> x = Inputs<T>();
  std::vector<T> grad(x.size()), value(x.size()), slope(x.size()), found(x.size());
  for (size_t i = 0; i < x.size(); ++i) grad[i] = static_cast<T>(i % 17) - T{8};
  for (const GeluFormula formula : kFormulas) {
    GeluReference(formula, x.data(), x.size(), value.data());
    GeluGradientReference(formula, grad.data(), x.data(), x.size(), slope.data());
    ForEachSimdTarget([&](const char* target) {
      Gelu(formula, x.data(), x.size(), found.data());
      for (size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(SameBits(found[i], value[i])) << target << " y(" << x[i] << ")";
      found = grad;
      GeluGradient(formula, found.data(), x.data(), x.size(), found.data());  // in place
      for (size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(SameBits(found[i], slope[i])) << target << " y'(" << x[i] << ")";
    });
  }
}

TEST(GeluTest, EveryTargetEqualsTheReferenceToTheBit) {
  CheckTargets<float>();
  CheckTargets<double>();
}

TEST(GeluTest, EveryLengthLeavesWhatIsBehindIt) {
  for (size_t n = 0; n < 70; ++n) {
    std::vector<float> x(n, 1.0f), y(n + 1, -5.0f);
    Gelu(GeluFormula::kTanh, x.data(), n, y.data());
    for (size_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], 0.841192f, 1e-6f);
    EXPECT_EQ(y[n], -5.0f);
    GeluGradient(GeluFormula::kTanh, x.data(), x.data(), n, y.data());
    for (size_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], 1.082964f, 1e-6f);
    EXPECT_EQ(y[n], -5.0f);
  }
}

// In long double, by the formulas of gelu.h.
long double Exact(GeluFormula formula, long double x) {
  if (formula == GeluFormula::kTanh) {
    return x / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0L)) * (x + 0.044715L * x * x * x)));
  }
  if (formula == GeluFormula::kSigmoid) return x / (1 + std::exp(-1.702L * x));
  const long double t = std::min(std::abs(x) / std::sqrt(2.0L), 1.769L) - 1.769L, u = 0.5L - 0.1444L * t * t;
  return x * (x == 0 ? 0.5L : x < 0 ? 0.5L - u : 0.5L + u);
}

template <typename T>
void CheckAccuracy(long double bound) {
  for (const GeluFormula formula : kFormulas) {
    long double worst = 0, worst_slope = 0;
    for (int i = -12000; i <= 12000; ++i) {
      const T x = static_cast<T>(i) / T{1000};
      T y, slope;
      const T one = 1;
      Gelu(formula, &x, 1, &y);
      GeluGradient(formula, &one, &x, 1, &slope);
      const long double exact = Exact(formula, x);
      // Against the larger of the value and a hundredth of x: the tail of kQuadratic cancels.
      const long double scale = std::max(std::abs(exact), std::abs(static_cast<long double>(x)) * 1e-2L);
      if (x != 0) worst = std::max(worst, std::abs(y - exact) / scale);
      const long double h = 1e-6L;
      const bool kink = formula == GeluFormula::kQuadratic && i == 0;
      const long double difference = (Exact(formula, x + h) - Exact(formula, x - h)) / (2 * h);
      if (!kink) worst_slope = std::max(worst_slope, std::abs(slope - difference));
    }
    printf("formula %d, %zu bytes: worst error of y %.2Lg, of y' %.2Lg\n", static_cast<int>(formula), sizeof(T), worst,
           worst_slope);
    EXPECT_LT(worst, bound);
    EXPECT_LT(worst_slope, std::max(bound, 1e-9L));
  }
}

TEST(GeluTest, ValuesAndDerivativesAreAccurate) {
  CheckAccuracy<float>(3e-6L);
  CheckAccuracy<double>(5e-15L);
}

TEST(GeluTest, TheEndsOfTheNumberLine) {
  const float infinity = std::numeric_limits<float>::infinity(), huge = std::numeric_limits<float>::max();
  for (const GeluFormula formula : kFormulas) {
    const std::vector<float> x = {infinity, -infinity, std::nanf(""), huge, -huge, 0.0f, 100.0f, -100.0f}, ones(x.size(), 1.0f);
    std::vector<float> y(x.size()), slope(x.size());
    Gelu(formula, x.data(), x.size(), y.data());
    GeluGradient(formula, ones.data(), x.data(), x.size(), slope.data());
    EXPECT_EQ(y[0], infinity);
    EXPECT_TRUE(std::isnan(y[1]));
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_TRUE(std::isnan(slope[2]));
    EXPECT_EQ(y[3], huge);
    EXPECT_EQ(y[4], 0.0f);
    EXPECT_EQ(y[5], 0.0f);
    EXPECT_EQ(y[6], 100.0f);
    EXPECT_EQ(y[7], 0.0f);
    EXPECT_EQ(slope[3], 1.0f);
    EXPECT_EQ(slope[4], 0.0f);
    EXPECT_EQ(slope[5], 0.5f);
    EXPECT_EQ(slope[6], 1.0f);
    EXPECT_EQ(slope[7], 0.0f);
  }
}

}  // namespace
}  // namespace mxrec
