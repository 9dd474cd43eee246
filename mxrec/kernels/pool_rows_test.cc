#include "mxrec/kernels/pool_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "mxrec/base/thread_pool.h"
#include "mxrec/kernels/simd_targets.h"

namespace mxrec {
namespace {

constexpr Combiner kCombiners[] = {Combiner::kSum, Combiner::kMean, Combiner::kSqrtN};

// Random bags over random rows; some bags are empty, the last ones too.
struct Case {
  size_t unique, dim, count;
  std::vector<float> rows, weights, grads;
  std::vector<int32_t> offsets = {0}, inverse;
  bool weighted;
  Combiner combiner;

  Case(uint32_t seed, size_t unique_rows, size_t columns, size_t bag_count, bool with_weights, Combiner how)
      : unique(unique_rows), dim(columns), count(bag_count), weighted(with_weights), combiner(how) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < unique * dim; ++i) rows.push_back(normal(random));
    for (size_t b = 0; b < count; ++b) {
      for (size_t i = b + 2 < count ? random() % 12 : 0; i > 0; --i) {
        inverse.push_back(static_cast<int32_t>(random() % unique));
        weights.push_back(0.5f + std::abs(normal(random)));
      }
      offsets.push_back(static_cast<int32_t>(inverse.size()));
    }
    for (size_t i = 0; i < count * dim; ++i) grads.push_back(normal(random));
  }
  Bags bags() const {
    return {offsets.data(), count, inverse.data(), inverse.size(), weighted ? weights.data() : nullptr, combiner};
  }
  std::vector<float> Pool() const {
    std::vector<float> out(count * dim, -5.0f);
    EXPECT_EQ(PoolRows(rows.data(), unique, dim, bags(), 0, count, out.data()), inverse.size());
    return out;
  }
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(PoolRowsTest, EveryTargetEqualsTheReferenceToTheBitForManyWidths) {
  ForEachSimdTarget([&](const char* target) {
    for (size_t dim = 1; dim <= 70; ++dim) {
      for (const Combiner combiner : kCombiners) {
        for (const bool weighted : {false, true}) {
          const Case c(static_cast<uint32_t>(dim), 9, dim, 17, weighted, combiner);
          std::vector<float> expected(c.count * dim);
          EXPECT_EQ(PoolRowsReference(c.rows.data(), c.unique, dim, c.bags(), 0, c.count, expected.data()), c.inverse.size());
          ASSERT_TRUE(SameBits(c.Pool(), expected)) << target << " dim " << dim << " weighted " << weighted;
        }
      }
    }
  });
}

TEST(PoolRowsTest, ARangeWritesItsOwnBagsAndNoOthers) {
  const Case c(3, 20, 16, 50, true, Combiner::kMean);
  const std::vector<float> whole = c.Pool();
  std::vector<float> out(c.count * c.dim, -5.0f);
  EXPECT_EQ(PoolRows(c.rows.data(), c.unique, c.dim, c.bags(), 10, 20, out.data()), c.inverse.size());
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i >= 160 && i < 320 ? whole[i] : -5.0f) << i;
}

TEST(PoolRowsTest, D1EmptyBagsAreZerosAlsoAtTheEndAndWhenAllAre) {
  const std::vector<float> rows = {1, 2, 3, 4};
  const std::vector<int32_t> inverse = {1, 0}, offsets = {0, 2, 2, 2}, nothing = {0, 0, 0};
  for (const Combiner combiner : kCombiners) {
    std::vector<float> out(6, -5.0f);
    EXPECT_EQ(PoolRows(rows.data(), 2, 2, {offsets.data(), 3, inverse.data(), 2, nullptr, combiner}, 0, 3, out.data()), 2u);
    for (size_t i = 2; i < 6; ++i) EXPECT_EQ(out[i], 0.0f);
    out.assign(4, -5.0f);
    EXPECT_EQ(PoolRows(nullptr, 0, 2, {nothing.data(), 2, nullptr, 0, nullptr, combiner}, 0, 2, out.data()), 0u);
    EXPECT_EQ(out, std::vector<float>(4, 0.0f));
    InlineExecutor executor;
    EXPECT_EQ(PoolRowsGradient(out.data(), {nothing.data(), 2, nullptr, 0, nullptr, combiner}, 0, 2, &executor, nullptr), 0u);
  }
}

