// The ceiling: "a random index line, then a random row, copied out", with as many misses in flight as the core allows.
//
// No table can look rows up faster than memory delivers these two dependent accesses. The index has 16 bytes a key, the
// rows lie as densely as they can; the position of a key is its hash scaled to the index, no comparison is made. The
// prefetch distance and the cache level prefetched into are tuned at construction.
#ifndef MXREC_BENCH_CEILING_H_
#define MXREC_BENCH_CEILING_H_

#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "bench/harness.h"
#include "bench/keys.h"
#include "mxrec/base/hash.h"
#include "mxrec/table/memory.h"

namespace mxrec::bench {

class Ceiling {
 public:
  Ceiling(size_t keys, size_t dim, const KeyStream& stream) : rows_(keys), places_(keys * 4), dim_(dim) {
    index_memory_ = MappedMemory::Allocate(places_ * sizeof(uint32_t), "the ceiling's index").value();
    row_memory_ = MappedMemory::Allocate(keys * dim * sizeof(float), "the ceiling's rows").value();
    index_ = static_cast<uint32_t*>(index_memory_.data());
    row_data_ = static_cast<float*>(row_memory_.data());
    std::mt19937_64 random(7);
    for (size_t i = 0; i < places_; ++i) index_[i] = static_cast<uint32_t>(random() % keys);
    for (size_t i = 0; i < keys * dim; ++i) row_data_[i] = static_cast<float>(i & 255);
    std::vector<float> out(kBatch * dim);
    double best = 0;
    for (const Pass pass : Passes()) {
      double rate = 0;
      for (int repeat = 0; repeat < 3; ++repeat) {
        const double begin = Now();
        for (int b = 0; b < 4; ++b) (this->*pass)(stream.batch(b), out.data());
        rate = std::max(rate, 4 * kBatch / (Now() - begin));
      }
      if (rate > best) best = rate, best_ = pass;
    }
  }
  void Run(const uint64_t* keys, float* out) const { (this->*best_)(keys, out); }

 private:
  using Pass = void (Ceiling::*)(const uint64_t*, float*) const;

  std::vector<Pass> Passes() const {
    switch (dim_) {
      case 16:
        return PassesOf<16>();
      case 64:
        return PassesOf<64>();
      default:
        return PassesOf<0>();
    }
  }
  template <size_t kDim>
  std::vector<Pass> PassesOf() const {
    return {&Ceiling::Go<kDim, 8, 3>,  &Ceiling::Go<kDim, 16, 3>, &Ceiling::Go<kDim, 32, 3>, &Ceiling::Go<kDim, 64, 3>,
            &Ceiling::Go<kDim, 16, 2>, &Ceiling::Go<kDim, 32, 2>, &Ceiling::Go<kDim, 64, 2>};
  }

  template <size_t kDim, size_t kAhead, int kLocality>
  void Go(const uint64_t* keys, float* out) const {
    const size_t dim = kDim != 0 ? kDim : dim_;
    const size_t bytes = dim * sizeof(float);
    constexpr size_t kRing = 256;
    uint64_t places[kRing];
    const float* rows[kRing];
    for (size_t i = 0; i < kBatch + 2 * kAhead; ++i) {
      if (i < kBatch) {
        const uint64_t place = static_cast<uint64_t>((static_cast<unsigned __int128>(Mix64(keys[i])) * places_) >> 64);
        places[i % kRing] = place;
        __builtin_prefetch(index_ + place, 0, kLocality);
      }
      if (i >= kAhead && i - kAhead < kBatch) {
        const size_t j = i - kAhead;
        const float* row = row_data_ + static_cast<size_t>(index_[places[j % kRing]]) * dim;
        rows[j % kRing] = row;
        for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(reinterpret_cast<const char*>(row) + at, 0, kLocality);
      }
      if (i >= 2 * kAhead) {
        const size_t j = i - 2 * kAhead;
        std::memcpy(out + j * dim, rows[j % kRing], kDim != 0 ? kDim * sizeof(float) : bytes);
      }
    }
  }

  size_t rows_, places_, dim_;
  MappedMemory index_memory_, row_memory_;
  uint32_t* index_ = nullptr;
  float* row_data_ = nullptr;
  Pass best_ = nullptr;
};

}  // namespace mxrec::bench

#endif  // MXREC_BENCH_CEILING_H_
