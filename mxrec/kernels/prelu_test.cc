#include "mxrec/kernels/prelu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "mxrec/kernels/simd_targets.h"

namespace mxrec {
namespace {

template <typename T>
void Check() {
  for (size_t n = 0; n < 70; ++n) {
    std::vector<T> x(n), weights(n + 1, T{0.5f}), grad(n);
    for (size_t i = 0; i < n; ++i) {
      x[i] = (static_cast<T>(i % 11) - T{5}) / T{3};
      weights[i] = static_cast<T>(i % 5) / T{7};
      grad[i] = static_cast<T>(i % 13) - T{6};
    }
    if (n > 20) {
      x[17] = -std::numeric_limits<T>::infinity();
      x[18] = T{-0.0f};
    }
    for (const bool one_weight : {false, true}) {
      std::vector<T> y(n + 1, T{-5}), dx = y, terms = y;
      PReluReference(x.data(), weights.data(), one_weight, n, y.data());
      PReluGradientReference(grad.data(), x.data(), weights.data(), one_weight, n, dx.data(), terms.data());
      ForEachSimdTarget([&](const char* target) {
        std::vector<T> found(n + 1, T{-5}), other = found;
        PRelu(x.data(), weights.data(), one_weight, n, found.data());
        EXPECT_EQ(std::memcmp(found.data(), y.data(), (n + 1) * sizeof(T)), 0) << target << " " << n;
        std::copy(grad.begin(), grad.end(), found.begin());
        PReluGradient(found.data(), x.data(), weights.data(), one_weight, n, found.data(), other.data());  // in place
        EXPECT_EQ(std::memcmp(found.data(), dx.data(), (n + 1) * sizeof(T)), 0) << target << " " << n;
        EXPECT_EQ(std::memcmp(other.data(), terms.data(), (n + 1) * sizeof(T)), 0) << target << " " << n;
      });
    }
  }
}

TEST(PReluTest, EveryTargetEqualsTheReferenceToTheBit) {
  Check<float>();
  Check<double>();
}

TEST(PReluTest, NaNStaysInValuesAndReachesTheWeight) {
  const float x = std::nanf(""), weight = 0.5f, grad = 1;
  float y, dx, term;
  PRelu(&x, &weight, true, 1, &y);
  PReluGradient(&grad, &x, &weight, true, 1, &dx, &term);
  EXPECT_TRUE(std::isnan(y));
  EXPECT_TRUE(std::isnan(term));
}

}  // namespace
}  // namespace mxrec
