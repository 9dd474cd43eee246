#include "mxrec/kernels/moments.h"

#ifndef MXREC_KERNELS_MOMENTS_TABLE_
#define MXREC_KERNELS_MOMENTS_TABLE_
namespace mxrec {

constexpr size_t kMomentParts = 8;

// The functions of one instruction set.
template <typename T>
struct MomentKernels {
  decltype(&MomentsReference<T>::Sum) sum;
  decltype(&MomentsReference<T>::SquareSum) square_sum;
  decltype(&MomentsReference<T>::Standardize) standardize;
  decltype(&MomentsReference<T>::ScaleAndShift) scale_and_shift;
  decltype(&MomentsReference<T>::AddNormSums) add_norm_sums;
  decltype(&MomentsReference<T>::NormGradient) norm_gradient;
  decltype(&MomentsReference<T>::AddNormParameters) add_norm_parameters;
  decltype(&MomentsReference<T>::AddEach) add_each;
  decltype(&MomentsReference<T>::SubtractEach) subtract_each;
};

}  // namespace mxrec
#endif  // MXREC_KERNELS_MOMENTS_TABLE_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/moments.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Highway's portable targets narrow an infinity to the largest number.
#if HWY_HAVE_FLOAT64 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

// At most kMomentParts lanes.
using Wide = hn::CappedTag<double, kMomentParts>;

template <class D>
HWY_INLINE hn::VFromD<D> ReadWide(D d, const float* x) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), x));
}
template <class D>
HWY_INLINE hn::VFromD<D> ReadWide(D d, const double* x) {
  return hn::LoadU(d, x);
}
template <class D>
HWY_INLINE void WriteWide(D d, hn::VFromD<D> v, float* y) {
  const hn::Rebind<float, D> narrow;
  hn::StoreU(hn::DemoteTo(narrow, v), narrow, y);
}
template <class D>
HWY_INLINE void WriteWide(D d, hn::VFromD<D> v, double* y) {
  hn::StoreU(v, d, y);
}

template <class D>
HWY_INLINE hn::VFromD<D> Normalized(D d, hn::VFromD<D> x, const NormScale& norm) {
  return hn::Mul(hn::Sub(x, hn::Set(d, norm.centre)), hn::Set(d, norm.scale));
}

// The sum of n terms in the order that moments.h states. vector(i): the terms from i on; scalar(i): one of them. The partial sums
// are in as many vectors as it takes: one of 8 lanes, two of 4, four of 2.
template <class Vector, class Scalar>
HWY_INLINE double SumOf(size_t n, const Vector& vector, const Scalar& scalar) {
  const Wide d;
  const size_t lanes = hn::Lanes(d);
  double part[kMomentParts] = {};
  size_t i = 0;
  if (lanes >= 2) {
    auto a = hn::Zero(d), b = a, c = a, e = a;
    for (; i + kMomentParts <= n; i += kMomentParts) {
      a = hn::Add(a, vector(i));
      if (lanes < 8) b = hn::Add(b, vector(i + lanes));
      if (lanes < 4) {
        c = hn::Add(c, vector(i + 2 * lanes));
        e = hn::Add(e, vector(i + 3 * lanes));
      }
    }
    hn::StoreU(a, d, part);
    if (lanes < 8) hn::StoreU(b, d, part + lanes);
    if (lanes < 4) {
      hn::StoreU(c, d, part + 2 * lanes);
      hn::StoreU(e, d, part + 3 * lanes);
    }
  }
  for (; i < n; ++i) part[i % kMomentParts] += scalar(i);
  double sum = 0;
  for (size_t l = 0; l < kMomentParts; ++l) sum += part[l];
  return sum;
}

template <typename T>
double SumSimd(const T* x, size_t n) {
  const Wide d;
  return SumOf(
      n, [&](size_t i) HWY_ATTR { return ReadWide(d, x + i); }, [&](size_t i) { return static_cast<double>(x[i]); });
}

