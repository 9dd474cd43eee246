#include "mxrec/kernels/lstm_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "mxrec/kernels/simd_targets.h"

namespace mxrec {
namespace {

struct Step {
  size_t batch, inputs, hidden;
  std::vector<float> x, h, c, w, b;
  std::vector<float> out[7];

  Step(uint32_t seed, size_t rows, size_t in, size_t wide, float scale) : batch(rows), inputs(in), hidden(wide) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>* to, size_t n, float by) {
      to->resize(n);
      for (float& value : *to) value = by * normal(random);
    };
    fill(&x, batch * inputs, scale);
    fill(&h, batch * hidden, 1);
    fill(&c, batch * hidden, 1);
    fill(&w, (inputs + hidden) * 4 * hidden, 0.3f);
    fill(&b, 4 * hidden, 0.5f);
  }
  LstmInputs in(float forget_bias) const { return {x.data(), h.data(), c.data(), w.data(), b.data(), inputs, hidden, forget_bias}; }
  void Run(float forget_bias, size_t begin, size_t end) {
    for (auto& o : out) o.resize(batch * hidden, -5.0f);
    LstmStep(in(forget_bias), begin, end,
             {out[0].data(), out[1].data(), out[2].data(), out[3].data(), out[4].data(), out[5].data(), out[6].data()});
  }
};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(LstmStepTest, EveryTargetFollowsTheFormula) {
  double worst = 0;
  for (const float scale : {1.0f, 100.0f}) {  // the large one saturates the gates
    for (const size_t hidden : {1, 4, 7, 16, 19}) {
      Step step(static_cast<uint32_t>(hidden), 21, 5, hidden, scale);
      ForEachSimdTarget([&](const char* target) {
        step.Run(0.25f, 0, step.batch);
        for (size_t r = 0; r < step.batch; ++r) {
          for (size_t k = 0; k < hidden; ++k) {
            double sum[4];
            for (size_t g = 0; g < 4; ++g) {
              const size_t column = g * hidden + k;
              sum[g] = static_cast<double>(step.b[column]);
              for (size_t d = 0; d < 5 + hidden; ++d) {
                const float value = d < 5 ? step.x[r * 5 + d] : step.h[r * hidden + d - 5];
                sum[g] += static_cast<double>(value) * static_cast<double>(step.w[d * 4 * hidden + column]);
              }
            }
            const size_t at = r * hidden + k;
            const double i = Sigmoid(sum[0]), j = std::tanh(sum[1]), f = Sigmoid(sum[2] + 0.25), o = Sigmoid(sum[3]);
            const double c = static_cast<double>(step.c[at]) * f + i * j;
            const double expected[7] = {c, o * std::tanh(c), i, j, f, o, std::tanh(c)};
            for (size_t t = 0; t < 7; ++t) {
              const double error = std::abs(static_cast<double>(step.out[t][at]) - expected[t]);
              worst = std::max(worst, scale > 1 ? error / 100 : error);
              ASSERT_LT(error, scale > 1 ? 2e-4 : 2e-6) << target << " output " << t;
            }
          }
        }
      });
    }
  }
  printf("worst error: %.3g\n", worst);
}

TEST(LstmStepTest, ARowsResultDoesNotDependOnHowTheBatchIsDivided) {
  Step whole(1, 37, 6, 9, 1), parts(1, 37, 6, 9, 1);
  whole.Run(0, 0, 37);
  for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 1}, {1, 20}, {20, 37}}) parts.Run(0, begin, end);
  for (size_t t = 0; t < 7; ++t) EXPECT_EQ(whole.out[t], parts.out[t]);
}

TEST(LstmStepTest, NaNStaysInItsRow) {
  Step step(2, 3, 2, 5, 1);
  step.x[2] = std::nanf("");  // row 1
  step.Run(0, 0, 3);
  for (size_t t = 0; t < 7; ++t) {
    for (size_t at = 0; at < 15; ++at) EXPECT_EQ(std::isnan(step.out[t][at]), at / 5 == 1) << t << " " << at;
  }
}

TEST(LstmStepTest, InfiniteSumsSaturateTheGates) {
  Step step(3, 1, 1, 1, 1);
  step.w.assign(step.w.size(), 0);
  const float infinity = INFINITY;
  step.b = {infinity, -infinity, -infinity, infinity};
  step.Run(0, 0, 1);
  EXPECT_FLOAT_EQ(step.out[2][0], 1);   // i
  EXPECT_FLOAT_EQ(step.out[3][0], -1);  // j
  EXPECT_NEAR(step.out[4][0], 0, 1e-30);
  EXPECT_FLOAT_EQ(step.out[5][0], 1);
  EXPECT_FLOAT_EQ(step.out[0][0], -1);
}

}  // namespace
}  // namespace mxrec
