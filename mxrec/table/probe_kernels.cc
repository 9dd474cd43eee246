#include "mxrec/table/probe_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/table/probe_kernels.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kBucketAhead = 16;
constexpr size_t kRowAhead = 32;

HWY_INLINE const Bucket* HomeBucket(const ProbeShard* shards, uint64_t key) {
  const uint64_t hash = KeyHash(key);
  const ProbeShard& shard = shards[ShardOfHash(hash)];
  return shard.buckets + HomeOfHash(hash, shard.bucket_count);
}

// Position of `key` among the five keys of a bucket, or a negative number.
HWY_INLINE int PlaceOf(const Bucket& bucket, uint64_t key) {
  const hn::CappedTag<uint64_t, 8> d;
  constexpr size_t kLanes = hn::MaxLanes(hn::CappedTag<uint64_t, 8>());
  const auto wanted = hn::Set(d, key);
  if constexpr (kLanes >= 8) {
    // One load covers the whole line; the lanes behind the keys hold handles and are cut off by the count.
    return static_cast<int>(hn::FindFirstTrue(d, hn::Eq(hn::Load(d, bucket.keys), wanted)));
  } else if constexpr (kLanes == 4) {
    const int place = static_cast<int>(hn::FindFirstTrue(d, hn::Eq(hn::Load(d, bucket.keys), wanted)));
    return place >= 0 ? place : (bucket.keys[4] == key ? 4 : -1);
  } else {
    for (int place = 0; place < static_cast<int>(Bucket::kPlaces); ++place) {
      if (bucket.keys[place] == key) return place;
    }
    return -1;
  }
}

HWY_INLINE uint32_t FindHandle(const ProbeShard* shards, uint64_t key) {
  const uint64_t hash = KeyHash(key);
  const ProbeShard& shard = shards[ShardOfHash(hash)];
  if (shard.bucket_count == 0) return BucketIndex::kAbsent;
  uint32_t at = HomeOfHash(hash, shard.bucket_count);
  for (uint32_t read = 0; read < shard.bucket_count; ++read) {
    const Bucket& bucket = shard.buckets[at];
    const int place = PlaceOf(bucket, key);
    if (place >= 0 && place < static_cast<int>(bucket.count())) return bucket.handles[place];
    if (!bucket.overflow()) return BucketIndex::kAbsent;
    at = at + 1 == shard.bucket_count ? 0 : at + 1;
  }
  return BucketIndex::kAbsent;
}

HWY_INLINE const char* RowOf(const ProbeInput& in, uint32_t handle) {
  return in.directory[handle >> in.shift] + static_cast<size_t>(handle & ((1u << in.shift) - 1)) * in.stride_bytes;
}

HWY_INLINE void PrefetchRow(const char* row, size_t bytes) {
  // Into the second-level cache: it keeps more misses in flight than the first-level fill buffers.
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
  __builtin_prefetch(row + bytes - 1, 0, 2);
}

HWY_INLINE void CopyRow(float* HWY_RESTRICT to, const float* HWY_RESTRICT from, size_t dim) {
  const hn::CappedTag<float, 16> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= dim; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  for (; i < dim; ++i) to[i] = from[i];
}

void ProbeHandles(const ProbeInput& in, uint32_t* handles) {
  for (size_t i = 0; i < in.count; ++i) {
    if (i + kBucketAhead < in.count) __builtin_prefetch(HomeBucket(in.shards, in.keys[i + kBucketAhead]), 0, 3);
    handles[i] = FindHandle(in.shards, in.keys[i]);
  }
}

HWY_INLINE void ProbeOne(const ProbeInput& in, size_t i, uint32_t* handles, uint32_t* special, size_t* special_count) {
  if (i + kBucketAhead < in.count) __builtin_prefetch(HomeBucket(in.shards, in.keys[i + kBucketAhead]), 0, 3);
  const uint32_t handle = FindHandle(in.shards, in.keys[i]);
  handles[i] = handle;
  special[*special_count] = static_cast<uint32_t>(i);
  *special_count += handle >> 31;
  if ((handle >> 31) == 0) PrefetchRow(RowOf(in, handle), in.dim * sizeof(float));
}

HWY_INLINE void PrefetchFirstBuckets(const ProbeInput& in) {
  const size_t first = in.count < kBucketAhead ? in.count : kBucketAhead;
  for (size_t i = 0; i < first; ++i) __builtin_prefetch(HomeBucket(in.shards, in.keys[i]), 0, 3);
}

size_t ProbeAndGather(const ProbeInput& in, float* out, uint32_t* handles, uint32_t* special) {
  size_t special_count = 0;
  PrefetchFirstBuckets(in);
  for (size_t i = 0; i < in.count + kRowAhead; ++i) {
    if (i < in.count) ProbeOne(in, i, handles, special, &special_count);
    if (i >= kRowAhead) {
      const size_t j = i - kRowAhead;
      if (j < in.count && (handles[j] >> 31) == 0) {
        CopyRow(out + j * in.dim, reinterpret_cast<const float*>(RowOf(in, handles[j])), in.dim);
      }
    }
  }
  return special_count;
}

size_t ProbeAndExpand(const ProbeInput& in, const uint32_t* local, const uint32_t* positions, size_t occurrences, float* expanded,
                      uint32_t* handles, uint32_t* special) {
  size_t special_count = 0, probed = 0;
  PrefetchFirstBuckets(in);
  for (size_t j = 0; j < occurrences; ++j) {
    while (probed < in.count && probed < local[j] + kRowAhead) ProbeOne(in, probed++, handles, special, &special_count);
    const uint32_t handle = handles[local[j]];
    if ((handle >> 31) == 0) {
      CopyRow(expanded + static_cast<size_t>(positions[j]) * in.dim, reinterpret_cast<const float*>(RowOf(in, handle)), in.dim);
    }
  }
  return special_count;
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
