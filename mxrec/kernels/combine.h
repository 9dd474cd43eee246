// Combining arrays of numbers element by element (what reductions over ranks are made of), and scaling them.
//
// Every function gives the same bits on every target. Floats: plain IEEE arithmetic (denormal numbers kept), no fused multiply-add;
// a NaN on either side gives a NaN, also with kMin and kMax. float16 and bfloat16 are combined in float32. Integers wrap around.
// Booleans: kSum and kMax are "or", kMin and kProduct "and"; any byte but 0 is true. Threads: they touch only their arguments.
#ifndef MXREC_KERNELS_COMBINE_H_
#define MXREC_KERNELS_COMBINE_H_

#include <cstddef>
#include <span>

#include "mxrec/numeric/dtype.h"

namespace mxrec {

enum class Combine { kSum, kMin, kMax, kProduct };

// out[i] = a[i] op b[i], i in [0, n). `out` may be `a` or `b`; otherwise the arrays do not overlap.
void CombineNumbers(const void* a, const void* b, size_t n, DType dtype, Combine op, void* out);
// Scalar reference of the same.
void CombineNumbersReference(const void* a, const void* b, size_t n, DType dtype, Combine op, void* out);

// x * multiply / divide. Floats: computed in float64 and rounded once (float64 itself: twice). Integers: computed in float64,
// rounded to nearest (ties to even), and kept inside the type; exact below 2^53. Booleans: unchanged.
struct NumberScale {
  double multiply = 1;
  double divide = 1;
  bool nothing() const { return multiply == 1 && divide == 1; }
};
void ScaleNumbers(void* data, size_t n, DType dtype, const NumberScale& scale);
// Scalar reference of the same.
void ScaleNumbersReference(void* data, size_t n, DType dtype, const NumberScale& scale);

// out[i] = ((parts[0][i] op parts[1][i]) op parts[2][i]) ..., scaled. float16 and bfloat16 are rounded once, after the scaling.
// `out` may be one of the parts.
void CombineParts(std::span<const void* const> parts, size_t n, DType dtype, Combine op, const NumberScale& scale, void* out);

}  // namespace mxrec

#endif  // MXREC_KERNELS_COMBINE_H_