template <typename T>
double SquareSumSimd(const T* x, size_t n, double centre) {
  const Wide d;
  const auto vector = [&](size_t i) HWY_ATTR {
    const auto v = hn::Sub(ReadWide(d, x + i), hn::Set(d, centre));
    return hn::Mul(v, v);
  };
  const auto scalar = [&](size_t i) {
    const double v = static_cast<double>(x[i]) - centre;
    return v * v;
  };
  return SumOf(n, vector, scalar);
}

template <typename T>
void AddNormSumsSimd(const T* dy, const T* gamma, const T* x, size_t n, const NormScale& norm, double* sum, double* product) {
  const Wide d;
  const auto g = [&](size_t i) HWY_ATTR { return hn::Mul(ReadWide(d, dy + i), ReadWide(d, gamma + i)); };
  const auto gz = [&](size_t i) HWY_ATTR { return hn::Mul(g(i), Normalized(d, ReadWide(d, x + i), norm)); };
  const auto one_g = [&](size_t i) { return static_cast<double>(dy[i]) * static_cast<double>(gamma[i]); };
  const auto one_gz = [&](size_t i) { return one_g(i) * ((static_cast<double>(x[i]) - norm.centre) * norm.scale); };
  *sum += SumOf(n, g, one_g);
  *product += SumOf(n, gz, one_gz);
}

// body(d, i) over whole vectors from 0 on, then one by one.
template <class Body>
HWY_INLINE void ForVectors(size_t n, const Body& body) {
  const hn::ScalableTag<double> d;
  const hn::CappedTag<double, 1> one;
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) body(d, i);
  for (; i < n; ++i) body(one, i);
}

template <typename T>
void StandardizeSimd(const T* x, size_t n, const NormScale& norm, T* y) {
  ForVectors(n, [&](auto d, size_t i) HWY_ATTR { WriteWide(d, Normalized(d, ReadWide(d, x + i), norm), y + i); });
}

template <typename T>
void ScaleAndShiftSimd(const T* gamma, const T* beta, size_t n, T* y) {
  const hn::ScalableTag<T> d;
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= n; i += lanes) {
    const auto scaled = hn::Mul(hn::LoadU(d, y + i), hn::LoadU(d, gamma + i));
    hn::StoreU(hn::Add(scaled, hn::LoadU(d, beta + i)), d, y + i);
  }
  for (; i < n; ++i) y[i] = y[i] * gamma[i] + beta[i];
}

template <typename T>
void NormGradientSimd(const T* dy, const T* gamma, const T* x, size_t n, const NormScale& norm, const NormRowGradient& row, T* dx) {
  ForVectors(n, [&](auto d, size_t i) HWY_ATTR {
    const auto g = hn::Mul(ReadWide(d, dy + i), ReadWide(d, gamma + i)), z = Normalized(d, ReadWide(d, x + i), norm);
    const auto rest = hn::Sub(hn::Sub(g, hn::Set(d, row.average)), hn::Mul(z, hn::Set(d, row.slope)));
    const auto through_y = hn::Add(hn::Mul(hn::Set(d, norm.scale), rest), hn::Set(d, row.of_mean));
    WriteWide(d, hn::Add(through_y, hn::Mul(hn::Set(d, row.of_variance), z)), dx + i);
  });
}

template <typename T>
void AddNormParametersSimd(const T* dy, const T* x, size_t n, const NormScale& norm, double* gamma, double* beta) {
  ForVectors(n, [&](auto d, size_t i) HWY_ATTR {
    const auto g = ReadWide(d, dy + i);
    hn::StoreU(hn::Add(hn::LoadU(d, gamma + i), hn::Mul(g, Normalized(d, ReadWide(d, x + i), norm))), d, gamma + i);
    hn::StoreU(hn::Add(hn::LoadU(d, beta + i), g), d, beta + i);
  });
}

