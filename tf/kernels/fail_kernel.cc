// The kernel of MxrecFail (tf/ops/fail_op.cc).
#include <cstdint>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

class FailOp : public OpKernel {
 public:
  explicit FailOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    int64_t code = 0;
    std::string message;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("code", &code));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("message", &message));
    status_ = code == 0 ? InternalError(message) : Status(static_cast<StatusCode>(code), message);
  }

  void Compute(OpKernelContext* ctx) override { ctx->SetStatus(ToTf(status_)); }

 private:
  Status status_;
};
REGISTER_KERNEL_BUILDER(Name("MxrecFail").Device(tensorflow::DEVICE_CPU), FailOp);

}  // namespace
}  // namespace mxrec
