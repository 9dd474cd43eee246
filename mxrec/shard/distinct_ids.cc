#include "mxrec/shard/distinct_ids.h"

#include <algorithm>
#include <bit>

#include "mxrec/base/check.h"
#include "mxrec/base/hash.h"
#include "mxrec/table/scratch.h"

namespace mxrec {
namespace {

// Entries are asked for a batch ahead.
constexpr size_t kBatch = 32;
constexpr size_t kLeastCapacity = 16;
// Entries for each id that may be new: the search that goes on beyond its first entry is one that the processor did not foresee.
constexpr size_t kSparse = 4;

bool Fit(std::span<const uint64_t> ids) {
  uint64_t bits = 0;
  for (const uint64_t id : ids) bits |= id;
  return bits >> 32 == 0;
}

}  // namespace

void DistinctIds::MoveBase() {
  base_ += static_cast<uint32_t>(size_);
  if (base_ < uint32_t{1} << 31) return;
  // Else numbers would pass 2^32 and meet those of old entries.
  std::fill(wide_.begin(), wide_.end(), Wide{});
  std::fill(narrow_.begin(), narrow_.end(), Narrow{});
  base_ = 1;
}

void DistinctIds::Start() {
  MoveBase();
  size_ = 0;
  capacity_ = 0;
  fits_ = true;
}

void DistinctIds::Add(std::span<const uint64_t> ids, int32_t* numbers) {
  const size_t n = ids.size();
  MXREC_CHECK(n < (size_t{1} << 31) - size_) << n << " ids more than " << size_;
  const bool fits = fits_ && Fit(ids);
  if (kSparse * (size_ + n) > capacity_ || fits != fits_) {
    capacity_ = std::bit_ceil(std::max({kLeastCapacity, kSparse * (size_ + n), capacity_}));
    fits_ = fits;
    Rebuild();
  }
  Ensure(&keys_, size_ + n + 1);  // one more: the place where the next new id goes is written before it is known to be new
  if (fits_) {
    Insert(ids.data(), n, &narrow_, numbers);
  } else {
    Insert(ids.data(), n, &wide_, numbers);
  }
}

void DistinctIds::Rebuild() {
  if (fits_) {
    Ensure(&narrow_, capacity_);
  } else {
    Ensure(&wide_, capacity_);
  }
  if (size_ == 0) return;
  MoveBase();
  const size_t known = size_;
  size_ = 0;
  Ensure(&keys_, known + 1);
  int32_t* const numbers = Ensure(&unused_, known);
  // They are written back to where they are read, each before the next one is.
  if (fits_) {
    Insert(keys_.data(), known, &narrow_, numbers);
  } else {
    Insert(keys_.data(), known, &wide_, numbers);
  }
}

template <typename Entry>
void DistinctIds::Insert(const uint64_t* ids, size_t n, std::vector<Entry>* table, int32_t* numbers) {
  using Key = decltype(Entry::key);
  Entry* const entries = table->data();
  uint64_t* const keys = keys_.data();
  const size_t mask = capacity_ - 1;
  const uint32_t base = base_;
  int64_t size = static_cast<int64_t>(size_);
  size_t slots[2][kBatch];
  const auto prepare = [&](size_t first, size_t* to) {
    const size_t count = std::min(kBatch, n - first);
    for (size_t i = 0; i < count; ++i) {
      to[i] = Mix64(ids[first + i]) & mask;
      __builtin_prefetch(entries + to[i], 1);
    }
  };
  prepare(0, slots[0]);
  for (size_t first = 0, turn = 0; first < n; first += kBatch, turn ^= 1) {
    if (first + kBatch < n) prepare(first + kBatch, slots[turn ^ 1]);
    const size_t count = std::min(kBatch, n - first);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t id = ids[first + i];
      size_t slot = slots[turn][i];
      int64_t below, taken;  // taken: all bits when the entry is of this use, else none
      for (;;) {
        below = static_cast<int64_t>(static_cast<uint32_t>(entries[slot].number - base)) - size;
        taken = below >> 63;
        if ((static_cast<uint64_t>(taken) & (static_cast<Key>(id) ^ entries[slot].key)) == 0) break;
        slot = (slot + 1) & mask;
      }
      const int64_t number = size + (below & taken);
      entries[slot].key = static_cast<Key>(id);
      entries[slot].number = base + static_cast<uint32_t>(number);
      keys[size] = id;
      numbers[first + i] = static_cast<int32_t>(number);
      size += 1 + taken;
    }
  }
  size_ = static_cast<size_t>(size);
}

}  // namespace mxrec
