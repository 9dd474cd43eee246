// BucketIndex: the hash index of one shard, key -> 4-byte handle, one cache line a probe.
//
//   bucket (64 bytes)  | key 0 | key 1 | key 2 | key 3 | key 4 | h0 h1 h2 h3 h4 | meta |
//                        8 B     8 B     8 B     8 B     8 B     5 x 4 B          4 B
//   meta: bits 0-2 = used places (always the first ones), bit 3 = overflow (a key that belongs here or before lies further on),
//         bit 4 = last bucket (the search goes on at the first one)
//
// No key value is special: what is used is what the count says. The home of a key is a monotone function of its hash
// (multiply-shift over any number of buckets), so walking the buckets walks the hashes in order, growing is one sequential
// merge, and growth can be by a fifth: the fullest shard holds 0.84 keys a place, one that has just grown 0.70, that is 15.2 to
// 18.3 bytes a key. (A fuller index has more keys outside their home bucket, and each of them costs a further line.)
// Linear probing bucket by bucket; a search ends at the first bucket without the overflow bit.
// Erasing moves the last key of its bucket into the hole; overflow bits stay until the next rebuild, which comes at the
// latest when as many keys were erased since the last one as the index has buckets.
//
// The buckets are one block of memory: a small index has one of its own, from 256 KiB on it comes from the table's pool
// (extent_pool.h), so that it lies on huge pages.
//
// Threads: none of its own; Table holds the shard's lock.
#ifndef MXREC_TABLE_BUCKET_INDEX_H_
#define MXREC_TABLE_BUCKET_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "mxrec/base/hash.h"
#include "mxrec/base/status.h"
#include "mxrec/table/extent_pool.h"
#include "mxrec/table/memory.h"

namespace mxrec {

struct alignas(64) Bucket {
  static constexpr uint32_t kPlaces = 5;
  static constexpr uint32_t kCountMask = 7;
  static constexpr uint32_t kOverflow = 8;
  static constexpr uint32_t kLast = 16;
  uint64_t keys[kPlaces];
  uint32_t handles[kPlaces];
  uint32_t meta;

  uint32_t count() const { return meta & kCountMask; }
  bool overflow() const { return (meta & kOverflow) != 0; }
  bool last() const { return (meta & kLast) != 0; }
};
static_assert(sizeof(Bucket) == 64);

// Hash of a key and what its bits are for: the top 6 pick the shard, the next 32 the home bucket, the low ones serve the
// small dedupe tables.
inline uint64_t KeyHash(uint64_t key) { return Mix64(key); }
inline uint32_t ShardOfHash(uint64_t hash) { return static_cast<uint32_t>(hash >> 58); }
inline uint32_t HashPlace(uint64_t hash) { return static_cast<uint32_t>((hash << 6) >> 32); }
inline uint32_t HomeOfPlace(uint32_t place, uint32_t bucket_count) {
  return static_cast<uint32_t>((uint64_t{place} * bucket_count) >> 32);
}
inline uint32_t HomeOfHash(uint64_t hash, uint32_t bucket_count) { return HomeOfPlace(HashPlace(hash), bucket_count); }

class BucketIndex {
 public:
  // A large index takes its memory from `pool`, if there is one.
  explicit BucketIndex(ExtentPool* pool = nullptr) : pool_(pool) {}
  BucketIndex(BucketIndex&& other) noexcept { Swap(other); }
  BucketIndex& operator=(BucketIndex&& other) noexcept {
    BucketIndex moved(std::move(other));
    Swap(moved);
    return *this;
  }
  ~BucketIndex() {
    if (from_pool_) pool_->Give(reinterpret_cast<char*>(buckets_), bytes());
  }

  // Keys a place at which an index grows.
  static constexpr double kFullest = 0.84;
  static constexpr uint32_t kAbsent = 0xFFFFFFFFu;

  uint64_t size() const { return size_; }
  uint32_t bucket_count() const { return bucket_count_; }
  const Bucket* buckets() const { return buckets_; }
  uint64_t bytes() const { return uint64_t{bucket_count_} * sizeof(Bucket); }

