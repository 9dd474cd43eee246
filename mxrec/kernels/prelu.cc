#include "mxrec/kernels/prelu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/prelu.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whole vectors from i on; returns where they end.
template <class D, typename T>
HWY_INLINE size_t Values(D d, const T* x, const T* weights, bool one_weight, size_t i, size_t n, T* y) {
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    const auto w = one_weight ? hn::Set(d, weights[0]) : hn::LoadU(d, weights + i);
    hn::StoreU(hn::IfThenElse(hn::Lt(v, hn::Zero(d)), hn::Mul(w, v), v), d, y + i);
  }
  return i;
}

template <class D, typename T>
HWY_INLINE size_t Gradients(D d, const T* grad, const T* x, const T* weights, bool one_weight, size_t i, size_t n, T* dx,
                            T* terms) {
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i), g = hn::LoadU(d, grad + i), zero = hn::Zero(d);
    const auto w = one_weight ? hn::Set(d, weights[0]) : hn::LoadU(d, weights + i);
    hn::StoreU(hn::IfThenZeroElse(hn::Ge(v, zero), hn::Mul(g, v)), d, terms + i);
    hn::StoreU(hn::IfThenElse(hn::Gt(v, zero), g, hn::Mul(w, g)), d, dx + i);
  }
  return i;
}

template <typename T>
HWY_INLINE void Run(const T* grad, const T* x, const T* weights, bool one_weight, size_t n, T* out, T* terms) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  if (grad == nullptr) {
    Values(one, x, weights, one_weight, Values(d, x, weights, one_weight, 0, n, out), n, out);
  } else {
    Gradients(one, grad, x, weights, one_weight, Gradients(d, grad, x, weights, one_weight, 0, n, out, terms), n, out, terms);
  }
}

void PReluFloatSimd(const float* grad, const float* x, const float* weights, bool one_weight, size_t n, float* out, float* terms) {
  Run(grad, x, weights, one_weight, n, out, terms);
}

void PReluDoubleSimd(const double* grad, const double* x, const double* weights, bool one_weight, size_t n, double* out,
                     double* terms) {
#if HWY_HAVE_FLOAT64
  Run(grad, x, weights, one_weight, n, out, terms);
#else
  grad == nullptr ? PReluReference(x, weights, one_weight, n, out)
                  : PReluGradientReference(grad, x, weights, one_weight, n, out, terms);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(PReluFloatSimd);
HWY_EXPORT(PReluDoubleSimd);

void PRelu(const float* x, const float* weights, bool one_weight, size_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(PReluFloatSimd)(nullptr, x, weights, one_weight, n, y, nullptr);
}
void PRelu(const double* x, const double* weights, bool one_weight, size_t n, double* y) {
  HWY_DYNAMIC_DISPATCH(PReluDoubleSimd)(nullptr, x, weights, one_weight, n, y, nullptr);
}
void PReluGradient(const float* grad, const float* x, const float* weights, bool one_weight, size_t n, float* dx, float* terms) {
  if (n > 0) HWY_DYNAMIC_DISPATCH(PReluFloatSimd)(grad, x, weights, one_weight, n, dx, terms);
}
void PReluGradient(const double* grad, const double* x, const double* weights, bool one_weight, size_t n, double* dx,
                   double* terms) {
  if (n > 0) HWY_DYNAMIC_DISPATCH(PReluDoubleSimd)(grad, x, weights, one_weight, n, dx, terms);
}

namespace {

template <typename T>
void ValuesReference(const T* x, const T* weights, bool one_weight, size_t n, T* y) {
  for (size_t i = 0; i < n; ++i) y[i] = x[i] < 0 ? weights[one_weight ? 0 : i] * x[i] : x[i];
}

template <typename T>
void GradientsReference(const T* grad, const T* x, const T* weights, bool one_weight, size_t n, T* dx, T* terms) {
  for (size_t i = 0; i < n; ++i) {
    const T v = x[i], g = grad[i];
    terms[i] = v >= 0 ? T{0} : g * v;
    dx[i] = v > 0 ? g : weights[one_weight ? 0 : i] * g;
  }
}

}  // namespace

void PReluReference(const float* x, const float* weights, bool one_weight, size_t n, float* y) {
  ValuesReference(x, weights, one_weight, n, y);
}
void PReluReference(const double* x, const double* weights, bool one_weight, size_t n, double* y) {
  ValuesReference(x, weights, one_weight, n, y);
}
void PReluGradientReference(const float* grad, const float* x, const float* weights, bool one_weight, size_t n, float* dx,
                            float* terms) {
  GradientsReference(grad, x, weights, one_weight, n, dx, terms);
}
void PReluGradientReference(const double* grad, const double* x, const double* weights, bool one_weight, size_t n, double* dx,
                            double* terms) {
  GradientsReference(grad, x, weights, one_weight, n, dx, terms);
}

}  // namespace mxrec
#endif  // HWY_ONCE
