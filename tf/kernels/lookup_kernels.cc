// MxrecLookup and MxrecExpand: the forward half of a training step.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "mxrec/kernels/expand_rows.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tf/kernels/pool_executor.h"
#include "tf/kernels/table_resource.h"

namespace mxrec {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// ids as keys: int64 and uint64 as they lie in memory, int32 sign-extended into *widened.
TfStatus IdsAsKeys(OpKernelContext* ctx, const Tensor& ids, Tensor* widened, std::span<const uint64_t>* keys) {
  if (ids.dtype() != tensorflow::DT_INT32) {
    *keys = KeySpan(ids);
    return TfStatus();
  }
  MXREC_TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DT_INT64, ids.shape(), widened));
  const std::span<const int32_t> narrow = DataSpan<int32_t>(ids);
  std::copy(narrow.begin(), narrow.end(), MutableData<int64_t>(widened));
  *keys = KeySpan(*widened);
  return TfStatus();
}

class LookupOp : public OpKernel {
 public:
  explicit LookupOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    bool training = true;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("training", &training));
    mode_ = training ? LookupMode::kTrain : LookupMode::kPredict;
    std::vector<int64_t> never_trained;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("never_trained", &never_trained));
    never_trained_.assign(never_trained.begin(), never_trained.end());
  }

  void Compute(OpKernelContext* ctx) override {
    TableRef resource;
    OP_REQUIRES_OK(ctx, FindTable(ctx, 0, &resource));
    EmbeddingTable& table = resource->table();
    OP_REQUIRES_OK(ctx, ToTf(CheckDim(table, dim_, "this lookup")));

    const Tensor& ids = ctx->input(1);
    OP_REQUIRES(ctx, ids.NumElements() <= std::numeric_limits<int32_t>::max(),
                ToTf(InvalidArgumentError("table \"" + table.name() + "\": a lookup takes at most 2147483647 ids, found " +
                                          std::to_string(ids.NumElements()))));
    Tensor widened;
    std::span<const uint64_t> keys;
    OP_REQUIRES_OK(ctx, IdsAsKeys(ctx, ids, &widened, &keys));

    const Tensor& default_row = ctx->input(2);
    const int64_t wanted = default_row.NumElements() == 0 ? 0 : dim_;
    OP_REQUIRES_OK(ctx, ToTf(CheckShape(table, "default_row of a lookup", default_row, {wanted})));

    Tensor* inverse = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, ids.shape(), &inverse));
    // The engine writes straight into the output tensors, once it knows how many distinct ids there are.
    const auto outputs = [&](size_t unique) -> Result<UniqueOutputs> {
      const int64_t n = static_cast<int64_t>(unique);
      Tensor *rows = nullptr, *handles = nullptr, *unique_keys = nullptr, *counts = nullptr;
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(0, TensorShape({n, dim_}), &rows)));
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(2, TensorShape({n}), &handles)));
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(3, TensorShape({n}), &unique_keys)));
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(4, TensorShape({n}), &counts)));
      return UniqueOutputs{.rows = MutableData<float>(rows),
                           .keys = MutableData<uint64_t>(unique_keys),
                           .handles = MutableData<uint32_t>(handles),
                           .counts = MutableData<uint32_t>(counts)};
    };
    uint64_t generation = 0;
    PoolExecutor executor(ctx);
    const LookupOptions options = {.mode = mode_, .default_row = DataSpan<float>(default_row), .never_trained = never_trained_};
    OP_REQUIRES_OK(ctx, ToTf(table.Lookup(keys, options, MutableData<int32_t>(inverse), /*expanded=*/nullptr, outputs, &generation,
                                          &executor)));
    OP_REQUIRES_OK(ctx, SetScalar(ctx, 5, static_cast<int64_t>(generation)));
  }

 private:
  int64_t dim_ = 0;
  LookupMode mode_ = LookupMode::kTrain;
  std::vector<uint64_t> never_trained_;
};
REGISTER_KERNEL_BUILDER(Name("MxrecLookup").Device(tensorflow::DEVICE_CPU), LookupOp);

class ExpandOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& rows = ctx->input(0);
    const Tensor& inverse = ctx->input(1);
    OP_REQUIRES(ctx, rows.dims() == 2,
                ToTf(InvalidArgumentError(name() + ": rows must have shape [unique, dim], found " + ShapeText(rows))));
    TensorShape shape = inverse.shape();
    OP_REQUIRES_OK(ctx, shape.AddDimWithStatus(rows.dim_size(1)));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));

    const size_t unique = static_cast<size_t>(rows.dim_size(0));
    const size_t dim = static_cast<size_t>(rows.dim_size(1));
    const std::span<const int32_t> places = DataSpan<int32_t>(inverse);
    // Ranges of about 128 KiB of output: long enough to pay for a hand-over, short enough to share evenly.
    const size_t range = std::max<size_t>(256, (size_t{1} << 15) / std::max<size_t>(1, dim));
    const size_t ranges = (places.size() + range - 1) / range;
    std::atomic<size_t> first_bad{places.size()};
    PoolExecutor executor(ctx);
    executor.ParallelFor(ranges, [&](size_t r) {
      const size_t begin = r * range;
      const size_t count = std::min(range, places.size() - begin);
      const size_t done = ExpandRows(DataSpan<float>(rows).data(), unique, dim, places.data() + begin, count,
                                     MutableData<float>(output) + begin * dim);
      if (done == count) return;
      const size_t bad = begin + done;
      for (size_t seen = first_bad; bad < seen && !first_bad.compare_exchange_weak(seen, bad);) {
      }
    });
    const size_t bad = first_bad;
    OP_REQUIRES(ctx, bad == places.size(),
                ToTf(InvalidArgumentError(name() + ": inverse[" + std::to_string(bad) + "] is " +
                                          std::to_string(bad < places.size() ? places[bad] : 0) + ", expected 0 <= inverse < " +
                                          std::to_string(unique))));
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecExpand").Device(tensorflow::DEVICE_CPU), ExpandOp);

}  // namespace
}  // namespace mxrec
