#include "mxrec/kernels/matmul_rows.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "mxrec/kernels/simd_targets.h"

namespace mxrec {
namespace {

TEST(MatMulRowsTest, EveryTargetAddsInTheOrderOfTheFormulaForAllShapes) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const size_t rows : {0, 1, 3, 4, 5, 9}) {
    for (const size_t depth : {0, 1, 7, 33}) {
      for (const size_t columns : {1, 3, 4, 8, 15, 16, 17, 31, 40, 67}) {
        std::vector<float> a(rows * depth), w(depth * columns), start(rows * columns);
        for (auto* values : {&a, &w, &start}) {
          for (float& x : *values) x = normal(random);
        }
        std::vector<float> expected = start;
        for (size_t r = 0; r < rows; ++r) {
          for (size_t c = 0; c < columns; ++c) {
            for (size_t k = 0; k < depth; ++k) expected[r * columns + c] += a[r * depth + k] * w[k * columns + c];
          }
        }
        ForEachSimdTarget([&](const char* target) {
          std::vector<float> found = start;
          AddMatMul(a.data(), rows, w.data(), depth, columns, found.data());
          EXPECT_EQ(found, expected) << target << " " << rows << " x " << depth << " x " << columns;
        });
      }
    }
  }
}

}  // namespace
}  // namespace mxrec
