#include "mxrec/kernels/non_finite.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/non_finite.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

size_t FirstNonFiniteSimd(const float* values, size_t n) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  // x - x is +0 for every finite x and NaN else; "or" keeps any bit of a NaN. Four vectors a turn, then find the place.
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto a = hn::LoadU(d, values + i);
    const auto b = hn::LoadU(d, values + i + lanes);
    const auto c = hn::LoadU(d, values + i + 2 * lanes);
    const auto e = hn::LoadU(d, values + i + 3 * lanes);
    const auto all = hn::Or(hn::Or(hn::Sub(a, a), hn::Sub(b, b)), hn::Or(hn::Sub(c, c), hn::Sub(e, e)));
    if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Eq(all, hn::Zero(d))))) break;
  }
  for (; i < n; ++i) {
    const float x = values[i];
    if (HWY_UNLIKELY(!(x - x == 0.0f))) return i;
  }
  return n;
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(FirstNonFiniteSimd);

size_t FirstNonFinite(const float* values, size_t n) { return HWY_DYNAMIC_DISPATCH(FirstNonFiniteSimd)(values, n); }

size_t FirstNonFiniteReference(const float* values, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(values[i])) return i;
  }
  return n;
}

}  // namespace mxrec
#endif  // HWY_ONCE
