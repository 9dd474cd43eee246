#include "mxrec/kernels/clip_rows.h"

#include <cmath>
#include <cstring>

namespace mxrec {
namespace {

// In an order that is fixed, whatever the compiler makes of it: four partial sums by column modulo 4, then those in order.
double Dot(const float* x, const float* y, size_t n) {
  double part[4] = {0, 0, 0, 0};
  size_t c = 0;
  for (; c + 4 <= n; c += 4) {
    for (size_t l = 0; l < 4; ++l) part[l] += static_cast<double>(x[c + l]) * static_cast<double>(y[c + l]);
  }
  for (size_t l = 0; c + l < n; ++l) part[l] += static_cast<double>(x[c + l]) * static_cast<double>(y[c + l]);
  return ((part[0] + part[1]) + part[2]) + part[3];
}

}  // namespace

void ClipRows(const float* rows, size_t count, size_t dim, float max_norm, float* out) {
  for (size_t i = 0; i < count; ++i) {
    const float* row = rows + i * dim;
    float* to = out + i * dim;
    const double norm = std::sqrt(Dot(row, row, dim));
    if (!(norm > max_norm)) {
      if (to != row) std::memcpy(to, row, dim * sizeof(float));
      continue;
    }
    const auto scale = static_cast<float>(max_norm / norm);
    for (size_t c = 0; c < dim; ++c) to[c] = row[c] * scale;
  }
}

void ClipRowsGradient(const float* rows, const float* grads, size_t count, size_t dim, float max_norm, float* out) {
  for (size_t i = 0; i < count; ++i) {
    const float *row = rows + i * dim, *grad = grads + i * dim;
    float* to = out + i * dim;
    const double square = Dot(row, row, dim), norm = std::sqrt(square);
    if (!(norm > max_norm)) {
      if (to != grad) std::memcpy(to, grad, dim * sizeof(float));
      continue;
    }
    const double scale = max_norm / norm, along = Dot(row, grad, dim) / square;
    for (size_t c = 0; c < dim; ++c)
      to[c] = static_cast<float>(scale * (static_cast<double>(grad[c]) - along * static_cast<double>(row[c])));
  }
}

}  // namespace mxrec
