// SumRows: adds up chosen rows, each times a number of its own, in the order in which they are listed.
//
// No fused multiply-add, one addition after the other: the result is the same to the bit on every target, and for a list that is
// summed in pieces. Threads: reads and writes only its arguments.
#ifndef MXREC_KERNELS_SUM_ROWS_H_
#define MXREC_KERNELS_SUM_ROWS_H_

#include <cstddef>
#include <cstdint>

namespace mxrec {

// sum[c] = scales[0] * rows[which[0] * dim + c] + scales[1] * rows[which[1] * dim + c] + ..., over `count` > 0 rows (scales null:
// 1 each, and nothing is multiplied). onto: the rows are added to what `sum` [dim] holds. It must not overlap with the rows.
void SumRows(const float* rows, const uint32_t* which, const float* scales, size_t count, size_t dim, bool onto, float* sum);
// Scalar reference of the same.
void SumRowsReference(const float* rows, const uint32_t* which, const float* scales, size_t count, size_t dim, bool onto,
                      float* sum);

}  // namespace mxrec

#endif  // MXREC_KERNELS_SUM_ROWS_H_
