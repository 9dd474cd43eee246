// MxrecApply: the backward half of a training step, one op per table.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mxrec/optim/optimizer.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/pool_executor.h"
#include "tf/kernels/table_resource.h"

namespace mxrec {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// The inputs of one step, as named in the op.
struct Inputs {
  OpInputList hyper, keys, handles, counts, generations, first_rows, values, index, value_rows, scales;
};

// One lookup's share, its shapes checked.
Status MakePart(const EmbeddingTable& table, const Inputs& in, int p, bool dense, bool shared, UpdatePart* part) {
  const Tensor& keys = in.keys[p];
  const Tensor& values = in.values[p];
  const Tensor& index = in.index[p];
  const int64_t dim = table.dim();
  const std::string where = " of part " + std::to_string(p) + " of an apply";
  MXREC_RETURN_IF_ERROR(CheckShape(table, "keys" + where, keys, {-1}));
  const int64_t unique = keys.dim_size(0);
  MXREC_RETURN_IF_ERROR(CheckShape(table, "handles" + where, in.handles[p], {unique}));
  MXREC_RETURN_IF_ERROR(CheckShape(table, "counts" + where, in.counts[p], {unique}));
  MXREC_RETURN_IF_ERROR(CheckShape(table, "generation" + where, in.generations[p], {}));
  MXREC_RETURN_IF_ERROR(CheckShape(table, "first_rows" + where, in.first_rows[p], {unique, dim}));
  MXREC_RETURN_IF_ERROR(CheckShape(table, "index" + where, index, {dense ? 0 : -1}));
  const int64_t occurrences = index.dim_size(0), gradients = dense ? unique : shared ? -1 : occurrences;
  const Tensor &value_rows = in.value_rows[p], &scales = in.scales[p];
  MXREC_RETURN_IF_ERROR(CheckShape(table, "value_rows" + where, value_rows, {shared ? occurrences : 0}));
  MXREC_RETURN_IF_ERROR(CheckShape(table, "scales" + where, scales, {shared && scales.NumElements() > 0 ? occurrences : 0}));
  MXREC_RETURN_IF_ERROR(CheckShape(table, (dense ? "dense gradient" : "gradient") + where, values, {gradients, dim}));

  part->keys = KeySpan(keys);
  part->handles = DataSpan<uint32_t>(in.handles[p]);
  part->counts = DataSpan<uint32_t>(in.counts[p]);
  part->generation = static_cast<uint64_t>(*DataSpan<int64_t>(in.generations[p]).data());
  part->first_rows = DataSpan<float>(in.first_rows[p]).data();
  part->index = DataSpan<int32_t>(index);
  part->values = DataSpan<float>(values).data();
  part->dense = dense;
  if (!shared) return OkStatus();
  part->value_rows = DataSpan<int32_t>(value_rows);
  part->scales = DataSpan<float>(scales);
  part->value_count = static_cast<size_t>(values.dim_size(0));
  return OkStatus();
}

class ApplyOp : public OpKernel {
 public:
  explicit ApplyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string kind;
    std::vector<std::string> names;
    std::vector<float> values;
    int64_t parts = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("optimizer", &kind));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("option_names", &names));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("option_values", &values));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dense", &dense_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shared", &shared_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("P", &parts));
    OP_REQUIRES(ctx, names.size() == values.size(),
                ToTf(InvalidArgumentError("optimizer " + kind + ": " + std::to_string(names.size()) + " option names, but " +
                                          std::to_string(values.size()) + " values")));
    OP_REQUIRES(ctx, static_cast<int64_t>(dense_.size()) == parts && static_cast<int64_t>(shared_.size()) == parts,
                ToTf(InvalidArgumentError("attributes dense and shared: expected one entry per part, " + std::to_string(parts) +
                                          ", found " + std::to_string(dense_.size()) + " and " + std::to_string(shared_.size()))));
    for (size_t p = 0; p < dense_.size(); ++p) {
      OP_REQUIRES(ctx, !dense_[p] || !shared_[p],
                  ToTf(InvalidArgumentError("part " + std::to_string(p) + " of an apply cannot be both dense and shared")));
    }
    std::vector<OptimizerOption> options;
    for (size_t i = 0; i < names.size(); ++i) options.push_back({names[i], static_cast<double>(values[i])});
    Result<std::shared_ptr<const Optimizer>> optimizer = MakeOptimizer(kind, options);
    OP_REQUIRES_OK(ctx, ToTf(optimizer.status()));
    optimizer_ = *std::move(optimizer);
  }

  void Compute(OpKernelContext* ctx) override {
    TableRef resource;
    OP_REQUIRES_OK(ctx, FindTable(ctx, 0, &resource));
    EmbeddingTable& table = resource->table();

    Inputs in;
    OP_REQUIRES_OK(ctx, ctx->input_list("hyper", &in.hyper));
    OP_REQUIRES_OK(ctx, ctx->input_list("keys", &in.keys));
    OP_REQUIRES_OK(ctx, ctx->input_list("handles", &in.handles));
    OP_REQUIRES_OK(ctx, ctx->input_list("counts", &in.counts));
    OP_REQUIRES_OK(ctx, ctx->input_list("generations", &in.generations));
    OP_REQUIRES_OK(ctx, ctx->input_list("first_rows", &in.first_rows));
    OP_REQUIRES_OK(ctx, ctx->input_list("values", &in.values));
    OP_REQUIRES_OK(ctx, ctx->input_list("index", &in.index));
    OP_REQUIRES_OK(ctx, ctx->input_list("value_rows", &in.value_rows));
    OP_REQUIRES_OK(ctx, ctx->input_list("scales", &in.scales));

    std::vector<float> hyper;
    for (int i = 0; i < in.hyper.size(); ++i) {
      OP_REQUIRES_OK(ctx, ToTf(CheckShape(table, "hyperparameter " + std::to_string(i) + " of an apply", in.hyper[i], {})));
      hyper.push_back(*DataSpan<float>(in.hyper[i]).data());
    }
    std::vector<UpdatePart> parts(dense_.size());
    for (size_t p = 0; p < parts.size(); ++p) {
      OP_REQUIRES_OK(ctx, ToTf(MakePart(table, in, static_cast<int>(p), dense_[p], shared_[p], &parts[p])));
    }
    PoolExecutor executor(ctx);
    OP_REQUIRES_OK(ctx, ToTf(table.Apply(*optimizer_, hyper, parts, &executor)));
  }

 private:
  std::shared_ptr<const Optimizer> optimizer_;
  std::vector<bool> dense_, shared_;
};
REGISTER_KERNEL_BUILDER(Name("MxrecApply").Device(tensorflow::DEVICE_CPU), ApplyOp);

}  // namespace
}  // namespace mxrec
