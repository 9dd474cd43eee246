// The kernels of pooled lookups: TensorFlow's tensors to mxrec/kernels/pool_rows.h and clip_rows.h.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "mxrec/base/atomic_min.h"
#include "mxrec/kernels/clip_rows.h"
#include "mxrec/kernels/float_mode.h"
#include "mxrec/kernels/pool_rows.h"
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

constexpr size_t kMost = std::numeric_limits<int32_t>::max();

// What all kernels over bags share: the combiner, and the checks of their inputs.
class BagsOp : public OpKernel {
 public:
  explicit BagsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string combiner;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("combiner", &combiner));
    combiner_ = combiner == "sum" ? Combiner::kSum : combiner == "mean" ? Combiner::kMean : Combiner::kSqrtN;
  }

 protected:
  Status Wrong(const std::string& text) const { return InvalidArgumentError(name() + ": " + text); }

  Status Expect(const char* what, const Tensor& tensor, const std::string& shape, bool right) const {
    return right ? OkStatus() : Wrong(std::string(what) + " must have shape " + shape + ", found " + ShapeText(tensor));
  }

  // Inputs inverse, offsets and weights from `first` on. *narrow keeps offsets that had to be made int32.
  Status ReadBags(OpKernelContext* ctx, int first, Tensor* narrow, Bags* bags) const {
    const Tensor &inverse = ctx->input(first), &offsets = ctx->input(first + 1), &weights = ctx->input(first + 2);
    MXREC_RETURN_IF_ERROR(Expect("inverse", inverse, "[n]", inverse.dims() == 1));
    MXREC_RETURN_IF_ERROR(Expect("offsets", offsets, "[bags + 1]", offsets.dims() == 1 && offsets.NumElements() > 0));
    const int64_t n = inverse.NumElements(), given = weights.NumElements();
    MXREC_RETURN_IF_ERROR(
        Expect("weights", weights, "[0] or [" + std::to_string(n) + "]", weights.dims() == 1 && (given == 0 || given == n)));
    const auto count = static_cast<size_t>(offsets.NumElements() - 1), occurrences = static_cast<size_t>(n);
    if (count > kMost || occurrences > kMost) return Wrong("at most 2147483647 bags and ids");
    if (offsets.dtype() == tensorflow::DT_INT32) {
      const int32_t* from = DataSpan<int32_t>(offsets).data();
      MXREC_RETURN_IF_ERROR(CheckOffsetsOf(from, count, occurrences));
      bags->offsets = from;
    } else {
      const int64_t* from = DataSpan<int64_t>(offsets).data();
      MXREC_RETURN_IF_ERROR(CheckOffsetsOf(from, count, occurrences));
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(tensorflow::DT_INT32, offsets.shape(), narrow)));
      int32_t* to = MutableData<int32_t>(narrow);
      for (size_t b = 0; b <= count; ++b) to[b] = static_cast<int32_t>(from[b]);
      bags->offsets = to;
    }
    bags->count = count;
    bags->inverse = DataSpan<int32_t>(inverse).data();
    bags->occurrences = occurrences;
    bags->weights = given == 0 ? nullptr : DataSpan<float>(weights).data();
    bags->combiner = combiner_;
    return OkStatus();
  }

  // A gradient or result [bags, dim] fits.
  Status ExpectPooled(const char* what, const Tensor& tensor, const Bags& bags, const Tensor& rows) const {
    MXREC_RETURN_IF_ERROR(Expect("rows", rows, "[unique, dim]", rows.dims() == 2));
    const std::string shape = std::string("[").append(std::to_string(bags.count)) + "," + std::to_string(rows.dim_size(1)) + "]";
    return Expect(
        what, tensor, shape,
        tensor.dims() == 2 && tensor.dim_size(0) == static_cast<int64_t>(bags.count) && tensor.dim_size(1) == rows.dim_size(1));
  }

  // Runs body(begin, end) over ranges of bags with about 2,048 ids each; body returns as PoolRows does.
  template <typename Body>
  Status ForBags(OpKernelContext* ctx, const Bags& bags, size_t unique, const Body& body) const {
    const size_t each = std::max<size_t>(1, 2048 * bags.count / std::max<size_t>(1, std::max(bags.occurrences, bags.count)));
    std::atomic<size_t> first_bad{bags.occurrences};
    PoolExecutor executor(ctx);
    executor.ParallelFor((bags.count + each - 1) / each, [&](size_t range) {
      const ScopedIeeeFloat ieee;  // the result must not depend on the thread
      AtomicMin(&first_bad, body(range * each, std::min(bags.count, (range + 1) * each)));
    });
    return BadOccurrence(bags, first_bad, unique);
  }

  // OK when `bad` is the number of occurrences.
  Status BadOccurrence(const Bags& bags, size_t bad, size_t unique) const {
    if (bad == bags.occurrences) return OkStatus();
    return Wrong("inverse[" + std::to_string(bad) + "] is " + std::to_string(bags.inverse[bad]) + ", expected 0 <= inverse < " +
                 std::to_string(unique));
  }

 private:
  template <typename T>
  Status CheckOffsetsOf(const T* offsets, size_t count, size_t occurrences) const {
    const size_t bad = CheckOffsets(offsets, count, occurrences);
    if (bad > count) return OkStatus();
    return Wrong("offsets must begin with 0, never descend and end with the number of ids, " + std::to_string(occurrences) +
                 "; offsets[" + std::to_string(bad) + "] is " + std::to_string(offsets[bad]) +
                 (bad > 0 ? " after " + std::to_string(offsets[bad - 1]) : std::string()));
  }

  Combiner combiner_ = Combiner::kSum;
};

