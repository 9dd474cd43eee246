#include "mxrec/ckpt/parallel.h"

#include <algorithm>

namespace mxrec::internal {

size_t WorkerCount(const Executor* executor, size_t n) {
  const int threads = executor == nullptr ? 1 : executor->concurrency();
  return std::min<size_t>(n, static_cast<size_t>(std::clamp(threads, 1, kMaxWorkers)));
}

Status ParallelStatus(Executor* executor, size_t n, const std::function<Status(size_t worker, size_t i)>& work) {
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;  // guards the two below
  size_t first_failed = n;
  Status failure;
  const auto worker = [&](size_t number) {
    while (!stop.load(std::memory_order_relaxed)) {
      const size_t i = next.fetch_add(1);
      if (i >= n) return;
      Status status = work(number, i);
      if (status.ok()) continue;
      stop.store(true, std::memory_order_relaxed);
      const std::lock_guard<std::mutex> lock(mutex);
      if (i < first_failed) {
        first_failed = i;
        failure = std::move(status);
      }
    }
  };
  const size_t workers = WorkerCount(executor, n);
  if (workers <= 1) {
    worker(0);
  } else {
    executor->ParallelFor(workers, worker);
  }
  return failure;
}

Status Progress::Add(uint64_t bytes) {
  const uint64_t done = done_.fetch_add(bytes) + bytes;
  if (report_ && !report_(done, total_.load())) return CancelledError("cancelled after " + std::to_string(done) + " bytes");
  return OkStatus();
}

Status WithPath(const std::string& path, Status status) {
  if (status.ok() || status.message().starts_with(path)) return status;
  return Status(status.code(), path + ": " + std::string(status.message()));
}

}  // namespace mxrec::internal
