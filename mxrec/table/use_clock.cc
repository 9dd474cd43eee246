#include "mxrec/table/use_clock.h"

#include <array>
#include <cmath>

namespace mxrec {
namespace {

constexpr int kShift = 4;               // a difference is looked up in steps of 2^4
constexpr uint32_t kEntries = 14 << 8;  // differences of 14 and more change nothing

// round(4096 log2(1 + 2^-difference)), by difference / 16.
struct Tables {
  std::array<uint16_t, kEntries> sum;
  std::array<uint32_t, 64> log2;  // round(4096 log2(count))
  Tables() {
    for (uint32_t i = 0; i < kEntries; ++i)
      sum[i] = static_cast<uint16_t>(std::lround(4096 * std::log2(1 + std::exp2(-(i / 256.0)))));
    log2[0] = 0;
    for (uint32_t i = 1; i < 64; ++i) log2[i] = static_cast<uint32_t>(std::lround(4096 * std::log2(i)));
  }
};

const Tables& TheTables() {
  static const Tables* tables = new Tables;
  return *tables;
}

}  // namespace

uint32_t UseClock::AddWeight(uint32_t before, uint32_t count) const {
  const Tables& tables = TheTables();
  const uint32_t more =
      count < 64 ? tables.log2[count] : static_cast<uint32_t>(std::lround(4096 * std::log2(static_cast<double>(count))));
  const uint32_t now = static_cast<uint32_t>(time_ >> (32 - kFraction)) + more;
  const uint32_t difference = (before > now ? before - now : now - before) >> kShift;
  return std::max(before, now) + (difference < kEntries ? tables.sum[difference] : 0);
}

}  // namespace mxrec