class PoolOp : public BagsOp {
 public:
  using BagsOp::BagsOp;

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    const Tensor& rows = ctx->input(0);
    OP_REQUIRES_OK(ctx, ToTf(Expect("rows", rows, "[unique, dim]", rows.dims() == 2)));
    Tensor narrow;
    Bags bags;
    OP_REQUIRES_OK(ctx, ToTf(ReadBags(ctx, 1, &narrow, &bags)));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({static_cast<int64_t>(bags.count), rows.dim_size(1)}), &output));
    const auto unique = static_cast<size_t>(rows.dim_size(0)), dim = static_cast<size_t>(rows.dim_size(1));
    OP_REQUIRES_OK(ctx, ToTf(ForBags(ctx, bags, unique, [&](size_t begin, size_t end) {
                     return PoolRows(DataSpan<float>(rows).data(), unique, dim, bags, begin, end, MutableData<float>(output));
                   })));
  }
};

class PoolGradientOp : public BagsOp {
 public:
  using BagsOp::BagsOp;

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    const Tensor &gradient = ctx->input(0), &rows = ctx->input(1);
    Tensor narrow;
    Bags bags;
    OP_REQUIRES_OK(ctx, ToTf(ReadBags(ctx, 2, &narrow, &bags)));
    OP_REQUIRES_OK(ctx, ToTf(ExpectPooled("gradient", gradient, bags, rows)));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, rows.shape(), &output));
    const auto unique = static_cast<size_t>(rows.dim_size(0)), dim = static_cast<size_t>(rows.dim_size(1));
    PoolExecutor executor(ctx);
    const size_t done =
        PoolRowsGradient(DataSpan<float>(gradient).data(), bags, unique, dim, &executor, MutableData<float>(output));
    OP_REQUIRES_OK(ctx, ToTf(BadOccurrence(bags, done, unique)));
  }
};

