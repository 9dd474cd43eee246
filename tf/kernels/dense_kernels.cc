// The kernels of tf/ops/dense_ops.cc: TensorFlow's tensors to mxrec/kernels/lstm_step.h and k_means.h.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "mxrec/kernels/k_means.h"
#include "mxrec/kernels/lstm_step.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/pool_executor.h"
#include "tf/kernels/step_watch.h"
#include "tf/kernels/table_resource.h"

namespace mxrec {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// InvalidArgument, naming op and input, unless the tensor has this shape. A size of -1 allows any.
Status Expect(const OpKernel& kernel, const char* what, const Tensor& tensor, std::initializer_list<int64_t> expected) {
  bool same = tensor.dims() == static_cast<int>(expected.size());
  std::string text;
  int i = 0;
  for (const int64_t size : expected) {
    if (i != 0) text += ',';
    text += size < 0 ? "?" : std::to_string(size);
    same = same && (size < 0 || tensor.dim_size(i) == size);
    ++i;
  }
  if (same) return OkStatus();
  return InvalidArgumentError(kernel.name() + ": " + what + " must have shape [" + text + "], found " + ShapeText(tensor));
}

template <typename T>
class BasicLstmCellOp : public OpKernel {
 public:
  explicit BasicLstmCellOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    float keep_prob = 1;
    std::string activation;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("forget_bias", &forget_bias_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("keep_prob", &keep_prob));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("activation", &activation));
    OP_REQUIRES(ctx, keep_prob == 1,
                ToTf(UnimplementedError(name() + ": keep_prob must be 1, found " + std::to_string(keep_prob))));
    OP_REQUIRES(ctx, activation == "tanh",
                ToTf(UnimplementedError(name() + ": activation must be tanh, found \"" + activation + "\"")));
  }

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    const Tensor &x = ctx->input(0), &b = ctx->input(4);
    OP_REQUIRES_OK(ctx, ToTf(Expect(*this, "x", x, {-1, -1})));
    OP_REQUIRES_OK(ctx, ToTf(Expect(*this, "b", b, {-1})));
    const int64_t batch = x.dim_size(0), inputs = x.dim_size(1), hidden = b.NumElements() / 4;
    OP_REQUIRES_OK(ctx, ToTf(Expect(*this, "b", b, {4 * hidden})));
    OP_REQUIRES_OK(ctx, ToTf(Expect(*this, "h", ctx->input(1), {batch, hidden})));
    OP_REQUIRES_OK(ctx, ToTf(Expect(*this, "c", ctx->input(2), {batch, hidden})));
    OP_REQUIRES_OK(ctx, ToTf(Expect(*this, "w", ctx->input(3), {inputs + hidden, 4 * hidden})));

    const float* in[5];
    std::vector<float> widened[5];
    for (int i = 0; i < 5; ++i) in[i] = AsFloats(ctx->input(i), &widened[i]);
    float* out[7];
    Tensor* outputs[7];
    std::vector<float> wide[7];
    for (int i = 0; i < 7; ++i) {
      OP_REQUIRES_OK(ctx, ctx->allocate_output(i, TensorShape({batch, hidden}), &outputs[i]));
      if constexpr (std::is_same_v<T, float>) {
        out[i] = MutableData<float>(outputs[i]);
      } else {
        wide[i].resize(static_cast<size_t>(batch * hidden));
        out[i] = wide[i].data();
      }
    }
    const LstmInputs step = {in[0],       in[1], in[2], in[3], in[4], static_cast<size_t>(inputs), static_cast<size_t>(hidden),
                             forget_bias_};
    const size_t rows = static_cast<size_t>(batch), each = 16;
    PoolExecutor executor(ctx);
    executor.ParallelFor((rows + each - 1) / each, [&](size_t part) {
      LstmStep(step, part * each, std::min(rows, (part + 1) * each), {out[0], out[1], out[2], out[3], out[4], out[5], out[6]});
    });
    if constexpr (!std::is_same_v<T, float>) {
      for (int i = 0; i < 7; ++i) {
        std::transform(wide[i].begin(), wide[i].end(), MutableData<T>(outputs[i]),
                       [](float value) { return static_cast<T>(value); });
      }
    }
  }

 private:
  static const float* AsFloats(const Tensor& tensor, std::vector<float>* widened) {
    if constexpr (std::is_same_v<T, float>) {
      return DataSpan<float>(tensor).data();
    } else {
      for (const T value : DataSpan<T>(tensor)) widened->push_back(static_cast<float>(value));
      return widened->data();
    }
  }

  float forget_bias_ = 1;
};

