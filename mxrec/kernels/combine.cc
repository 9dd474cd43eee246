#include "mxrec/kernels/combine.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "mxrec/base/check.h"
#include "mxrec/kernels/float_mode.h"
#include "mxrec/kernels/narrow_floats.h"
#include "mxrec/numeric/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/combine.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <Combine op, class V>
HWY_INLINE V CombineVectors(V a, V b) {
  using T = hn::TFromV<V>;
  if constexpr (op == Combine::kSum) {
    return hn::Add(a, b);
  } else if constexpr (op == Combine::kProduct) {
    return hn::Mul(a, b);
  } else if constexpr (hwy::IsFloat<T>()) {
    const auto take_a = op == Combine::kMin ? hn::Lt(a, b) : hn::Gt(a, b);
    return hn::IfThenElse(hn::Or(take_a, hn::IsNaN(a)), a, b);
  } else {
    return op == Combine::kMin ? hn::Min(a, b) : hn::Max(a, b);
  }
}

// Whole vectors; returns how many numbers they were.
template <Combine op, typename T>
HWY_INLINE size_t CombineArrays(const void* a_bytes, const void* b_bytes, size_t n, void* out_bytes) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const T* a = static_cast<const T*>(a_bytes);
  const T* b = static_cast<const T*>(b_bytes);
  T* out = static_cast<T*>(out_bytes);
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto v0 = CombineVectors<op>(hn::LoadU(d, a + i), hn::LoadU(d, b + i));
    const auto v1 = CombineVectors<op>(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes));
    const auto v2 = CombineVectors<op>(hn::LoadU(d, a + i + 2 * lanes), hn::LoadU(d, b + i + 2 * lanes));
    const auto v3 = CombineVectors<op>(hn::LoadU(d, a + i + 3 * lanes), hn::LoadU(d, b + i + 3 * lanes));
    hn::StoreU(v0, d, out + i);
    hn::StoreU(v1, d, out + i + lanes);
    hn::StoreU(v2, d, out + i + 2 * lanes);
    hn::StoreU(v3, d, out + i + 3 * lanes);
  }
  for (; i + lanes <= n; i += lanes) hn::StoreU(CombineVectors<op>(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  return i;
}

template <typename T>
HWY_INLINE size_t CombineType(const void* a, const void* b, size_t n, Combine op, void* out) {
  switch (op) {
    case Combine::kSum:
      return CombineArrays<Combine::kSum, T>(a, b, n, out);
    case Combine::kMin:
      return CombineArrays<Combine::kMin, T>(a, b, n, out);
    case Combine::kMax:
      return CombineArrays<Combine::kMax, T>(a, b, n, out);
    case Combine::kProduct:
      // Not every target multiplies every integer.
      if constexpr (hwy::IsFloat<T>()) return CombineArrays<Combine::kProduct, T>(a, b, n, out);
      return 0;
  }
  return 0;
}

size_t CombineSimd(const void* a, const void* b, size_t n, DType dtype, Combine op, void* out) {
  switch (dtype) {
    case DType::kFloat32:
      return CombineType<float>(a, b, n, op, out);
    case DType::kFloat64:
      return CombineType<double>(a, b, n, op, out);
    case DType::kInt8:
      return CombineType<int8_t>(a, b, n, op, out);
    case DType::kInt16:
      return CombineType<int16_t>(a, b, n, op, out);
    case DType::kInt32:
      return CombineType<int32_t>(a, b, n, op, out);
    case DType::kInt64:
      return CombineType<int64_t>(a, b, n, op, out);
    case DType::kUInt8:
      return CombineType<uint8_t>(a, b, n, op, out);
    case DType::kUInt16:
      return CombineType<uint16_t>(a, b, n, op, out);
    case DType::kUInt32:
      return CombineType<uint32_t>(a, b, n, op, out);
    case DType::kUInt64:
      return CombineType<uint64_t>(a, b, n, op, out);
    default:
      return 0;
  }
}

size_t ScaleFloatsSimd(float* data, size_t n, double multiply, double divide) {
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, decltype(dd)> d;
  const size_t lanes = hn::Lanes(dd);
  const auto m = hn::Set(dd, multiply), q = hn::Set(dd, divide);
  size_t i = 0;
  if (divide == 1) {
    for (; i + lanes <= n; i += lanes) {
      hn::StoreU(hn::DemoteTo(d, hn::Mul(hn::PromoteTo(dd, hn::LoadU(d, data + i)), m)), d, data + i);
    }
  } else {
    for (; i + lanes <= n; i += lanes) {
      const auto x = hn::Mul(hn::PromoteTo(dd, hn::LoadU(d, data + i)), m);
      hn::StoreU(hn::DemoteTo(d, hn::Div(x, q)), d, data + i);
    }
  }
  return i;
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {
namespace {

template <typename T>
T CombineTwo(T a, T b, Combine op) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case Combine::kSum:
        return a + b;
      case Combine::kProduct:
        return a * b;
      case Combine::kMin:
        return a < b || std::isnan(a) ? a : b;
      case Combine::kMax:
        return a > b || std::isnan(a) ? a : b;
    }
  } else {
    // Wide and unsigned: signed overflow and the promotion of uint16_t to int are undefined behaviour.
    const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    switch (op) {
      case Combine::kSum:
        return static_cast<T>(x + y);
      case Combine::kProduct:
        return static_cast<T>(x * y);
      case Combine::kMin:
        return std::min(a, b);
      case Combine::kMax:
        return std::max(a, b);
    }
  }
  return a;
}

template <typename T>
void CombineRange(const void* a, const void* b, size_t from, size_t n, Combine op, void* out) {
  for (size_t i = from; i < n; ++i) {
    static_cast<T*>(out)[i] = CombineTwo(static_cast<const T*>(a)[i], static_cast<const T*>(b)[i], op);
  }
}

// 16 bit floats by pattern.
template <float widen(uint16_t), uint16_t narrow(float)>
void CombineNarrow(const void* a, const void* b, size_t n, Combine op, void* out) {
  for (size_t i = 0; i < n; ++i) {
    const float x = widen(static_cast<const uint16_t*>(a)[i]), y = widen(static_cast<const uint16_t*>(b)[i]);
    static_cast<uint16_t*>(out)[i] = narrow(CombineTwo(x, y, op));
  }
}

void CombineBools(const void* a, const void* b, size_t n, Combine op, void* out) {
  const bool either = op == Combine::kSum || op == Combine::kMax;
  for (size_t i = 0; i < n; ++i) {
    const bool x = static_cast<const uint8_t*>(a)[i] != 0, y = static_cast<const uint8_t*>(b)[i] != 0;
    static_cast<uint8_t*>(out)[i] = either ? x || y : x && y;
  }
}

// Numbers [from, n) one by one.
void CombineScalar(const void* a, const void* b, size_t from, size_t n, DType dtype, Combine op, void* out) {
  switch (dtype) {
    case DType::kFloat32:
      return CombineRange<float>(a, b, from, n, op, out);
    case DType::kFloat64:
      return CombineRange<double>(a, b, from, n, op, out);
    case DType::kInt8:
      return CombineRange<int8_t>(a, b, from, n, op, out);
    case DType::kInt16:
      return CombineRange<int16_t>(a, b, from, n, op, out);
    case DType::kInt32:
      return CombineRange<int32_t>(a, b, from, n, op, out);
    case DType::kInt64:
      return CombineRange<int64_t>(a, b, from, n, op, out);
    case DType::kUInt8:
      return CombineRange<uint8_t>(a, b, from, n, op, out);
    case DType::kUInt16:
      return CombineRange<uint16_t>(a, b, from, n, op, out);
    case DType::kUInt32:
      return CombineRange<uint32_t>(a, b, from, n, op, out);
    case DType::kUInt64:
      return CombineRange<uint64_t>(a, b, from, n, op, out);
    case DType::kBool:
      return CombineBools(a, b, n, op, out);
    case DType::kFloat16:
      return CombineNarrow<HalfToFloat, FloatToHalf>(a, b, n, op, out);
    case DType::kBFloat16:
      return CombineNarrow<BFloat16ToFloat, FloatToBFloat16>(a, b, n, op, out);
  }
}

bool IsNarrow(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }
void Widen(const void* in, size_t n, DType dtype, float* out) {
  const auto* bits = static_cast<const uint16_t*>(in);
  dtype == DType::kFloat16 ? HalfToFloats(bits, n, out) : BFloat16ToFloats(bits, n, out);
}
void Narrow(const float* in, size_t n, DType dtype, void* out) {
  auto* bits = static_cast<uint16_t*>(out);
  dtype == DType::kFloat16 ? FloatsToHalf(in, n, bits) : FloatsToBFloat16(in, n, bits);
}

template <typename T>
T ScaleOne(T x, const NumberScale& scale) {
  const double scaled = static_cast<double>(x) * scale.multiply / scale.divide;
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(scaled);
  } else {
    // The type's largest number may lie between two float64: the next power of two is one that it cannot hold.
    constexpr double kLowest = static_cast<double>(std::numeric_limits<T>::min());
    constexpr double kBeyond = static_cast<double>(std::numeric_limits<T>::max() / 2 + 1) * 2;
    const double whole = std::nearbyint(scaled);
    if (std::isnan(whole)) return 0;
    if (whole < kLowest) return std::numeric_limits<T>::min();
    if (whole >= kBeyond) return std::numeric_limits<T>::max();
    return static_cast<T>(whole);
  }
}

