#include "mxrec/kernels/dense_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "mxrec/kernels/simd_targets.h"

namespace mxrec {
namespace {

template <typename T>
std::vector<T> Numbers(size_t n, T factor) {
  std::vector<T> out(n + 1, T{-5});
  for (size_t i = 0; i < n; ++i) out[i] = factor * std::sin(static_cast<T>(3 * i + 1));
  return out;
}

template <typename T>
void Check() {
  const AdamStep step{0.9, 0.1, 0.999, 0.001, 0.01, 1e-6, 0.05};
  for (size_t n = 0; n < 70; ++n) {
    const std::vector<T> w = Numbers<T>(n, 1), g = Numbers<T>(n, T{0.3f}), v = [&] {
      std::vector<T> out = Numbers<T>(n, T{0.2f});
      for (size_t i = 0; i < n; ++i) out[i] = std::abs(out[i]);
      return out;
    }();
    std::vector<T> lars(n + 1, T{-5}), next_v = v, next_m = g, next_w = w;
    LarsStepReference(w.data(), g.data(), n, T{0.1f}, T{0.7f}, lars.data());
    AdamOneStepReference(step, g.data(), n, next_v.data(), next_m.data(), next_w.data());
    ForEachSimdTarget([&](const char* target) {
      std::vector<T> out(n + 1, T{-5}), a = v, b = g, c = w;
      LarsStep(w.data(), g.data(), n, T{0.1f}, T{0.7f}, out.data());
      AdamOneStep(step, g.data(), n, a.data(), b.data(), c.data());
      EXPECT_EQ(out, lars) << target << " " << n;
      EXPECT_EQ(a, next_v) << target << " " << n;
      EXPECT_EQ(b, next_m) << target << " " << n;
      EXPECT_EQ(c, next_w) << target << " " << n;
    });
  }
}

TEST(DenseStepsTest, EveryTargetEqualsTheReferenceToTheBit) {
  Check<float>();
  Check<double>();
}

}  // namespace
}  // namespace mxrec
