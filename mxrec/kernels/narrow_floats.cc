#include "mxrec/kernels/narrow_floats.h"

#include "mxrec/numeric/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/narrow_floats.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using DN = hn::Rebind<uint16_t, DF>;  // as many lanes
using VI = hn::Vec<DI>;

HWY_INLINE VI LoadNarrow(const uint16_t* in) { return hn::PromoteTo(DI(), hn::LoadU(DN(), in)); }
HWY_INLINE void StoreNarrow(VI v, uint16_t* out) { hn::StoreU(hn::DemoteTo(DN(), v), DN(), out); }
HWY_INLINE VI Number(int32_t x) { return hn::Set(DI(), x); }

// Each takes one vector; the order of the cases is that of half.h.
struct WidenHalf {
  HWY_INLINE VI operator()(VI half) const {
    const VI magnitude = hn::And(half, Number(0x7FFF));
    const VI sign = hn::ShiftLeft<16>(hn::Xor(half, magnitude));
    const VI shifted = hn::ShiftLeft<13>(magnitude);
    const VI tiny = hn::BitCast(DI(), hn::Mul(hn::ConvertTo(DF(), magnitude), hn::Set(DF(), 0x1p-24f)));
    VI bits = hn::Add(shifted, Number(112 << 23));
    bits = hn::IfThenElse(hn::Lt(magnitude, Number(0x400)), tiny, bits);
    bits = hn::IfThenElse(hn::Gt(magnitude, Number(0x7BFF)), hn::Or(shifted, Number(0x7F800000)), bits);
    bits = hn::IfThenElse(hn::Gt(magnitude, Number(0x7C00)), hn::Or(bits, Number(0x00400000)), bits);
    return hn::Or(bits, sign);
  }
};

struct NarrowHalf {
  HWY_INLINE VI operator()(VI bits) const {
    const VI magnitude = hn::And(bits, Number(0x7FFFFFFF));
    const VI sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
    const VI upper = hn::ShiftRight<13>(magnitude);
    const VI sum = hn::BitCast(DI(), hn::Add(hn::BitCast(DF(), magnitude), hn::Set(DF(), 0.5f)));
    const VI rounded = hn::Add(hn::Add(magnitude, Number(0xFFF)), hn::And(upper, Number(1)));
    VI half = hn::ShiftRight<13>(hn::Sub(rounded, Number(0x38000000)));
    half = hn::IfThenElse(hn::Lt(magnitude, Number(0x38800000)), hn::Sub(sum, Number(0x3F000000)), half);
    half = hn::IfThenElse(hn::Gt(magnitude, Number(0x477FEFFF)), Number(0x7C00), half);
    half = hn::IfThenElse(hn::Gt(magnitude, Number(0x7F800000)), hn::Or(Number(0x7E00), hn::And(upper, Number(0x3FF))), half);
    return hn::Or(half, hn::And(sign, Number(0x8000)));
  }
};

struct WidenBFloat16 {
  HWY_INLINE VI operator()(VI narrow) const {
    const VI bits = hn::ShiftLeft<16>(narrow);
    const auto nan = hn::Gt(hn::And(bits, Number(0x7FFFFFFF)), Number(0x7F800000));
    return hn::IfThenElse(nan, hn::Or(bits, Number(0x00400000)), bits);
  }
};

struct NarrowBFloat16 {
  HWY_INLINE VI operator()(VI bits) const {
    const VI upper = hn::ShiftRight<16>(bits);
    const VI rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, Number(0x7FFF)), hn::And(upper, Number(1))));
    const auto nan = hn::Gt(hn::And(bits, Number(0x7FFFFFFF)), Number(0x7F800000));
    return hn::And(hn::IfThenElse(nan, hn::Or(upper, Number(0x0040)), rounded), Number(0xFFFF));
  }
};

// Whole vectors; returns how many numbers they were.
template <class Rule>
HWY_INLINE size_t Widen(const uint16_t* in, size_t n, float* out) {
  const size_t lanes = hn::Lanes(DF());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::BitCast(DF(), Rule()(LoadNarrow(in + i))), DF(), out + i);
  return i;
}
template <class Rule>
HWY_INLINE size_t Narrow(const float* in, size_t n, uint16_t* out) {
  const size_t lanes = hn::Lanes(DF());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreNarrow(Rule()(hn::BitCast(DI(), hn::LoadU(DF(), in + i))), out + i);
  return i;
}

size_t HalfToFloatsSimd(const uint16_t* in, size_t n, float* out) { return Widen<WidenHalf>(in, n, out); }
size_t FloatsToHalfSimd(const float* in, size_t n, uint16_t* out) { return Narrow<NarrowHalf>(in, n, out); }
size_t BFloat16ToFloatsSimd(const uint16_t* in, size_t n, float* out) { return Widen<WidenBFloat16>(in, n, out); }
size_t FloatsToBFloat16Simd(const float* in, size_t n, uint16_t* out) { return Narrow<NarrowBFloat16>(in, n, out); }

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(HalfToFloatsSimd);
HWY_EXPORT(FloatsToHalfSimd);
HWY_EXPORT(BFloat16ToFloatsSimd);
HWY_EXPORT(FloatsToBFloat16Simd);

void HalfToFloats(const uint16_t* in, size_t n, float* out) {
  for (size_t i = HWY_DYNAMIC_DISPATCH(HalfToFloatsSimd)(in, n, out); i < n; ++i) out[i] = HalfToFloat(in[i]);
}

void FloatsToHalf(const float* in, size_t n, uint16_t* out) {
  for (size_t i = HWY_DYNAMIC_DISPATCH(FloatsToHalfSimd)(in, n, out); i < n; ++i) out[i] = FloatToHalf(in[i]);
}

void BFloat16ToFloats(const uint16_t* in, size_t n, float* out) {
  for (size_t i = HWY_DYNAMIC_DISPATCH(BFloat16ToFloatsSimd)(in, n, out); i < n; ++i) out[i] = BFloat16ToFloat(in[i]);
}

void FloatsToBFloat16(const float* in, size_t n, uint16_t* out) {
  for (size_t i = HWY_DYNAMIC_DISPATCH(FloatsToBFloat16Simd)(in, n, out); i < n; ++i) out[i] = FloatToBFloat16(in[i]);
}

}  // namespace mxrec
#endif  // HWY_ONCE
