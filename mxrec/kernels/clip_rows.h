// ClipRows: scales rows down to a largest Euclidean norm, and the gradient of that.
#ifndef MXREC_KERNELS_CLIP_ROWS_H_
#define MXREC_KERNELS_CLIP_ROWS_H_

#include <cstddef>

namespace mxrec {

// out[i] = rows[i] * c, c = max_norm / |rows[i]| where the norm is above max_norm, else the row as it is. Norms are summed in
// double, so they neither overflow nor depend on the target. Zero rows stay zero; a row with NaN stays as it is, one with an
// infinite value becomes NaN there and 0 elsewhere. rows, out: [count, dim], may be the same.
// REQUIRES: max_norm > 0. Threads: reads and writes only its arguments.
void ClipRows(const float* rows, size_t count, size_t dim, float max_norm, float* out);

// Gradient: where the row r was scaled, out = c * (g - r * (r . g) / |r|^2), else g. grads, out: [count, dim], may be the same.
void ClipRowsGradient(const float* rows, const float* grads, size_t count, size_t dim, float max_norm, float* out);

}  // namespace mxrec

#endif  // MXREC_KERNELS_CLIP_ROWS_H_
