// MxrecApply and MxrecApplyMany: the backward half of a training step, by table.
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mxrec/optim/optimizer.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/for_tables.h"
#include "tf/kernels/pool_executor.h"
#include "tf/kernels/step_watch.h"
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

// The share of the table's p-th lookup, its shapes checked; `first` is where the table's parts begin in the lists.
Status MakePart(const EmbeddingTable& table, const Inputs& in, int first, int p, bool dense, bool shared, UpdatePart* part) {
  // The text is made only where it is needed.
  const auto check = [&table, p](const char* what, const Tensor& tensor, std::initializer_list<int64_t> shape) {
    if (HasShape(tensor, shape)) return OkStatus();
    return CheckShape(table, std::string(what) + " of part " + std::to_string(p) + " of an apply", tensor, shape);
  };
  p += first;
  const Tensor& keys = in.keys[p];
  const Tensor& values = in.values[p];
  const Tensor& index = in.index[p];
  const int64_t dim = table.dim();
  MXREC_RETURN_IF_ERROR(check("keys", keys, {-1}));
  const int64_t unique = keys.dim_size(0);
  MXREC_RETURN_IF_ERROR(check("handles", in.handles[p], {unique}));
  MXREC_RETURN_IF_ERROR(check("counts", in.counts[p], {unique}));
  MXREC_RETURN_IF_ERROR(check("generation", in.generations[p], {}));
  MXREC_RETURN_IF_ERROR(check("first_rows", in.first_rows[p], {unique, dim}));
  MXREC_RETURN_IF_ERROR(check("index", index, {dense ? 0 : -1}));
  const int64_t occurrences = index.dim_size(0), gradients = dense ? unique : shared ? -1 : occurrences;
  const Tensor &value_rows = in.value_rows[p], &scales = in.scales[p];
  MXREC_RETURN_IF_ERROR(check("value_rows", value_rows, {shared ? occurrences : 0}));
  MXREC_RETURN_IF_ERROR(check("scales", scales, {shared && scales.NumElements() > 0 ? occurrences : 0}));
  MXREC_RETURN_IF_ERROR(check(dense ? "dense gradient" : "gradient", values, {gradients, dim}));

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

TfStatus ReadInputs(OpKernelContext* ctx, Inputs* in) {
  MXREC_TF_RETURN_IF_ERROR(ctx->input_list("hyper", &in->hyper));
  MXREC_TF_RETURN_IF_ERROR(ctx->input_list("keys", &in->keys));
  MXREC_TF_RETURN_IF_ERROR(ctx->input_list("handles", &in->handles));
  MXREC_TF_RETURN_IF_ERROR(ctx->input_list("counts", &in->counts));
  MXREC_TF_RETURN_IF_ERROR(ctx->input_list("generations", &in->generations));
  MXREC_TF_RETURN_IF_ERROR(ctx->input_list("first_rows", &in->first_rows));
  MXREC_TF_RETURN_IF_ERROR(ctx->input_list("values", &in->values));
  MXREC_TF_RETURN_IF_ERROR(ctx->input_list("index", &in->index));
  MXREC_TF_RETURN_IF_ERROR(ctx->input_list("value_rows", &in->value_rows));
  return ctx->input_list("scales", &in->scales);
}

// The attributes of one table's update, and where its inputs lie in the lists.
struct ApplySpec {
  std::shared_ptr<const Optimizer> optimizer;
  std::vector<bool> dense, shared;
  int first_hyper = 0, hypers = 0, first_part = 0;
};

Status MakeSpec(const std::string& kind, std::span<const std::string> names, std::span<const float> values, ApplySpec* spec) {
  if (names.size() != values.size()) {
    return InvalidArgumentError("optimizer " + kind + ": " + std::to_string(names.size()) + " option names, but " +
                                std::to_string(values.size()) + " values");
  }
  for (size_t p = 0; p < spec->dense.size(); ++p) {
    if (spec->dense[p] && spec->shared[p]) {
      return InvalidArgumentError("part " + std::to_string(p) + " of an apply cannot be both dense and shared");
    }
  }
  std::vector<OptimizerOption> options;
  for (size_t i = 0; i < names.size(); ++i) options.push_back({names[i], static_cast<double>(values[i])});
  MXREC_ASSIGN_OR_RETURN(spec->optimizer, MakeOptimizer(kind, options));
  return OkStatus();
}

// Updates the table of input t.
TfStatus Update(OpKernelContext* ctx, const ApplySpec& spec, const Inputs& in, int t, Executor* executor) {
  TableRef resource;
  MXREC_TF_RETURN_IF_ERROR(FindTable(ctx, t, &resource));
  EmbeddingTable& table = resource->table();
  std::vector<float> hyper;
  for (int i = 0; i < spec.hypers; ++i) {
    const Tensor& value = in.hyper[spec.first_hyper + i];
    MXREC_TF_RETURN_IF_ERROR(ToTf(CheckShape(table, "hyperparameter " + std::to_string(i) + " of an apply", value, {})));
    hyper.push_back(*DataSpan<float>(value).data());
  }
  std::vector<UpdatePart> parts(spec.dense.size());
  for (size_t p = 0; p < parts.size(); ++p) {
    MXREC_TF_RETURN_IF_ERROR(
        ToTf(MakePart(table, in, spec.first_part, static_cast<int>(p), spec.dense[p], spec.shared[p], &parts[p])));
  }
  return ToTf(table.Apply(*spec.optimizer, hyper, parts, executor));
}

class ApplyOp : public OpKernel {
 public:
  explicit ApplyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string kind;
    std::vector<std::string> names;
    std::vector<float> values;
    int64_t parts = 0, hypers = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("optimizer", &kind));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("option_names", &names));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("option_values", &values));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dense", &spec_.dense));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shared", &spec_.shared));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("H", &hypers));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("P", &parts));
    const size_t dense = spec_.dense.size(), shared = spec_.shared.size();
    OP_REQUIRES(ctx, static_cast<int64_t>(dense) == parts && static_cast<int64_t>(shared) == parts,
                ToTf(InvalidArgumentError("attributes dense and shared: expected one entry per part, " + std::to_string(parts) +
                                          ", found " + std::to_string(dense) + " and " + std::to_string(shared))));
    spec_.hypers = static_cast<int>(hypers);
    OP_REQUIRES_OK(ctx, ToTf(MakeSpec(kind, names, values, &spec_)));
  }

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    Inputs in;
    OP_REQUIRES_OK(ctx, ReadInputs(ctx, &in));
    PoolExecutor executor(ctx);
    OP_REQUIRES_OK(ctx, Update(ctx, spec_, in, 0, &executor));
  }

 private:
  ApplySpec spec_;
};
REGISTER_KERNEL_BUILDER(Name("MxrecApply").Device(tensorflow::DEVICE_CPU), ApplyOp);

