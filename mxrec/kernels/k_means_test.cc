#include "mxrec/kernels/k_means.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "mxrec/base/thread_pool.h"

namespace mxrec {
namespace {

struct Round {
  std::vector<float> sums, counts;
  float total = 0;
};

Round KMeans(const KMeansInputs& in, Executor* executor = nullptr) {
  Round round;
  round.sums.assign(in.k * in.dim, -1);
  round.counts.assign(in.k, -1);
  KMeansStep(in, executor, round.sums.data(), round.counts.data(), &round.total);
  return round;
}

std::vector<float> Squares(const std::vector<float>& rows, size_t dim) {
  std::vector<float> squares;
  for (size_t at = 0; at < rows.size(); at += dim) {
    float sum = 0;
    for (size_t d = 0; d < dim; ++d) sum += rows[at + d] * rows[at + d];
    squares.push_back(sum);
  }
  return squares;
}

TEST(KMeansTest, PointsGoToTheNearestCenterAndTheTotalIsTheSumOfSquaredDistances) {
  const std::vector<float> points = {0, 0, 1, 0, 10, 10, 9, 10}, centers = {0.5f, 0, 9, 9, 100, 100};
  const std::vector<float> of_points = Squares(points, 2), of_centers = Squares(centers, 2);
  const Round round = KMeans({points.data(), centers.data(), of_centers.data(), of_points.data(), 4, 3, 2});
  EXPECT_EQ(round.sums, (std::vector<float>{1, 0, 19, 20, 0, 0}));
  EXPECT_EQ(round.counts, (std::vector<float>{2, 2, 0}));
  EXPECT_FLOAT_EQ(round.total, 0.25f + 0.25f + 2 + 1);
  const Round partial = KMeans({points.data(), centers.data(), of_centers.data(), nullptr, 4, 3, 2});
  EXPECT_EQ(partial.sums, round.sums);
  EXPECT_FLOAT_EQ(partial.total, round.total - (0 + 1 + 200 + 181));
}

TEST(KMeansTest, OfEquallyNearCentersTheFirstGetsThePoint) {
  const std::vector<float> points = {0}, centers = {1, -1}, squares = {1, 1};
  EXPECT_EQ(KMeans({points.data(), centers.data(), squares.data(), nullptr, 1, 2, 1}).counts, (std::vector<float>{1, 0}));
}

TEST(KMeansTest, TheResultDoesNotDependOnThreads) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> points(3000 * 5), centers(70 * 5);
  for (float& x : points) x = normal(random);
  for (float& x : centers) x = normal(random);
  const std::vector<float> squares = Squares(centers, 5);
  const KMeansInputs in = {points.data(), centers.data(), squares.data(), nullptr, 3000, 70, 5};
  ThreadPool pool(3);
  const Round alone = KMeans(in), together = KMeans(in, &pool);
  EXPECT_EQ(alone.sums, together.sums);
  EXPECT_EQ(alone.counts, together.counts);
  EXPECT_EQ(alone.total, together.total);
}

TEST(KMeansTest, NoPointsGiveZeros) {
  const std::vector<float> centers = {1, 2}, squares = {5};
  const Round round = KMeans({nullptr, centers.data(), squares.data(), nullptr, 0, 1, 2});
  EXPECT_EQ(round.sums, (std::vector<float>{0, 0}));
  EXPECT_EQ(round.total, 0);
}

}  // namespace
}  // namespace mxrec
