// The kernels of LARS and the one-tensor Adam: TensorFlow's tensors to mxrec/kernels/dense_steps.h.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>

#include "mxrec/kernels/dense_steps.h"
#include "mxrec/kernels/moments.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/table_resource.h"
#include "tf/kernels/wide_tensors.h"

namespace mxrec {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

// The value of a scalar of a floating type.
Status ReadScalar(const std::string& what, const Tensor& tensor, double* value) {
  if (tensor.dims() != 0) return InvalidArgumentError(what + " must be a scalar, found shape " + ShapeText(tensor));
  if (IsNarrow(tensor.dtype())) {
    float wide = 0;
    WidenFloats(tensor.dtype(), tensor.data(), 0, 1, &wide);
    *value = static_cast<double>(wide);
  } else if (tensor.dtype() == tensorflow::DT_FLOAT) {
    *value = static_cast<double>(*DataSpan<float>(tensor).data());
  } else {
    *value = *DataSpan<double>(tensor).data();
  }
  return OkStatus();
}

double Norm(OpKernelContext* ctx, const Tensor& x) {
  double square = 0;
  WithWideType(x.dtype(), [&]<typename T>(T) {
    const T* from = DataSpan<T>(x).data();
    square = BlockSum(ctx, static_cast<size_t>(x.NumElements()),
                      [from](size_t begin, size_t count) { return SquareSum(from + begin, count, 0); });
  });
  return std::sqrt(square);
}

// LARS (lists) and LarsV2 (one pair, learning_rate).
class LarsOp : public OpKernel {
 public:
  explicit LarsOp(OpKernelConstruction* ctx) : OpKernel(ctx), single_(type_string() == "LarsV2") {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hyperpara", &hyperpara_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
    if (single_) OP_REQUIRES_OK(ctx, ctx->GetAttr("use_clip", &use_clip_));
  }

  void Compute(OpKernelContext* ctx) override {
    double decay = 0, rate = 1;
    const int pairs = single_ ? 1 : ctx->num_outputs();
    OP_REQUIRES_OK(ctx, ToTf(ReadScalar(name() + ": weight_decay", ctx->input(2 * pairs), &decay)));
    if (single_) OP_REQUIRES_OK(ctx, ToTf(ReadScalar(name() + ": learning_rate", ctx->input(3), &rate)));
    for (int i = 0; i < pairs; ++i) {
      const Tensor &w = ctx->input(i), &g = ctx->input(pairs + i);
      OP_REQUIRES(ctx, w.shape() == g.shape(),
                  ToTf(InvalidArgumentError(name() + ": weight and gradient " + std::to_string(i) + " must have one shape, found " +
                                            ShapeText(w) + " and " + ShapeText(g))));
      Tensor wide_w, wide_g;
      WideOutput out;
      OP_REQUIRES_OK(ctx, WidenTensor(ctx, w, &wide_w));
      OP_REQUIRES_OK(ctx, WidenTensor(ctx, g, &wide_g));
      OP_REQUIRES_OK(ctx, out.Allocate(ctx, i, g.shape()));
      const double scale = Scale(Norm(ctx, wide_w), Norm(ctx, wide_g), decay, rate);
      WithWideType(w.dtype(), [&]<typename T>(T) {
        const T *weights = DataSpan<T>(wide_w).data(), *gradient = DataSpan<T>(wide_g).data();
        ForBlocks(ctx, static_cast<size_t>(w.NumElements()), [&](size_t begin, size_t count) {
          LarsStep(weights + begin, gradient + begin, count, static_cast<T>(decay), static_cast<T>(scale), out.data<T>() + begin);
        });
      });
      out.Finish(ctx);
    }
  }

 private:
  double Scale(double w, double g, double decay, double rate) const {
    double scale = 1;
    if (w > 0 && g > 0) scale = static_cast<double>(hyperpara_) * w / (g + decay * w + static_cast<double>(epsilon_));
    return use_clip_ ? std::min(scale / rate, 1.0) : scale;
  }

  const bool single_;
  float hyperpara_ = 0, epsilon_ = 0;
  bool use_clip_ = false;
};

// AdamApplyOneAssign and AdamApplyOneWithDecayAssign, of v, m and the variable as refs or as resources.
class AdamOp : public OpKernel {
 public:
  explicit AdamOp(OpKernelConstruction* ctx)
      : OpKernel(ctx),
        resource_(type_string().starts_with("MxrecResource")),
        with_decay_(type_string().find("WithDecay") != std::string::npos) {}

