// The worked numbers of the Rec SDK's AdamW, and its formula in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "mxrec/numeric/tolerance.h"
#include "mxrec/optim/optimizer.h"

namespace mxrec {
namespace {

// w after each gradient, starting at w = 1.
std::vector<float> Train(std::span<const OptimizerOption> options, std::span<const float> gradients) {
  const auto adamw = MakeOptimizer("adamw", options).value();
  OptimizerState state;
  state.scalars = adamw->scalar_initial_values();
  const std::vector<float> start = adamw->slot_initial_values();
  float row[4] = {1.0f};
  std::copy(start.begin(), start.end(), row + 1);
  const float hyper[] = {0.01f, 0.004f, 0.9f, 0.999f, 1e-6f};
  std::vector<float> values;
  for (const float g : gradients) {
    StepConstants constants;
    EXPECT_TRUE(adamw->BeginStep(hyper, &state, &constants).ok());
    float* rows[] = {row};
    const float* grads[] = {&g};
    EXPECT_EQ(adamw->UpdateRows(constants, {rows, grads, 1, 1}), 0u);
    values.push_back(row[0]);
  }
  return values;
}

bool Close(float w, float expected) { return WithinTolerance(w, expected, FindTolerance("adamw_step").value()); }

constexpr float kGradients[] = {0.5f, -0.25f, 0.125f};

TEST(AdamWTest, Fact20WorkedNumbersFromZeroMoments) {
  const std::vector<float> w = Train({}, kGradients);
  EXPECT_TRUE(Close(w[0], 0.989960020f));
  EXPECT_TRUE(Close(w[1], 0.987257058f));
  EXPECT_TRUE(Close(w[2], 0.983813286f));
}

TEST(AdamWTest, Fact20WorkedNumbersFromTheOriginalStartState) {
  const OptimizerOption original[] = {{"initial_state", 1}};
  const std::vector<float> w = Train(original, kGradients);
  EXPECT_TRUE(Close(w[0], 0.984071666f));
  EXPECT_TRUE(Close(w[1], 0.974252115f));
  EXPECT_TRUE(Close(w[2], 0.967126259f));
}

TEST(AdamWTest, AmsgradDividesByTheLargestSecondMomentSoFar) {
  const OptimizerOption option[] = {{"amsgrad", 1}};
  const float gradients[] = {0.5f, -4.0f, 0.125f, 0.0f};
  const std::vector<float> found = Train(option, gradients), plain = Train({}, gradients);
  double w = 1, m = 0, v = 0, top = 0, p1 = 1, p2 = 1;
  for (size_t t = 0; t < found.size(); ++t) {
    const double g = gradients[t];
    p1 *= 0.9;
    p2 *= 0.999;
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    top = std::max(top, v);
    w = w * (1 - 0.01 * 0.004) - 0.01 * (m / (1 - p1)) / (std::sqrt(top / (1 - p2)) + 1e-6);
    EXPECT_NEAR(found[t], w, 1e-6);
  }
  EXPECT_EQ(found[1], plain[1]);
  EXPECT_NE(found[3], plain[3]);  // v fell
}

TEST(AdamWTest, HundredStepsStayCloseToTheFormulaInFloat64) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const Tolerance tolerance = FindTolerance("adamw").value();
  std::vector<float> ours, formula;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<float> gradients(100);
    for (float& g : gradients) g = normal(random);
    const std::vector<float> w = Train({}, gradients);
    const double lr = 0.01f, decay = 0.004f, b1 = 0.9f, b2 = 0.999f, epsilon = 1e-6f;
    double value = 1, m = 0, v = 0, p1 = 1, p2 = 1;
    for (size_t t = 0; t < gradients.size(); ++t) {
      const double g = gradients[t];
      p1 *= b1;
      p2 *= b2;
      value *= 1 - lr * decay;
      m = b1 * m + (1 - b1) * g;
      v = b2 * v + (1 - b2) * g * g;
      value -= lr * (m / (1 - p1)) / (std::sqrt(v / (1 - p2)) + epsilon);
      ours.push_back(w[t]);
      formula.push_back(static_cast<float>(value));
    }
  }
  const Deviation deviation = Compare(ours, formula, tolerance);
  const std::string text = DescribeDeviation(deviation, ours, formula, tolerance);
  std::printf("%s\n", text.c_str());
  EXPECT_TRUE(deviation.within()) << text;
}

}  // namespace
}  // namespace mxrec
