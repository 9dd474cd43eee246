// Rectifiers with a learned slope, and their gradients.
#ifndef MXREC_KERNELS_PRELU_H_
#define MXREC_KERNELS_PRELU_H_

#include <cstddef>

namespace mxrec {

// y[i] = x[i] where x[i] >= 0 or NaN, else weight * x[i]. The weight is weights[i], or weights[0] for all where one_weight. x and y
// may be the same. Threads: reads and writes only its arguments.
void PRelu(const float* x, const float* weights, bool one_weight, size_t n, float* y);
void PRelu(const double* x, const double* weights, bool one_weight, size_t n, double* y);

// dx[i] = grad[i] where x[i] > 0, else weight * grad[i]; terms[i] = 0 where x[i] >= 0, else grad[i] * x[i]: what the gradient of
// the weight is the sum of. dx may be grad or x, terms may be neither.
void PReluGradient(const float* grad, const float* x, const float* weights, bool one_weight, size_t n, float* dx, float* terms);
void PReluGradient(const double* grad, const double* x, const double* weights, bool one_weight, size_t n, double* dx,
                   double* terms);

// Scalar references of the same; equal to the bit.
void PReluReference(const float* x, const float* weights, bool one_weight, size_t n, float* y);
void PReluReference(const double* x, const double* weights, bool one_weight, size_t n, double* y);
void PReluGradientReference(const float* grad, const float* x, const float* weights, bool one_weight, size_t n, float* dx,
                            float* terms);
void PReluGradientReference(const double* grad, const double* x, const double* weights, bool one_weight, size_t n, double* dx,
                            double* terms);

}  // namespace mxrec

#endif  // MXREC_KERNELS_PRELU_H_
