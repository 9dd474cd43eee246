// The kernels of activations: TensorFlow's tensors to mxrec/kernels/gelu.h and prelu.h.
#include <string>
#include <vector>

#include "mxrec/kernels/gelu.h"
#include "mxrec/kernels/prelu.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/float_blocks.h"
#include "tf/kernels/strided_index.h"
#include "tf/kernels/table_resource.h"
#include "tf/kernels/wide_tensors.h"

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

// How weights of a shape meet x; kInvalidArgument where they do not broadcast to it.
Status WeightIndex(const Tensor& x, const Tensor& weights, std::vector<size_t>* sizes, std::vector<bool>* own) {
  const int behind = x.dims() - weights.dims();
  bool fits = behind >= 0;
  for (int d = 0; fits && d < x.dims(); ++d) {
    const int64_t size = x.dim_size(d), weight = d < behind ? 1 : weights.dim_size(d - behind);
    fits = weight == 1 || weight == size;
    sizes->push_back(static_cast<size_t>(size));
    own->push_back(weight == size && weight != 1);
  }
  if (fits) return OkStatus();
  return InvalidArgumentError("weight of shape " + ShapeText(weights) + " does not broadcast to x of shape " + ShapeText(x));
}

class PReluOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor &x = ctx->input(0), &weights = ctx->input(1);
    std::vector<size_t> sizes;
    std::vector<bool> own;
    OP_REQUIRES_OK(ctx, ToTf(WeightIndex(x, weights, &sizes, &own)));
    Tensor wide_x, wide_weights;
    WideOutput output;
    OP_REQUIRES_OK(ctx, WidenTensor(ctx, x, &wide_x));
    OP_REQUIRES_OK(ctx, WidenTensor(ctx, weights, &wide_weights));
    OP_REQUIRES_OK(ctx, output.Allocate(ctx, 0, x.shape()));
    const StridedIndex index(sizes, own);
    WithWideType(x.dtype(), [&]<typename T>(T) {
      const T *from = DataSpan<T>(wide_x).data(), *w = DataSpan<T>(wide_weights).data();
      T* to = output.data<T>();
      ForBlocks(ctx, static_cast<size_t>(x.NumElements()), [&](size_t begin, size_t count) {
        index.ForRuns(begin, begin + count,
                      [&](size_t i, size_t n, size_t at, size_t stride) { PRelu(from + i, w + at, stride == 0, n, to + i); });
      });
    });
    output.Finish(ctx);
  }
};

// (grads, features, weights) to (dx, da).
class PReluGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor &gradient = ctx->input(0), &x = ctx->input(1), &weights = ctx->input(2);
    OP_REQUIRES(ctx, gradient.shape() == x.shape(),
                ToTf(InvalidArgumentError(name() + ": grads and features must have one shape, found " + ShapeText(gradient) +
                                          " and " + ShapeText(x))));
    std::vector<size_t> sizes;
    std::vector<bool> own;
    OP_REQUIRES_OK(ctx, ToTf(WeightIndex(x, weights, &sizes, &own)));
    Tensor wide_gradient, wide_x, wide_weights, terms;
    WideOutput dx, da;
    OP_REQUIRES_OK(ctx, WidenTensor(ctx, gradient, &wide_gradient));
    OP_REQUIRES_OK(ctx, WidenTensor(ctx, x, &wide_x));
    OP_REQUIRES_OK(ctx, WidenTensor(ctx, weights, &wide_weights));
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(wide_x.dtype(), x.shape(), &terms));
    OP_REQUIRES_OK(ctx, dx.Allocate(ctx, 0, x.shape()));
    OP_REQUIRES_OK(ctx, da.Allocate(ctx, 1, weights.shape()));
    const StridedIndex index(sizes, own);
    const auto n = static_cast<size_t>(x.NumElements());
    WithWideType(x.dtype(), [&]<typename T>(T) {
      const T *g = DataSpan<T>(wide_gradient).data(), *from = DataSpan<T>(wide_x).data(), *w = DataSpan<T>(wide_weights).data();
      T *to = dx.data<T>(), *term = MutableData<T>(&terms);
      ForBlocks(ctx, n, [&](size_t begin, size_t count) {
        index.ForRuns(begin, begin + count, [&](size_t i, size_t run, size_t at, size_t stride) {
          PReluGradient(g + i, from + i, w + at, stride == 0, run, to + i, term + i);
        });
      });
      std::vector<double> sums(static_cast<size_t>(weights.NumElements()));
      SumToSmall(ctx, index, term, n, &sums);
      for (size_t i = 0; i < sums.size(); ++i) da.data<T>()[i] = static_cast<T>(sums[i]);
    });
    dx.Finish(ctx);
    da.Finish(ctx);
  }
};

REGISTER_KERNEL_BUILDER(Name("Gelu").Device(tensorflow::DEVICE_CPU), GeluOp<GeluFormula::kTanh>);
REGISTER_KERNEL_BUILDER(Name("GeluGrad").Device(tensorflow::DEVICE_CPU), GeluGradOp<GeluFormula::kTanh>);
REGISTER_KERNEL_BUILDER(Name("FastGelu").Device(tensorflow::DEVICE_CPU), GeluOp<GeluFormula::kSigmoid>);
REGISTER_KERNEL_BUILDER(Name("FastGeluGrad").Device(tensorflow::DEVICE_CPU), GeluGradOp<GeluFormula::kSigmoid>);
REGISTER_KERNEL_BUILDER(Name("FastGeluV2").Device(tensorflow::DEVICE_CPU), GeluOp<GeluFormula::kQuadratic>);
REGISTER_KERNEL_BUILDER(Name("FastGeluV2Grad").Device(tensorflow::DEVICE_CPU), GeluGradOp<GeluFormula::kQuadratic>);
REGISTER_KERNEL_BUILDER(Name("PRelu").Device(tensorflow::DEVICE_CPU), PReluOp);
REGISTER_KERNEL_BUILDER(Name("PReluGrad").Device(tensorflow::DEVICE_CPU), PReluGradOp);

}  // namespace
}  // namespace mxrec
