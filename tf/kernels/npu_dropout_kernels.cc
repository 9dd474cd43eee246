// The kernels of dropout: TensorFlow's tensors to mxrec/kernels/dropout.h.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "mxrec/kernels/dropout.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/util/guarded_philox_random.h"
#include "tf/keep_prob.h"
#include "tf/kernels/float_blocks.h"
#include "tf/kernels/strided_index.h"
#include "tf/kernels/table_resource.h"

namespace mxrec {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// A shape out of a vector of sizes.
Status ReadShape(const char* what, const Tensor& sizes, TensorShape* shape) {
  if (sizes.dims() != 1) return InvalidArgumentError(std::string(what) + " must have shape [rank], found " + ShapeText(sizes));
  const int64_t rank = sizes.NumElements();
  const TfStatus status =
      sizes.dtype() == tensorflow::DT_INT32
          ? tensorflow::TensorShapeUtils::MakeShape(DataSpan<int32_t>(sizes).data(), rank, shape)
          : tensorflow::TensorShapeUtils::MakeShape(reinterpret_cast<const int64_t*>(sizes.data()), rank, shape);
  if (status.ok()) return OkStatus();
  return InvalidArgumentError(std::string(what) + ": " + std::string(status.message()));
}

Status CheckMask(const Tensor& mask, int64_t elements) {
  if (mask.dims() == 1 && mask.NumElements() >= (elements + 7) / 8) return OkStatus();
  return InvalidArgumentError("mask must have shape [at least " + std::to_string((elements + 7) / 8) + "] for " +
                              std::to_string(elements) + " elements, found " + ShapeText(mask));
}

// The bytes of a mask: whole groups of 128 elements.
Status MaskBytes(int64_t elements, int64_t* bytes) {
  if (elements > std::numeric_limits<int64_t>::max() - 127) {
    return InvalidArgumentError("a mask of " + std::to_string(elements) + " elements is too large");
  }
  *bytes = (elements + 127) / 128 * 16;
  return OkStatus();
}

bool Bit(const uint8_t* mask, size_t i) { return (mask[i / 8] >> (i % 8) & 1) != 0; }

TfStatus Named(const OpKernel& op, const Status& status) {
  return status.ok() ? TfStatus() : ToTf(Status(status.code(), op.name() + ": " + std::string(status.message())));
}

class GenMaskOp : public OpKernel {
 public:
  explicit GenMaskOp(OpKernelConstruction* ctx) : OpKernel(ctx) { OP_REQUIRES_OK(ctx, generator_.Init(ctx)); }

  void Compute(OpKernelContext* ctx) override {
    TensorShape shape;
    double keep_prob = 0;
    int64_t bytes = 0;
    OP_REQUIRES_OK(ctx, Named(*this, ReadShape("shape", ctx->input(0), &shape)));
    OP_REQUIRES_OK(ctx, Named(*this, ReadKeepProb(ctx->input(1), &keep_prob)));
    OP_REQUIRES_OK(ctx, Named(*this, MaskBytes(shape.num_elements(), &bytes)));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({bytes}), &output));
    if (bytes == 0) return;

    const size_t groups = static_cast<size_t>(bytes) / 8, n = static_cast<size_t>(shape.num_elements());
    // Multiples of 16, so that no group's counters carry into the second word.
    const auto philox = generator_.ReserveSamples128(static_cast<int64_t>(groups) * 16);
    const auto& counter = philox.counter();
    const auto& key = philox.key();
    const auto wide = [](uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; };
    const DropoutStream stream{wide(key[0], key[1]), wide(counter[2], counter[3]), wide(counter[0], counter[1]),
                               DropoutThreshold(keep_prob)};
    uint8_t* mask = MutableData<uint8_t>(output);
    ForBlocks(ctx, groups * 64, [&](size_t begin, size_t count) { DropoutMask(stream, begin / 64, count / 64, mask + begin / 8); });
    if (n % 8 != 0) mask[n / 8] &= static_cast<uint8_t>((1u << (n % 8)) - 1);
    std::fill(mask + (n + 7) / 8, mask + bytes, uint8_t{0});
  }

 private:
  tensorflow::GuardedPhiloxRandom generator_;
};

class DoMaskOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor &x = ctx->input(0), &mask = ctx->input(1);
    double keep_prob = 0;
    OP_REQUIRES_OK(ctx, Named(*this, CheckMask(mask, x.NumElements())));
    OP_REQUIRES_OK(ctx, Named(*this, ReadKeepProb(ctx->input(2), &keep_prob)));
    const void* from = x.data();
    const auto n = static_cast<size_t>(x.NumElements());
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({0}, 0, x.shape(), &output));
    const uint8_t* bits = DataSpan<uint8_t>(mask).data();
    ForFloatBlocks<1, 1>(ctx, output->dtype(), {from}, {output->data()}, n,
                         [&](const auto& in, const auto& out, size_t begin, size_t count) {
                           using T = std::remove_pointer_t<std::decay_t<decltype(out[0])>>;
                           DropoutApply(in[0], bits + begin / 8, count, static_cast<T>(keep_prob), out[0]);
                         });
  }
};

class BroadcastMaskOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& mask = ctx->input(0);
    TensorShape noise, shape;
    int64_t bytes = 0;
    OP_REQUIRES_OK(ctx, Named(*this, ReadShape("noise_shape", ctx->input(1), &noise)));
    OP_REQUIRES_OK(ctx, Named(*this, ReadShape("shape", ctx->input(2), &shape)));
    OP_REQUIRES_OK(ctx, Named(*this, CheckMask(mask, noise.num_elements())));
    OP_REQUIRES_OK(ctx, Named(*this, MaskBytes(shape.num_elements(), &bytes)));
    const int behind = shape.dims() - noise.dims();
    bool fits = behind >= 0;
    for (int d = 0; fits && d < noise.dims(); ++d) {
      fits = noise.dim_size(d) == 1 || noise.dim_size(d) == shape.dim_size(behind + d);
    }
    OP_REQUIRES(ctx, fits,
                Named(*this, InvalidArgumentError("noise_shape " + noise.DebugString() + " does not broadcast to shape " +
                                                  shape.DebugString())));
    if (noise.num_elements() == shape.num_elements() && mask.NumElements() == bytes) {
      ctx->set_output(0, mask);
      return;
    }
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({bytes}), &output));
    uint8_t* to = MutableData<uint8_t>(output);
    std::fill(to, to + bytes, uint8_t{0});

    std::vector<size_t> sizes;
    std::vector<bool> own;
    for (int d = 0; d < shape.dims(); ++d) {
      sizes.push_back(static_cast<size_t>(shape.dim_size(d)));
      own.push_back(d >= behind && noise.dim_size(d - behind) != 1);
    }
    const StridedIndex index(sizes, own);
    const uint8_t* from = DataSpan<uint8_t>(mask).data();
    ForBlocks(ctx, static_cast<size_t>(shape.num_elements()), [&](size_t begin, size_t count) {  // blocks are whole bytes
      index.ForRuns(begin, begin + count, [&](size_t i, size_t run, size_t at, size_t stride) {
        for (size_t c = 0; c < run; ++c, at += stride) {
          if (Bit(from, at)) to[(i + c) / 8] |= static_cast<uint8_t>(1u << ((i + c) % 8));
        }
      });
    });
  }
};

class UnpackMaskOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& mask = ctx->input(0);
    TensorShape shape;
    OP_REQUIRES_OK(ctx, Named(*this, ReadShape("shape", ctx->input(1), &shape)));
    OP_REQUIRES_OK(ctx, Named(*this, CheckMask(mask, shape.num_elements())));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));
    const uint8_t* bits = DataSpan<uint8_t>(mask).data();
    const auto fill = [&](auto one) {
      auto* to = MutableData<decltype(one)>(output);
      ForBlocks(ctx, static_cast<size_t>(shape.num_elements()), [&](size_t begin, size_t count) {
        for (size_t i = begin; i < begin + count; ++i) to[i] = Bit(bits, i) ? one : decltype(one){0};
      });
    };
    switch (output->dtype()) {
      case tensorflow::DT_FLOAT:
        return fill(1.0f);
      case tensorflow::DT_HALF:
        return fill(FloatToHalf(1.0f));
      case tensorflow::DT_BFLOAT16:
        return fill(FloatToBFloat16(1.0f));
      default:
        return fill(uint8_t{1});
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("DropOutGenMask").Device(tensorflow::DEVICE_CPU), GenMaskOp);
REGISTER_KERNEL_BUILDER(Name("DropOutDoMask").Device(tensorflow::DEVICE_CPU), DoMaskOp);
REGISTER_KERNEL_BUILDER(Name("MxrecDropOutBroadcastMask").Device(tensorflow::DEVICE_CPU), BroadcastMaskOp);
REGISTER_KERNEL_BUILDER(Name("MxrecDropOutUnpackMask").Device(tensorflow::DEVICE_CPU), UnpackMaskOp);

}  // namespace
}  // namespace mxrec