class PoolWeightGradientOp : public BagsOp {
 public:
  using BagsOp::BagsOp;

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    const Tensor &gradient = ctx->input(0), &pooled = ctx->input(1), &rows = ctx->input(2);
    Tensor narrow;
    Bags bags;
    OP_REQUIRES_OK(ctx, ToTf(ReadBags(ctx, 3, &narrow, &bags)));
    OP_REQUIRES_OK(ctx, ToTf(ExpectPooled("gradient", gradient, bags, rows)));
    OP_REQUIRES_OK(ctx, ToTf(ExpectPooled("pooled", pooled, bags, rows)));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(3).shape(), &output));
    const auto unique = static_cast<size_t>(rows.dim_size(0)), dim = static_cast<size_t>(rows.dim_size(1));
    OP_REQUIRES_OK(ctx, ToTf(ForBags(ctx, bags, unique, [&](size_t begin, size_t end) {
                     return PoolWeightGradient(DataSpan<float>(gradient).data(), DataSpan<float>(pooled).data(),
                                               DataSpan<float>(rows).data(), unique, dim, bags, begin, end,
                                               MutableData<float>(output));
                   })));
  }
};

class PoolSharesOp : public BagsOp {
 public:
  using BagsOp::BagsOp;

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    Tensor narrow;
    Bags bags;
    OP_REQUIRES_OK(ctx, ToTf(ReadBags(ctx, 0, &narrow, &bags)));
    Tensor *bag_of = nullptr, *shares = nullptr;
    const int64_t n = static_cast<int64_t>(bags.occurrences);
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({n}), &bag_of));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, TensorShape({UnitScales(bags) ? 0 : n}), &shares));
    OP_REQUIRES_OK(ctx, ToTf(ForBags(ctx, bags, 0, [&](size_t begin, size_t end) {
                     OccurrenceScales(bags, begin, end, MutableData<int32_t>(bag_of),
                                      UnitScales(bags) ? nullptr : MutableData<float>(shares));
                     return bags.occurrences;
                   })));
  }
};

class SparseOffsetsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    const Tensor &indices = ctx->input(0), &dense_shape = ctx->input(1), &weight_indices = ctx->input(2);
    OP_REQUIRES(ctx, indices.dims() == 2 && indices.dim_size(1) >= 2,
                Wrong("indices must have shape [n, rank] with rank >= 2, found " + ShapeText(indices)));
    const size_t rank = static_cast<size_t>(indices.dim_size(1)), n = static_cast<size_t>(indices.dim_size(0));
    OP_REQUIRES(ctx, dense_shape.dims() == 1 && dense_shape.NumElements() == static_cast<int64_t>(rank),
                Wrong("dense_shape must have shape [" + std::to_string(rank) + "], found " + ShapeText(dense_shape)));
    OP_REQUIRES(
        ctx, weight_indices.shape() == indices.shape(),
        Wrong("weights must have the indices of the ids: shapes " + ShapeText(weight_indices) + " and " + ShapeText(indices)));
    const int64_t *at = DataSpan<int64_t>(indices).data(), *other = DataSpan<int64_t>(weight_indices).data();
    const int64_t* shape = DataSpan<int64_t>(dense_shape).data();
    OP_REQUIRES(ctx, n <= kMost, Wrong("at most 2147483647 ids"));
    uint64_t rows = 1;
    for (size_t d = 0; d < rank; ++d) {
      OP_REQUIRES(ctx, shape[d] >= 0, Wrong("dense_shape[" + std::to_string(d) + "] is " + std::to_string(shape[d])));
      if (d + 1 == rank) break;
      // No product below overflows: both factors are below 2^31.
      OP_REQUIRES(ctx, shape[d] <= static_cast<int64_t>(kMost), Wrong("at most 2147483646 rows"));
      rows *= static_cast<uint64_t>(shape[d]);
      OP_REQUIRES(ctx, rows < kMost, Wrong("at most 2147483646 rows"));
    }
    if (other != at && n > 0 && std::memcmp(at, other, n * rank * sizeof(int64_t)) != 0) {
      size_t i = 0;
      while (at[i] == other[i]) ++i;
      ctx->SetStatus(Wrong("weights must have the indices of the ids, entry " + std::to_string(i / rank) + " differs"));
      return;
    }

    Tensor* offsets = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({static_cast<int64_t>(rows) + 1}), &offsets));
    int32_t* to = MutableData<int32_t>(offsets);
    uint64_t next = 0;  // the first row whose beginning is not written yet
    for (size_t i = 0; i < n; ++i, at += rank) {
      uint64_t row = 0;
      bool inside = true;
      for (size_t d = 0; d < rank; ++d) {
        inside = inside && at[d] >= 0 && at[d] < shape[d];
        if (d + 1 < rank) row = row * static_cast<uint64_t>(shape[d]) + static_cast<uint64_t>(at[d]);
      }
      OP_REQUIRES(ctx, inside, Wrong("the index of entry " + std::to_string(i) + " lies outside of the dense shape"));
      OP_REQUIRES(ctx, row + 1 >= next,
                  Wrong("entries must come in the order of rows: entry " + std::to_string(i) + " is of row " + std::to_string(row) +
                        " after row " + std::to_string(next - 1) + "; tf.sparse.reorder puts them in order"));
      for (; next <= row; ++next) to[next] = static_cast<int32_t>(i);
    }
    for (; next <= rows; ++next) to[next] = static_cast<int32_t>(n);
  }

 private:
  TfStatus Wrong(const std::string& text) const { return ToTf(InvalidArgumentError(name() + ": " + text)); }
};

