// A process that saves in a loop is killed at random moments: what it leaves always loads, complete, and never goes back.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/ckpt/ckpt_test_util.h"

namespace mxrec {
namespace {

const testing::Shape kShape{.dim = 16, .slots = 1, .candidates = 20};

// The contents of a step follow from its number.
std::unique_ptr<Table> TableOf(uint64_t step) { return testing::MakeTable(kShape, testing::KeysOf(500 + step % 7), "user", step); }

[[noreturn]] void SaveForEver(const std::string& dir, uint64_t step, bool same_step) {
  ThreadPool pool(2);
  const CheckpointIo io{.executor = &pool};
  for (;; ++step) {
    const auto table = TableOf(step);
    const Table* const tables[] = {table.get()};
    // Under one step number the contents still change from save to save.
    if (!SaveCheckpoint(io, dir, tables, {.step = same_step ? 0 : step, .keep = 2}).ok()) _exit(1);
  }
}

// Returns the number (salt) of the contents found, checking that they are one save's.
uint64_t CheckLatest(const std::string& dir, uint64_t at_least, bool same_step) {
  const Result<std::optional<uint64_t>> latest = LatestCheckpoint({}, dir);
  EXPECT_TRUE(latest.ok()) << latest.status();
  if (!latest.ok() || !latest->has_value()) return 0;
  const auto table = Table::Create(testing::OptionsOf(kShape)).value();
  Table* const tables[] = {table.get()};
  const auto report = LoadCheckpoint({}, dir, **latest, tables, 0);
  EXPECT_TRUE(report.ok()) << report.status();
  const testing::Contents found = testing::ContentsOf(*table);
  const std::vector<uint64_t> steps = ListCheckpoints({}, dir).value();
  for (const uint64_t step : steps) EXPECT_TRUE(VerifyCheckpoint({}, dir, step).ok()) << step;
  if (!same_step) {
    EXPECT_GE(**latest, at_least);
    EXPECT_TRUE(found == testing::ContentsOf(*TableOf(**latest))) << **latest;
    return **latest;
  }
  for (uint64_t number = at_least; number < at_least + 100000; ++number) {
    // The first row tells the salt; then all is compared.
    const auto& first = *found.rows.begin();
    if (first.second.values[0] != std::bit_cast<uint32_t>(testing::ValueOf(first.first, 0, number))) continue;
    EXPECT_TRUE(found == testing::ContentsOf(*TableOf(number))) << number;
    return number;
  }
  ADD_FAILURE() << "contents of no save";
  return at_least;
}

void KillRepeatedly(bool same_step) {
  testing::TempDir dir;
  std::random_device device;
  const uint64_t seed = device();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  uint64_t last = 0;
  const auto start = std::chrono::steady_clock::now();
  int kills = 0;
  // A kill comes within this time. A save takes a few milliseconds, or hundreds under a sanitizer on a busy machine: the time
  // follows.
  uint64_t window_us = 60000;
  while (kills < 20 && std::chrono::steady_clock::now() - start < std::chrono::seconds(20)) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) SaveForEver(dir.path(), last + 1, same_step);
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + random() % window_us));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "a save failed";
    ++kills;
    const uint64_t found = CheckLatest(dir.path(), last, same_step);
    if (::testing::Test::HasFailure()) return;
    window_us = found == last ? std::min<uint64_t>(2 * window_us, 2000000) : std::max<uint64_t>(window_us / 2, 60000);
    last = found;
  }
  EXPECT_GT(last, 0u) << "no save got through";
  std::printf("%d kills, %llu saves\n", kills, static_cast<unsigned long long>(last));
}

TEST(KillTest, D32_TheLatestCheckpointLoadsAfterAnyKill) { KillRepeatedly(false); }
TEST(KillTest, SavingOneStepAgainAndAgainSurvivesAnyKill) { KillRepeatedly(true); }

}  // namespace
}  // namespace mxrec
