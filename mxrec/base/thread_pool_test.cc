#include "mxrec/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

namespace mxrec {
namespace {

TEST(InlineExecutorTest, CallsEveryIndexInOrder) {
  InlineExecutor executor;
  std::vector<size_t> seen;
  executor.ParallelFor(5, [&](size_t i) { seen.push_back(i); });
  EXPECT_EQ(seen, (std::vector<size_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(executor.concurrency(), 1);
}

TEST(ThreadPoolTest, CallsEveryIndexOnce) {
  for (const int threads : {-1, 0, 1, 2, 4, 16}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.concurrency(), std::max(threads, 1));
    for (const size_t n : {0, 1, 2, 3, 64, 10000}) {
      std::vector<std::atomic<int>> calls(n);
      pool.ParallelFor(n, [&](size_t i) { calls[i].fetch_add(1, std::memory_order_relaxed); });
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(calls[i].load(), 1) << threads << " threads, index " << i << " of " << n;
    }
  }
}

TEST(ThreadPoolTest, WritesOfBodiesAreVisibleAfterwards) {
  ThreadPool pool(4);
  for (int round = 0; round < 500; ++round) {
    std::vector<int> values(100);  // not atomic: TSan would object
    pool.ParallelFor(values.size(), [&](size_t i) { values[i] = static_cast<int>(i) + round; });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), 0), 4950 + 100 * round);
  }
}

TEST(ThreadPoolTest, SeveralThreadsTakePart) {
  ThreadPool pool(3);
  std::mutex mutex;
  std::condition_variable all_here;
  std::set<std::thread::id> ids;
  // Each body waits for the other two, so three threads must be inside at once.
  pool.ParallelFor(3, [&](size_t) {
    std::unique_lock lock(mutex);
    ids.insert(std::this_thread::get_id());
    all_here.notify_all();
    all_here.wait_for(lock, std::chrono::seconds(30), [&] { return ids.size() == 3; });
  });
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_TRUE(ids.contains(std::this_thread::get_id()));
}

TEST(ThreadPoolTest, NestedCallsDoNotDeadlock) {
  ThreadPool pool(4);
  std::atomic<int> calls{0};
  for (int round = 0; round < 50; ++round) {
    pool.ParallelFor(8, [&](size_t) {
      pool.ParallelFor(8, [&](size_t) { pool.ParallelFor(4, [&](size_t) { calls.fetch_add(1, std::memory_order_relaxed); }); });
    });
  }
  EXPECT_EQ(calls.load(), 50 * 8 * 8 * 4);
}

TEST(ThreadPoolTest, CallersMayOverlap) {
  ThreadPool pool(3);
  std::atomic<int> calls{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        int here = 0;  // each call's own index 0
        pool.ParallelFor(7, [&](size_t i) {
          if (i == 0) here = 1;
          calls.fetch_add(1, std::memory_order_relaxed);
        });
        ASSERT_EQ(here, 1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls.load(), 4 * 300 * 7);
}

TEST(ThreadPoolTest, ABlockedBodyDoesNotHoldUpOtherCallers) {
  ThreadPool pool(2);
  std::atomic<bool> release{false};
  std::atomic<int> inside{0};
  std::thread blocked([&] {
    pool.ParallelFor(2, [&](size_t) {
      inside.fetch_add(1);
      while (!release.load()) std::this_thread::yield();
    });
  });
  while (inside.load() < 2) std::this_thread::yield();
  int calls = 0;
  pool.ParallelFor(10, [&](size_t) { ++calls; });  // all helpers are taken: the caller does it alone
  EXPECT_EQ(calls, 10);
  release = true;
  blocked.join();
}

TEST(ThreadPoolTest, StartsAndStopsCleanly) {
  for (int round = 0; round < 200; ++round) {
    ThreadPool pool(4);
    if (round % 2 == 0) {
      std::atomic<int> calls{0};
      pool.ParallelFor(3, [&](size_t) { calls.fetch_add(1); });
      ASSERT_EQ(calls.load(), 3);
    }
  }
}

TEST(ThreadPoolTest, HardwareThreadsIsPositive) { EXPECT_GE(ThreadPool::HardwareThreads(), 1); }

#if !defined(__SANITIZE_THREAD__)  // TSan cannot follow a fork of a process with threads
TEST(ThreadPoolTest, AForkedChildRunsInlineAndEndsCleanly) {
  auto pool = std::make_unique<ThreadPool>(4);
  std::atomic<int> warm{0};
  pool->ParallelFor(100, [&](size_t) { warm.fetch_add(1); });
  std::atomic<bool> stop{false};
  std::thread busy([&] {  // keeps the pool's lock and threads moving while we fork
    while (!stop.load()) pool->ParallelFor(16, [&](size_t) { warm.fetch_add(1, std::memory_order_relaxed); });
  });
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);  // a hang ends in a signal
      size_t sum = 0;
      pool->ParallelFor(10, [&](size_t i) { sum += i; });
      const bool inline_only = pool->concurrency() == 1;
      pool.reset();
      _exit(sum == 45 && inline_only ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "round " << round << " status " << status;
  }
  stop = true;
  busy.join();
}
#endif

}  // namespace
}  // namespace mxrec
