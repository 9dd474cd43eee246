#include "mxrec/base/thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace mxrec {
namespace {

// Shared by the caller and the helpers that joined; the caller outlives `body`, the helpers may outlive the caller's wait by
// the few instructions between their last claim and their release, hence shared_ptr.
struct Job {
  Job(size_t n, const std::function<void(size_t)>* body) : n(n), body(body) {}

  const size_t n;
  const std::function<void(size_t)>* const body;
  std::atomic<size_t> next{0};
  std::atomic<size_t> done{0};
  std::mutex mutex;
  std::condition_variable all_done;

  // Works until no index is left.
  void Work() {
    size_t finished = 0;
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) {
      (*body)(i);
      ++finished;
    }
    if (finished == 0) return;
    // acq_rel: what the bodies wrote is visible to whoever sees the full count.
    if (done.fetch_add(finished, std::memory_order_acq_rel) + finished == n) {
      std::lock_guard lock(mutex);
      all_done.notify_all();
    }
  }

  bool exhausted() const { return next.load(std::memory_order_relaxed) >= n; }

  void Wait() {
    // The last body is mostly a moment away; sleeping costs more than that.
    for (int spin = 0; spin < 2000; ++spin) {
      if (done.load(std::memory_order_acquire) == n) return;
      if (spin % 64 == 63) std::this_thread::yield();
    }
    std::unique_lock lock(mutex);
    all_done.wait(lock, [this] { return done.load(std::memory_order_acquire) == n; });
  }
};

}  // namespace

struct ThreadPool::Impl {
  const pid_t owner = getpid();
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::shared_ptr<Job>> jobs;  // with indexes left; guarded by mutex
  bool stop = false;                      // guarded by mutex
  std::vector<std::thread> threads;

  void Run() {
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [this] { return stop || !jobs.empty(); });
      if (stop) return;
      std::shared_ptr<Job> job = jobs.front();
      if (job->exhausted()) {
        jobs.pop_front();
        continue;
      }
      lock.unlock();
      job->Work();
      job.reset();
      lock.lock();
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  const int helpers = std::max(threads, 1) - 1;
  impl_->threads.reserve(helpers);
  for (int i = 0; i < helpers; ++i) {
    try {
      impl_->threads.emplace_back([impl = impl_.get()] { impl->Run(); });
    } catch (const std::system_error&) {
      break;  // the limit of the user or the container; fewer threads are as right, only slower
    }
  }
}

ThreadPool::~ThreadPool() {
  if (getpid() != impl_->owner) {
    // Our threads are the parent's. Joining would wait for ever and destroying a joinable std::thread stops the process.
    static_cast<void>(impl_.release());
    return;
  }
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake.notify_all();
  for (std::thread& thread : impl_->threads) thread.join();
}

int ThreadPool::concurrency() const { return getpid() == impl_->owner ? static_cast<int>(impl_->threads.size()) + 1 : 1; }

void ThreadPool::ParallelFor(size_t n, const std::function<void(size_t)>& body) {
  if (n <= 1 || impl_->threads.empty() || getpid() != impl_->owner) {
    for (size_t i = 0; i < n; ++i) body(i);
    return;
  }
  auto job = std::make_shared<Job>(n, &body);
  const size_t wanted = std::min(n - 1, impl_->threads.size());
  {
    std::lock_guard lock(impl_->mutex);
    impl_->jobs.push_back(job);
  }
  if (wanted == impl_->threads.size()) {
    impl_->wake.notify_all();
  } else {
    for (size_t i = 0; i < wanted; ++i) impl_->wake.notify_one();
  }
  job->Work();
  {
    // Mostly still queued: nobody else may have looked.
    std::lock_guard lock(impl_->mutex);
    std::erase(impl_->jobs, job);
  }
  job->Wait();
}

int ThreadPool::HardwareThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

}  // namespace mxrec
