// ExpandRows: copies the row of every occurrence out of the rows of the distinct keys.
#ifndef MXREC_KERNELS_EXPAND_ROWS_H_
#define MXREC_KERNELS_EXPAND_ROWS_H_

#include <cstddef>
#include <cstdint>

namespace mxrec {

// out[i] = rows[inverse[i]] for i in [0, n): rows is [unique, dim], out [n, dim]; they must not overlap.
// Returns n, or the first position whose inverse is outside [0, unique); out before that position is then written and
// nothing at or after it. Threads: reads and writes only its arguments.
size_t ExpandRows(const float* rows, size_t unique, size_t dim, const int32_t* inverse, size_t n, float* out);
// Scalar reference of the same.
size_t ExpandRowsReference(const float* rows, size_t unique, size_t dim, const int32_t* inverse, size_t n, float* out);

}  // namespace mxrec

#endif  // MXREC_KERNELS_EXPAND_ROWS_H_
