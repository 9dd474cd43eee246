// UseClock: from the uses of a row to the 4-byte stamp by which a full table picks the rows that go. Smallest stamp first.
//
// A clock ticks once an update. Least recently used (LRU): the stamp is the tick of the last use. Least frequently used with
// decay (LFU): each use weighs 2^(tick / half life), and the stamp is the logarithm of a row's total weight. So a use counts half
// as much as one that is a half life younger, and as all rows decay alike their order never changes by waiting: nothing has to be
// aged. Stamps depend only on ticks and counts (integers and two tables of rounded logarithms), so they are the same everywhere.
//
// LFU: 12 fractional bits; a row that was used about 8,000 times within a half life is as hot as rows get.
#ifndef MXREC_TABLE_USE_CLOCK_H_
#define MXREC_TABLE_USE_CLOCK_H_

#include <algorithm>
#include <cstdint>

#include "mxrec/table/table.h"

namespace mxrec {

class UseClock {
 public:
  // Below every stamp that a use gives.
  static constexpr uint32_t kNeverUsed = 0;

  UseClock() = default;
  // half_life: updates, at least 1.
  UseClock(EvictBy by, uint64_t half_life)
      : by_(by), step_(by == EvictBy::kLru ? kUnit : std::max<uint64_t>(1, kUnit / std::max<uint64_t>(1, half_life))) {}

  // Ticks (LRU) or half lives (LFU), with 32 fractional bits. A file keeps it.
  uint64_t time() const { return time_; }
  void set_time(uint64_t time) { time_ = std::max(time, kStart); }
  void Reset() { time_ = kStart; }
  void Tick() { time_ += step_; }

  // The stamp after `count` uses now of a row that had `before`; 0 uses (an insert by hand) count as one.
  uint32_t Stamp(uint32_t before, uint32_t count) const {
    return by_ == EvictBy::kLru ? static_cast<uint32_t>(time_ >> 32) : AddWeight(before, count);
  }

  // When stamps come near the end of their range: by how much all stamps and the clock are to go down (stamps not below
  // kNeverUsed); else 0.
  uint32_t Excess() const { return Now() < kHighest ? 0 : kHighest / 2; }
  void GoBack(uint32_t stamps) { time_ -= uint64_t{stamps} << (by_ == EvictBy::kLru ? 32 : 32 - kFraction); }

 private:
  static constexpr uint64_t kUnit = uint64_t{1} << 32;
  static constexpr int kFraction = 12;
  static constexpr uint64_t kStart = 16 * kUnit;  // weights below 2^16 vanish beside the weight of a use
  static constexpr uint32_t kHighest = 0xE0000000u;

  uint32_t Now() const {
    const uint64_t now = time_ >> (by_ == EvictBy::kLru ? 32 : 32 - kFraction);
    return static_cast<uint32_t>(std::min<uint64_t>(now, kHighest));
  }
  uint32_t AddWeight(uint32_t before, uint32_t count) const;

  EvictBy by_ = EvictBy::kLru;
  uint64_t step_ = kUnit;
  uint64_t time_ = kStart;
};

}  // namespace mxrec

#endif  // MXREC_TABLE_USE_CLOCK_H_
