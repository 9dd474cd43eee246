// KMeansStep: the reduction of one round of k-means.
#ifndef MXREC_KERNELS_K_MEANS_H_
#define MXREC_KERNELS_K_MEANS_H_

#include <cstddef>

#include "mxrec/base/executor.h"

namespace mxrec {

// points [n, dim], centers [k, dim] with k >= 1, center_squares [k]: the squared norm of each center, point_squares [n] of each
// point, or null for zeros.
struct KMeansInputs {
  const float *points, *centers, *center_squares, *point_squares;
  size_t n, k, dim;
};

// Gives each point to the center with the smallest center_squares[c] - 2 points[i] . centers[c], the first of equal ones.
// sums [k, dim] and counts [k] are those of the points that each center got, added up in the order of the points; *total is the
// sum over all points of that smallest value plus point_squares[i]. A point with NaN in it goes to the first center. The result
// does not depend on the executor (null: the calling thread alone). Memory: about 64 KiB + 4 k dim bytes a thread, never n k.
void KMeansStep(const KMeansInputs& in, Executor* executor, float* sums, float* counts, float* total);

}  // namespace mxrec

#endif  // MXREC_KERNELS_K_MEANS_H_
