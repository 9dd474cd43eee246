#include "mxrec/table/probe_kernels.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/table/probe_kernels.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kBucketAhead = 16;  // keys between fetching a bucket and looking at it
constexpr size_t kRowAhead = 40;     // keys between looking at the bucket and copying the row
constexpr size_t kRetryAfter = 14;   // keys between fetching a further bucket and looking at it
constexpr size_t kRing = 64;
static_assert(kRing > kBucketAhead + kRetryAfter + 1 && kRing > kRowAhead);  // an open search still needs its home bucket

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

// The probing half of the pipeline: Step(0), Step(1), ... find the handles of the keys one after the other and fetch their
// rows; RowOf(i) is the row, for the last kRing steps.
//
// Most keys lie in their home bucket. One in ten or so lies in the next: its line is fetched and looked at kRetryAfter steps
// later, so that it costs no waiting either. Where even that does not settle it, the key is searched for at once; that is rare.
template <bool kRows, size_t kDim>
class Prober {
 public:
  HWY_INLINE Prober(const ProbeInput& in, uint32_t* handles, uint32_t* special) : in_(in), handles_(handles), special_(special) {
    const size_t first = in.count < kBucketAhead ? in.count : kBucketAhead;
    for (size_t i = 0; i < first; ++i) Fetch(i);
  }

  HWY_INLINE void Step(size_t i) {
    if (i + kBucketAhead < in_.count) Fetch(i + kBucketAhead);
    const Bucket* bucket = home_[i % kRing];
    const uint32_t places = PlacesOf(*bucket, in_.keys[i]);
    if (HWY_LIKELY(places != 0)) {
      Settle(i, bucket->handles[__builtin_ctz(places)]);
    } else if (!bucket->overflow()) {
      Settle(i, BucketIndex::kAbsent);
    } else {
      __builtin_prefetch(bucket + 1, 0, 3);  // behind the last bucket it does no harm
      rows_[i % kRing] = nullptr;
      open_[open_end_++ % kRing] = i;
    }
    if (open_first_ != open_end_ && open_[open_first_ % kRing] + kRetryAfter <= i) Retry();
  }

  HWY_INLINE void Finish() {
    while (open_first_ != open_end_) Retry();
  }

  // Null when the key has no row. REQUIRES: kRows, Step(i) was one of the last kRing - 1 steps.
  HWY_INLINE const float* RowOf(size_t i) {
    while (HWY_UNLIKELY(open_first_ != open_end_ && open_[open_first_ % kRing] <= i)) Retry();
    return rows_[i % kRing];
  }

  HWY_INLINE size_t special_count() const { return special_count_; }

 private:
  HWY_INLINE void Fetch(size_t i) {
    const uint64_t hash = KeyHash(in_.keys[i]);
    const ProbeShard& shard = in_.shards[ShardOfHash(hash)];
    const Bucket* bucket =
        HWY_LIKELY(shard.bucket_count != 0) ? shard.buckets + HomeOfHash(hash, shard.bucket_count) : kEmptyBucket;
    home_[i % kRing] = bucket;
    __builtin_prefetch(bucket, 0, 3);
  }

  // Ends the oldest open search.
  HWY_INLINE void Retry() {
    const size_t i = open_[open_first_++ % kRing];
    const Bucket* home = home_[i % kRing];
    if (HWY_LIKELY(!home->last())) {
      const uint32_t places = PlacesOf(home[1], in_.keys[i]);
      if (HWY_LIKELY(places != 0)) return Settle(i, home[1].handles[__builtin_ctz(places)]);
      if (!home[1].overflow()) return Settle(i, BucketIndex::kAbsent);
    }
    Settle(i, SearchNow(in_.shards, in_.keys[i]));
  }

  HWY_INLINE void Settle(size_t i, uint32_t handle) {
    handles_[i] = handle;
    if constexpr (kRows) {
      if (HWY_UNLIKELY(handle >> 31)) {
        rows_[i % kRing] = nullptr;
        special_[special_count_++] = static_cast<uint32_t>(i);
        return;
      }
      const char* row = RowAt(in_, handle);
      rows_[i % kRing] = reinterpret_cast<const float*>(row);
      const size_t bytes = (kDim != 0 ? kDim : in_.dim) * sizeof(float);
      // Into the second-level cache: it keeps more misses in flight than the first-level fill buffers.
      for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
    }
  }

  const ProbeInput in_;
  uint32_t* const handles_;
  uint32_t* const special_;
  size_t special_count_ = 0;
  size_t open_first_ = 0, open_end_ = 0;
  const Bucket* home_[kRing];
  const float* rows_[kRing];
  size_t open_[kRing];
};

template <size_t kDim>
HWY_INLINE void CopyRow(float* HWY_RESTRICT to, const float* HWY_RESTRICT from, size_t dim) {
  std::memcpy(to, from, (kDim != 0 ? kDim : dim) * sizeof(float));
}

template <size_t kDim>
HWY_INLINE size_t Gather(const ProbeInput& in, float* out, uint32_t* handles, uint32_t* special) {
  const size_t count = in.count, dim = kDim != 0 ? kDim : in.dim;
  Prober<true, kDim> prober(in, handles, special);
  for (size_t i = 0; i < count + kRowAhead; ++i) {
    if (i < count) prober.Step(i);
    if (i < kRowAhead || i - kRowAhead >= count) continue;
    const size_t j = i - kRowAhead;
    if (const float* row = prober.RowOf(j); HWY_LIKELY(row != nullptr)) CopyRow<kDim>(out + j * dim, row, dim);
  }
  return prober.special_count();
}

template <size_t kDim>
HWY_INLINE size_t Expand(const ProbeInput& in, const uint32_t* local, const uint32_t* positions, size_t occurrences,
                         float* expanded, uint32_t* handles, uint32_t* special) {
  const size_t count = in.count, dim = kDim != 0 ? kDim : in.dim;
  Prober<true, kDim> prober(in, handles, special);
  size_t stepped = 0;
  for (size_t j = 0; j < occurrences; ++j) {
    const size_t key = local[j];
    while (stepped < count && stepped <= key + kRowAhead) prober.Step(stepped++);
    // A key that came long ago has left the ring, but by then its handle is known.
    const float* row = nullptr;
    if (HWY_LIKELY(key + kRing > stepped)) {
      row = prober.RowOf(key);
    } else if ((handles[key] >> 31) == 0) {
      row = reinterpret_cast<const float*>(RowAt(in, handles[key]));
    }
    if (HWY_LIKELY(row != nullptr)) CopyRow<kDim>(expanded + static_cast<size_t>(positions[j]) * dim, row, dim);
  }
  prober.Finish();
  return prober.special_count();
}

void ProbeHandles(const ProbeInput& in, uint32_t* handles) {
  Prober<false, 0> prober(in, handles, nullptr);
  for (size_t i = 0; i < in.count; ++i) prober.Step(i);
  prober.Finish();
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