TEST(PoolRowsTest, D2WeightsThatAreZeroOrCancelGiveZerosAndFiniteGradients) {
  const std::vector<float> rows = {1, 2, 3, 4}, grads = {1, 1};
  const std::vector<int32_t> inverse = {0, 1}, offsets = {0, 2};
  for (const std::vector<float>& weights : {std::vector<float>{0, 0}, {1, -1}, {-2, -2}}) {
    for (const Combiner combiner : kCombiners) {
      const Bags bags = {offsets.data(), 1, inverse.data(), 2, weights.data(), combiner};
      std::vector<float> out(2), by_row(4), by_weight(2);
      ASSERT_EQ(PoolRows(rows.data(), 2, 2, bags, 0, 1, out.data()), 2u);
      InlineExecutor executor;
      ASSERT_EQ(PoolRowsGradient(grads.data(), bags, 2, 2, &executor, by_row.data()), 2u);
      ASSERT_EQ(PoolWeightGradient(grads.data(), out.data(), rows.data(), 2, 2, bags, 0, 1, by_weight.data()), 2u);
      for (const std::vector<float>& values : {out, by_row, by_weight}) {
        for (const float x : values) EXPECT_TRUE(std::isfinite(x));
      }
      const bool vanishes =
          combiner == Combiner::kMean ? weights[0] + weights[1] == 0.0f : combiner == Combiner::kSqrtN && weights[0] == 0.0f;
      if (vanishes) {
        EXPECT_EQ(out, std::vector<float>(2, 0.0f));
        EXPECT_EQ(by_row, std::vector<float>(4, 0.0f));
        EXPECT_EQ(by_weight, std::vector<float>(2, 0.0f));
      } else if (weights[0] == -2.0f && combiner == Combiner::kMean) {
        EXPECT_EQ(out, (std::vector<float>{2.0f, 3.0f}));  // negative weights are weights
      }
    }
  }
}

TEST(PoolRowsTest, ANaNWeightShowsInItsOwnBagOnly) {
  const std::vector<float> rows = {1, 2}, weights = {std::nanf(""), 1, 1};
  const std::vector<int32_t> inverse = {0, 1, 1}, offsets = {0, 2, 3};
  for (const Combiner combiner : kCombiners) {
    std::vector<float> out(2);
    ASSERT_EQ(PoolRows(rows.data(), 2, 1, {offsets.data(), 2, inverse.data(), 3, weights.data(), combiner}, 0, 2, out.data()), 3u);
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_EQ(out[1], 2.0f);
  }
}

