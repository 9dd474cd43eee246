#include "mxrec/kernels/k_means.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mxrec/kernels/matmul_rows.h"

namespace mxrec {

void KMeansStep(const KMeansInputs& in, Executor* executor, float* sums, float* counts, float* total) {
  const size_t n = in.n, k = in.k, dim = in.dim;
  // Centers as columns, so that the products of a point with all centers are one row.
  std::vector<float> columns(dim * k);
  for (size_t c = 0; c < k; ++c) {
    for (size_t d = 0; d < dim; ++d) columns[d * k + c] = -2.0f * in.centers[c * dim + d];
  }
  std::vector<uint32_t> nearest(n);
  std::vector<float> least(n);
  const size_t at_once = std::max<size_t>(4, std::min<size_t>(256, 16384 / k));
  InlineExecutor inline_executor;
  if (executor == nullptr) executor = &inline_executor;
  executor->ParallelFor((n + at_once - 1) / at_once, [&](size_t block) {
    const size_t begin = block * at_once, rows = std::min(at_once, n - begin);
    std::vector<float> distances(rows * k);
    for (size_t r = 0; r < rows; ++r) std::copy_n(in.center_squares, k, distances.data() + r * k);
    AddMatMul(in.points + begin * dim, rows, columns.data(), dim, k, distances.data());
    for (size_t r = 0; r < rows; ++r) {
      const float* row = distances.data() + r * k;
      const size_t c = static_cast<size_t>(std::min_element(row, row + k) - row);
      nearest[begin + r] = static_cast<uint32_t>(c);
      least[begin + r] = row[c];
    }
  });

  std::fill_n(sums, k * dim, 0.0f);
  std::fill_n(counts, k, 0.0f);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    float* to = sums + nearest[i] * dim;
    const float* point = in.points + i * dim;
    for (size_t d = 0; d < dim; ++d) to[d] += point[d];
    counts[nearest[i]] += 1.0f;
    sum += static_cast<double>(least[i]);
    if (in.point_squares != nullptr) sum += static_cast<double>(in.point_squares[i]);
  }
  *total = static_cast<float>(sum);
}

}  // namespace mxrec
