// float16 (IEEE binary16) and bfloat16, by bit pattern. To 16 bits: round to nearest, ties to even; too large becomes
// infinity; a NaN stays a NaN, quiet, with the upper part of its payload. From 16 bits: exact (a signalling NaN becomes quiet).
#ifndef MXREC_NUMERIC_HALF_H_
#define MXREC_NUMERIC_HALF_H_

#include <bit>
#include <cstdint>

namespace mxrec {

constexpr float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1Fu;
  const uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0x1F) {
    const uint32_t quiet = mantissa != 0 ? 0x00400000u : 0;
    return std::bit_cast<float>(sign | 0x7F800000u | quiet | (mantissa << 13));
  }
  if (exponent == 0) {
    // mantissa * 2^-24 is exact in float32.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

constexpr uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result counts in units of 2^-24. Adding 0.5 puts that unit at the last bit of the sum, so float32 addition
    // itself rounds to nearest even.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f)));
  }
  // Drop 13 bits: add just under a half, and one more when the kept part is odd. A carry moves into the exponent, as it should.
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

constexpr float BFloat16ToFloat(uint16_t bfloat) {
  uint32_t bits = static_cast<uint32_t>(bfloat) << 16;
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) bits |= 0x00400000u;
  return std::bit_cast<float>(bits);
}

constexpr uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace mxrec

#endif  // MXREC_NUMERIC_HALF_H_