class ApplyManyOp : public OpKernel {
 public:
  explicit ApplyManyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<std::string> kinds, option_names;
    std::vector<float> option_values;
    std::vector<int64_t> option_counts, hyper_counts, part_counts;
    std::vector<bool> dense, shared;
    int64_t parts = 0, hypers = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("names", &names_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("side_by_side", &side_by_side_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("optimizers", &kinds));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("option_names", &option_names));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("option_values", &option_values));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("option_counts", &option_counts));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hyper_counts", &hyper_counts));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("part_counts", &part_counts));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dense", &dense));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shared", &shared));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("H", &hypers));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("P", &parts));
    const size_t n = kinds.size(), all = static_cast<size_t>(parts);
    OP_REQUIRES(ctx,
                names_.size() == n && option_names.size() == option_values.size() &&
                    SumOf(option_counts, n) == option_names.size() && SumOf(hyper_counts, n) == static_cast<size_t>(hypers) &&
                    SumOf(part_counts, n) == all && dense.size() == all && shared.size() == all,
                ToTf(InvalidArgumentError(name() + ": attributes must have one entry for each table, " + std::to_string(n) +
                                          ", and their counts must add up")));
    size_t option = 0, hyper = 0, part = 0;
    for (size_t t = 0; t < n; ++t) {
      const auto options = static_cast<size_t>(option_counts[t]), own = static_cast<size_t>(part_counts[t]);
      ApplySpec& spec = specs_.emplace_back();
      spec.first_hyper = static_cast<int>(hyper);
      spec.hypers = static_cast<int>(hyper_counts[t]);
      spec.first_part = static_cast<int>(part);
      spec.dense.assign(dense.begin() + part, dense.begin() + part + own);
      spec.shared.assign(shared.begin() + part, shared.begin() + part + own);
      OP_REQUIRES_OK(ctx, ToTf(MakeSpec(kinds[t], std::span(option_names).subspan(option, options),
                                        std::span(option_values).subspan(option, options), &spec)));
      option += options;
      hyper += static_cast<size_t>(hyper_counts[t]);
      part += own;
    }
  }

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    Inputs in;
    OP_REQUIRES_OK(ctx, ReadInputs(ctx, &in));
    PoolExecutor executor(ctx);
    InlineExecutor one_by_one;
    Executor* tables = side_by_side_ ? static_cast<Executor*>(&executor) : &one_by_one;
    ForTables(ctx, names_, tables, [&](int t) { return Update(ctx, specs_[t], in, t, &executor); });
  }

 private:
  std::vector<std::string> names_;
  std::vector<ApplySpec> specs_;
  bool side_by_side_ = true;
};
REGISTER_KERNEL_BUILDER(Name("MxrecApplyMany").Device(tensorflow::DEVICE_CPU), ApplyManyOp);

}  // namespace
}  // namespace mxrec
