#include "mxrec/io/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>

namespace mxrec {
namespace {

// The polynomial without its x^32, bit 31 = x^0 (reflected).
constexpr uint32_t kPolynomial = 0x82F63B78u;

// a * b modulo the polynomial; both in reflected form, so bit 31 is the constant term.
constexpr uint32_t MultiplyModulo(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);  // b * x
  }
  return product;
}

// kPowers[k] = x^(8 * 2^k): what 2^k zero bytes multiply a checksum by.
constexpr std::array<uint32_t, 64> kPowers = [] {
  std::array<uint32_t, 64> powers{};
  powers[0] = 1u << 23;  // x^8
  for (size_t k = 1; k < powers.size(); ++k) powers[k] = MultiplyModulo(powers[k - 1], powers[k - 1]);
  return powers;
}();

}  // namespace

uint32_t Crc32c(std::string_view data, uint32_t crc) {
  // ISA-L takes the register as it is: the inversions are ours. Its length is an int and its buffer not const.
  uint32_t state = ~crc;
  while (!data.empty()) {
    const size_t piece = std::min<size_t>(data.size(), size_t{1} << 30);
    state = crc32_iscsi(reinterpret_cast<unsigned char*>(const_cast<char*>(data.data())), static_cast<int>(piece), state);
    data.remove_prefix(piece);
  }
  return ~state;
}

uint32_t Crc32cCombine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) {
  for (size_t k = 0; length_b != 0; ++k, length_b >>= 1) {
    if ((length_b & 1) != 0) crc_a = MultiplyModulo(kPowers[k], crc_a);
  }
  return crc_a ^ crc_b;
}

}  // namespace mxrec