template <typename T>
void ScaleRange(void* data, size_t from, size_t n, const NumberScale& scale) {
  for (size_t i = from; i < n; ++i) static_cast<T*>(data)[i] = ScaleOne(static_cast<T*>(data)[i], scale);
}

template <float widen(uint16_t), uint16_t narrow(float)>
void ScaleNarrow(void* data, size_t n, const NumberScale& scale) {
  auto* bits = static_cast<uint16_t*>(data);
  for (size_t i = 0; i < n; ++i) bits[i] = narrow(ScaleOne(widen(bits[i]), scale));
}

void ScaleScalar(void* data, size_t from, size_t n, DType dtype, const NumberScale& scale) {
  switch (dtype) {
    case DType::kFloat32:
      return ScaleRange<float>(data, from, n, scale);
    case DType::kFloat64:
      return ScaleRange<double>(data, from, n, scale);
    case DType::kInt8:
      return ScaleRange<int8_t>(data, from, n, scale);
    case DType::kInt16:
      return ScaleRange<int16_t>(data, from, n, scale);
    case DType::kInt32:
      return ScaleRange<int32_t>(data, from, n, scale);
    case DType::kInt64:
      return ScaleRange<int64_t>(data, from, n, scale);
    case DType::kUInt8:
      return ScaleRange<uint8_t>(data, from, n, scale);
    case DType::kUInt16:
      return ScaleRange<uint16_t>(data, from, n, scale);
    case DType::kUInt32:
      return ScaleRange<uint32_t>(data, from, n, scale);
    case DType::kUInt64:
      return ScaleRange<uint64_t>(data, from, n, scale);
    case DType::kBool:
      return;
    case DType::kFloat16:
      return ScaleNarrow<HalfToFloat, FloatToHalf>(data, n, scale);
    case DType::kBFloat16:
      return ScaleNarrow<BFloat16ToFloat, FloatToBFloat16>(data, n, scale);
  }
}

