// Many threads on one table (D-27): rows are never torn, nothing is lost, and ThreadSanitizer has nothing to say.
//
// Every row is constant (all columns equal): its first row because the initializer is a constant, later because every gradient
// is. A torn or foreign row would show two different columns.
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "mxrec/base/hash.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

using testing::Contents;
using testing::Found;
using testing::LookUp;
using testing::MakeTable;
using testing::PartOf;
using testing::SlottedStep;
using testing::SubtractGradient;

constexpr size_t kDim = 24;
constexpr uint64_t kKeys = 4000;

TableOptions ConstantRows() {
  TableOptions options = testing::SmallOptions(kDim);
  options.initializer = {InitializerSpec::Kind::kConstant, 1.0, 0.0};
  return options;
}

// Runs each body again and again, each in a thread of its own, for about `seconds` altogether.
void RunAll(double seconds, const std::vector<std::function<void(std::mt19937_64*)>>& bodies) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < bodies.size(); ++t) {
    threads.emplace_back([&stop, &body = bodies[t], t] {
      std::mt19937_64 random(t + 1);
      while (!stop.load(std::memory_order_relaxed)) body(&random);
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

std::vector<uint64_t> SomeIds(std::mt19937_64* random, size_t most) {
  std::vector<uint64_t> ids((*random)() % most + 1);
  for (uint64_t& id : ids) id = Mix64((*random)() % kKeys);
  return ids;
}

uint64_t Torn(const float* rows, size_t count) {
  uint64_t torn = 0;
  for (size_t i = 0; i < count; ++i) {
    for (size_t d = 1; d < kDim; ++d) torn += rows[i * kDim + d] != rows[i * kDim];
  }
  return torn;
}

TEST(TableConcurrencyTest, D27RowsAreNeverTornWhileEverythingRunsAtOnce) {
  TableOptions options = ConstantRows();
  options.keep_counts = true;
  options.min_used_times = 2;
  options.max_cold_secs = 5;
  auto table = MakeTable(options);
  ThreadPool pool(3);
  std::atomic<uint64_t> torn{0}, lookups{0}, updates{0}, failures{0}, snapshots{0}, loads{0};
  std::atomic<int64_t> clock{1'000'000};

  const auto look_up = [&](std::mt19937_64* random) {
    const std::vector<uint64_t> ids = SomeIds(random, 6000);
    LookupOptions lookup;
    if ((*random)() % 4 == 0) lookup.mode = LookupMode::kPredict;
    if ((*random)() % 2 == 0) {
      std::vector<float> expanded(ids.size() * kDim);
      const Status status = table->Lookup(
          ids, lookup, nullptr, expanded.data(), [](size_t) -> Result<UniqueOutputs> { return UniqueOutputs(); }, nullptr, &pool);
      failures += !status.ok();
      torn += Torn(expanded.data(), ids.size());
    } else {
      const Found found = LookUp(*table, ids, lookup, &pool);
      torn += Torn(found.rows.data(), found.keys.size());
    }
    std::vector<float> rows(64 * kDim);
    const std::vector<uint64_t> few(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(std::min<size_t>(ids.size(), 64)));
    table->Find(few, rows.data(), nullptr, nullptr);
    torn += Torn(rows.data(), few.size());
    ++lookups;
  };
  const auto update = [&](std::mt19937_64* random) {
    SlottedStep updater("slotted", kDim, 1);
    const std::vector<uint64_t> a = SomeIds(random, 6000), b = SomeIds(random, 100);
    const Found found_a = LookUp(*table, a, {}, &pool), found_b = LookUp(*table, b, {}, &pool);
    const std::vector<float> gradients(std::max(a.size(), b.size()) * kDim, static_cast<float>((*random)() % 8));
    const std::vector<UpdatePart> parts = {PartOf(found_a, gradients), PartOf(found_b, gradients)};
    UpdateOptions how;
    how.now_ms = clock += 500;
    const Status status = table->Update(parts, &updater, how, &pool, nullptr);
    failures += !status.ok();
    ++updates;
  };
  const auto take_away = [&](std::mt19937_64* random) {
    switch ((*random)() % 4) {
      case 0:
        table->EvictCold(clock, &pool);
        break;
      case 1: {
        const std::vector<uint64_t> keys = SomeIds(random, 500);
        failures += !table->Insert(keys, nullptr, clock, &pool, nullptr).ok();
        break;
      }
      default:
        table->Erase(SomeIds(random, 2000));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const auto snapshot = [&](std::mt19937_64*) {
    const auto view = table->TakeSnapshot();
    uint64_t rows = 0;
    for (int s = 0; s < kShardCount; ++s) {
      const Status status = view->ForEachBlock(s, 100, [&](const RowBlock& block) {
        rows += block.count;
        torn += Torn(block.values, block.count);
        if (view->slots().slot_names.size() == 1) torn += Torn(block.slots, block.count);
        return OkStatus();
      });
      failures += !status.ok();
    }
    failures += rows != view->rows();
    ++snapshots;
  };
  const auto reload = [&](std::mt19937_64* random) {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    if ((*random)() % 3 == 0) {
      table->Clear();
      return;
    }
    SlotRecord record;
    record.optimizer_kind = "slotted";
    record.slot_names = {"slot0"};
    record.slot_initial_values = {0.5f};
    record.scalar_names = {"power"};
    record.scalars = {1.0f};
    auto loader = table->BeginLoad(record, 2000, clock);
    if (!loader.ok()) {
      ++failures;
      return;
    }
    pool.ParallelFor(4, [&](size_t part) {
      std::vector<uint64_t> keys;
      for (uint64_t key = part; key < 2000; key += 4) keys.push_back(Mix64(key));
      const std::vector<float> values(keys.size() * kDim, 3.0f);
      failures += !(*loader)->AddRows({.count = keys.size(), .keys = keys.data(), .values = values.data()}).ok();
    });
    if ((*random)() % 4 == 0) {
      (*loader)->Abort();
    } else {
      (*loader)->Commit();
    }
    ++loads;
  };
  const auto watch = [&](std::mt19937_64*) {
    const TableStats stats = table->stats();
    failures += stats.load > 1.0;
    static_cast<void>(table->size() + table->generation() + table->slots().step);
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  };
  RunAll(2.0, {look_up, look_up, look_up, update, update, take_away, snapshot, reload, watch});

  EXPECT_EQ(torn, 0u);
  EXPECT_EQ(failures, 0u);
  EXPECT_GT(lookups, 0u);
  EXPECT_GT(updates, 0u);
  EXPECT_GT(snapshots, 0u);
  EXPECT_GT(loads, 0u);
  const auto last = table->TakeSnapshot();
  EXPECT_EQ(last->rows(), table->size());
}

TEST(TableConcurrencyTest, UpdatesFromSeveralThreadsLoseNoGradient) {
  auto table = MakeTable(ConstantRows());
  ThreadPool pool(2);
  constexpr uint64_t kThreads = 4, kSteps = 40, kIds = 600;
  std::vector<std::thread> threads;
  std::atomic<uint64_t> failures{0};
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      SubtractGradient updater(kDim);
      std::vector<uint64_t> ids;
      for (uint64_t i = 0; i < kIds; ++i) ids.push_back(Mix64(i));
      for (uint64_t step = 0; step < kSteps; ++step) {
        failures += !testing::Train(table.get(), ids, 1.0f, &updater, {}, &pool).ok();
        // Something else goes and comes, so that handles are often stale.
        const std::vector<uint64_t> other = {Mix64(1'000'000 + step)};
        table->Erase(other);
        failures += !table->Insert(other, nullptr, 0, nullptr, nullptr).ok();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0u);
  const Found found = LookUp(*table, {Mix64(0), Mix64(kIds - 1)});
  for (const float v : found.rows) EXPECT_EQ(v, 1.0f - static_cast<float>(kThreads * kSteps));
}

TEST(TableConcurrencyTest, ASnapshotDoesNotChangeWhileWritersWait) {
  auto table = MakeTable(ConstantRows());
  SubtractGradient updater(kDim);
  ASSERT_TRUE(testing::Train(table.get(), {1, 2, 3}, 0.0f, &updater).ok());
  std::atomic<bool> done{false};
  std::thread writer;
  {
    const auto snapshot = table->TakeSnapshot();
    writer = std::thread([&] {
      const std::vector<uint64_t> keys = {1, 2};
      table->Erase(keys);
      done = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(done);
    EXPECT_EQ(snapshot->rows(), 3u);
    EXPECT_EQ(LookUp(*table, {1}).handles[0] >> 31, 0u) << "lookups go on";
  }
  writer.join();
  EXPECT_EQ(table->size(), 1u);
}

}  // namespace
}  // namespace mxrec
