// UlpDistance: how many representable numbers lie between two (0 = equal, 1 = neighbours).
//
// +0 and -0 are equal. Two NaNs are equal whatever their bits. A NaN and a number are kUlpNever apart. Infinity equals itself
// and is kUlpNever apart from everything else: reaching infinity is not a rounding error.
#ifndef MXREC_NUMERIC_ULP_H_
#define MXREC_NUMERIC_ULP_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace mxrec {

inline constexpr uint64_t kUlpNever = std::numeric_limits<uint64_t>::max();

// T: float or double.
template <typename T>
constexpr uint64_t UlpDistance(T a, T b) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr Bits kSign = Bits{1} << (sizeof(T) * 8 - 1);
  constexpr Bits kInfinity = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
  const Bits bits_a = std::bit_cast<Bits>(a), bits_b = std::bit_cast<Bits>(b);
  const Bits size_a = bits_a & ~kSign, size_b = bits_b & ~kSign;
  if (size_a > kInfinity || size_b > kInfinity) return size_a > kInfinity && size_b > kInfinity ? 0 : kUlpNever;
  if (size_a == kInfinity || size_b == kInfinity) return bits_a == bits_b ? 0 : kUlpNever;
  const bool same_sign = ((bits_a ^ bits_b) & kSign) == 0;
  if (same_sign) return size_a > size_b ? size_a - size_b : size_b - size_a;
  return static_cast<uint64_t>(size_a) + size_b;  // by way of zero
}

}  // namespace mxrec

#endif  // MXREC_NUMERIC_ULP_H_