// Numbers worked on at once where intermediate results need a place: they stay in the first-level cache.
constexpr size_t kTile = 1024;

}  // namespace

HWY_EXPORT(CombineSimd);
HWY_EXPORT(ScaleFloatsSimd);

void CombineNumbers(const void* a, const void* b, size_t n, DType dtype, Combine op, void* out) {
  if (IsNarrow(dtype)) {
    const void* const parts[] = {a, b};
    return CombineParts(parts, n, dtype, op, {}, out);
  }
  const ScopedIeeeFloat ieee;
  CombineScalar(a, b, HWY_DYNAMIC_DISPATCH(CombineSimd)(a, b, n, dtype, op, out), n, dtype, op, out);
}

void CombineNumbersReference(const void* a, const void* b, size_t n, DType dtype, Combine op, void* out) {
  const ScopedIeeeFloat ieee;
  CombineScalar(a, b, 0, n, dtype, op, out);
}

void ScaleNumbers(void* data, size_t n, DType dtype, const NumberScale& scale) {
  if (scale.nothing()) return;
  const ScopedIeeeFloat ieee;
  if (dtype == DType::kFloat32) {
    auto* floats = static_cast<float*>(data);
    return ScaleScalar(data, HWY_DYNAMIC_DISPATCH(ScaleFloatsSimd)(floats, n, scale.multiply, scale.divide), n, dtype, scale);
  }
  if (!IsNarrow(dtype)) return ScaleScalar(data, 0, n, dtype, scale);
  const void* const parts[] = {data};
  CombineParts(parts, n, dtype, Combine::kSum, scale, data);
}

void ScaleNumbersReference(void* data, size_t n, DType dtype, const NumberScale& scale) {
  if (scale.nothing()) return;
  const ScopedIeeeFloat ieee;
  ScaleScalar(data, 0, n, dtype, scale);
}

void CombineParts(std::span<const void* const> parts, size_t n, DType dtype, Combine op, const NumberScale& scale, void* out) {
  MXREC_CHECK(!parts.empty());
  const size_t size = DTypeSize(dtype);
  if (!IsNarrow(dtype) && parts.size() == 2 && scale.nothing()) return CombineNumbers(parts[0], parts[1], n, dtype, op, out);
  const ScopedIeeeFloat ieee;
  for (size_t first = 0; first < n; first += kTile) {
    const size_t count = std::min(kTile, n - first);
    const auto tile = [&](const void* part) { return static_cast<const char*>(part) + first * size; };
    void* const target = static_cast<char*>(out) + first * size;
    if (IsNarrow(dtype)) {
      alignas(64) float sum[kTile], next[kTile];
      Widen(tile(parts[0]), count, dtype, sum);
      for (size_t p = 1; p < parts.size(); ++p) {
        Widen(tile(parts[p]), count, dtype, next);
        CombineNumbers(sum, next, count, DType::kFloat32, op, sum);
      }
      ScaleNumbers(sum, count, DType::kFloat32, scale);
      Narrow(sum, count, dtype, target);
    } else {
      // `out` may be any of the parts: it is written when all of them have been read.
      alignas(64) char sum[kTile * sizeof(double)];
      if (parts.size() == 1) {
        std::memcpy(sum, tile(parts[0]), count * size);
      } else {
        CombineNumbers(tile(parts[0]), tile(parts[1]), count, dtype, op, sum);
        for (size_t p = 2; p < parts.size(); ++p) CombineNumbers(sum, tile(parts[p]), count, dtype, op, sum);
      }
      ScaleNumbers(sum, count, dtype, scale);
      std::memcpy(target, sum, count * size);
    }
  }
}

}  // namespace mxrec
#endif  // HWY_ONCE
