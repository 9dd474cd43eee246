#include "mxrec/kernels/sum_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/sum_rows.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// kVectors (1, 2 or 4) vectors of columns, which stay in registers. `rows` and `sum` begin with the first of them.
template <size_t kVectors, bool kScaled, class D>
HWY_INLINE void SumColumns(D d, const float* HWY_RESTRICT rows, const uint32_t* HWY_RESTRICT which,
                           const float* HWY_RESTRICT scales, size_t count, size_t dim, bool onto, float* HWY_RESTRICT sum) {
  const size_t lanes = hn::Lanes(d);
  const auto term = [&](size_t j, size_t v) HWY_ATTR {
    const auto row = hn::LoadU(d, rows + static_cast<size_t>(which[j]) * dim + v * lanes);
    if constexpr (kScaled) {
      return hn::Mul(hn::Set(d, scales[j]), row);
    } else {
      return row;
    }
  };
  // A vector may have no fixed size, so no arrays of them.
  size_t j = onto ? 0 : 1;
  auto s0 = onto ? hn::LoadU(d, sum) : term(0, 0);
  if constexpr (kVectors == 1) {
    for (; j < count; ++j) s0 = hn::Add(s0, term(j, 0));
  } else {
    auto s1 = onto ? hn::LoadU(d, sum + lanes) : term(0, 1);
    if constexpr (kVectors == 2) {
      for (; j < count; ++j) {
        s0 = hn::Add(s0, term(j, 0));
        s1 = hn::Add(s1, term(j, 1));
      }
    } else {
      static_assert(kVectors == 4);
      auto s2 = onto ? hn::LoadU(d, sum + 2 * lanes) : term(0, 2);
      auto s3 = onto ? hn::LoadU(d, sum + 3 * lanes) : term(0, 3);
      for (; j < count; ++j) {
        s0 = hn::Add(s0, term(j, 0));
        s1 = hn::Add(s1, term(j, 1));
        s2 = hn::Add(s2, term(j, 2));
        s3 = hn::Add(s3, term(j, 3));
      }
      hn::StoreU(s2, d, sum + 2 * lanes);
      hn::StoreU(s3, d, sum + 3 * lanes);
    }
    hn::StoreU(s1, d, sum + lanes);
  }
  hn::StoreU(s0, d, sum);
}

template <bool kScaled>
HWY_INLINE void SumAllColumns(const float* HWY_RESTRICT rows, const uint32_t* HWY_RESTRICT which, const float* HWY_RESTRICT scales,
                              size_t count, size_t dim, bool onto, float* HWY_RESTRICT sum) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t c = 0;
  for (; c + 4 * lanes <= dim; c += 4 * lanes) SumColumns<4, kScaled>(d, rows + c, which, scales, count, dim, onto, sum + c);
  for (; c + 2 * lanes <= dim; c += 2 * lanes) SumColumns<2, kScaled>(d, rows + c, which, scales, count, dim, onto, sum + c);
  for (; c + lanes <= dim; c += lanes) SumColumns<1, kScaled>(d, rows + c, which, scales, count, dim, onto, sum + c);
  const hn::CappedTag<float, 4> quarter;
  const size_t few = hn::Lanes(quarter);
  for (; c + few <= dim; c += few) SumColumns<1, kScaled>(quarter, rows + c, which, scales, count, dim, onto, sum + c);
  const hn::CappedTag<float, 1> single;
  for (; c < dim; ++c) SumColumns<1, kScaled>(single, rows + c, which, scales, count, dim, onto, sum + c);
}

void SumRowsSimd(const float* rows, const uint32_t* which, const float* scales, size_t count, size_t dim, bool onto, float* sum) {
  if (scales != nullptr) {
    SumAllColumns<true>(rows, which, scales, count, dim, onto, sum);
  } else {
    SumAllColumns<false>(rows, which, nullptr, count, dim, onto, sum);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(SumRowsSimd);

void SumRows(const float* rows, const uint32_t* which, const float* scales, size_t count, size_t dim, bool onto, float* sum) {
  HWY_DYNAMIC_DISPATCH(SumRowsSimd)(rows, which, scales, count, dim, onto, sum);
}

void SumRowsReference(const float* rows, const uint32_t* which, const float* scales, size_t count, size_t dim, bool onto,
                      float* sum) {
  for (size_t j = 0; j < count; ++j) {
    const float* row = rows + static_cast<size_t>(which[j]) * dim;
    for (size_t c = 0; c < dim; ++c) {
      const float term = scales != nullptr ? scales[j] * row[c] : row[c];
      sum[c] = j == 0 && !onto ? term : sum[c] + term;
    }
  }
}

}  // namespace mxrec
#endif  // HWY_ONCE
