// ScatterSumRows: adds each row of a list to the sum that its index names, in the order in which the rows stand. AddRowsOnto: adds
// rows of a block to others of it.
//
// It reads the rows as they lie, one after the other, and visits the sums at random: with few repetitions half of what gathering
// the rows of each sum costs. One addition after the other, as SumRows: the same bits on every target, and for indices that are
// done in ranges. Threads: reads and writes only its arguments.
#ifndef MXREC_KERNELS_SCATTER_ROWS_H_
#define MXREC_KERNELS_SCATTER_ROWS_H_

#include <cstddef>
#include <cstdint>

namespace mxrec {

// Where the sum of each index lies: places[u], or sums + u * dim where `places` is null. They do not overlap.
struct ScatterTarget {
  float* sums = nullptr;
  float* const* places = nullptr;
};

// For j in [0, n) with first <= index[j] < last: adds row j of `rows` [n, dim] to sum index[j]. Where seen[index[j]] is 0 the row
// is copied there instead, and it becomes 1. Nothing else is touched.
void ScatterSumRows(const float* rows, const int32_t* index, size_t n, size_t dim, int32_t first, int32_t last, uint8_t* seen,
                    const ScatterTarget& to);
// Scalar reference of the same.
void ScatterSumRowsReference(const float* rows, const int32_t* index, size_t n, size_t dim, int32_t first, int32_t last,
                             uint8_t* seen, const ScatterTarget& to);

// Adds row from[i] of `rows` [.., dim] to row onto[i], one after the other. No row is in both lists.
void AddRowsOnto(float* rows, const int32_t* from, const int32_t* onto, size_t n, size_t dim);
// Scalar reference of the same.
void AddRowsOntoReference(float* rows, const int32_t* from, const int32_t* onto, size_t n, size_t dim);

}  // namespace mxrec

#endif  // MXREC_KERNELS_SCATTER_ROWS_H_
