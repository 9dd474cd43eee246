// Fixed-width numbers as stored: little-endian, unaligned, whatever the machine.
#ifndef MXREC_IO_LITTLE_ENDIAN_H_
#define MXREC_IO_LITTLE_ENDIAN_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace mxrec {

namespace internal {
template <typename T>
using BitsOf =
    std::conditional_t<sizeof(T) == 8, uint64_t,
                       std::conditional_t<sizeof(T) == 4, uint32_t, std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;

template <typename Bits>
constexpr Bits SwapUnlessLittle(Bits bits) {
  if constexpr (std::endian::native == std::endian::little || sizeof(Bits) == 1) {
    return bits;
  } else if constexpr (sizeof(Bits) == 2) {
    return __builtin_bswap16(bits);
  } else if constexpr (sizeof(Bits) == 4) {
    return __builtin_bswap32(bits);
  } else {
    return __builtin_bswap64(bits);
  }
}
}  // namespace internal

// T: an integer or floating type of 1, 2, 4 or 8 bytes. Reads sizeof(T) bytes.
template <typename T>
T LoadLittleEndian(const char* from) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8);
  internal::BitsOf<T> bits;
  std::memcpy(&bits, from, sizeof(bits));
  return std::bit_cast<T>(internal::SwapUnlessLittle(bits));
}

template <typename T>
void StoreLittleEndian(T value, char* to) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8);
  const auto bits = internal::SwapUnlessLittle(std::bit_cast<internal::BitsOf<T>>(value));
  std::memcpy(to, &bits, sizeof(bits));
}

template <typename T>
void AppendLittleEndian(T value, std::string* out) {
  char bytes[sizeof(T)];
  StoreLittleEndian(value, bytes);
  out->append(bytes, sizeof(bytes));
}

}  // namespace mxrec

#endif  // MXREC_IO_LITTLE_ENDIAN_H_
