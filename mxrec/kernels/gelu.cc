#include "mxrec/kernels/gelu.h"

#include <bit>
#include <cmath>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/gelu.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

// Numbers that the vector code and the reference share. This part is compiled once.
#ifndef MXREC_KERNELS_GELU_CONSTANTS_
#define MXREC_KERNELS_GELU_CONSTANTS_
namespace mxrec::gelu {

// kTanh: z = x (kLinear + kCubic x^2), z' = kLinear + 3 kCubic x^2.
inline constexpr double kLinear = 1.5957691216057307117597842397375;  // 2 sqrt(2 / pi)
inline constexpr double kCubic = kLinear * 0.044715;
inline constexpr double kSlope = 1.702;
inline constexpr double kRootHalf = 0.70710678118654752440, kBend = 1.769, kSquare = 0.1444;

inline constexpr double kLog2E = 1.4426950408889634074;
// 1 / k!, k from 0.
inline constexpr double kTaylor[] = {
    1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
    1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};

// ln 2 = kLn2High + kLn2Low, where k * kLn2High is exact. Adding kRound to a number below 2^21 (2^50) rounds it to an integer,
// which the lowest bits of the sum then hold.
template <typename T>
struct Exp;
template <>
struct Exp<float> {
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440054690583e-4f, kRound = 0x1.8p23f, kLimit = 86;
  static constexpr int kDegree = 7, kMantissaBits = 23;
};
template <>
struct Exp<double> {
  static constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 1.90821492927058770002e-10, kRound = 0x1.8p52, kLimit = 700;
  static constexpr int kDegree = 13, kMantissaBits = 52;
};

}  // namespace mxrec::gelu
#endif  // MXREC_KERNELS_GELU_CONSTANTS_

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> Number(D d, double x) {
  return hn::Set(d, static_cast<hn::TFromD<D>>(x));
}

// exp(-z), z limited to where it is a normal number. A NaN gives some finite number.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOfMinus(D d, V z) {
  using T = hn::TFromD<D>;
  using E = gelu::Exp<T>;
  const hn::RebindToSigned<D> di;
  const V limit = hn::Set(d, E::kLimit), minus_limit = hn::Set(d, -E::kLimit);
  // Comparisons instead of Min and Max, which treat NaN as the processor likes.
  V v = hn::Sub(hn::Zero(d), z);
  v = hn::IfThenElse(hn::Lt(v, limit), v, limit);
  v = hn::IfThenElse(hn::Gt(v, minus_limit), v, minus_limit);
  const V shifted = hn::Add(hn::Mul(v, Number(d, gelu::kLog2E)), hn::Set(d, E::kRound));
  const V k = hn::Sub(shifted, hn::Set(d, E::kRound));
  const V r = hn::Sub(hn::Sub(v, hn::Mul(k, hn::Set(d, E::kLn2High))), hn::Mul(k, hn::Set(d, E::kLn2Low)));
  // Even and odd powers apart: two chains of half the length.
  const V square = hn::Mul(r, r);
  V even = Number(d, gelu::kTaylor[E::kDegree - 1]), odd = Number(d, gelu::kTaylor[E::kDegree]);
  for (int i = E::kDegree - 3; i >= 0; i -= 2) {
    even = hn::Add(hn::Mul(even, square), Number(d, gelu::kTaylor[i]));
    odd = hn::Add(hn::Mul(odd, square), Number(d, gelu::kTaylor[i + 1]));
  }
  const V p = hn::Add(even, hn::Mul(odd, r));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<E::kMantissaBits>(hn::BitCast(di, shifted))));
}

struct TanhForm {
  template <class D, class V>
  static HWY_INLINE V Z(D d, V x) {
    return hn::Mul(x, hn::Add(Number(d, gelu::kLinear), hn::Mul(Number(d, gelu::kCubic), hn::Mul(x, x))));
  }
  template <class D, class V>
  static HWY_INLINE V Slope(D d, V x) {
    return hn::Add(Number(d, gelu::kLinear), hn::Mul(Number(d, 3 * gelu::kCubic), hn::Mul(x, x)));
  }
};

struct SigmoidForm {
  template <class D, class V>
  static HWY_INLINE V Z(D d, V x) {
    return hn::Mul(Number(d, gelu::kSlope), x);
  }
  template <class D, class V>
  static HWY_INLINE V Slope(D d, V x) {
    return Number(d, gelu::kSlope);
  }
};