class KMeansCentroidsOp : public OpKernel {
 public:
  explicit KMeansCentroidsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_actual_distance", &actual_));
  }

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    const Tensor &x = ctx->input(0), &y = ctx->input(1), &of_y = ctx->input(2), &of_x = ctx->input(3);
    OP_REQUIRES_OK(ctx, ToTf(Expect(*this, "x", x, {-1, -1})));
    const int64_t n = x.dim_size(0), dim = x.dim_size(1);
    OP_REQUIRES_OK(ctx, ToTf(Expect(*this, "y", y, {-1, dim})));
    const int64_t k = y.dim_size(0);
    OP_REQUIRES(ctx, k >= 1, ToTf(InvalidArgumentError(name() + ": y must have at least one center, found none")));
    OP_REQUIRES(ctx, k <= std::numeric_limits<int32_t>::max(), ToTf(InvalidArgumentError(name() + ": too many centers")));
    OP_REQUIRES_OK(ctx, ToTf(Expect(*this, "sum_square_y", of_y, {1, k})));
    OP_REQUIRES_OK(ctx, ToTf(Expect(*this, "sum_square_x", of_x, {n, 1})));
    Tensor *sums = nullptr, *counts = nullptr, *total = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({k, dim}), &sums));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, TensorShape({k, 1}), &counts));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, TensorShape({1}), &total));
    const KMeansInputs in = {DataSpan<float>(x).data(),    DataSpan<float>(y).data(),
                             DataSpan<float>(of_y).data(), actual_ ? DataSpan<float>(of_x).data() : nullptr,
                             static_cast<size_t>(n),       static_cast<size_t>(k),
                             static_cast<size_t>(dim)};
    PoolExecutor executor(ctx);
    KMeansStep(in, &executor, MutableData<float>(sums), MutableData<float>(counts), MutableData<float>(total));
  }

 private:
  bool actual_ = false;
};

template <typename Index>
class ScatterElementsOp : public OpKernel {
 public:
  explicit ScatterElementsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("axis", &axis_));
    tensorflow::DataType type;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &type));
    element_ = tensorflow::DataTypeSize(type);
    OP_REQUIRES(ctx, element_ > 0,
                ToTf(InvalidArgumentError(name() + ": type " + tensorflow::DataTypeString(type) + " has no fixed size")));
  }

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    const Tensor &data = ctx->input(0), &indices = ctx->input(1), &updates = ctx->input(2);
    const int rank = data.dims();
    OP_REQUIRES(ctx, rank >= 1 && axis_ >= -rank && axis_ < rank,
                Wrong("axis must be at least -" + std::to_string(rank) + " and below " + std::to_string(rank) + ", found " +
                      std::to_string(axis_)));
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    bool inside = indices.dims() == rank && updates.shape() == indices.shape();
    for (int d = 0; inside && d < rank; ++d) inside = d == axis || indices.dim_size(d) <= data.dim_size(d);
    OP_REQUIRES(ctx, inside,
                Wrong("indices and updates must have one shape, of the rank of data and, but along axis " + std::to_string(axis) +
                      ", no larger than data; found indices " + ShapeText(indices) + ", updates " + ShapeText(updates) + ", data " +
                      ShapeText(data)));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, data.shape(), &y));
    char* to = static_cast<char*>(y->data());
    std::memcpy(to, data.data(), static_cast<size_t>(data.NumElements()) * element_);

    // `place` is the element of data at the coordinates, its own along axis left out.
    std::vector<int64_t> stride(rank, 1), at(rank, 0);
    for (int d = rank - 1; d > 0; --d) stride[d - 1] = stride[d] * data.dim_size(d);
    const Index* index = DataSpan<Index>(indices).data();
    const char* from = static_cast<const char*>(updates.data());
    const int64_t size = data.dim_size(axis), count = indices.NumElements();
    int64_t place = 0;
    for (int64_t i = 0; i < count; ++i, from += element_) {
      const int64_t given = index[i];
      OP_REQUIRES(ctx, given >= -size && given < size,
                  Wrong("indices[" + std::to_string(i) + "] is " + std::to_string(given) + ", expected at least " +
                        std::to_string(-size) + " and below " + std::to_string(size)));
      std::memcpy(to + static_cast<size_t>(place + (given < 0 ? given + size : given) * stride[axis]) * element_, from, element_);
      for (int d = rank - 1; d >= 0; --d) {
        if (d != axis) place += stride[d];
        if (++at[d] < indices.dim_size(d)) break;
        if (d != axis) place -= at[d] * stride[d];
        at[d] = 0;
      }
    }
  }

 private:
  TfStatus Wrong(const std::string& text) const { return ToTf(InvalidArgumentError(name() + ": " + text)); }

  int64_t axis_ = 0;
  size_t element_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("BasicLSTMCell").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("T"), BasicLstmCellOp<float>);
REGISTER_KERNEL_BUILDER(Name("BasicLSTMCell").Device(tensorflow::DEVICE_CPU).TypeConstraint<Eigen::half>("T"),
                        BasicLstmCellOp<Eigen::half>);
REGISTER_KERNEL_BUILDER(Name("KMeansCentroids").Device(tensorflow::DEVICE_CPU), KMeansCentroidsOp);
REGISTER_KERNEL_BUILDER(Name("ScatterElements").Device(tensorflow::DEVICE_CPU).TypeConstraint<int32_t>("Tindices"),
                        ScatterElementsOp<int32_t>);
REGISTER_KERNEL_BUILDER(Name("ScatterElements").Device(tensorflow::DEVICE_CPU).TypeConstraint<int64_t>("Tindices"),
                        ScatterElementsOp<int64_t>);

}  // namespace
}  // namespace mxrec
