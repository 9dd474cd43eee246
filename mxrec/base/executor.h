// Executor: who runs the parallel parts of the engine.
//
// The engine owns no threads. Each call that can use several takes an Executor: InlineExecutor (the caller's thread),
// ThreadPool (base/thread_pool.h) or, inside TensorFlow, an adapter of the session's own intra-op pool.
// Results never depend on the executor or on its width.
#ifndef MXREC_BASE_EXECUTOR_H_
#define MXREC_BASE_EXECUTOR_H_

#include <cstddef>
#include <functional>

namespace mxrec {

class Executor {
 public:
  virtual ~Executor() = default;
  // Threads that may work at once, the caller's included; >= 1.
  virtual int concurrency() const = 0;
  // Calls body(i) once for each i in [0, n), in any order, on up to concurrency() threads, and returns when all have
  // returned. The caller's thread takes part. body must not throw. May be called from several threads at once and
  // from inside a body.
  virtual void ParallelFor(size_t n, const std::function<void(size_t)>& body) = 0;
};

class InlineExecutor final : public Executor {
 public:
  int concurrency() const override { return 1; }
  void ParallelFor(size_t n, const std::function<void(size_t)>& body) override {
    for (size_t i = 0; i < n; ++i) body(i);
  }
};

}  // namespace mxrec

#endif  // MXREC_BASE_EXECUTOR_H_
