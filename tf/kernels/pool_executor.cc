#include "tf/kernels/pool_executor.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "mxrec/base/pause.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/threadpool.h"

namespace mxrec {
namespace {

constexpr int kSpins = 2000;       // some 30 microseconds
constexpr int kSpinsToYield = 64;  // where threads are more than processors, the last item needs ours

// Shared by the caller and the queued closures; outlives the call when a closure starts late.
struct Work {
  Work(size_t n, const std::function<void(size_t)>* body) : size(n), body(body) {}
  const size_t size;
  // Dereferenced only while an item is claimed and not yet done, so before the caller returns.
  const std::function<void(size_t)>* const body;
  std::atomic<size_t> next{0};
  std::atomic<size_t> done{0};

  void Run() {
    size_t mine = 0;
    for (size_t i = next.fetch_add(1, std::memory_order_relaxed); i < size; i = next.fetch_add(1, std::memory_order_relaxed)) {
      (*body)(i);
      ++mine;
    }
    // Release: what the bodies wrote is seen by the caller, who acquires `done`.
    if (mine != 0 && done.fetch_add(mine, std::memory_order_acq_rel) + mine == size) done.notify_all();
  }

  void Wait() {
    // The last item is mostly a moment away; to sleep and be woken takes longer than a small tensor's whole work.
    for (int spin = 1; spin <= kSpins; ++spin) {
      if (done.load(std::memory_order_acquire) == size) return;
      spin % kSpinsToYield == 0 ? std::this_thread::yield() : Pause();
    }
    for (size_t seen = done.load(std::memory_order_acquire); seen != size; seen = done.load(std::memory_order_acquire)) {
      done.wait(seen, std::memory_order_acquire);
    }
  }
};

}  // namespace

PoolExecutor::PoolExecutor(tensorflow::OpKernelContext* ctx) {
  const auto* threads = ctx->device()->tensorflow_cpu_worker_threads();
  if (threads == nullptr || threads->workers == nullptr) return;
  pool_ = threads->workers;
  width_ = std::max(1, threads->num_threads);
}

void PoolExecutor::ParallelFor(size_t n, const std::function<void(size_t)>& body) {
  if (width_ == 1 || n <= 1) {
    for (size_t i = 0; i < n; ++i) body(i);
    return;
  }
  auto work = std::make_shared<Work>(n, &body);
  const size_t helpers = std::min<size_t>(n, static_cast<size_t>(width_)) - 1;
  for (size_t i = 0; i < helpers; ++i) pool_->Schedule([work] { work->Run(); });
  work->Run();
  work->Wait();
}

}  // namespace mxrec
