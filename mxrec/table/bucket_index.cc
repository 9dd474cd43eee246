#include "mxrec/table/bucket_index.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "mxrec/base/check.h"

namespace mxrec {
namespace {

// By how much a shard grows. See the header for the bytes a key that follow.
constexpr double kGrowth = 1.2;

// Smaller indexes have a block of their own: small tables should not pay for a region of the pool.
constexpr uint64_t kLeastPooledBytes = uint64_t{256} << 10;

uint64_t Fits(uint32_t buckets) { return static_cast<uint64_t>(buckets * (Bucket::kPlaces * BucketIndex::kFullest)); }

}  // namespace

uint32_t* BucketIndex::Find(uint64_t key) {
  if (bucket_count_ == 0) return nullptr;
  uint32_t at = HomeOfHash(KeyHash(key), bucket_count_);
  for (uint32_t read = 0; read < bucket_count_; ++read) {
    Bucket& bucket = buckets_[at];
    const uint32_t count = bucket.count();
    for (uint32_t place = 0; place < count; ++place) {
      if (bucket.keys[place] == key) return &bucket.handles[place];
    }
    if (!bucket.overflow()) return nullptr;
    at = at + 1 == bucket_count_ ? 0 : at + 1;
  }
  return nullptr;
}

void BucketIndex::Insert(uint64_t key, uint32_t handle) {
  uint32_t at = HomeOfHash(KeyHash(key), bucket_count_);
  for (;;) {
    Bucket& bucket = buckets_[at];
    const uint32_t count = bucket.count();
    if (count < Bucket::kPlaces) {
      bucket.keys[count] = key;
      bucket.handles[count] = handle;
      ++bucket.meta;
      ++size_;
      return;
    }
    bucket.meta |= Bucket::kOverflow;
    at = at + 1 == bucket_count_ ? 0 : at + 1;
  }
}

uint32_t BucketIndex::Erase(uint64_t key) {
  if (bucket_count_ == 0) return kAbsent;
  uint32_t at = HomeOfHash(KeyHash(key), bucket_count_);
  for (uint32_t read = 0; read < bucket_count_; ++read) {
    Bucket& bucket = buckets_[at];
    const uint32_t count = bucket.count();
    for (uint32_t place = 0; place < count; ++place) {
      if (bucket.keys[place] != key) continue;
      const uint32_t handle = bucket.handles[place];
      bucket.keys[place] = bucket.keys[count - 1];
      bucket.handles[place] = bucket.handles[count - 1];
      --bucket.meta;
      --size_;
      ++erased_since_rebuild_;
      return handle;
    }
    if (!bucket.overflow()) return kAbsent;
    at = at + 1 == bucket_count_ ? 0 : at + 1;
  }
  return kAbsent;
}

uint32_t BucketIndex::BucketsFor(uint64_t keys, uint32_t stagger) {
  if (keys == 0) return 0;
  const double least = static_cast<double>(keys) / (Bucket::kPlaces * BucketIndex::kFullest);
  if (least < 16) return static_cast<uint32_t>(least) + 1;
  // The sizes of a shard lie on a ladder of its own, a factor 1.2 apart, shifted by its number: shards that are equally full do not
  // all grow in the same step.
  double size = 16.0 * (1.0 + (kGrowth - 1.0) * stagger / 64.0);
  while (size < least) size *= kGrowth;
  return static_cast<uint32_t>(size) + 1;
}

uint64_t BucketIndex::MostBuckets(uint64_t keys, uint32_t indexes) {
  // An index with keys has at most kGrowth times its least number of buckets, rounded up and one more.
  const double least = static_cast<double>(keys) / (Bucket::kPlaces * kFullest);
  return static_cast<uint64_t>(least * kGrowth) + 1 + std::min<uint64_t>(keys, indexes);
}

uint32_t BucketIndex::BucketsAfter(uint64_t extra, uint32_t stagger) const {
  const uint64_t wanted = size_ + extra;
  if (wanted <= Fits(bucket_count_)) return bucket_count_;
  return std::max(BucketsFor(wanted, stagger), bucket_count_);
}

Result<BucketIndex> BucketIndex::Grown(uint64_t extra, uint32_t stagger) const {
  const uint32_t wanted = BucketsAfter(extra, stagger);
  if (wanted == bucket_count_) return BucketIndex(pool_);
  return Resized(wanted);
}

Result<BucketIndex> BucketIndex::Rebuilt(uint32_t stagger) const {
  if (size_ == 0) return BucketIndex(pool_);
  return Resized(std::min(BucketsFor(size_, stagger), bucket_count_));
}

Result<BucketIndex> BucketIndex::Resized(uint32_t new_bucket_count) const {
  BucketIndex copy(pool_);
  const uint64_t bytes = uint64_t{new_bucket_count} * sizeof(Bucket);
  if (pool_ != nullptr && bytes >= kLeastPooledBytes) {
    MXREC_ASSIGN_OR_RETURN(char* block, pool_->Take(bytes));
    copy.buckets_ = reinterpret_cast<Bucket*>(block);
    copy.from_pool_ = true;
  } else {
    MXREC_ASSIGN_OR_RETURN(copy.memory_, MappedMemory::Allocate(bytes, "the index of a shard"));
    copy.buckets_ = static_cast<Bucket*>(copy.memory_.data());
  }
  copy.bucket_count_ = new_bucket_count;
  for (uint32_t b = 0; b < new_bucket_count; ++b) copy.buckets_[b].meta = 0;
  if (new_bucket_count > 0) copy.buckets_[new_bucket_count - 1].meta = Bucket::kLast;
  for (uint32_t b = 0; b < bucket_count_; ++b) {
    const Bucket& bucket = buckets_[b];
    for (uint32_t p = 0; p < bucket.count(); ++p) copy.Insert(bucket.keys[p], bucket.handles[p]);
  }
  MXREC_CHECK(copy.size_ == size_);
  return copy;
}

void BucketIndex::Swap(BucketIndex& other) {
  std::swap(pool_, other.pool_);
  std::swap(from_pool_, other.from_pool_);
  std::swap(memory_, other.memory_);
  std::swap(buckets_, other.buckets_);
  std::swap(bucket_count_, other.bucket_count_);
  std::swap(size_, other.size_);
  std::swap(erased_since_rebuild_, other.erased_since_rebuild_);
}

void BucketIndex::Clear() { *this = BucketIndex(pool_); }

void BucketIndex::ForEachInHashOrder(const std::function<bool(uint64_t, uint32_t)>& visit) const {
  struct Entry {
    uint64_t hash, key;
    uint32_t handle;
  };
  std::vector<Entry> cluster, wrapped;
  const auto flush = [&visit](std::vector<Entry>* entries) {
    std::sort(entries->begin(), entries->end(), [](const Entry& a, const Entry& b) { return a.hash < b.hash; });
    for (const Entry& e : *entries) {
      if (!visit(e.key, e.handle)) return false;
    }
    entries->clear();
    return true;
  };
  // A key lies at its home or behind it over buckets with the overflow bit; so after a bucket without the bit every key
  // with a home up to there has been seen. Keys that wrapped round the end belong last.
  for (uint32_t b = 0; b < bucket_count_; ++b) {
    const Bucket& bucket = buckets_[b];
    for (uint32_t p = 0; p < bucket.count(); ++p) {
      const uint64_t hash = KeyHash(bucket.keys[p]);
      const bool is_wrapped = HomeOfHash(hash, bucket_count_) > b;
      (is_wrapped ? wrapped : cluster).push_back({hash, bucket.keys[p], bucket.handles[p]});
    }
    if (!bucket.overflow() || b + 1 == bucket_count_) {
      if (b + 1 == bucket_count_) cluster.insert(cluster.end(), wrapped.begin(), wrapped.end());
      if (!flush(&cluster)) return;
    }
  }
}

void BucketIndex::ProbeLengths(uint64_t* total, uint64_t* largest) const {
  for (uint32_t b = 0; b < bucket_count_; ++b) {
    for (uint32_t p = 0; p < buckets_[b].count(); ++p) {
      const uint32_t home = HomeOfHash(KeyHash(buckets_[b].keys[p]), bucket_count_);
      const uint64_t length = 1 + (b >= home ? b - home : b + bucket_count_ - home);
      *total += length;
      *largest = std::max(*largest, length);
    }
  }
}

}  // namespace mxrec
