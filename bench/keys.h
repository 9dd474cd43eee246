// The key streams of all table benchmarks: fixed seeds, 63-bit hashed keys, uniform and zipf 1.05.
#ifndef MXREC_BENCH_KEYS_H_
#define MXREC_BENCH_KEYS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "mxrec/base/hash.h"

namespace mxrec::bench {

inline constexpr size_t kBatch = 65536;

struct KeyStream {
  std::string name;
  std::vector<uint64_t> ids;  // whole batches

  size_t batches() const { return ids.size() / kBatch; }
  const uint64_t* batch(int number) const { return ids.data() + static_cast<size_t>(number) % batches() * kBatch; }
};

// First `count` keys whose high bit of the mix is clear, so that >> 1 loses nothing and all are distinct.
inline std::vector<uint64_t> Keys(size_t count, uint64_t first = 0) {
  std::vector<uint64_t> keys;
  keys.reserve(count);
  for (uint64_t i = first; keys.size() < count; ++i) {
    const uint64_t mixed = Mix64(i + 0x4F24000000000000u);
    if ((mixed & 1) == 0) keys.push_back(mixed >> 1);
  }
  return keys;
}

inline KeyStream Uniform(const std::vector<uint64_t>& keys, size_t batches) {
  std::mt19937_64 random(20260);
  KeyStream stream{"uniform", std::vector<uint64_t>(batches * kBatch)};
  for (uint64_t& id : stream.ids) id = keys[random() % keys.size()];
  return stream;
}

// P(rank r) ~ 1 / r^alpha; ranks go to keys through a permutation, so that hot keys are not neighbours in memory.
inline KeyStream Zipf(const std::vector<uint64_t>& keys, size_t batches, double alpha = 1.05) {
  std::mt19937_64 random(20261);
  std::vector<double> cdf(keys.size());
  double sum = 0;
  for (size_t r = 0; r < keys.size(); ++r) cdf[r] = sum += std::pow(static_cast<double>(r + 1), -alpha);
  std::vector<uint32_t> permutation(keys.size());
  std::iota(permutation.begin(), permutation.end(), 0u);
  std::shuffle(permutation.begin(), permutation.end(), random);
  KeyStream stream{"zipf", std::vector<uint64_t>(batches * kBatch)};
  for (uint64_t& id : stream.ids) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53 * sum;
    const size_t rank = static_cast<size_t>(std::lower_bound(cdf.begin(), cdf.end(), u) - cdf.begin());
    id = keys[permutation[std::min(rank, keys.size() - 1)]];
  }
  return stream;
}

}  // namespace mxrec::bench

#endif  // MXREC_BENCH_KEYS_H_
