// FirstNonFinite: finds the first NaN or Inf of an array.
#ifndef MXREC_KERNELS_NON_FINITE_H_
#define MXREC_KERNELS_NON_FINITE_H_

#include <cstddef>

namespace mxrec {

// Position of the first NaN, +Inf or -Inf among values[0..n); n when all are finite.
size_t FirstNonFinite(const float* values, size_t n);
// Scalar reference of the same.
size_t FirstNonFiniteReference(const float* values, size_t n);

}  // namespace mxrec

#endif  // MXREC_KERNELS_NON_FINITE_H_
