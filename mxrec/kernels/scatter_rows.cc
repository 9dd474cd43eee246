#include "mxrec/kernels/scatter_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/scatter_rows.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// As many vectors of D as fit between `from` and `to`; the first column behind them.
template <bool kCopy, class D>
HWY_INLINE size_t Columns(D d, const float* HWY_RESTRICT row, size_t from, size_t to, float* HWY_RESTRICT sum) {
  const size_t lanes = hn::Lanes(d);
  for (; from + lanes <= to; from += lanes) {
    const auto value = hn::LoadU(d, row + from);
    hn::StoreU(kCopy ? value : hn::Add(hn::LoadU(d, sum + from), value), d, sum + from);
  }
  return from;
}

template <bool kCopy>
HWY_INLINE void OneRow(const float* HWY_RESTRICT row, size_t dim, float* HWY_RESTRICT sum) {
  size_t c = Columns<kCopy>(hn::ScalableTag<float>(), row, 0, dim, sum);
  c = Columns<kCopy>(hn::CappedTag<float, 4>(), row, c, dim, sum);
  Columns<kCopy>(hn::CappedTag<float, 1>(), row, c, dim, sum);
}

void ScatterSumRowsSimd(const float* HWY_RESTRICT rows, const int32_t* HWY_RESTRICT index, size_t n, size_t dim, int32_t first,
                        int32_t last, uint8_t* HWY_RESTRICT seen, const ScatterTarget& to) {
  // The sums of some rows ahead are fetched, up to 512 bytes of each.
  constexpr size_t kAhead = 12, kLine = 16, kMost = 128;
  const size_t fetched = dim < kMost ? dim : kMost;
  float* const sums = to.sums;
  float* const* const places = to.places;
  const auto place = [&](int32_t u) HWY_ATTR { return places != nullptr ? places[u] : sums + static_cast<size_t>(u) * dim; };
  for (size_t j = 0; j < n; ++j) {
    if (j + kAhead < n) {
      const int32_t ahead = index[j + kAhead];
      if (ahead >= first && ahead < last) {
        const float* const target = place(ahead);
        for (size_t c = 0; c < fetched; c += kLine) __builtin_prefetch(target + c, 1);
      }
    }
    const int32_t u = index[j];
    if (u < first || u >= last) continue;
    if (seen[u] != 0) {
      OneRow<false>(rows + j * dim, dim, place(u));
    } else {
      seen[u] = 1;
      OneRow<true>(rows + j * dim, dim, place(u));
    }
  }
}

void AddRowsOntoSimd(float* rows, const int32_t* HWY_RESTRICT from, const int32_t* HWY_RESTRICT onto, size_t n, size_t dim) {
  constexpr size_t kAhead = 8, kLine = 16, kMost = 128;
  const size_t fetched = dim < kMost ? dim : kMost;
  const auto row = [&](int32_t number) HWY_ATTR { return rows + static_cast<size_t>(number) * dim; };
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const float *const source = row(from[i + kAhead]), *const target = row(onto[i + kAhead]);
      for (size_t c = 0; c < fetched; c += kLine) {
        __builtin_prefetch(source + c);
        __builtin_prefetch(target + c, 1);
      }
    }
    OneRow<false>(row(from[i]), dim, row(onto[i]));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(ScatterSumRowsSimd);
HWY_EXPORT(AddRowsOntoSimd);

void ScatterSumRows(const float* rows, const int32_t* index, size_t n, size_t dim, int32_t first, int32_t last, uint8_t* seen,
                    const ScatterTarget& to) {
  HWY_DYNAMIC_DISPATCH(ScatterSumRowsSimd)(rows, index, n, dim, first, last, seen, to);
}

void ScatterSumRowsReference(const float* rows, const int32_t* index, size_t n, size_t dim, int32_t first, int32_t last,
                             uint8_t* seen, const ScatterTarget& to) {
  for (size_t j = 0; j < n; ++j) {
    const int32_t u = index[j];
    if (u < first || u >= last) continue;
    float* const sum = to.places != nullptr ? to.places[u] : to.sums + static_cast<size_t>(u) * dim;
    for (size_t c = 0; c < dim; ++c) sum[c] = seen[u] != 0 ? sum[c] + rows[j * dim + c] : rows[j * dim + c];
    seen[u] = 1;
  }
}

void AddRowsOnto(float* rows, const int32_t* from, const int32_t* onto, size_t n, size_t dim) {
  HWY_DYNAMIC_DISPATCH(AddRowsOntoSimd)(rows, from, onto, n, dim);
}

void AddRowsOntoReference(float* rows, const int32_t* from, const int32_t* onto, size_t n, size_t dim) {
  for (size_t i = 0; i < n; ++i) {
    for (size_t c = 0; c < dim; ++c) rows[static_cast<size_t>(onto[i]) * dim + c] += rows[static_cast<size_t>(from[i]) * dim + c];
  }
}

}  // namespace mxrec
#endif  // HWY_ONCE