template <typename T>
void AddEachSimd(const T* x, size_t n, double* sums) {
  ForVectors(n, [&](auto d, size_t i) HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(d, sums + i), ReadWide(d, x + i)), d, sums + i); });
}

template <typename T>
void SubtractEachSimd(const T* x, const double* means, size_t n, T* y) {
  ForVectors(n, [&](auto d, size_t i) HWY_ATTR { WriteWide(d, hn::Sub(ReadWide(d, x + i), hn::LoadU(d, means + i)), y + i); });
}

template <typename T>
HWY_INLINE const MomentKernels<T>* Kernels() {
  static constexpr MomentKernels<T> kernels = {
      SumSimd<T>,          SquareSumSimd<T>,         StandardizeSimd<T>, ScaleAndShiftSimd<T>, AddNormSumsSimd<T>,
      NormGradientSimd<T>, AddNormParametersSimd<T>, AddEachSimd<T>,     SubtractEachSimd<T>};
  return &kernels;
}

#else

template <typename T>
HWY_INLINE const MomentKernels<T>* Kernels() {
  using R = MomentsReference<T>;
  static constexpr MomentKernels<T> kernels = {R::Sum,         R::SquareSum,    R::Standardize,       R::ScaleAndShift,
                                               R::AddNormSums, R::NormGradient, R::AddNormParameters, R::AddEach,
                                               R::SubtractEach};
  return &kernels;
}

#endif

