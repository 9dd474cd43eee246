// ThreadPool: an Executor with threads of its own.
//
// A ParallelFor is a job with an atomic counter: whoever works on it, the caller included, claims the next index until none
// is left. The caller never waits for a thread to be free, so calls from inside a body cannot deadlock: at worst the caller
// does all of its job alone. The caller waits only for bodies that others have already begun.
//
// Fork: threads do not survive it. In a child of the process that made the pool, ParallelFor runs inline and the
// destructor leaves the threads, which are not there, alone. (Forking while another thread is inside ParallelFor is fine
// too: the child shares none of the parent's locks in use, since it takes none.)
// Threads: ParallelFor from any number at once. Destroy when no call is running.
#ifndef MXREC_BASE_THREAD_POOL_H_
#define MXREC_BASE_THREAD_POOL_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "mxrec/base/executor.h"

namespace mxrec {

class ThreadPool final : public Executor {
 public:
  // `threads` work at once, the caller's included: threads - 1 are started. Values below 1 count as 1. When the system
  // refuses a thread the pool has fewer: see concurrency().
  explicit ThreadPool(int threads);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int concurrency() const override;
  void ParallelFor(size_t n, const std::function<void(size_t)>& body) override;

  // Threads the machine can run at once, as the process is allowed to use them (sched_getaffinity); >= 1.
  static int HardwareThreads();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mxrec

#endif  // MXREC_BASE_THREAD_POOL_H_
