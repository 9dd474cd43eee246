#include "mxrec/table/probe_kernels.h"

#include <cstring>

#include "mxrec/table/touch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/table/probe_kernels.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kBlock = 64;     // keys whose buckets, then rows, are loaded together
constexpr size_t kOutAhead = 32;  // occurrences whose place in the output is fetched before it is written

// What an empty shard looks like to a search.
alignas(64) constexpr Bucket kEmptyBucket[1] = {};

// Bit p is set when place p of the bucket is used and holds the key. No branch: which place it is cannot be predicted.
HWY_INLINE uint32_t PlacesOf(const Bucket& bucket, uint64_t key) {
  uint32_t places = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<uint64_t, 8> d;
  constexpr size_t kLanes = hn::MaxLanes(hn::CappedTag<uint64_t, 8>());
  if constexpr (kLanes >= 4) {
    // Eight lanes cover the whole line; those behind the keys hold handles, and the count cuts them off.
    uint8_t bits[8];
    hn::StoreMaskBits(d, hn::Eq(hn::Load(d, bucket.keys), hn::Set(d, key)), bits);
    places = bits[0];
    if constexpr (kLanes == 4) places |= static_cast<uint32_t>(bucket.keys[4] == key) << 4;
    return places & ((1u << bucket.count()) - 1);
  }
#endif
  for (uint32_t p = 0; p < Bucket::kPlaces; ++p) places |= static_cast<uint32_t>(bucket.keys[p] == key) << p;
  return places & ((1u << bucket.count()) - 1);
}

HWY_INLINE const char* RowAt(const ProbeInput& in, uint32_t handle) {
  return in.directory[handle >> in.shift] + static_cast<size_t>(handle & ((1u << in.shift) - 1)) * in.stride_bytes;
}

// The whole search for one key, waiting for each line. For the few whose lines were not fetched in time.
HWY_NOINLINE HWY_MAYBE_UNUSED static uint32_t SearchNow(const ProbeShard* shards, uint64_t key) {
  const uint64_t hash = KeyHash(key);
  const ProbeShard& shard = shards[ShardOfHash(hash)];
  if (shard.bucket_count == 0) return BucketIndex::kAbsent;
  uint32_t at = HomeOfHash(hash, shard.bucket_count);
  for (uint32_t read = 0; read < shard.bucket_count; ++read) {
    const Bucket& bucket = shard.buckets[at];
    const uint32_t places = PlacesOf(bucket, key);
    if (places != 0) return bucket.handles[__builtin_ctz(places)];
    if (!bucket.overflow()) return BucketIndex::kAbsent;
    at = at + 1 == shard.bucket_count ? 0 : at + 1;
  }
  return BucketIndex::kAbsent;
}

// The probing half: Next() finds the handles of a block of keys, then loads their rows together with the home buckets of the block
// behind it, in loops that do nothing else (touch.h).
//
// Most keys lie in their home bucket. One in ten or so lies in the next: its line is fetched while the rest of the block is
// compared. Where even that does not settle it, the key is searched for at once; that is rare.
template <bool kRows, size_t kDim>
class Prober {
 public:
  HWY_INLINE Prober(const ProbeInput& in, uint32_t* handles, uint32_t* special) : in_(in), handles_(handles), special_(special) {
    LoadHomes(0);
  }

  // Settles the next block of keys. REQUIRES: end() < count.
  HWY_INLINE void Next() {
    begin_ = end_;
    const size_t count = in_.count - begin_ < kBlock ? in_.count - begin_ : kBlock;
    end_ = begin_ + count;
    row_count_ = 0;
    size_t open[kBlock], open_count = 0;
    for (size_t i = 0; i < count; ++i) {
      const Bucket* bucket = home_[i];
      const uint32_t places = PlacesOf(*bucket, in_.keys[begin_ + i]);
      if (HWY_LIKELY(places != 0)) {
        Settle(i, bucket->handles[__builtin_ctz(places)]);
      } else if (!bucket->overflow()) {
        Settle(i, BucketIndex::kAbsent);
      } else {
        __builtin_prefetch(bucket + 1, 0, 3);  // behind the last bucket it does no harm
        open[open_count++] = i;
      }
    }
    for (size_t o = 0; o < open_count; ++o) Retry(open[o]);
    if constexpr (kRows) {
      const size_t bytes = (kDim != 0 ? kDim : in_.dim) * sizeof(float);
      for (size_t r = 0; r < row_count_; ++r) TouchRange(rows_[r], bytes);
    }
    LoadHomes(end_);
  }

  // The block settled last: it ends before key end(); row_count() of its keys have rows, the
  // r-th is that of key key_of(r).
  HWY_INLINE size_t end() const { return end_; }
  HWY_INLINE size_t row_count() const { return row_count_; }
  HWY_INLINE size_t key_of(size_t r) const { return begin_ + key_of_[r]; }
  HWY_INLINE const float* row(size_t r) const { return rows_[r]; }
  HWY_INLINE size_t special_count() const { return special_count_; }

