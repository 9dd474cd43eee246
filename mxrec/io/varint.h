// Varint: a 64-bit number in 1 to 10 bytes, 7 bits each, low bits first, the top bit set on all bytes but the last.
#ifndef MXREC_IO_VARINT_H_
#define MXREC_IO_VARINT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mxrec {

inline constexpr size_t kMaxVarintBytes = 10;

inline size_t VarintBytes(uint64_t value) {
  size_t bytes = 1;
  for (; value >= 0x80; value >>= 7) ++bytes;
  return bytes;
}

inline void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

// Takes a number off the front of *in. False, and *in and *value as before, when *in ends within the number, when the number
// needs more than 64 bits, or when it is written with more bytes than needed (each number has one encoding).
[[nodiscard]] inline bool ConsumeVarint(std::string_view* in, uint64_t* value) {
  uint64_t result = 0;
  for (size_t i = 0; i < in->size() && i < kMaxVarintBytes; ++i) {
    const uint64_t byte = static_cast<unsigned char>((*in)[i]);
    if (i == kMaxVarintBytes - 1 && byte > 1) return false;  // bit 64 and up
    result |= (byte & 0x7F) << (7 * i);
    if (byte < 0x80) {
      if (byte == 0 && i > 0) return false;  // a longer form of a smaller number
      in->remove_prefix(i + 1);
      *value = result;
      return true;
    }
  }
  return false;
}

}  // namespace mxrec

#endif  // MXREC_IO_VARINT_H_
