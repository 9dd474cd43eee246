// MxrecLookup, MxrecLookupReceived, MxrecLookupMany and MxrecExpand: the forward half of a training step.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "mxrec/base/atomic_min.h"
#include "mxrec/kernels/expand_rows.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tf/kernels/for_tables.h"
#include "tf/kernels/id_keys.h"
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

// The attributes of one lookup.
struct LookupSpec {
  int64_t dim = 0;
  LookupMode mode = LookupMode::kTrain;
  std::vector<uint64_t> never_trained;
  int occurrences_input = -1;  // says how often each id counts; -1: once
};

// The lookup that is the t-th of n in its op: its inputs (table, ids, default row) and outputs lie n apart.
TfStatus LookUp(OpKernelContext* ctx, const LookupSpec& spec, int n, int t, Executor* executor) {
  TableRef resource;
  MXREC_TF_RETURN_IF_ERROR(FindTable(ctx, t, &resource));
  EmbeddingTable& table = resource->table();
  MXREC_TF_RETURN_IF_ERROR(ToTf(CheckDim(table, spec.dim, "this lookup")));

  const Tensor& ids = ctx->input(n + t);
  if (ids.NumElements() > std::numeric_limits<int32_t>::max()) {
    return ToTf(InvalidArgumentError("table \"" + table.name() + "\": a lookup takes at most 2147483647 ids, found " +
                                     std::to_string(ids.NumElements())));
  }
  Tensor widened;
  std::span<const uint64_t> keys;
  MXREC_TF_RETURN_IF_ERROR(IdsAsKeys(ctx, ids, &widened, &keys));

  const Tensor& default_row = ctx->input(2 * n + t);
  const int64_t wanted = default_row.NumElements() == 0 ? 0 : spec.dim;
  MXREC_TF_RETURN_IF_ERROR(ToTf(CheckShape(table, "default_row of a lookup", default_row, {wanted})));

  Tensor* inverse = nullptr;
  MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(n + t, ids.shape(), &inverse));
  // The engine writes straight into the output tensors, once it knows how many distinct ids there are.
  const auto outputs = [&](size_t unique) -> Result<UniqueOutputs> {
    const int64_t u = static_cast<int64_t>(unique);
    Tensor *rows = nullptr, *handles = nullptr, *unique_keys = nullptr, *counts = nullptr;
    MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(t, TensorShape({u, spec.dim}), &rows)));
    MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(2 * n + t, TensorShape({u}), &handles)));
    MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(3 * n + t, TensorShape({u}), &unique_keys)));
    MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(4 * n + t, TensorShape({u}), &counts)));
    return UniqueOutputs{.rows = MutableData<float>(rows),
                         .keys = MutableData<uint64_t>(unique_keys),
                         .handles = MutableData<uint32_t>(handles),
                         .counts = MutableData<uint32_t>(counts)};
  };
  uint64_t generation = 0;
  LookupOptions options = {
      .mode = spec.mode, .default_row = DataSpan<float>(default_row), .never_trained = spec.never_trained, .occurrences = {}};
  if (spec.occurrences_input >= 0) options.occurrences = DataSpan<uint32_t>(ctx->input(spec.occurrences_input));
  MXREC_TF_RETURN_IF_ERROR(
      ToTf(table.Lookup(keys, options, MutableData<int32_t>(inverse), /*expanded=*/nullptr, outputs, &generation, executor)));
  return SetScalar(ctx, 5 * n + t, static_cast<int64_t>(generation));
}

// Output `index` becomes the row of every entry of `inverse`. `name` is the node's, for errors.
TfStatus Expand(OpKernelContext* ctx, const std::string& name, const Tensor& rows, const Tensor& inverse, int index,
                Executor* executor) {
  if (rows.dims() != 2) {
    return ToTf(InvalidArgumentError(name + ": rows must have shape [unique, dim], found " + ShapeText(rows)));
  }
  TensorShape shape = inverse.shape();
  MXREC_TF_RETURN_IF_ERROR(shape.AddDimWithStatus(rows.dim_size(1)));
  Tensor* output = nullptr;
  MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(index, shape, &output));

  const size_t unique = static_cast<size_t>(rows.dim_size(0));
  const size_t dim = static_cast<size_t>(rows.dim_size(1));
  const std::span<const int32_t> places = DataSpan<int32_t>(inverse);
  // Ranges of about 128 KiB of output: long enough to pay for a hand-over, short enough to share evenly.
  const size_t range = std::max<size_t>(256, (size_t{1} << 15) / std::max<size_t>(1, dim));
  const size_t ranges = (places.size() + range - 1) / range;
  std::atomic<size_t> first_bad{places.size()};
  executor->ParallelFor(ranges, [&](size_t r) {
    const size_t begin = r * range;
    const size_t count = std::min(range, places.size() - begin);
    const size_t done = ExpandRows(DataSpan<float>(rows).data(), unique, dim, places.data() + begin, count,
                                   MutableData<float>(output) + begin * dim);
    if (done != count) AtomicMin(&first_bad, begin + done);
  });
  const size_t bad = first_bad;
  if (bad == places.size()) return TfStatus();
  return ToTf(InvalidArgumentError(name + ": inverse[" + std::to_string(bad) + "] is " + std::to_string(places[bad]) +
                                   ", expected 0 <= inverse < " + std::to_string(unique)));
}

