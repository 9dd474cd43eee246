#include "mxrec/comm/control/sha256.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <string>

namespace mxrec {
namespace {

constexpr size_t kBlock = 64;

// The constants are the first 32 bits of the fraction of roots of the first primes: derived here, so that none can be mistyped.
constexpr bool IsPrime(uint32_t n) {
  for (uint32_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return n > 1;
}

// floor(2^32 * n^(1/power)), modulo 2^32; power 2 or 3.
constexpr uint32_t RootFraction(uint32_t n, int power) {
  // Largest x with x^power <= n * 2^(32 * power), in 128 bits.
  using Wide = unsigned __int128;
  const Wide target = Wide{n} << (power == 2 ? 64 : 96);
  uint64_t low = 0, high = uint64_t{1} << (power == 2 ? 37 : 35);
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    const Wide square = Wide{middle} * middle;
    if ((power == 2 ? square : square * middle) <= target) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return static_cast<uint32_t>(low);
}

template <size_t kCount>
constexpr std::array<uint32_t, kCount> RootsOfPrimes(int power) {
  std::array<uint32_t, kCount> roots{};
  size_t found = 0;
  for (uint32_t n = 2; found < kCount; ++n) {
    if (IsPrime(n)) roots[found++] = RootFraction(n, power);
  }
  return roots;
}

constexpr std::array<uint32_t, 8> kStart = RootsOfPrimes<8>(2);
constexpr std::array<uint32_t, 64> kRound = RootsOfPrimes<64>(3);

void Compress(const uint8_t* block, std::array<uint32_t, 8>& state) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) {
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 | uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int i = 0; i < 64; ++i) {
    const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const uint32_t add[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += add[i];
}

}  // namespace

Sha256Digest Sha256(std::string_view bytes) {
  std::array<uint32_t, 8> state = kStart;
  const uint64_t bits = uint64_t{bytes.size()} * 8;
  while (bytes.size() >= kBlock) {
    Compress(reinterpret_cast<const uint8_t*>(bytes.data()), state);
    bytes.remove_prefix(kBlock);
  }
  // The rest, one bit 1, zeros, and the length in bits: one block or two.
  uint8_t last[2 * kBlock] = {};
  if (!bytes.empty()) std::memcpy(last, bytes.data(), bytes.size());
  last[bytes.size()] = 0x80;
  const size_t blocks = bytes.size() + 9 <= kBlock ? 1 : 2;
  for (int i = 0; i < 8; ++i) last[blocks * kBlock - 1 - i] = static_cast<uint8_t>(bits >> (8 * i));
  for (size_t i = 0; i < blocks; ++i) Compress(last + i * kBlock, state);
  Sha256Digest digest;
  for (int i = 0; i < 32; ++i) digest[i] = static_cast<uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Sha256Digest HmacSha256(std::string_view key, std::string_view bytes) {
  uint8_t padded[kBlock] = {};
  if (key.size() > kBlock) {
    const Sha256Digest digest = Sha256(key);
    std::memcpy(padded, digest.data(), digest.size());
  } else if (!key.empty()) {
    std::memcpy(padded, key.data(), key.size());
  }
  std::string inner(kBlock, '\0'), outer(kBlock, '\0');
  for (size_t i = 0; i < kBlock; ++i) {
    inner[i] = static_cast<char>(padded[i] ^ 0x36);
    outer[i] = static_cast<char>(padded[i] ^ 0x5C);
  }
  inner.append(bytes);
  const Sha256Digest digest = Sha256(inner);
  outer.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  return Sha256(outer);
}

bool SameDigest(const Sha256Digest& a, std::string_view b) {
  if (b.size() != a.size()) return false;
  uint8_t differs = 0;
  for (size_t i = 0; i < a.size(); ++i) differs |= a[i] ^ static_cast<uint8_t>(b[i]);
  return differs == 0;
}

}  // namespace mxrec
