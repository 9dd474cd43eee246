#include "mxrec/base/shared_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace mxrec {
namespace {

using std::chrono::milliseconds;

TEST(SharedMutexTest, IsSmall) { EXPECT_EQ(sizeof(SharedMutex), 8u); }

TEST(SharedMutexTest, TryLocksFollowTheHolder) {
  SharedMutex mutex;
  {
    std::unique_lock writer(mutex);
    EXPECT_FALSE(mutex.try_lock());
    EXPECT_FALSE(mutex.try_lock_shared());
  }
  {
    std::shared_lock reader(mutex);
    EXPECT_FALSE(mutex.try_lock());
    ASSERT_TRUE(mutex.try_lock_shared());
    mutex.unlock_shared();
  }
  ASSERT_TRUE(mutex.try_lock());
  mutex.unlock();
}

TEST(SharedMutexTest, ReadersShare) {
  SharedMutex mutex;
  std::atomic<int> inside{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 4; ++t) {
    readers.emplace_back([&] {
      std::shared_lock lock(mutex);
      inside.fetch_add(1);
      while (inside.load() < 4) std::this_thread::yield();  // all four must be inside at once
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(inside.load(), 4);
}

TEST(SharedMutexTest, AWaitingWriterKeepsNewReadersOut) {
  SharedMutex mutex;
  mutex.lock_shared();
  std::atomic<bool> written{false};
  std::thread writer([&] {
    std::unique_lock lock(mutex);
    written = true;
  });
  // The writer has announced itself as soon as no reader gets in any more.
  while (mutex.try_lock_shared()) {
    mutex.unlock_shared();
    std::this_thread::yield();
  }
  EXPECT_FALSE(written.load());
  mutex.unlock_shared();
  writer.join();
  EXPECT_TRUE(written.load());
}

TEST(SharedMutexTest, SleepingReadersAndWritersAreWoken) {
  for (int round = 0; round < 20; ++round) {
    SharedMutex mutex;
    int value = 0;
    std::atomic<int> seen{0};
    mutex.lock();
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        std::shared_lock lock(mutex);
        if (value >= 1) seen.fetch_add(1);
      });
      threads.emplace_back([&] {
        std::unique_lock lock(mutex);
        ++value;
      });
    }
    std::this_thread::sleep_for(milliseconds(5));  // long enough to sleep
    ++value;
    mutex.unlock();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(value, 4);
    EXPECT_EQ(seen.load(), 3);
  }
}

TEST(SharedMutexTest, AStreamOfReadersDoesNotStarveAWriter) {
  SharedMutex mutex;
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int t = 0; t < 4; ++t) {
    readers.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        std::shared_lock lock(mutex);
        for (int i = 0; i < 200; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
      }
    });
  }
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) {
    std::unique_lock lock(mutex);
  }
  const auto took = std::chrono::steady_clock::now() - start;
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_LT(took, std::chrono::seconds(30));
}

TEST(SharedMutexTest, ProtectsPlainDataUnderContention) {
  constexpr int kThreads = 6, kRounds = 5000;
  SharedMutex mutex;
  struct {
    uint64_t a = 0, b = 0;  // not atomic: equal outside the writer's section
  } data;
  std::atomic<int> torn{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        if ((i + t) % 4 == 0) {
          std::unique_lock lock(mutex);
          ++data.a;
          if (i % 64 == 0) std::this_thread::yield();
          ++data.b;
        } else {
          std::shared_lock lock(mutex);
          if (data.a != data.b) torn.fetch_add(1);
          if (i % 256 == 0) std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn.load(), 0);
  EXPECT_EQ(data.a, static_cast<uint64_t>(kThreads) * kRounds / 4);
  EXPECT_TRUE(mutex.try_lock());  // nothing is left behind in the word
  mutex.unlock();
}

TEST(SharedMutexTest, WritersExcludeEachOther) {
  SharedMutex mutex;
  uint64_t count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20000; ++i) {
        std::unique_lock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 160000u);
}

}  // namespace
}  // namespace mxrec
