#include "mxrec/kernels/clip_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace mxrec {
namespace {

double Norm(const std::vector<float>& row) {
  double sum = 0;
  for (const float x : row) sum += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(sum);
}

TEST(ClipRowsTest, RowsAboveTheNormAreScaledToItAndOthersKeptToTheBit) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (size_t dim = 1; dim <= 70; ++dim) {
    for (const float factor : {0.1f, 10.0f}) {
      std::vector<float> row(dim), out(dim, -5.0f);
      for (float& x : row) x = factor * normal(random);
      ClipRows(row.data(), 1, dim, 1.0f, out.data());
      if (Norm(row) <= 1) {
        EXPECT_EQ(out, row);
      } else {
        EXPECT_NEAR(Norm(out), 1.0, 1e-6);
        for (size_t c = 0; c < dim; ++c) EXPECT_NEAR(out[c], static_cast<double>(row[c]) / Norm(row), 1e-6);
      }
      ClipRows(row.data(), 1, dim, 1.0f, row.data());  // in place
      EXPECT_EQ(out, row);
    }
  }
}

TEST(ClipRowsTest, ZeroTinyAndHugeRowsStayFinite) {
  const float tiny = std::numeric_limits<float>::denorm_min(), huge = std::numeric_limits<float>::max();
  const std::vector<float> rows = {0, 0, tiny, -tiny, huge, huge}, grads = {1, 2, 3, 4, huge, -1};
  std::vector<float> out(6), gradient(6);
  ClipRows(rows.data(), 3, 2, 1.0f, out.data());
  ClipRowsGradient(rows.data(), grads.data(), 3, 2, 1.0f, gradient.data());
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(out[i], rows[i]);
    EXPECT_EQ(gradient[i], grads[i]);
  }
  EXPECT_NEAR(out[4], std::sqrt(0.5), 1e-6);
  for (const float x : gradient) EXPECT_TRUE(std::isfinite(x));
}

TEST(ClipRowsTest, TheGradientIsTheDerivative) {
  std::mt19937 random(2);
  std::normal_distribution<double> normal;
  double worst = 0;
  for (size_t dim = 1; dim <= 20; ++dim) {
    for (const double factor : {0.05, 1.0, 20.0}) {
      std::vector<float> row(dim), grad(dim), found(dim);
      for (float& x : row) x = static_cast<float>(factor * normal(random));
      for (float& x : grad) x = static_cast<float>(normal(random));
      if (std::abs(Norm(row) - 1) < 1e-2) continue;  // the kink
      ClipRowsGradient(row.data(), grad.data(), 1, dim, 1.0f, found.data());
      const auto value = [&](const std::vector<double>& at) {
        double square = 0, sum = 0;
        for (const double x : at) square += x * x;
        for (size_t c = 0; c < dim; ++c) sum += at[c] * static_cast<double>(grad[c]);
        return square > 1 ? sum / std::sqrt(square) : sum;
      };
      for (size_t c = 0; c < dim; ++c) {
        std::vector<double> moved(row.begin(), row.end());
        moved[c] += 1e-6;
        double slope = value(moved);
        moved[c] -= 2e-6;
        slope = (slope - value(moved)) / 2e-6;
        worst = std::max(worst, std::abs(slope - static_cast<double>(found[c])) / (1 + std::abs(slope)));
      }
      ClipRowsGradient(row.data(), grad.data(), 1, dim, 1.0f, grad.data());  // in place
      EXPECT_EQ(grad, found);
    }
  }
  printf("worst error against central differences: %.3g\n", worst);
  EXPECT_LT(worst, 1e-6);
}

TEST(ClipRowsTest, NoRowsAreFineAndNaNStaysInItsRow) {
  ClipRows(nullptr, 0, 4, 1.0f, nullptr);
  const std::vector<float> rows = {std::nanf(""), 1, 3, 4};
  std::vector<float> out(4);
  ClipRows(rows.data(), 2, 2, 5.0f, out.data());
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[2], 3.0f);
  EXPECT_EQ(out[3], 4.0f);
}

}  // namespace
}  // namespace mxrec
