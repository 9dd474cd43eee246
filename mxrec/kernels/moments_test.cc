#include "mxrec/kernels/moments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "mxrec/kernels/simd_targets.h"

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
  Standardize(x, 3, {.centre = 0.5, .scale = 3.0}, y);
  EXPECT_EQ(y[0], 1.5f);
  EXPECT_EQ(y[1], 4.5f);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 9.0f);
}

template <typename T>
std::vector<T> Numbers(size_t n, unsigned seed, bool special) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0.5, 3.0);
  std::vector<T> x(n);
  for (T& v : x) v = static_cast<T>(normal(random));
  if (special && n > 3) {
    x[n / 2] = std::numeric_limits<T>::infinity();
    x[n - 1] = std::numeric_limits<T>::denorm_min();
  }
  return x;
}

// Equal to the bit; NaN equals NaN.
template <typename T>
void ExpectSame(const std::vector<T>& found, const std::vector<T>& expected, const char* what, const char* target) {
  for (size_t i = 0; i < found.size(); ++i) {
    const bool same = std::memcmp(&found[i], &expected[i], sizeof(T)) == 0 || (std::isnan(found[i]) && std::isnan(expected[i]));
    ASSERT_TRUE(same) << target << " " << what << " at " << i << " of " << found.size() << ": " << found[i] << ", expected "
                      << expected[i];
  }
}

template <typename T>
void CheckAgainstReference(size_t n, bool special) {
  using R = MomentsReference<T>;
  const NormScale norm = {.centre = 0.37, .scale = 1.7};
  const NormRowGradient row = {.average = 0.1, .slope = -0.2, .of_mean = 0.3, .of_variance = 0.7};
  const std::vector<T> x = Numbers<T>(n, 1, special), dy = Numbers<T>(n, 2, false), gamma = Numbers<T>(n, 3, false);
  const std::vector<double> start = Numbers<double>(n + 1, 4, false);
  ForEachSimdTarget([&](const char* target) {
    // One element more than n: what lies behind must stay.
    std::vector<T> found(n + 1, T{9}), expected(n + 1, T{9});
    std::vector<double> a = start, b = start, c = start, e = start;
    ExpectSame<double>({Sum(x.data(), n), SquareSum(x.data(), n, 0.37)}, {R::Sum(x.data(), n), R::SquareSum(x.data(), n, 0.37)},
                       "sums", target);
    Standardize(x.data(), n, norm, found.data());
    R::Standardize(x.data(), n, norm, expected.data());
    ExpectSame(found, expected, "Standardize", target);
    ScaleAndShift(gamma.data(), dy.data(), n, found.data());
    R::ScaleAndShift(gamma.data(), dy.data(), n, expected.data());
    ExpectSame(found, expected, "ScaleAndShift", target);
    std::vector<double> sums = {1.5, 2.5}, wanted = sums;
    AddNormSums(dy.data(), gamma.data(), x.data(), n, norm, &sums[0], &sums[1]);
    R::AddNormSums(dy.data(), gamma.data(), x.data(), n, norm, &wanted[0], &wanted[1]);
    ExpectSame(sums, wanted, "AddNormSums", target);
    NormGradient(dy.data(), gamma.data(), x.data(), n, norm, row, found.data());
    R::NormGradient(dy.data(), gamma.data(), x.data(), n, norm, row, expected.data());
    ExpectSame(found, expected, "NormGradient", target);
    AddNormParameters(dy.data(), x.data(), n, norm, a.data(), b.data());
    R::AddNormParameters(dy.data(), x.data(), n, norm, c.data(), e.data());
    ExpectSame(a, c, "gamma of AddNormParameters", target);
    ExpectSame(b, e, "beta of AddNormParameters", target);
    AddEach(x.data(), n, a.data());
    R::AddEach(x.data(), n, c.data());
    ExpectSame(a, c, "AddEach", target);
    SubtractEach(x.data(), b.data(), n, found.data());
    R::SubtractEach(x.data(), e.data(), n, expected.data());
    ExpectSame(found, expected, "SubtractEach", target);
    found.assign(x.begin(), x.end());
    Standardize(found.data(), n, norm, found.data());  // in place
    expected.resize(n);
    R::Standardize(x.data(), n, norm, expected.data());
    ExpectSame(found, expected, "Standardize in place", target);
  });
}

TEST(MomentsTest, EveryTargetEqualsTheReferenceToTheBitAtEveryLength) {
  for (size_t n = 0; n < 70; ++n) {
    CheckAgainstReference<float>(n, n % 2 == 0);
    CheckAgainstReference<double>(n, n % 2 == 0);
  }
  CheckAgainstReference<float>(4099, false);
  CheckAgainstReference<double>(4099, false);
}

}  // namespace
}  // namespace mxrec
