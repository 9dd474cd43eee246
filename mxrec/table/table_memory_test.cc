// What tables cost in resident memory. A program of its own: a heap that other tests have used gives other figures.
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

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
using testing::Spread;
using testing::Train;

// Runs `measure` in a child and returns its number; negative when that failed.
double InChild(const std::function<double()>& measure) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    const double result = measure();
    const bool written = write(pipe_ends[1], &result, sizeof(result)) == sizeof(result);
    _exit(written ? 0 : 1);
  }
  close(pipe_ends[1]);
  double result = -1;
  if (read(pipe_ends[0], &result, sizeof(result)) != sizeof(result)) result = -1;
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? result : -1;
}

TEST(TableMemoryTest, AnEmptyTableCostsLessThan64KiBAndASmallOneLittleMore) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts too";
  const auto each = [](uint64_t rows) {
    return InChild([rows] {
      std::vector<std::unique_ptr<Table>> tables;
      SlottedStep warm("slotted", 64, 1);
      auto first = MakeTable(SmallOptions(64));
      if (rows > 0) static_cast<void>(Train(first.get(), Spread(0, rows), 0.0f, &warm));  // scratch is shared by all tables
      tables.reserve(200);
      const uint64_t before = ResidentBytes();
      for (int i = 0; i < 200; ++i) {
        tables.push_back(MakeTable(SmallOptions(64)));
        SlottedStep updater("slotted", 64, 1);
        if (rows > 0 && !Train(tables.back().get(), Spread(0, rows), 0.0f, &updater).ok()) return -1.0;
      }
      return static_cast<double>(ResidentBytes() - before) / 200;
    });
  };
  const double empty = each(0), small = each(64);
  RecordProperty("bytes_empty", static_cast<int>(empty));
  RecordProperty("bytes_64_rows", static_cast<int>(small));
  EXPECT_GT(empty, 0);
  EXPECT_LT(empty, 64 * 1024);
  EXPECT_GT(small, 0);
  EXPECT_LT(small, 128 * 1024) << "64 rows of 512 bytes are 32 KiB";
}

double BytesBeyondValues(bool metadata) {
  return InChild([metadata] {
    // The last huge page of the rows and that of the index are seldom full: up to 4 MiB a table, whatever its size, which is
    // not counted.
    constexpr uint64_t kUnfinishedPages = uint64_t{4} << 20;
    const uint64_t kRows = metadata ? 4'000'000 : 2'000'000;
    constexpr uint64_t kStep = 50'000;
    TableOptions options = SmallOptions(16);
    options.keep_counts = metadata;
    options.max_cold_secs = metadata ? 3600 : 0;
    auto table = MakeTable(options);
    std::vector<uint64_t> keys(kStep);
    const auto insert = [&](Table* into, uint64_t begin) {
      for (uint64_t i = 0; i < kStep; ++i) keys[i] = Mix64(begin + i);
      return into->Insert(keys, nullptr, 0, nullptr, nullptr).ok();
    };
    // Scratch is shared by all tables, and the heap takes some rounds to settle.
    for (int round = 0; round < 4; ++round) {
      auto warm = MakeTable(options);
      if (!insert(warm.get(), 0) || !insert(warm.get(), kStep)) return -1.0;
    }
    const uint64_t before = ResidentBytes();
    double worst = 0;
    for (uint64_t rows = 0; rows < kRows;) {
      if (!insert(table.get(), rows)) return -1.0;
      rows += kStep;
      if (rows < kRows / 2) continue;
      const uint64_t resident = ResidentBytes() - before - kUnfinishedPages;
      worst = std::max(worst, static_cast<double>(resident) / static_cast<double>(rows) - 16 * 4);
    }
    return worst;
  });
}

TEST(TableMemoryTest, ResidentMemoryBeyondTheValuesIsAtMost24BytesAKey) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts too";
  const double bytes = BytesBeyondValues(false);
  RecordProperty("bytes_a_key_x100", static_cast<int>(bytes * 100));
  EXPECT_GT(bytes, 10.0);
  EXPECT_LE(bytes, 24.0);
}

TEST(TableMemoryTest, AndAtMost32WithCountsAndTimes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts too";
  const double bytes = BytesBeyondValues(true);
  RecordProperty("bytes_a_key_x100", static_cast<int>(bytes * 100));
  EXPECT_GT(bytes, 20.0);
  EXPECT_LE(bytes, 32.0);
}

}  // namespace
}  // namespace mxrec