template <class Form>
struct Smooth {
  template <class D, class V>
  static HWY_INLINE V Value(D d, V x) {
    using T = hn::TFromD<D>;
    const V z = Form::Z(d, x);
    const V y = hn::Div(x, hn::Add(Number(d, 1), ExpOfMinus(d, z)));
    return hn::IfThenElse(hn::Lt(z, hn::Set(d, -gelu::Exp<T>::kLimit)), hn::Mul(x, hn::Zero(d)), y);
  }
  // s + x z' s (1 - s); both s and its product are exact where |z| is beyond the limit.
  template <class D, class V>
  static HWY_INLINE V Derivative(D d, V x) {
    using T = hn::TFromD<D>;
    const V z = Form::Z(d, x);
    const V e = ExpOfMinus(d, z);
    V s = hn::Div(Number(d, 1), hn::Add(Number(d, 1), e));
    V bend = hn::Mul(hn::Mul(x, Form::Slope(d, x)), hn::Mul(s, hn::Mul(e, s)));
    const auto low = hn::Lt(z, hn::Set(d, -gelu::Exp<T>::kLimit)), high = hn::Gt(z, hn::Set(d, gelu::Exp<T>::kLimit));
    s = hn::IfThenZeroElse(low, s);
    bend = hn::IfThenZeroElse(hn::Or(low, high), bend);
    return hn::Add(s, bend);
  }
};

struct Quadratic {
  // t of gelu.h; 0 for NaN.
  template <class D, class V>
  static HWY_INLINE V T(D d, V size) {
    const V scaled = hn::Mul(size, Number(d, gelu::kRootHalf)), bend = Number(d, gelu::kBend);
    return hn::Sub(hn::IfThenElse(hn::Lt(scaled, bend), scaled, bend), bend);
  }
  // 0.5 + sgn(x) (0.5 - 0.1444 t^2)
  template <class D, class V>
  static HWY_INLINE V Share(D d, V x, V t) {
    const V half = Number(d, 0.5);
    const V u = hn::Sub(half, hn::Mul(Number(d, gelu::kSquare), hn::Mul(t, t)));
    const V share = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Sub(half, u), hn::Add(half, u));
    return hn::IfThenElse(hn::Eq(x, hn::Zero(d)), half, share);
  }
  template <class D, class V>
  static HWY_INLINE V Value(D d, V x) {
    return hn::Mul(x, Share(d, x, T(d, hn::Abs(x))));
  }
  template <class D, class V>
  static HWY_INLINE V Derivative(D d, V x) {
    const V t = T(d, hn::Abs(x));
    const V slope = hn::Mul(Number(d, -2 * gelu::kSquare * gelu::kRootHalf), t);
    return hn::Add(Share(d, x, t), hn::IfThenZeroElse(hn::IsInf(x), hn::Mul(x, slope)));  // infinity times 0
  }
};

template <class Rule, class D, typename T = hn::TFromD<D>>
HWY_INLINE size_t ValueLoop(D d, const T* x, size_t i, size_t n, T* y) {
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) hn::StoreU(Rule::Value(d, hn::LoadU(d, x + i)), d, y + i);
  return i;
}
template <class Rule, class D, typename T = hn::TFromD<D>>
HWY_INLINE size_t GradientLoop(D d, const T* grad, const T* x, size_t i, size_t n, T* out) {
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, grad + i), Rule::Derivative(d, hn::LoadU(d, x + i))), d, out + i);
  }
  return i;
}

// grad == nullptr: values, else gradients. Whole vectors, then one by one.
template <class Rule, typename T>
HWY_INLINE void Run(const T* grad, const T* x, size_t n, T* out) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  if (grad == nullptr) {
    ValueLoop<Rule>(one, x, ValueLoop<Rule>(d, x, 0, n, out), n, out);
  } else {
    GradientLoop<Rule>(one, grad, x, GradientLoop<Rule>(d, grad, x, 0, n, out), n, out);
  }
}

template <typename T>
HWY_INLINE void RunFormula(GeluFormula formula, const T* grad, const T* x, size_t n, T* out) {
  switch (formula) {
    case GeluFormula::kTanh:
      return Run<Smooth<TanhForm>>(grad, x, n, out);
    case GeluFormula::kSigmoid:
      return Run<Smooth<SigmoidForm>>(grad, x, n, out);
    case GeluFormula::kQuadratic:
      return Run<Quadratic>(grad, x, n, out);
  }
}

void GeluFloatSimd(GeluFormula formula, const float* grad, const float* x, size_t n, float* out) {
  RunFormula(formula, grad, x, n, out);
}