  // The place of the key's handle, or null. Valid until the next Insert or Erase.
  uint32_t* Find(uint64_t key);
  const uint32_t* Find(uint64_t key) const { return const_cast<BucketIndex*>(this)->Find(key); }
  // REQUIRES: the key is absent and there is room (see Grown).
  void Insert(uint64_t key, uint32_t handle);
  // Fetches the cache line that Find, Insert or Erase will touch first. REQUIRES: bucket_count() > 0.
  void PrefetchForInsert(uint64_t key) const { __builtin_prefetch(buckets_ + HomeOfHash(KeyHash(key), bucket_count_), 1, 3); }
  // Returns the handle that went, or kAbsent.
  uint32_t Erase(uint64_t key);

  // Buckets that `keys` keys would get (`stagger` in [0, 64): the shard's number spreads the growth of shards in time).
  static uint32_t BucketsFor(uint64_t keys, uint32_t stagger);
  // Buckets after Reserve(extra); equal to bucket_count() when no growth is needed.
  uint32_t BucketsAfter(uint64_t extra, uint32_t stagger) const;
  // A copy with room for `extra` more keys, or an index without buckets when this one has the room already.
  Result<BucketIndex> Grown(uint64_t extra, uint32_t stagger) const;
  // The most buckets that BucketsFor gives to `indexes` indexes with `keys` keys together.
  static uint64_t MostBuckets(uint64_t keys, uint32_t indexes);
  // True when erased keys have left so many overflow bits that a rebuild pays. `stagger` in [0, 64] spreads the rebuilds of shards
  // that lose keys at the same rate.
  bool WantsRebuild(uint32_t stagger = 64) const {
    return erased_since_rebuild_ > uint64_t{bucket_count_} * (64 + stagger) / 128 && bucket_count_ > 1;
  }
  // A copy of the size that fits now (may be smaller; no buckets without keys), without left-over overflow bits.
  Result<BucketIndex> Rebuilt(uint32_t stagger) const;
  void Clear();

  // Calls visit(key, handle) in ascending order of hash. Uses memory for one cluster of full buckets only.
  void ForEachInHashOrder(const std::function<bool(uint64_t key, uint32_t handle)>& visit) const;
  // Calls visit(key, handle reference) in storage order.
  template <typename F>
  void ForEach(F visit) {
    for (uint32_t b = 0; b < bucket_count_; ++b) {
      Bucket& bucket = buckets_[b];
      for (uint32_t p = 0; p < bucket.count(); ++p) visit(bucket.keys[p], bucket.handles[p]);
    }
  }
  // Calls visit(key, handle) for the keys whose place in the order of hashes, HashPlace, is in [first, last], in storage order.
  template <typename F>
  void ForEachPlacedIn(uint32_t first, uint32_t last, F visit) const {
    if (bucket_count_ == 0) return;
    const uint32_t from = HomeOfPlace(first, bucket_count_), to = HomeOfPlace(last, bucket_count_);
    // Keys whose homes are from .. to lie there or behind, over buckets with the overflow bit.
    bool in_homes = true, more = true;
    for (uint32_t b = from, read = 0; more && read < bucket_count_; ++read) {
      const Bucket& bucket = buckets_[b];
      for (uint32_t p = 0; p < bucket.count(); ++p) {
        const uint32_t place = HashPlace(KeyHash(bucket.keys[p]));
        if (first <= place && place <= last) visit(bucket.keys[p], bucket.handles[p]);
      }
      in_homes = in_homes && b != to;
      more = in_homes || bucket.overflow();
      b = b + 1 == bucket_count_ ? 0 : b + 1;
    }
  }
  // Adds the number of buckets read to find each key: total over keys and the largest.
  void ProbeLengths(uint64_t* total, uint64_t* largest) const;

 private:
  Result<BucketIndex> Resized(uint32_t new_bucket_count) const;

  void Swap(BucketIndex& other);

  ExtentPool* pool_ = nullptr;
  bool from_pool_ = false;
  MappedMemory memory_;  // unless from_pool_
  Bucket* buckets_ = nullptr;
  uint32_t bucket_count_ = 0;
  uint64_t size_ = 0;
  uint64_t erased_since_rebuild_ = 0;
};

}  // namespace mxrec

#endif  // MXREC_TABLE_BUCKET_INDEX_H_
