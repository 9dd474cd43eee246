#include "mxrec/kernels/expand_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/expand_rows.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Copies one row; kDim = 0 means that dim is known at run time only.
template <size_t kDim>
HWY_INLINE void CopyRow(const float* HWY_RESTRICT from, size_t dim, float* HWY_RESTRICT to) {
  const size_t n = kDim != 0 ? kDim : dim;
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t c = 0;
  for (; c + lanes <= n; c += lanes) hn::StoreU(hn::LoadU(d, from + c), d, to + c);
  const hn::CappedTag<float, 4> quarter;
  const size_t few = hn::Lanes(quarter);
  for (; c + few <= n; c += few) hn::StoreU(hn::LoadU(quarter, from + c), quarter, to + c);
  for (; c < n; ++c) to[c] = from[c];
}

template <size_t kDim>
HWY_INLINE size_t ExpandLoop(const float* HWY_RESTRICT rows, size_t unique, size_t dim, const int32_t* HWY_RESTRICT inverse,
                             size_t n, float* HWY_RESTRICT out) {
  // Far enough to hide a miss in the last-level cache, near enough to stay in the first level.
  constexpr size_t kAhead = 16;
  const size_t width = kDim != 0 ? kDim : dim;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      // A prefetch of an address out of range is harmless, but do not form the pointer.
      const uint32_t next = static_cast<uint32_t>(inverse[i + kAhead]);
      if (next < unique) {
        const float* row = rows + next * width;
        for (size_t c = 0; c < width && c < 64; c += 16) hwy::Prefetch(row + c);
      }
    }
    // A negative position becomes a huge one.
    const size_t row = static_cast<uint32_t>(inverse[i]);
    if (HWY_UNLIKELY(inverse[i] < 0 || row >= unique)) return i;
    CopyRow<kDim>(rows + row * width, width, out + i * width);
  }
  return n;
}

size_t ExpandRowsSimd(const float* rows, size_t unique, size_t dim, const int32_t* inverse, size_t n, float* out) {
  switch (dim) {
    case 8:
      return ExpandLoop<8>(rows, unique, dim, inverse, n, out);
    case 16:
      return ExpandLoop<16>(rows, unique, dim, inverse, n, out);
    case 32:
      return ExpandLoop<32>(rows, unique, dim, inverse, n, out);
    case 64:
      return ExpandLoop<64>(rows, unique, dim, inverse, n, out);
    default:
      return ExpandLoop<0>(rows, unique, dim, inverse, n, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(ExpandRowsSimd);

size_t ExpandRows(const float* rows, size_t unique, size_t dim, const int32_t* inverse, size_t n, float* out) {
  return HWY_DYNAMIC_DISPATCH(ExpandRowsSimd)(rows, unique, dim, inverse, n, out);
}

size_t ExpandRowsReference(const float* rows, size_t unique, size_t dim, const int32_t* inverse, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) {
    if (inverse[i] < 0 || static_cast<size_t>(inverse[i]) >= unique) return i;
    for (size_t c = 0; c < dim; ++c) out[i * dim + c] = rows[static_cast<size_t>(inverse[i]) * dim + c];
  }
  return n;
}

}  // namespace mxrec
#endif  // HWY_ONCE
