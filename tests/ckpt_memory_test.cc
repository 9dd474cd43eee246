// What saving and loading take beside the table: the peak stays below 1.3 times the table.

#include <cstdio>
#include <functional>

#include "gtest/gtest.h"
#include "mxrec/base/process_memory.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/ckpt/ckpt_test_util.h"

namespace mxrec {
namespace {

constexpr uint32_t kDim = 64;
constexpr uint64_t kRows = 400'000;  // 195 MiB with one slot

// Largest resident size while `work` runs. 0 when the system does not let a process reset its high-water mark.
uint64_t PeakDuring(const std::function<void()>& work) {
  ResetPeakResident();
  if (PeakResidentBytes() > ResidentBytes() + (uint64_t{8} << 20)) return 0;
  work();
  return PeakResidentBytes();
}

TableOptions Options() {
  TableOptions options;
  options.name = "user";
  options.dim = kDim;
  return options;
}

SlotRecord OneSlot() {
  SlotRecord record;
  record.optimizer_kind = "adagrad";
  record.slot_names = {"accumulator"};
  record.slot_initial_values = {0.1f};
  return record;
}

TEST(CkptMemoryTest, D37_SavingAndLoadingPeakBelow1_3TimesTheTable) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts too";
  testing::TempDir temp;
  ThreadPool pool(2);
  const CheckpointIo io{.executor = &pool};
  const auto print = [](const char* what, uint64_t peak, uint64_t table) {
    std::printf("%s: peak %.1f MiB, table %.1f MiB: %.3f times\n", what, static_cast<double>(peak) / 1048576,
                static_cast<double>(table) / 1048576, static_cast<double>(peak) / static_cast<double>(table));
  };

  const uint64_t empty = ResidentBytes();
  auto table = Table::Create(Options()).value();
  {
    const auto loader = table->BeginLoad(OneSlot(), 0, 0).value();
    std::vector<uint64_t> keys(1000);
    const std::vector<float> values(1000 * kDim, 1.0f);
    for (uint64_t at = 0; at < kRows; at += keys.size()) {
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = Mix64(at + i);
      ASSERT_EQ(loader->AddRows({.count = keys.size(), .keys = keys.data(), .values = values.data()}), OkStatus());
    }
    loader->Commit();
  }
  const uint64_t table_bytes = ResidentBytes() - empty;
  ASSERT_GT(table_bytes, kRows * kDim * 2 * sizeof(float));
  const Table* const saved[] = {table.get()};
  const uint64_t save_peak = PeakDuring([&] { ASSERT_EQ(SaveCheckpoint(io, temp.path(), saved, {.step = 1}), OkStatus()); });
  if (save_peak == 0) GTEST_SKIP() << "/proc/self/clear_refs does not reset the peak here";
  print("save", save_peak - empty, table_bytes);
  EXPECT_LT(static_cast<double>(save_peak - empty), 1.3 * static_cast<double>(table_bytes));

  // Into an empty table, as a resumed process does; the bound counts the table that is loaded.
  table.reset();
  const uint64_t before = ResidentBytes();
  auto loaded = Table::Create(Options()).value();
  Table* const into[] = {loaded.get()};
  const uint64_t load_peak = PeakDuring([&] { ASSERT_TRUE(LoadCheckpoint(io, temp.path(), 1, into, 0).ok()); });
  ASSERT_EQ(loaded->size(), kRows);
  print("load", load_peak - before, table_bytes);
  EXPECT_LT(static_cast<double>(load_peak - before), 1.3 * static_cast<double>(table_bytes));

  // Into a filled one: no second copy beside it.
  const uint64_t key = 1;
  ASSERT_TRUE(loaded->Insert({&key, 1}, nullptr, 0, nullptr, nullptr).ok());
  const uint64_t reload_peak = PeakDuring([&] { ASSERT_TRUE(LoadCheckpoint(io, temp.path(), 1, into, 0).ok()); });
  print("load into a filled table", reload_peak - before, table_bytes);
  EXPECT_LT(static_cast<double>(reload_peak - before), 1.3 * static_cast<double>(table_bytes));
}

}  // namespace
}  // namespace mxrec