class LookupOp : public OpKernel {
 public:
  explicit LookupOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    bool training = true;
    std::vector<int64_t> never_trained;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &spec_.dim));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("training", &training));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("never_trained", &never_trained));
    spec_.mode = training ? LookupMode::kTrain : LookupMode::kPredict;
    spec_.never_trained.assign(never_trained.begin(), never_trained.end());
    if (type_string() == "MxrecLookupReceived") spec_.occurrences_input = 3;
  }

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    PoolExecutor executor(ctx);
    OP_REQUIRES_OK(ctx, LookUp(ctx, spec_, 1, 0, &executor));
  }

 private:
  LookupSpec spec_;
};
REGISTER_KERNEL_BUILDER(Name("MxrecLookup").Device(tensorflow::DEVICE_CPU), LookupOp);
REGISTER_KERNEL_BUILDER(Name("MxrecLookupReceived").Device(tensorflow::DEVICE_CPU), LookupOp);

class LookupManyOp : public OpKernel {
 public:
  explicit LookupManyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<int64_t> dims, never_trained, never_trained_counts;
    std::vector<bool> training;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("names", &names_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("training", &training));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("never_trained", &never_trained));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("never_trained_counts", &never_trained_counts));
    std::vector<int64_t> expanded_of;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("expanded_of", &expanded_of));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("side_by_side", &side_by_side_));
    const size_t n = dims.size();
    OP_REQUIRES(ctx, names_.size() == n && training.size() == n && SumOf(never_trained_counts, n) == never_trained.size(),
                ToTf(InvalidArgumentError(name() + ": attributes must have one entry for each lookup, " + std::to_string(n))));
    auto next = never_trained.begin();
    for (size_t t = 0; t < n; ++t) {
      LookupSpec& spec = specs_.emplace_back();
      spec.dim = dims[t];
      spec.mode = training[t] ? LookupMode::kTrain : LookupMode::kPredict;
      spec.never_trained.assign(next, next + never_trained_counts[t]);
      next += never_trained_counts[t];
    }
    expanded_.assign(n, -1);
    for (size_t e = 0; e < expanded_of.size(); ++e) {
      const int64_t t = expanded_of[e];
      OP_REQUIRES(ctx, t >= 0 && t < static_cast<int64_t>(n) && expanded_[t] < 0,
                  ToTf(InvalidArgumentError(name() + ": attribute expanded_of must name different lookups below " +
                                            std::to_string(n) + ", found " + std::to_string(t))));
      expanded_[t] = static_cast<int>(kLookupOutputs * n + e);
    }
  }

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    const int n = static_cast<int>(specs_.size());
    PoolExecutor executor(ctx);
    InlineExecutor one_by_one;
    Executor* tables = side_by_side_ ? static_cast<Executor*>(&executor) : &one_by_one;
    ForTables(ctx, names_, tables, [&](int t) -> TfStatus {
      MXREC_TF_RETURN_IF_ERROR(LookUp(ctx, specs_[t], n, t, &executor));
      if (expanded_[t] < 0) return TfStatus();
      return Expand(ctx, name(), *ctx->mutable_output(t), *ctx->mutable_output(n + t), expanded_[t], &executor);
    });
  }

 private:
  static constexpr size_t kLookupOutputs = 6;

  std::vector<std::string> names_;
  std::vector<LookupSpec> specs_;
  std::vector<int> expanded_;  // the output with each lookup's rows by occurrence; -1: none
  bool side_by_side_ = true;
};
REGISTER_KERNEL_BUILDER(Name("MxrecLookupMany").Device(tensorflow::DEVICE_CPU), LookupManyOp);

class ExpandOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    PoolExecutor executor(ctx);
    OP_REQUIRES_OK(ctx, Expand(ctx, name(), ctx->input(0), ctx->input(1), 0, &executor));
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecExpand").Device(tensorflow::DEVICE_CPU), ExpandOp);

}  // namespace
}  // namespace mxrec
