// PoolExecutor: the session's intra-op threads as the engine's Executor.
//
// So the thread counts of the ConfigProto hold for tables too, and no second pool competes with TensorFlow's.
#ifndef MXREC_TF_KERNELS_POOL_EXECUTOR_H_
#define MXREC_TF_KERNELS_POOL_EXECUTOR_H_

#include <cstddef>
#include <functional>

#include "mxrec/base/executor.h"

namespace tsl::thread {
class ThreadPool;
}
namespace tensorflow {
class OpKernelContext;
}

namespace mxrec {

// Items are claimed one by one by the caller and by closures queued in the pool. The caller waits only for items that another
// thread is already running, so a busy pool, nested calls, and calls from the pool's own threads cannot deadlock. Closures
// that start late find nothing to claim.
class PoolExecutor final : public Executor {
 public:
  // Valid while the kernel's device lives.
  explicit PoolExecutor(tensorflow::OpKernelContext* ctx);
  int concurrency() const override { return width_; }
  void ParallelFor(size_t n, const std::function<void(size_t)>& body) override;

 private:
  tsl::thread::ThreadPool* pool_ = nullptr;
  int width_ = 1;
};

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_POOL_EXECUTOR_H_
