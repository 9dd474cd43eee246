// The inner loops of normalisation: sums over runs of numbers, and what is made of them. T is float or double; all arithmetic is in
// float64, and results of type T are rounded once.
//
// Sums are made in an order that does not depend on the processor: eight partial sums by position modulo 8, then those in order.
// Each function has a scalar reference that is equal to the bit. Threads: all read and write only their arguments. n may be 0.
#ifndef MXREC_KERNELS_MOMENTS_H_
#define MXREC_KERNELS_MOMENTS_H_

#include <cstddef>

namespace mxrec {

// What is normalized: z = (x - centre) * scale.
struct NormScale {
  double centre = 0, scale = 1;
};

// How the gradient of one row follows from its sums: scale * (g - average - z * slope) + of_mean + of_variance * z, g = dy * gamma.
struct NormRowGradient {
  double average = 0, slope = 0, of_mean = 0, of_variance = 0;
};

// The sum of x[i], and of (x[i] - centre)^2.
template <typename T>
double Sum(const T* x, size_t n);
template <typename T>
double SquareSum(const T* x, size_t n, double centre);

// y[i] = z of x[i]; y may be x.
template <typename T>
void Standardize(const T* x, size_t n, const NormScale& norm, T* y);
// y[i] = y[i] * gamma[i] + beta[i], in T.
template <typename T>
void ScaleAndShift(const T* gamma, const T* beta, size_t n, T* y);

// Adds to *sum the sum of g = dy[i] * gamma[i], and to *product that of g * z.
template <typename T>
void AddNormSums(const T* dy, const T* gamma, const T* x, size_t n, const NormScale& norm, double* sum, double* product);
// dx[i], as NormRowGradient says.
template <typename T>
void NormGradient(const T* dy, const T* gamma, const T* x, size_t n, const NormScale& norm, const NormRowGradient& row, T* dx);
// gamma[i] += dy[i] * z, beta[i] += dy[i].
template <typename T>
void AddNormParameters(const T* dy, const T* x, size_t n, const NormScale& norm, double* gamma, double* beta);

// sums[i] += x[i], and y[i] = x[i] - means[i].
template <typename T>
void AddEach(const T* x, size_t n, double* sums);
template <typename T>
void SubtractEach(const T* x, const double* means, size_t n, T* y);

// The scalar references.
template <typename T>
struct MomentsReference {
  static double Sum(const T* x, size_t n);
  static double SquareSum(const T* x, size_t n, double centre);
  static void Standardize(const T* x, size_t n, const NormScale& norm, T* y);
  static void ScaleAndShift(const T* gamma, const T* beta, size_t n, T* y);
  static void AddNormSums(const T* dy, const T* gamma, const T* x, size_t n, const NormScale& norm, double* sum, double* product);
  static void NormGradient(const T* dy, const T* gamma, const T* x, size_t n, const NormScale& norm, const NormRowGradient& row,
                           T* dx);
  static void AddNormParameters(const T* dy, const T* x, size_t n, const NormScale& norm, double* gamma, double* beta);
  static void AddEach(const T* x, size_t n, double* sums);
  static void SubtractEach(const T* x, const double* means, size_t n, T* y);
};

}  // namespace mxrec

#endif  // MXREC_KERNELS_MOMENTS_H_