const MomentKernels<float>* FloatKernels() { return Kernels<float>(); }
const MomentKernels<double>* DoubleKernels() { return Kernels<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <type_traits>

namespace mxrec {
namespace {

HWY_EXPORT(FloatKernels);
HWY_EXPORT(DoubleKernels);

template <typename T>
const MomentKernels<T>& Best() {
  if constexpr (std::is_same_v<T, float>) {
    return *HWY_DYNAMIC_DISPATCH(FloatKernels)();
  } else {
    return *HWY_DYNAMIC_DISPATCH(DoubleKernels)();
  }
}

// The reference's sum of term(i) in the order that moments.h states.
template <typename Term>
double SumInParts(size_t n, const Term& term) {
  double part[kMomentParts] = {};
  for (size_t i = 0; i < n; ++i) part[i % kMomentParts] += term(i);
  double sum = 0;
  for (const double p : part) sum += p;
  return sum;
}

}  // namespace

template <typename T>
double MomentsReference<T>::Sum(const T* x, size_t n) {
  return SumInParts(n, [x](size_t i) { return static_cast<double>(x[i]); });
}
template <typename T>
double MomentsReference<T>::SquareSum(const T* x, size_t n, double centre) {
  return SumInParts(n, [x, centre](size_t i) {
    const double v = static_cast<double>(x[i]) - centre;
    return v * v;
  });
}
template <typename T>
void MomentsReference<T>::Standardize(const T* x, size_t n, const NormScale& norm, T* y) {
  for (size_t i = 0; i < n; ++i) y[i] = static_cast<T>((static_cast<double>(x[i]) - norm.centre) * norm.scale);
}
template <typename T>
void MomentsReference<T>::ScaleAndShift(const T* gamma, const T* beta, size_t n, T* y) {
  for (size_t i = 0; i < n; ++i) y[i] = y[i] * gamma[i] + beta[i];
}
template <typename T>
void MomentsReference<T>::AddNormSums(const T* dy, const T* gamma, const T* x, size_t n, const NormScale& norm, double* sum,
                                      double* product) {
  const auto g = [&](size_t i) { return static_cast<double>(dy[i]) * static_cast<double>(gamma[i]); };
  const auto z = [&](size_t i) { return (static_cast<double>(x[i]) - norm.centre) * norm.scale; };
  *sum += SumInParts(n, g);
  *product += SumInParts(n, [&](size_t i) { return g(i) * z(i); });
}
template <typename T>
void MomentsReference<T>::NormGradient(const T* dy, const T* gamma, const T* x, size_t n, const NormScale& norm,
                                       const NormRowGradient& row, T* dx) {
  for (size_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(dy[i]) * static_cast<double>(gamma[i]);
    const double z = (static_cast<double>(x[i]) - norm.centre) * norm.scale;
    dx[i] = static_cast<T>(norm.scale * (g - row.average - z * row.slope) + row.of_mean + row.of_variance * z);
  }
}
template <typename T>
void MomentsReference<T>::AddNormParameters(const T* dy, const T* x, size_t n, const NormScale& norm, double* gamma, double* beta) {
  for (size_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(dy[i]);
    gamma[i] += g * ((static_cast<double>(x[i]) - norm.centre) * norm.scale);
    beta[i] += g;
  }
}
template <typename T>
void MomentsReference<T>::AddEach(const T* x, size_t n, double* sums) {
  for (size_t i = 0; i < n; ++i) sums[i] += static_cast<double>(x[i]);
}
template <typename T>
void MomentsReference<T>::SubtractEach(const T* x, const double* means, size_t n, T* y) {
  for (size_t i = 0; i < n; ++i) y[i] = static_cast<T>(static_cast<double>(x[i]) - means[i]);
}

template <typename T>
double Sum(const T* x, size_t n) {
  return Best<T>().sum(x, n);
}
template <typename T>
double SquareSum(const T* x, size_t n, double centre) {
  return Best<T>().square_sum(x, n, centre);
}
template <typename T>
void Standardize(const T* x, size_t n, const NormScale& norm, T* y) {
  Best<T>().standardize(x, n, norm, y);
}
template <typename T>
void ScaleAndShift(const T* gamma, const T* beta, size_t n, T* y) {
  Best<T>().scale_and_shift(gamma, beta, n, y);
}
template <typename T>
void AddNormSums(const T* dy, const T* gamma, const T* x, size_t n, const NormScale& norm, double* sum, double* product) {
  Best<T>().add_norm_sums(dy, gamma, x, n, norm, sum, product);
}
template <typename T>
void NormGradient(const T* dy, const T* gamma, const T* x, size_t n, const NormScale& norm, const NormRowGradient& row, T* dx) {
  Best<T>().norm_gradient(dy, gamma, x, n, norm, row, dx);
}
template <typename T>
void AddNormParameters(const T* dy, const T* x, size_t n, const NormScale& norm, double* gamma, double* beta) {
  Best<T>().add_norm_parameters(dy, x, n, norm, gamma, beta);
}
template <typename T>
void AddEach(const T* x, size_t n, double* sums) {
  Best<T>().add_each(x, n, sums);
}
template <typename T>
void SubtractEach(const T* x, const double* means, size_t n, T* y) {
  Best<T>().subtract_each(x, means, n, y);
}

#define MXREC_MOMENTS_OF(T)                                                                                       \
  template struct MomentsReference<T>;                                                                            \
  template double Sum(const T*, size_t);                                                                          \
  template double SquareSum(const T*, size_t, double);                                                            \
  template void Standardize(const T*, size_t, const NormScale&, T*);                                              \
  template void ScaleAndShift(const T*, const T*, size_t, T*);                                                    \
  template void AddNormSums(const T*, const T*, const T*, size_t, const NormScale&, double*, double*);            \
  template void NormGradient(const T*, const T*, const T*, size_t, const NormScale&, const NormRowGradient&, T*); \
  template void AddNormParameters(const T*, const T*, size_t, const NormScale&, double*, double*);                \
  template void AddEach(const T*, size_t, double*);                                                               \
  template void SubtractEach(const T*, const double*, size_t, T*)

MXREC_MOMENTS_OF(float);
MXREC_MOMENTS_OF(double);
#undef MXREC_MOMENTS_OF

}  // namespace mxrec
#endif  // HWY_ONCE
