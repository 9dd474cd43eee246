// The kernels of activations: TensorFlow's tensors to mxrec/kernels/gelu.h.
#include <string>

#include "mxrec/kernels/gelu.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/float_blocks.h"
#include "tf/kernels/table_resource.h"

namespace mxrec {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <GeluFormula kFormula>
class GeluOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const void* from = x.data();
    const auto n = static_cast<size_t>(x.NumElements());
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({0}, 0, x.shape(), &output));
    ForFloatBlocks<1, 1>(ctx, output->dtype(), {from}, {output->data()}, n,
                         [](const auto& in, const auto& out, size_t begin, size_t count) { Gelu(kFormula, in[0], count, out[0]); });
  }
};

// (gradients, features[, outputs]) to backprops.
template <GeluFormula kFormula>
class GeluGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor &gradient = ctx->input(0), &x = ctx->input(1);
    OP_REQUIRES(ctx, gradient.shape() == x.shape(),
                ToTf(InvalidArgumentError(name() + ": gradients and features must have one shape, found " + ShapeText(gradient) +
                                          " and " + ShapeText(x))));
    const void *from = gradient.data(), *at = x.data();
    const auto n = static_cast<size_t>(x.NumElements());
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({0}, 0, x.shape(), &output));
    ForFloatBlocks<2, 1>(
        ctx, output->dtype(), {from, at}, {output->data()}, n,
        [](const auto& in, const auto& out, size_t begin, size_t count) { GeluGradient(kFormula, in[0], in[1], count, out[0]); });
  }
};

REGISTER_KERNEL_BUILDER(Name("Gelu").Device(tensorflow::DEVICE_CPU), GeluOp<GeluFormula::kTanh>);
REGISTER_KERNEL_BUILDER(Name("GeluGrad").Device(tensorflow::DEVICE_CPU), GeluGradOp<GeluFormula::kTanh>);
REGISTER_KERNEL_BUILDER(Name("FastGelu").Device(tensorflow::DEVICE_CPU), GeluOp<GeluFormula::kSigmoid>);
REGISTER_KERNEL_BUILDER(Name("FastGeluGrad").Device(tensorflow::DEVICE_CPU), GeluGradOp<GeluFormula::kSigmoid>);
REGISTER_KERNEL_BUILDER(Name("FastGeluV2").Device(tensorflow::DEVICE_CPU), GeluOp<GeluFormula::kQuadratic>);
REGISTER_KERNEL_BUILDER(Name("FastGeluV2Grad").Device(tensorflow::DEVICE_CPU), GeluGradOp<GeluFormula::kQuadratic>);

}  // namespace
}  // namespace mxrec
