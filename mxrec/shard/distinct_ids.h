// DistinctIds: numbers the distinct ids of one or several lists by first occurrence.
//
// A hash table with open addressing. A number is stored on top of `base_`, which moves past all numbers of a use when the next one
// starts: entries of former uses then count as free, so nothing is cleared between uses. While all ids fit into 32 bits an entry
// has 8 bytes, else 16. Whether an id is new is as good as random, so the loop does not branch on it. Memory is kept: a batch needs
// no fresh pages when it is not larger than those before it. Threads: one at a time.
#ifndef MXREC_SHARD_DISTINCT_IDS_H_
#define MXREC_SHARD_DISTINCT_IDS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mxrec {

class DistinctIds {
 public:
  // `numbered`: behaves like one that has numbered so many ids before (for tests).
  explicit DistinctIds(uint32_t numbered = 0) : base_(numbered + 1) {}

  // Forgets all ids.
  void Start();

  // numbers[i]: the number of ids[i]; new ids get size(), size() + 1, ... REQUIRES: at most 2^31 - 1 ids between two calls of
  // Start.
  void Add(std::span<const uint64_t> ids, int32_t* numbers);

  size_t size() const { return size_; }
  // [size()]: the distinct ids in the order of their numbers. Valid until the next call.
  const uint64_t* keys() const { return keys_.data(); }

 private:
  struct Wide {
    uint64_t key;
    uint32_t number;
  };
  struct Narrow {
    uint32_t key;
    uint32_t number;
  };

  template <typename Entry>
  void Insert(const uint64_t* ids, size_t n, std::vector<Entry>* table, int32_t* numbers);
  // An empty table of `capacity_` entries, without what is in it, is filled with keys_.
  void Rebuild();
  void MoveBase();

  std::vector<Wide> wide_;
  std::vector<Narrow> narrow_;
  std::vector<uint64_t> keys_;
  std::vector<int32_t> unused_;
  bool fits_ = true;     // all ids of this use fit into 32 bits: narrow_ holds them
  size_t capacity_ = 0;  // entries in use, a power of two
  size_t size_ = 0;
  uint32_t base_;
};

}  // namespace mxrec

#endif  // MXREC_SHARD_DISTINCT_IDS_H_