void GeluDoubleSimd(GeluFormula formula, const double* grad, const double* x, size_t n, double* out) {
#if HWY_HAVE_FLOAT64
  RunFormula(formula, grad, x, n, out);
#else
  grad == nullptr ? GeluReference(formula, x, n, out) : GeluGradientReference(formula, grad, x, n, out);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(GeluFloatSimd);
HWY_EXPORT(GeluDoubleSimd);

void Gelu(GeluFormula formula, const float* x, size_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(GeluFloatSimd)(formula, nullptr, x, n, y);
}
void Gelu(GeluFormula formula, const double* x, size_t n, double* y) {
  HWY_DYNAMIC_DISPATCH(GeluDoubleSimd)(formula, nullptr, x, n, y);
}
void GeluGradient(GeluFormula formula, const float* grad, const float* x, size_t n, float* out) {
  if (n > 0) HWY_DYNAMIC_DISPATCH(GeluFloatSimd)(formula, grad, x, n, out);
}
void GeluGradient(GeluFormula formula, const double* grad, const double* x, size_t n, double* out) {
  if (n > 0) HWY_DYNAMIC_DISPATCH(GeluDoubleSimd)(formula, grad, x, n, out);
}

// The reference. Everything below is written for reading, one number at a time.
namespace {

template <typename T>
T ReferenceExpOfMinus(T z) {
  using E = gelu::Exp<T>;
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  T v = T{0} - z;
  if (!(v < E::kLimit)) v = E::kLimit;
  if (!(v > -E::kLimit)) v = -E::kLimit;
  const T shifted = v * static_cast<T>(gelu::kLog2E) + E::kRound;
  const T k = shifted - E::kRound;
  const T r = v - k * E::kLn2High - k * E::kLn2Low;
  T even = static_cast<T>(gelu::kTaylor[E::kDegree - 1]), odd = static_cast<T>(gelu::kTaylor[E::kDegree]);
  for (int i = E::kDegree - 3; i >= 0; i -= 2) {
    even = even * (r * r) + static_cast<T>(gelu::kTaylor[i]);
    odd = odd * (r * r) + static_cast<T>(gelu::kTaylor[i + 1]);
  }
  const T p = even + odd * r;
  return std::bit_cast<T>(std::bit_cast<Bits>(p) + (std::bit_cast<Bits>(shifted) << E::kMantissaBits));
}

template <typename T>
T ReferenceZ(GeluFormula formula, T x) {
  if (formula == GeluFormula::kSigmoid) return static_cast<T>(gelu::kSlope) * x;
  return x * (static_cast<T>(gelu::kLinear) + static_cast<T>(gelu::kCubic) * (x * x));
}

template <typename T>
T ReferenceSlope(GeluFormula formula, T x) {
  if (formula == GeluFormula::kSigmoid) return static_cast<T>(gelu::kSlope);
  return static_cast<T>(gelu::kLinear) + static_cast<T>(3 * gelu::kCubic) * (x * x);
}

template <typename T>
T ReferenceT(T size) {
  const T scaled = size * static_cast<T>(gelu::kRootHalf), bend = static_cast<T>(gelu::kBend);
  return (scaled < bend ? scaled : bend) - bend;
}

template <typename T>
T ReferenceShare(T x, T t) {
  const T half = T{0.5f}, u = half - static_cast<T>(gelu::kSquare) * (t * t);
  return x == 0 ? half : x < 0 ? half - u : half + u;
}

template <typename T>
T ReferenceValue(GeluFormula formula, T x) {
  if (formula == GeluFormula::kQuadratic) return x * ReferenceShare(x, ReferenceT(std::abs(x)));
  const T z = ReferenceZ(formula, x);
  return z < -gelu::Exp<T>::kLimit ? x * T{0} : x / (T{1} + ReferenceExpOfMinus(z));
}

template <typename T>
T ReferenceDerivative(GeluFormula formula, T x) {
  if (formula == GeluFormula::kQuadratic) {
    const T t = ReferenceT(std::abs(x));
    const T slope = static_cast<T>(-2 * gelu::kSquare * gelu::kRootHalf) * t;
    return ReferenceShare(x, t) + (std::isinf(x) ? T{0} : x * slope);
  }
  const T z = ReferenceZ(formula, x), limit = gelu::Exp<T>::kLimit;
  const T e = ReferenceExpOfMinus(z), s = T{1} / (T{1} + e);
  const T bend = (x * ReferenceSlope(formula, x)) * (s * (e * s));
  return (z < -limit ? T{0} : s) + (z < -limit || z > limit ? T{0} : bend);
}

}  // namespace

void GeluReference(GeluFormula formula, const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = ReferenceValue(formula, x[i]);
}
void GeluReference(GeluFormula formula, const double* x, size_t n, double* y) {
  for (size_t i = 0; i < n; ++i) y[i] = ReferenceValue(formula, x[i]);
}
void GeluGradientReference(GeluFormula formula, const float* grad, const float* x, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = grad[i] * ReferenceDerivative(formula, x[i]);
}
void GeluGradientReference(GeluFormula formula, const double* grad, const double* x, size_t n, double* out) {
  for (size_t i = 0; i < n; ++i) out[i] = grad[i] * ReferenceDerivative(formula, x[i]);
}

}  // namespace mxrec
#endif  // HWY_ONCE
