// Sums over runs of numbers, in float64 and in an order that does not depend on the processor: eight partial sums by position
// modulo 8, then those in order. The inner loops of normalisation.
#ifndef MXREC_KERNELS_MOMENTS_H_
#define MXREC_KERNELS_MOMENTS_H_

#include <cstddef>

namespace mxrec {

// The sum of x[i], and of (x[i] - centre)^2.
double Sum(const float* x, size_t n);
double Sum(const double* x, size_t n);
double SquareSum(const float* x, size_t n, double centre);
double SquareSum(const double* x, size_t n, double centre);

// y[i] = (x[i] - mean) * scale, computed in float64 and rounded once.
void Standardize(const float* x, size_t n, double mean, double scale, float* y);
void Standardize(const double* x, size_t n, double mean, double scale, double* y);

}  // namespace mxrec

#endif  // MXREC_KERNELS_MOMENTS_H_
