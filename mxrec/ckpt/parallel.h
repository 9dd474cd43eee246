// ParallelStatus: a loop of fallible parts over a bounded number of workers; for the writer and the reader.
#ifndef MXREC_CKPT_PARALLEL_H_
#define MXREC_CKPT_PARALLEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

#include "mxrec/base/status.h"
#include "mxrec/ckpt/checkpoint.h"

namespace mxrec::internal {

// Each worker holds one block; a table's own columns are another. 16 * 2 * 1 MiB stays well below the 64 MiB of the contract.
inline constexpr int kMaxWorkers = 16;

// Calls work(worker, i) once for each i in [0, n), on workers numbered from 0; i is claimed in ascending order. After a
// failure no further i is started; the failure of the smallest i is returned.
Status ParallelStatus(Executor* executor, size_t n, const std::function<Status(size_t worker, size_t i)>& work);
// How many workers ParallelStatus uses at most.
size_t WorkerCount(const Executor* executor, size_t n);

// Sums up bytes for a ProgressFn, which may be empty.
class Progress {
 public:
  Progress(const ProgressFn& report, uint64_t total) : report_(report), total_(total) {}
  // kCancelled when the listener says stop.
  Status Add(uint64_t bytes);
  void AddTotal(uint64_t bytes) { total_ += bytes; }

 private:
  const ProgressFn& report_;
  std::atomic<uint64_t> total_;
  std::atomic<uint64_t> done_{0};
};

// "<path>: <message>" with the same code, unless the message already names the path.
Status WithPath(const std::string& path, Status status);

}  // namespace mxrec::internal

#endif  // MXREC_CKPT_PARALLEL_H_