// MxrecClipRows (rows) and MxrecClipRowsGradient (rows, gradient).
class ClipRowsOp : public OpKernel {
 public:
  explicit ClipRowsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_norm", &max_norm_));
    OP_REQUIRES(ctx, max_norm_ > 0,
                ToTf(InvalidArgumentError(name() + ": max_norm must be above 0, found " + std::to_string(max_norm_))));
  }

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    const bool backward = ctx->num_inputs() == 2;
    const Tensor &rows = ctx->input(0), &last = ctx->input(backward ? 1 : 0);
    OP_REQUIRES(ctx, rows.dims() == 2 && last.shape() == rows.shape(),
                ToTf(InvalidArgumentError(name() + ": rows and gradient must have one shape [unique, dim], found " +
                                          ShapeText(rows) + " and " + ShapeText(last))));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, rows.shape(), &output));
    const auto count = static_cast<size_t>(rows.dim_size(0)), dim = static_cast<size_t>(rows.dim_size(1));
    const size_t each = std::max<size_t>(64, (size_t{1} << 15) / std::max<size_t>(1, dim));
    PoolExecutor executor(ctx);
    executor.ParallelFor((count + each - 1) / each, [&](size_t range) {
      const ScopedIeeeFloat ieee;
      const size_t begin = range * each, length = std::min(each, count - begin);
      const float *from = DataSpan<float>(rows).data() + begin * dim, *gradient = DataSpan<float>(last).data() + begin * dim;
      float* to = MutableData<float>(output) + begin * dim;
      if (backward) {
        ClipRowsGradient(from, gradient, length, dim, max_norm_, to);
      } else {
        ClipRows(from, length, dim, max_norm_, to);
      }
    });
  }

 private:
  float max_norm_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("MxrecPool").Device(tensorflow::DEVICE_CPU), PoolOp);
REGISTER_KERNEL_BUILDER(Name("MxrecPoolGradient").Device(tensorflow::DEVICE_CPU), PoolGradientOp);
REGISTER_KERNEL_BUILDER(Name("MxrecPoolWeightGradient").Device(tensorflow::DEVICE_CPU), PoolWeightGradientOp);
REGISTER_KERNEL_BUILDER(Name("MxrecPoolShares").Device(tensorflow::DEVICE_CPU), PoolSharesOp);
REGISTER_KERNEL_BUILDER(Name("MxrecSparseOffsets").Device(tensorflow::DEVICE_CPU), SparseOffsetsOp);
REGISTER_KERNEL_BUILDER(Name("MxrecClipRows").Device(tensorflow::DEVICE_CPU), ClipRowsOp);
REGISTER_KERNEL_BUILDER(Name("MxrecClipRowsGradient").Device(tensorflow::DEVICE_CPU), ClipRowsOp);

}  // namespace
}  // namespace mxrec
