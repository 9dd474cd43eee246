// Gaussian error linear units, approximate forms, and their gradients.
//
//   kTanh       y = x s(z), z = 2 sqrt(2/pi) (x + 0.044715 x^3); the same as x (1 + tanh(z / 2)) / 2 (Hendrycks, Gimpel, 2016)
//   kSigmoid    y = x s(z), z = 1.702 x (the same paper)
//   kQuadratic  y = x (0.5 + sgn(x) (0.5 - 0.1444 t^2)), t = min(|x| / sqrt(2), 1.769) - 1.769: the polynomial for erf of
//               I-BERT (Kim, Gholami, Yao, Mahoney, Keutzer, ICML 2021); sgn(0) = 0
// s(z) = 1 / (1 + exp(-z)). exp(v), |v| <= 86 (double: 700): v = k ln 2 + r, exp = 2^k times the Taylor polynomial of r of degree 7
// (double: 13). Below -86 (-700) s is 0; so y is -0 there, and NaN for x = -inf, as TensorFlow's composition gives. NaN stays NaN.
// Order of operations: the reference in gelu.cc. Worst errors measured: gelu_test.cc.
#ifndef MXREC_KERNELS_GELU_H_
#define MXREC_KERNELS_GELU_H_

#include <cstddef>
#include <cstdint>

namespace mxrec {

enum class GeluFormula : uint8_t { kTanh, kSigmoid, kQuadratic };

// y[i] of x[i], i in [0, n); x and y may be the same. Threads: reads and writes only its arguments.
void Gelu(GeluFormula formula, const float* x, size_t n, float* y);
void Gelu(GeluFormula formula, const double* x, size_t n, double* y);
// out[i] = grad[i] * y'(x[i]); out may be grad or x. y'(0) = 0.5 for all three.
void GeluGradient(GeluFormula formula, const float* grad, const float* x, size_t n, float* out);
void GeluGradient(GeluFormula formula, const double* grad, const double* x, size_t n, double* out);

// Scalar references of the same; equal to the bit.
void GeluReference(GeluFormula formula, const float* x, size_t n, float* y);
void GeluReference(GeluFormula formula, const double* x, size_t n, double* y);
void GeluGradientReference(GeluFormula formula, const float* grad, const float* x, size_t n, float* out);
void GeluGradientReference(GeluFormula formula, const double* grad, const double* x, size_t n, double* out);

}  // namespace mxrec

#endif  // MXREC_KERNELS_GELU_H_
