#include "mxrec/table/use_clock.h"

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace mxrec {
namespace {

TEST(UseClockTest, StampsOfLastUsesAscend) {
  UseClock clock(EvictBy::kLru, 1);
  uint32_t before = UseClock::kNeverUsed;
  for (int i = 0; i < 100; ++i) {
    clock.Tick();
    const uint32_t stamp = clock.Stamp(7, 3);
    EXPECT_GT(stamp, before);
    before = stamp;
  }
}

// The stamp is 4096 log2 of the decayed number of uses, give or take some roundings.
TEST(UseClockTest, StampsOfUseCountsFollowTheDecayedSum) {
  std::mt19937_64 random(1);
  double worst = 0;
  for (const uint64_t half_life : {1, 7, 100, 10000}) {
    UseClock clock(EvictBy::kLfu, half_life);
    uint32_t stamp = UseClock::kNeverUsed;
    double weight = 0;  // now
    for (int i = 0; i < 3000; ++i) {
      clock.Tick();
      weight *= std::exp2(-1.0 / static_cast<double>(half_life));
      if (random() % 4 == 0 || i == 2999) {
        const uint32_t count = static_cast<uint32_t>(1 + random() % (i % 100 == 0 ? 1000 : 3));
        stamp = clock.Stamp(stamp, count);
        weight += count;
      }
    }
    const double now = static_cast<double>(clock.time()) / 4294967296.0;
    worst = std::max(worst, std::abs(stamp / 4096.0 - now - std::log2(weight)));
  }
  std::printf("worst error of log2 of the decayed uses: %g\n", worst);
  EXPECT_LT(worst, 0.2);
}

TEST(UseClockTest, MoreUsesAndLaterUsesNeverGiveASmallerStamp) {
  std::mt19937_64 random(2);
  UseClock clock(EvictBy::kLfu, 50);
  for (int i = 0; i < 2000; ++i) {
    clock.Tick();
    const uint32_t before = static_cast<uint32_t>((clock.time() >> 20) - random() % 60000 + random() % 30000);
    const uint32_t count = static_cast<uint32_t>(random() % 200);
    EXPECT_GE(clock.Stamp(before, count), before);
    EXPECT_GE(clock.Stamp(before, count + 1), clock.Stamp(before, count));
    EXPECT_GE(clock.Stamp(before + 1, count) + 1, clock.Stamp(before, count));
  }
}

TEST(UseClockTest, AClockNearItsEndGoesBackByWhatItSays) {
  for (const EvictBy by : {EvictBy::kLru, EvictBy::kLfu}) {
    UseClock clock(by, 10);
    clock.set_time(uint64_t{0xE0000000u} << (by == EvictBy::kLru ? 32 : 20));
    const uint32_t excess = clock.Excess();
    ASSERT_GT(excess, 0u);
    const uint32_t stamp = clock.Stamp(UseClock::kNeverUsed, 1);
    clock.GoBack(excess);
    EXPECT_EQ(clock.Stamp(UseClock::kNeverUsed, 1), stamp - excess);
    EXPECT_EQ(clock.Excess(), 0u);
  }
}

}  // namespace
}  // namespace mxrec
