// AddMatMul: a small dense matrix product, for kernels that need one in the middle.
#ifndef MXREC_KERNELS_MATMUL_ROWS_H_
#define MXREC_KERNELS_MATMUL_ROWS_H_

#include <cstddef>

namespace mxrec {

// out[r, c] += sum over k of a[r, k] * w[k, c]. Each element is summed in the order of k, starting from what out holds, in plain
// float32 without fused multiply-add: the same bits on every target and however the rows are divided among threads.
// a: [rows, depth], w: [depth, columns], out: [rows, columns], all row after row without gaps; out overlaps neither.
void AddMatMul(const float* a, size_t rows, const float* w, size_t depth, size_t columns, float* out);

}  // namespace mxrec

#endif  // MXREC_KERNELS_MATMUL_ROWS_H_
