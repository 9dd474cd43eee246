#include "mxrec/kernels/dense_steps.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/dense_steps.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whole vectors from i on; returns where they end.
template <class D, typename T>
HWY_INLINE size_t LarsLoop(D d, const T* w, const T* g, size_t i, size_t n, T decay, T scale, T* out) {
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
    const auto sum = hn::Add(hn::LoadU(d, g + i), hn::Mul(hn::Set(d, decay), hn::LoadU(d, w + i)));
    hn::StoreU(hn::Mul(hn::Set(d, scale), sum), d, out + i);
  }
  return i;
}

template <class D, typename T>
HWY_INLINE size_t AdamLoop(D d, const AdamStep& step, const T* g, size_t i, size_t n, T* v, T* m, T* w) {
  const auto number = [d](double x) { return hn::Set(d, static_cast<T>(x)); };
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
    const auto grad = hn::LoadU(d, g + i), weight = hn::LoadU(d, w + i);
    const auto next_m = hn::Add(hn::Mul(hn::LoadU(d, m + i), number(step.keep_m)), hn::Mul(grad, number(step.add_m)));
    const auto next_v =
        hn::Add(hn::Mul(hn::LoadU(d, v + i), number(step.keep_v)), hn::Mul(hn::Mul(grad, grad), number(step.add_v)));
    const auto update =
        hn::Add(hn::Div(next_m, hn::Add(hn::Sqrt(next_v), number(step.epsilon))), hn::Mul(weight, number(step.decay)));
    hn::StoreU(next_m, d, m + i);
    hn::StoreU(next_v, d, v + i);
    hn::StoreU(hn::Sub(weight, hn::Mul(update, number(step.rate))), d, w + i);
  }
  return i;
}

void LarsFloatSimd(const float* w, const float* g, size_t n, float decay, float scale, float* out) {
  const hn::ScalableTag<float> d;
  LarsLoop(hn::CappedTag<float, 1>(), w, g, LarsLoop(d, w, g, 0, n, decay, scale, out), n, decay, scale, out);
}
void AdamFloatSimd(const AdamStep& step, const float* g, size_t n, float* v, float* m, float* w) {
  const hn::ScalableTag<float> d;
  AdamLoop(hn::CappedTag<float, 1>(), step, g, AdamLoop(d, step, g, 0, n, v, m, w), n, v, m, w);
}

void LarsDoubleSimd(const double* w, const double* g, size_t n, double decay, double scale, double* out) {
#if HWY_HAVE_FLOAT64
  const hn::ScalableTag<double> d;
  LarsLoop(hn::CappedTag<double, 1>(), w, g, LarsLoop(d, w, g, 0, n, decay, scale, out), n, decay, scale, out);
#else
  LarsStepReference(w, g, n, decay, scale, out);
#endif
}
void AdamDoubleSimd(const AdamStep& step, const double* g, size_t n, double* v, double* m, double* w) {
#if HWY_HAVE_FLOAT64
  const hn::ScalableTag<double> d;
  AdamLoop(hn::CappedTag<double, 1>(), step, g, AdamLoop(d, step, g, 0, n, v, m, w), n, v, m, w);
#else
  AdamOneStepReference(step, g, n, v, m, w);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(LarsFloatSimd);
HWY_EXPORT(LarsDoubleSimd);
HWY_EXPORT(AdamFloatSimd);
HWY_EXPORT(AdamDoubleSimd);

void LarsStep(const float* w, const float* g, size_t n, float decay, float scale, float* out) {
  HWY_DYNAMIC_DISPATCH(LarsFloatSimd)(w, g, n, decay, scale, out);
}
void LarsStep(const double* w, const double* g, size_t n, double decay, double scale, double* out) {
  HWY_DYNAMIC_DISPATCH(LarsDoubleSimd)(w, g, n, decay, scale, out);
}
void AdamOneStep(const AdamStep& step, const float* g, size_t n, float* v, float* m, float* w) {
  HWY_DYNAMIC_DISPATCH(AdamFloatSimd)(step, g, n, v, m, w);
}
void AdamOneStep(const AdamStep& step, const double* g, size_t n, double* v, double* m, double* w) {
  HWY_DYNAMIC_DISPATCH(AdamDoubleSimd)(step, g, n, v, m, w);
}

namespace {

template <typename T>
void LarsReference(const T* w, const T* g, size_t n, T decay, T scale, T* out) {
  for (size_t i = 0; i < n; ++i) out[i] = scale * (g[i] + decay * w[i]);
}

template <typename T>
void AdamReference(const AdamStep& step, const T* g, size_t n, T* v, T* m, T* w) {
  const auto number = [](double x) { return static_cast<T>(x); };
  for (size_t i = 0; i < n; ++i) {
    m[i] = m[i] * number(step.keep_m) + g[i] * number(step.add_m);
    v[i] = v[i] * number(step.keep_v) + (g[i] * g[i]) * number(step.add_v);
    w[i] = w[i] - (m[i] / (std::sqrt(v[i]) + number(step.epsilon)) + w[i] * number(step.decay)) * number(step.rate);
  }
}

}  // namespace

void LarsStepReference(const float* w, const float* g, size_t n, float decay, float scale, float* out) {
  LarsReference(w, g, n, decay, scale, out);
}
void LarsStepReference(const double* w, const double* g, size_t n, double decay, double scale, double* out) {
  LarsReference(w, g, n, decay, scale, out);
}
void AdamOneStepReference(const AdamStep& step, const float* g, size_t n, float* v, float* m, float* w) {
  AdamReference(step, g, n, v, m, w);
}
void AdamOneStepReference(const AdamStep& step, const double* g, size_t n, double* v, double* m, double* w) {
  AdamReference(step, g, n, v, m, w);
}

}  // namespace mxrec
#endif  // HWY_ONCE
