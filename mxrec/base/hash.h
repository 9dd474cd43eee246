// Mix64: spreads a 64-bit key over all bits; what the table index hashes with. Hash64: hash of bytes.
//
// Both are part of what is stored on disk (Mix64: the order of rows in a checkpoint; Hash64: table seeds and content
// tags), so their results never change. Hash64 is XXH3 with a seed.
#ifndef MXREC_BASE_HASH_H_
#define MXREC_BASE_HASH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace mxrec {

// Bijective: different keys have different results. Two multiplies and three xor-shifts (the final mix of MurmurHash3's
// family with Stafford's constants, variant 13).
constexpr uint64_t Mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  x ^= x >> 31;
  return x;
}

// The key that Mix64 maps to x.
constexpr uint64_t Unmix64(uint64_t x) {
  x ^= (x >> 31) ^ (x >> 62);
  x *= 0x319642B2D24D8EC3u;
  x ^= (x >> 27) ^ (x >> 54);
  x *= 0x96DE1B173F119089u;
  x ^= (x >> 30) ^ (x >> 60);
  return x;
}

uint64_t Hash64(std::string_view bytes, uint64_t seed = 0);

// Hash64 of a stream: the result of digest() equals Hash64 of all bytes given so far. One thread at a time.
class Hasher64 {
 public:
  explicit Hasher64(uint64_t seed = 0);
  ~Hasher64();
  Hasher64(const Hasher64&) = delete;
  Hasher64& operator=(const Hasher64&) = delete;
  void Update(std::string_view bytes);
  uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mxrec

#endif  // MXREC_BASE_HASH_H_
