// Pooling over any offsets, positions and floats: offsets that the check accepts are safe to read by, and every instruction set of
// this machine gives the reference's bits and stops at the same occurrence.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "fuzz/fuzz.h"
#include "mxrec/base/check.h"
#include "mxrec/kernels/pool_rows.h"
#include "mxrec/kernels/simd_targets.h"

namespace {

constexpr size_t kHead = 6;

// Numbers from the input, again from the start when it ends.
class Numbers {
 public:
  Numbers(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  template <typename T>
  T Next() {
    T value{};
    for (size_t i = 0; i < sizeof(T) && size_ > 0; ++i) {
      std::memcpy(reinterpret_cast<uint8_t*>(&value) + i, data_ + next_++ % size_, 1);
    }
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_, next_ = 0;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) || (std::isnan(x) && std::isnan(y));
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHead) return 0;
  const auto combiner = static_cast<mxrec::Combiner>(data[0] % 3);
  const size_t dim = data[1] % 40u, unique = data[2] % 9u, count = data[3] % 7u, n = data[4] % 33u;
  const bool weighted = (data[5] & 1) != 0, wild_offsets = (data[5] & 2) != 0, wild_inverse = (data[5] & 4) != 0;
  Numbers numbers(data + kHead, size - kHead);

  std::vector<int32_t> offsets(count + 1), inverse(n);
  for (int32_t& offset : offsets)
    offset = wild_offsets ? numbers.Next<int32_t>() : numbers.Next<uint8_t>() % static_cast<int>(n + 1);
  if (!wild_offsets) {
    std::sort(offsets.begin(), offsets.end());
    offsets.front() = 0;
    offsets.back() = static_cast<int32_t>(n);
  }
  for (int32_t& at : inverse) {
    at = wild_inverse ? numbers.Next<int8_t>() : unique == 0 ? 0 : numbers.Next<uint8_t>() % static_cast<int>(unique);
  }
  const std::vector<int64_t> wide(offsets.begin(), offsets.end());
  const size_t bad_offset = mxrec::CheckOffsets(offsets.data(), count, n);
  MXREC_CHECK(mxrec::CheckOffsets(wide.data(), count, n) == bad_offset);
  if (bad_offset <= count) return 0;

  std::vector<float> rows(unique * dim), weights(n), grads(count * dim);
  for (std::vector<float>* values : {&rows, &weights, &grads}) {
    for (float& x : *values) x = numbers.Next<float>();
  }
  const mxrec::Bags bags = {offsets.data(), count, inverse.data(), n, weighted ? weights.data() : nullptr, combiner};
  std::vector<float> expected(count * dim, 4711.25f);
  const size_t done = mxrec::PoolRowsReference(rows.data(), unique, dim, bags, 0, count, expected.data());
  std::vector<float> by_row, by_weight;
  mxrec::ForEachSimdTarget([&](const char* target) {
    std::vector<float> pooled(count * dim, 4711.25f), of_rows(unique * dim, 4711.25f), of_weights(n, 4711.25f);
    MXREC_CHECK(mxrec::PoolRows(rows.data(), unique, dim, bags, 0, count, pooled.data()) == done) << target;
    MXREC_CHECK(SameBits(pooled, expected)) << target << ", dim " << dim;
    mxrec::InlineExecutor executor;
    MXREC_CHECK(mxrec::PoolRowsGradient(grads.data(), bags, unique, dim, &executor, of_rows.data()) == done) << target;
    MXREC_CHECK(
        mxrec::PoolWeightGradient(grads.data(), pooled.data(), rows.data(), unique, dim, bags, 0, count, of_weights.data()) == done)
        << target;
    if (by_row.empty()) by_row = of_rows;
    if (by_weight.empty()) by_weight = of_weights;
    MXREC_CHECK(SameBits(of_rows, by_row)) << target << ", dim " << dim;
    MXREC_CHECK(SameBits(of_weights, by_weight)) << target << ", dim " << dim;
  });
  return 0;
}

std::vector<std::string> mxrec::FuzzSeeds() {
  std::vector<std::string> seeds;
  for (char combiner = 0; combiner < 3; ++combiner) {
    for (char how = 0; how < 8; ++how) {
      std::string seed = {combiner, 19, 5, 4, 11, how};
      for (const float value : {0.5f, -1.25f, 3e38f, 1e-40f, -0.0f, 1.0f, 7.0f}) {
        seed.append(reinterpret_cast<const char*>(&value), sizeof(value));
      }
      seeds.push_back(seed);
    }
  }
  return seeds;
}