 private:
  HWY_INLINE void LoadHomes(size_t first) {
    const size_t count = in_.count - first < kBlock ? in_.count - first : kBlock;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t hash = KeyHash(in_.keys[first + i]);
      const ProbeShard& shard = in_.shards[ShardOfHash(hash)];
      home_[i] = HWY_LIKELY(shard.bucket_count != 0) ? shard.buckets + HomeOfHash(hash, shard.bucket_count) : kEmptyBucket;
    }
    for (size_t i = 0; i < count; ++i) Touch(home_[i]);
  }

  HWY_INLINE void Retry(size_t i) {
    const Bucket* home = home_[i];
    const uint64_t key = in_.keys[begin_ + i];
    if (HWY_LIKELY(!home->last())) {
      const uint32_t places = PlacesOf(home[1], key);
      if (HWY_LIKELY(places != 0)) return Settle(i, home[1].handles[__builtin_ctz(places)]);
      if (!home[1].overflow()) return Settle(i, BucketIndex::kAbsent);
    }
    Settle(i, SearchNow(in_.shards, key));
  }

  HWY_INLINE void Settle(size_t i, uint32_t handle) {
    handles_[begin_ + i] = handle;
    if constexpr (kRows) {
      if (HWY_UNLIKELY(handle >> 31)) {
        special_[special_count_++] = static_cast<uint32_t>(begin_ + i);
        return;
      }
      rows_[row_count_] = reinterpret_cast<const float*>(RowAt(in_, handle));
      key_of_[row_count_++] = static_cast<uint32_t>(i);
    }
  }

  const ProbeInput in_;
  uint32_t* const handles_;
  uint32_t* const special_;
  size_t special_count_ = 0;
  size_t begin_ = 0, end_ = 0, row_count_ = 0;
  const Bucket* home_[kBlock];
  const float* rows_[kBlock];
  uint32_t key_of_[kBlock];
};

template <size_t kDim>
HWY_INLINE void CopyRow(float* HWY_RESTRICT to, const float* HWY_RESTRICT from, size_t dim) {
  std::memcpy(to, from, (kDim != 0 ? kDim : dim) * sizeof(float));
}

template <size_t kDim>
HWY_INLINE size_t Gather(const ProbeInput& in, float* out, uint32_t* handles, uint32_t* special) {
  const size_t dim = kDim != 0 ? kDim : in.dim;
  Prober<true, kDim> prober(in, handles, special);
  while (prober.end() < in.count) {
    prober.Next();
    for (size_t r = 0; r < prober.row_count(); ++r) CopyRow<kDim>(out + prober.key_of(r) * dim, prober.row(r), dim);
  }
  return prober.special_count();
}

template <size_t kDim>
HWY_INLINE size_t Expand(const ProbeInput& in, const uint32_t* local, const uint32_t* positions, size_t occurrences,
                         float* expanded, uint32_t* handles, uint32_t* special) {
  const size_t dim = kDim != 0 ? kDim : in.dim;
  Prober<true, kDim> prober(in, handles, special);
  for (size_t j = 0; prober.end() < in.count;) {
    prober.Next();
    for (; j < occurrences && local[j] < prober.end(); ++j) {
      if (j + kOutAhead < occurrences) {
        const char* to = reinterpret_cast<const char*>(expanded + static_cast<size_t>(positions[j + kOutAhead]) * dim);
        for (size_t at = 0; at < dim * sizeof(float); at += kCacheLine) __builtin_prefetch(to + at, 1, 3);
      }
      const uint32_t handle = handles[local[j]];
      if (HWY_UNLIKELY(handle >> 31)) continue;
      CopyRow<kDim>(expanded + static_cast<size_t>(positions[j]) * dim, reinterpret_cast<const float*>(RowAt(in, handle)), dim);
    }
  }
  return prober.special_count();
}

void ProbeHandles(const ProbeInput& in, uint32_t* handles) {
  Prober<false, 0> prober(in, handles, nullptr);
  while (prober.end() < in.count) prober.Next();
}

// Row lengths that are common get loops of their own.
size_t ProbeAndGather(const ProbeInput& in, float* out, uint32_t* handles, uint32_t* special) {
  switch (in.dim) {
    case 8:
      return Gather<8>(in, out, handles, special);
    case 16:
      return Gather<16>(in, out, handles, special);
    case 32:
      return Gather<32>(in, out, handles, special);
    case 64:
      return Gather<64>(in, out, handles, special);
    default:
      return Gather<0>(in, out, handles, special);
  }
}

size_t ProbeAndExpand(const ProbeInput& in, const uint32_t* local, const uint32_t* positions, size_t occurrences, float* expanded,
                      uint32_t* handles, uint32_t* special) {
  switch (in.dim) {
    case 8:
      return Expand<8>(in, local, positions, occurrences, expanded, handles, special);
    case 16:
      return Expand<16>(in, local, positions, occurrences, expanded, handles, special);
    case 32:
      return Expand<32>(in, local, positions, occurrences, expanded, handles, special);
    case 64:
      return Expand<64>(in, local, positions, occurrences, expanded, handles, special);
    default:
      return Expand<0>(in, local, positions, occurrences, expanded, handles, special);
  }
}

}  // namespace mxrec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(ProbeHandles);
HWY_EXPORT(ProbeAndGather);
HWY_EXPORT(ProbeAndExpand);

void ProbeHandles(const ProbeInput& in, uint32_t* handles) { HWY_DYNAMIC_DISPATCH(ProbeHandles)(in, handles); }

size_t ProbeAndGather(const ProbeInput& in, float* out, uint32_t* handles, uint32_t* special) {
  return HWY_DYNAMIC_DISPATCH(ProbeAndGather)(in, out, handles, special);
}

size_t ProbeAndExpand(const ProbeInput& in, const uint32_t* local, const uint32_t* positions, size_t occurrences, float* expanded,
                      uint32_t* handles, uint32_t* special) {
  return HWY_DYNAMIC_DISPATCH(ProbeAndExpand)(in, local, positions, occurrences, expanded, handles, special);
}

}  // namespace mxrec
#endif  // HWY_ONCE
