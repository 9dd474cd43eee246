// Elementwise steps of optimizers of dense variables: LARS and the one-tensor Adam of the NPU. In place where said.
#ifndef MXREC_KERNELS_DENSE_STEPS_H_
#define MXREC_KERNELS_DENSE_STEPS_H_

#include <cstddef>

namespace mxrec {

// out = scale * (g + decay * w), element by element; out may be g or w.
void LarsStep(const float* w, const float* g, size_t n, float decay, float scale, float* out);
void LarsStep(const double* w, const double* g, size_t n, double decay, double scale, double* out);

// m <- m * keep_m + g * add_m;  v <- v * keep_v + (g g) * add_v;  w <- w - (m / (sqrt(v) + epsilon) + w * decay) * rate
struct AdamStep {
  double keep_m, add_m, keep_v, add_v, decay, epsilon, rate;
};
void AdamOneStep(const AdamStep& step, const float* g, size_t n, float* v, float* m, float* w);
void AdamOneStep(const AdamStep& step, const double* g, size_t n, double* v, double* m, double* w);

// Scalar references of the same; equal to the bit.
void LarsStepReference(const float* w, const float* g, size_t n, float decay, float scale, float* out);
void LarsStepReference(const double* w, const double* g, size_t n, double decay, double scale, double* out);
void AdamOneStepReference(const AdamStep& step, const float* g, size_t n, float* v, float* m, float* w);
void AdamOneStepReference(const AdamStep& step, const double* g, size_t n, double* v, double* m, double* w);

}  // namespace mxrec

#endif  // MXREC_KERNELS_DENSE_STEPS_H_
