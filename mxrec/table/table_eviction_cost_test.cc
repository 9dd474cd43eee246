// What eviction by capacity costs: the time of a step and resident memory. Figures of one run are compared with each other only.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "mxrec/base/hash.h"
#include "mxrec/base/process_memory.h"
#include "mxrec/table/table.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

using testing::MakeTable;
using testing::SlottedStep;
using testing::SmallOptions;
using testing::Train;

TableOptions Evicting(EvictBy by) {
  TableOptions options = SmallOptions(16);
  options.capacity_policy = CapacityPolicy::kEvict;
  options.capacity_rows = 200'000;
  options.evict_by = by;
  return options;
}

// Half of the ids are new, half come again.
std::vector<uint64_t> NextIds(std::mt19937_64* random, uint64_t* fresh) {
  std::vector<uint64_t> ids;
  for (int i = 0; i < 8192; ++i) {
    ids.push_back(
        Mix64(i % 2 == 0 && *fresh > 0 ? *fresh - 1 - std::min<uint64_t>(*fresh - 1, (*random)() % 100'000) : (*fresh)++));
  }
  return ids;
}

double P99OverP50(EvictBy by, uint64_t max_bytes) {
  TableOptions options = Evicting(by);
  options.max_bytes = max_bytes;
  auto table = MakeTable(options);
  SlottedStep step("k", 16, 1);
  std::mt19937_64 random(1);
  uint64_t fresh = 0;
  const auto one = [&] {
    const std::vector<uint64_t> ids = NextIds(&random, &fresh);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(Train(table.get(), ids, 0.01f, &step).ok());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  while (table->stats().evictions < 100'000) one();
  std::vector<double> seconds;
  for (int i = 0; i < 400; ++i) seconds.push_back(one());
  std::sort(seconds.begin(), seconds.end());
  std::printf("step: p50 %.3f ms, p99 %.3f ms, longest %.3f ms\n", seconds[200] * 1e3, seconds[396] * 1e3, seconds.back() * 1e3);
  return seconds[396] / seconds[200];
}

TEST(EvictionCostTest, AlmostEveryStepThatEvictsTakesLessThanTwiceTheMedian) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's time counts too";
  for (const EvictBy by : {EvictBy::kLru, EvictBy::kLfu}) {
    for (const uint64_t max_bytes : {uint64_t{0}, uint64_t{20'000'000}}) {
      // Other programs of the machine count too: the best of three runs.
      double best = P99OverP50(by, max_bytes);
      for (int run = 0; run < 2 && best >= 2; ++run) best = std::min(best, P99OverP50(by, max_bytes));
      EXPECT_LT(best, 2.0) << "by " << static_cast<int>(by) << ", max_bytes " << max_bytes;
    }
  }
}

TEST(EvictionCostTest, AStreamOfTenTimesMoreIdsThanFitTakesNoMoreMemoryThanTheCap) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts too";
  constexpr uint64_t kCap = 40'000'000;
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    TableOptions options = Evicting(EvictBy::kLru);
    options.capacity_rows = 1'000'000'000;
    options.max_bytes = kCap;
    std::mt19937_64 random(1);
    uint64_t fresh = 0;
    SlottedStep step("k", 16, 1);
    {  // scratch that stays for the next call
      auto other = MakeTable(Evicting(EvictBy::kLru));
      for (int i = 0; i < 3; ++i) static_cast<void>(Train(other.get(), NextIds(&random, &fresh), 0.01f, &step));
    }
    const uint64_t before = ResidentBytes();
    auto table = MakeTable(options);
    double most = 0;
    while (table->stats().evictions < 9 * (table->size() + 1) || table->size() == 0) {
      if (!Train(table.get(), NextIds(&random, &fresh), 0.01f, &step).ok()) _exit(1);
      most = std::max(most, static_cast<double>(ResidentBytes()) - static_cast<double>(before));
    }
    const bool written = write(pipe_ends[1], &most, sizeof(most)) == sizeof(most);
    _exit(written ? 0 : 1);
  }
  close(pipe_ends[1]);
  double most = -1;
  ASSERT_EQ(read(pipe_ends[0], &most, sizeof(most)), static_cast<ssize_t>(sizeof(most)));
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::printf("resident: at most %.1f MB, cap %.1f MB\n", most / 1e6, kCap / 1e6);
  EXPECT_GT(most, kCap * 0.7);
  // Memory comes in huge pages, and an index that grows is there twice for a moment.
  EXPECT_LT(most, kCap * 1.15);
}

}  // namespace
}  // namespace mxrec