  void Compute(OpKernelContext* ctx) override {
    AdamStep step{};
    double* const numbers[] = {
        &step.rate, &step.keep_m, &step.add_m, &step.keep_v, &step.add_v, with_decay_ ? &step.decay : nullptr, &step.epsilon};
    int input = 4;
    for (double* number : numbers) {
      if (number == nullptr) continue;
      OP_REQUIRES_OK(ctx, ToTf(ReadScalar(name() + ": input " + std::to_string(input), ctx->input(input), number)));
      ++input;
    }

    // The three states, locked in the order of their addresses.
    tensorflow::core::RefCountPtr<Var> variables[3];
    for (int i = 0; resource_ && i < 3; ++i) {
      OP_REQUIRES(ctx, tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, i + 1), &variables[i]).ok(),
                  NotInitialized(i + 1));
    }
    const auto lock_of = [&](int i) { return resource_ ? variables[i]->mu() : ctx->input_ref_mutex(i + 1); };
    std::array locks{lock_of(0), lock_of(1), lock_of(2)};
    std::sort(locks.begin(), locks.end(), std::less<>());
    OP_REQUIRES(ctx, std::adjacent_find(locks.begin(), locks.end()) == locks.end(),
                ToTf(InvalidArgumentError(name() + ": input1, input2 and input3 must be three variables")));
    const std::lock_guard first(*locks[0]), second(*locks[1]), third(*locks[2]);

    const Tensor& gradient = ctx->input(0);
    std::array<void*, 3> states{};
    for (int i = 0; i < 3; ++i) {
      Tensor state = resource_ ? *variables[i]->tensor() : ctx->mutable_input(i + 1, /*lock_held=*/true);
      const std::string what = name() + ": input" + std::to_string(i + 1);
      OP_REQUIRES(ctx, state.IsInitialized() && (!resource_ || variables[i]->is_initialized), NotInitialized(i + 1));
      OP_REQUIRES(ctx, state.dtype() == gradient.dtype() && state.shape() == gradient.shape(),
                  ToTf(InvalidArgumentError(what + " must have the gradient's type and shape " + ShapeText(gradient) + ", found " +
                                            tensorflow::DataTypeString(state.dtype()) + " " + ShapeText(state))));
      states[static_cast<size_t>(i)] = state.data();
    }
    // Who read a resource variable may hold its buffer: write to a new one then.
    for (int i = 0; resource_ && i < 3; ++i) {
      Tensor* state = variables[i]->tensor();
      if (state->RefCountIsOne()) continue;
      Tensor own;
      OP_REQUIRES_OK(ctx, ctx->allocate_temp(state->dtype(), state->shape(), &own));
      std::memcpy(own.data(), state->data(), state->TotalBytes());
      *state = own;
      states[static_cast<size_t>(i)] = state->data();
    }
    ForFloatBlocks<4, 3>(ctx, gradient.dtype(), {gradient.data(), states[0], states[1], states[2]}, states,
                         static_cast<size_t>(gradient.NumElements()),
                         [&](const auto& in, const auto& out, size_t begin, size_t count) {
                           for (size_t i = 0; i < 3; ++i) {
                             if (out[i] != in[i + 1]) std::memcpy(out[i], in[i + 1], count * sizeof(*out[i]));
                           }
                           AdamOneStep(step, in[0], count, out[0], out[1], out[2]);
                         });
    if (resource_) return;
    for (int i = 0; i < 3; ++i) ctx->forward_ref_input_to_ref_output(i + 1, i);
  }

 private:
  TfStatus NotInitialized(int input) const {
    return ToTf(FailedPreconditionError(name() + ": input" + std::to_string(input) + " is a variable that is not initialized"));
  }

  const bool resource_, with_decay_;
};

REGISTER_KERNEL_BUILDER(Name("LARS").Device(tensorflow::DEVICE_CPU), LarsOp);
REGISTER_KERNEL_BUILDER(Name("LarsV2").Device(tensorflow::DEVICE_CPU), LarsOp);
REGISTER_KERNEL_BUILDER(Name("AdamApplyOneAssign").Device(tensorflow::DEVICE_CPU), AdamOp);
REGISTER_KERNEL_BUILDER(Name("AdamApplyOneWithDecayAssign").Device(tensorflow::DEVICE_CPU), AdamOp);
REGISTER_KERNEL_BUILDER(Name("MxrecResourceAdamApplyOneAssign").Device(tensorflow::DEVICE_CPU), AdamOp);
REGISTER_KERNEL_BUILDER(Name("MxrecResourceAdamApplyOneWithDecayAssign").Device(tensorflow::DEVICE_CPU), AdamOp);

}  // namespace
}  // namespace mxrec