TEST(PoolRowsTest, StopsAtTheFirstOccurrenceWhoseRowIsOutOfRange) {
  const std::vector<float> rows = {1, 2, 3, 4}, grads(6, 1.0f);
  const std::vector<int32_t> offsets = {0, 2, 3, 5};
  for (const int32_t bad : {2, -1, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    for (size_t where = 0; where < 5; ++where) {
      std::vector<int32_t> inverse = {0, 1, 0, 1, 1};
      inverse[where] = bad;
      const Bags bags = {offsets.data(), 3, inverse.data(), 5, nullptr, Combiner::kMean};
      ForEachSimdTarget([&](const char* target) {
        std::vector<float> out(6, -5.0f), other(5, -5.0f);
        EXPECT_EQ(PoolRows(rows.data(), 2, 2, bags, 0, 3, out.data()), where) << target << " " << bad;
        for (size_t b = 0; b < 3; ++b) EXPECT_EQ(out[2 * b] == -5.0f, static_cast<size_t>(offsets[b + 1]) > where);
        EXPECT_EQ(PoolWeightGradient(grads.data(), grads.data(), rows.data(), 2, 2, bags, 0, 3, other.data()), where);
        InlineExecutor executor;
        out.assign(6, -5.0f);
        EXPECT_EQ(PoolRowsGradient(grads.data(), bags, 2, 2, &executor, out.data()), where);
        EXPECT_EQ(out, std::vector<float>(6, -5.0f));
      });
    }
  }
}

TEST(PoolRowsTest, GradientsAreTheDerivativesOfTheSumOfPooledTimesGradient) {
  double worst = 0;
  for (const Combiner combiner : kCombiners) {
    for (const bool weighted : {false, true}) {
      Case c(5, 6, 5, 12, weighted, combiner);
      const std::vector<float> pooled = c.Pool();
      std::vector<float> by_row(c.unique * c.dim), by_weight(c.inverse.size());
      InlineExecutor executor;
      ASSERT_EQ(PoolRowsGradient(c.grads.data(), c.bags(), c.unique, c.dim, &executor, by_row.data()), c.inverse.size());
      ASSERT_EQ(
          PoolWeightGradient(c.grads.data(), pooled.data(), c.rows.data(), c.unique, c.dim, c.bags(), 0, c.count, by_weight.data()),
          c.inverse.size());
      // The same function in double, moved a little to both sides.
      const auto value = [&](const std::vector<double>& rows, const std::vector<double>& weights) {
        double total = 0;
        for (size_t b = 0; b < c.count; ++b) {
          double by = 0;
          std::vector<double> sum(c.dim, 0.0);
          for (auto j = static_cast<size_t>(c.offsets[b]); j < static_cast<size_t>(c.offsets[b + 1]); ++j) {
            by += combiner == Combiner::kSqrtN ? weights[j] * weights[j] : weights[j];
            for (size_t d = 0; d < c.dim; ++d) sum[d] += weights[j] * rows[static_cast<size_t>(c.inverse[j]) * c.dim + d];
          }
          by = combiner == Combiner::kSum ? 1.0 : combiner == Combiner::kSqrtN ? std::sqrt(by) : by;
          for (size_t d = 0; d < c.dim && by != 0; ++d) total += sum[d] / by * static_cast<double>(c.grads[b * c.dim + d]);
        }
        return total;
      };
      const std::vector<double> rows(c.rows.begin(), c.rows.end());
      const std::vector<double> weights =
          weighted ? std::vector<double>(c.weights.begin(), c.weights.end()) : std::vector<double>(c.inverse.size(), 1.0);
      const auto check = [&](std::vector<double> moved, const auto& of, const std::vector<float>& found) {
        constexpr double kStep = 1e-5;
        for (size_t i = 0; i < moved.size(); ++i) {
          const double at = moved[i];
          moved[i] = at + kStep;
          double slope = of(moved);
          moved[i] = at - kStep;
          slope = (slope - of(moved)) / (2 * kStep);
          moved[i] = at;
          worst = std::max(worst, std::abs(slope - static_cast<double>(found[i])) / (1 + std::abs(slope)));
        }
      };
      check(
          rows, [&](const std::vector<double>& moved) { return value(moved, weights); }, by_row);
      check(
          weights, [&](const std::vector<double>& moved) { return value(rows, moved); }, by_weight);
    }
  }
  printf("worst error against central differences: %.3g\n", worst);
  EXPECT_LT(worst, 2e-6);
}

TEST(PoolRowsTest, TheRowGradientIsTheScalesTimesGradientsInOrderForAnyNumberOfThreads) {
  ThreadPool pool(4);
  InlineExecutor alone;
  for (const Combiner combiner : kCombiners) {
    for (const bool weighted : {false, true}) {
      const Case c(8, 3000, 7, 2000, weighted, combiner);
      const size_t n = c.inverse.size();
      std::vector<int32_t> bag_of(n);
      std::vector<float> scales(n, 1.0f);
      OccurrenceScales(c.bags(), 0, c.count, bag_of.data(), UnitScales(c.bags()) ? nullptr : scales.data());
      std::vector<float> expected(c.unique * c.dim, 0.0f), one(expected.size()), many(expected.size());
      std::vector<bool> seen(c.unique, false);
      for (size_t j = 0; j < n; ++j) {
        const auto u = static_cast<size_t>(c.inverse[j]);
        for (size_t d = 0; d < c.dim; ++d) {
          const float term = scales[j] * c.grads[static_cast<size_t>(bag_of[j]) * c.dim + d];
          expected[u * c.dim + d] = seen[u] ? expected[u * c.dim + d] + term : term;
        }
        seen[u] = true;
      }
      ASSERT_EQ(PoolRowsGradient(c.grads.data(), c.bags(), c.unique, c.dim, &alone, one.data()), n);
      ASSERT_EQ(PoolRowsGradient(c.grads.data(), c.bags(), c.unique, c.dim, &pool, many.data()), n);
      EXPECT_TRUE(SameBits(one, expected));
      EXPECT_TRUE(SameBits(many, expected));
    }
  }
}

TEST(PoolRowsTest, WrongOffsetsAreFoundWhereTheyAreWrong) {
  const auto check = [](std::vector<int64_t> offsets, size_t occurrences) {
    const size_t wide = CheckOffsets(offsets.data(), offsets.size() - 1, occurrences);
    const std::vector<int32_t> narrow(offsets.begin(), offsets.end());
    if (std::equal(offsets.begin(), offsets.end(), narrow.begin())) {
      EXPECT_EQ(CheckOffsets(narrow.data(), narrow.size() - 1, occurrences), wide);
    }
    return wide;
  };
  EXPECT_EQ(check({0}, 0), 1u);
  EXPECT_EQ(check({0, 0, 0}, 0), 3u);
  EXPECT_EQ(check({0, 2, 2, 5}, 5), 4u);
  EXPECT_EQ(check({1, 2, 5}, 5), 0u);     // does not start at 0
  EXPECT_EQ(check({-1, 2, 5}, 5), 0u);    // negative
  EXPECT_EQ(check({0, 3, 2, 5}, 5), 2u);  // descends
  EXPECT_EQ(check({0, 6, 5}, 5), 1u);     // past the end
  EXPECT_EQ(check({0, 2, 4}, 5), 2u);     // ends early
  EXPECT_EQ(check({0}, 5), 0u);           // no bags for five ids
  EXPECT_EQ(check({0, -3, 5}, 5), 1u);    // negative
  EXPECT_EQ(check({0, int64_t{1} << 40, 5}, 5), 1u);
  EXPECT_EQ(check({0, std::numeric_limits<int64_t>::min(), 5}, 5), 1u);
}

}  // namespace
}  // namespace mxrec
