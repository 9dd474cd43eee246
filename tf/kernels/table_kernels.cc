// Kernels of the table's methods: size, stats, find, export, insert, erase, evict, reset.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/env.h"
#include "tf/kernels/hcom_groups.h"
#include "tf/kernels/pool_executor.h"
#include "tf/kernels/step_watch.h"
#include "tf/kernels/table_resource.h"

namespace mxrec {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// The rank that owns a key of a table whose rows are spread over the ranks.
uint32_t OwnerIn(const HcomWorld& world, const EmbeddingTable& table, uint64_t key) {
  return OwnerOf(key, static_cast<uint32_t>(world.size), table.config().owner);
}

// Of a table whose rows are spread over ranks: the place of the first key that another rank owns.
std::optional<size_t> FirstOfOthers(const HcomWorld& world, const EmbeddingTable& table, std::span<const uint64_t> keys) {
  if (world.size == 1 || table.config().distribution != Distribution::kSharded) return std::nullopt;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (OwnerIn(world, table, keys[i]) != static_cast<uint32_t>(world.rank)) return i;
  }
  return std::nullopt;
}

// A kernel on one table.
class TableOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) final {
    const NotesFailure notes(ctx);
    TableRef resource;
    OP_REQUIRES_OK(ctx, FindTable(ctx, 0, &resource));
    OP_REQUIRES_OK(ctx, Run(ctx, resource->table()));
  }
  virtual TfStatus Run(OpKernelContext* ctx, EmbeddingTable& table) = 0;
};

// The same for work that may take long or wait for a save: it runs on a thread of its own, so it holds none of the session's.
class SlowTableOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) final {
    TableRef resource;
    OP_REQUIRES_OK_ASYNC(ctx, FindTable(ctx, 0, &resource), done);
    ctx->env()->SchedClosure([this, ctx, done = std::move(done), table = resource.release()] {
      {
        const TableRef held(table);
        if (TfStatus status = Run(ctx, held->table()); !status.ok()) ctx->SetStatus(status);
      }
      // done may end the session: the table is let go of before.
      done();
    });
  }
  virtual TfStatus Run(OpKernelContext* ctx, EmbeddingTable& table) = 0;
};

class ResetOp : public SlowTableOp {
 public:
  using SlowTableOp::SlowTableOp;
  TfStatus Run(OpKernelContext*, EmbeddingTable& table) override {
    table.Reset();
    return TfStatus();
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecTableReset").Device(tensorflow::DEVICE_CPU), ResetOp);

class SizeOp : public TableOp {
 public:
  using TableOp::TableOp;
  TfStatus Run(OpKernelContext* ctx, EmbeddingTable& table) override {
    return SetScalar(ctx, 0, static_cast<int64_t>(table.table().size()));
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecTableSize").Device(tensorflow::DEVICE_CPU), SizeOp);

class StatsOp : public SlowTableOp {
 public:
  using SlowTableOp::SlowTableOp;
  TfStatus Run(OpKernelContext* ctx, EmbeddingTable& table) override {
    Tensor* json = nullptr;
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({}), &json));
    json->scalar<tensorflow::tstring>()() = table.StatsJson();
    return TfStatus();
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecTableStats").Device(tensorflow::DEVICE_CPU), StatsOp);

class FindOp : public TableOp {
 public:
  explicit FindOp(OpKernelConstruction* ctx) : TableOp(ctx) { OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_)); }
  TfStatus Run(OpKernelContext* ctx, EmbeddingTable& table) override {
    MXREC_TF_RETURN_IF_ERROR(ToTf(CheckDim(table, dim_, "this find")));
    const Tensor& keys = ctx->input(1);
    MXREC_TF_RETURN_IF_ERROR(ToTf(CheckShape(table, "keys of a find", keys, {-1})));
    const HcomWorld world = GetHcomWorld();
    if (const std::optional<size_t> other = FirstOfOthers(world, table, KeySpan(keys)); other.has_value()) {
      const uint64_t key = KeySpan(keys)[*other];
      return ToTf(FailedPreconditionError("table \"" + table.name() + "\": rank " + std::to_string(OwnerIn(world, table, key)) +
                                          " owns id " + std::to_string(static_cast<int64_t>(key)) + ", this is rank " +
                                          std::to_string(world.rank) +
                                          ": read it there, or look it up with embedding_lookup on all ranks"));
    }
    Tensor *values = nullptr, *found = nullptr;
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({keys.dim_size(0), dim_}), &values));
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(1, keys.shape(), &found));
    PoolExecutor executor(ctx);
    table.table().Find(KeySpan(keys), MutableData<float>(values), MutableData<bool>(found), &executor);
    return TfStatus();
  }

 private:
  int64_t dim_ = 0;
};
REGISTER_KERNEL_BUILDER(Name("MxrecTableFind").Device(tensorflow::DEVICE_CPU), FindOp);

class ExportOp : public SlowTableOp {
 public:
  explicit ExportOp(OpKernelConstruction* ctx) : SlowTableOp(ctx) { OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_)); }
  TfStatus Run(OpKernelContext* ctx, EmbeddingTable& table) override {
    MXREC_TF_RETURN_IF_ERROR(ToTf(CheckDim(table, dim_, "this export")));
    const std::unique_ptr<Table::Snapshot> snapshot = table.table().TakeSnapshot();
    const int64_t rows = static_cast<int64_t>(snapshot->rows());
    Tensor *keys = nullptr, *values = nullptr;
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({rows}), &keys));
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(1, TensorShape({rows, dim_}), &values));

    uint64_t begin[kShardCount + 1] = {0};
    for (int s = 0; s < kShardCount; ++s) begin[s + 1] = begin[s] + snapshot->shard_rows(s);
    std::mutex mutex;
    Status failure;
    PoolExecutor executor(ctx);
    executor.ParallelFor(kShardCount, [&](size_t s) {
      uint64_t place = begin[s];
      Status status = snapshot->ForEachBlock(static_cast<int>(s), 4096, [&](const RowBlock& block) {
        std::copy_n(block.keys, block.count, MutableData<uint64_t>(keys) + place);
        std::copy_n(block.values, block.count * dim_, MutableData<float>(values) + place * dim_);
        place += block.count;
        return OkStatus();
      });
      if (status.ok()) return;
      const std::lock_guard<std::mutex> lock(mutex);
      if (failure.ok()) failure = std::move(status);
    });
    return ToTf(failure);
  }

 private:
  int64_t dim_ = 0;
};
REGISTER_KERNEL_BUILDER(Name("MxrecTableExport").Device(tensorflow::DEVICE_CPU), ExportOp);

class InsertOp : public SlowTableOp {
 public:
  using SlowTableOp::SlowTableOp;
  TfStatus Run(OpKernelContext* ctx, EmbeddingTable& table) override {
    const Tensor& keys = ctx->input(1);
    const Tensor& values = ctx->input(2);
    MXREC_TF_RETURN_IF_ERROR(ToTf(CheckShape(table, "keys of an insert", keys, {-1})));
    const int64_t dim = table.dim();
    const bool first_rows = values.dims() == 2 && values.dim_size(0) == 0;
    MXREC_TF_RETURN_IF_ERROR(ToTf(CheckShape(table, "values of an insert", values, {first_rows ? 0 : keys.dim_size(0), dim})));
    uint64_t inserted = 0;
    PoolExecutor executor(ctx);
    const HcomWorld world = GetHcomWorld();
    std::vector<uint64_t> own_keys;
    std::vector<float> own_values;
    std::span<const uint64_t> to_insert = KeySpan(keys);
    const float* rows = first_rows ? nullptr : DataSpan<float>(values).data();
    if (FirstOfOthers(world, table, to_insert).has_value()) {
      // Each rank inserts what it owns, so that all may be given the same list.
      for (size_t i = 0; i < to_insert.size(); ++i) {
        if (OwnerIn(world, table, to_insert[i]) != static_cast<uint32_t>(world.rank)) continue;
        own_keys.push_back(to_insert[i]);
        if (rows != nullptr) own_values.insert(own_values.end(), rows + i * dim, rows + (i + 1) * dim);
      }
      to_insert = own_keys;
      if (rows != nullptr) rows = own_values.data();
    }
    MXREC_TF_RETURN_IF_ERROR(ToTf(table.Insert(to_insert, rows, &executor, &inserted)));
    return SetScalar(ctx, 0, static_cast<int64_t>(inserted));
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecTableInsert").Device(tensorflow::DEVICE_CPU), InsertOp);

class EraseOp : public SlowTableOp {
 public:
  using SlowTableOp::SlowTableOp;
  TfStatus Run(OpKernelContext* ctx, EmbeddingTable& table) override {
    const Tensor& keys = ctx->input(1);
    MXREC_TF_RETURN_IF_ERROR(ToTf(CheckShape(table, "keys of an erase", keys, {-1})));
    return SetScalar(ctx, 0, static_cast<int64_t>(table.Erase(KeySpan(keys))));
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecTableErase").Device(tensorflow::DEVICE_CPU), EraseOp);

class EvictOp : public SlowTableOp {
 public:
  using SlowTableOp::SlowTableOp;
  TfStatus Run(OpKernelContext* ctx, EmbeddingTable& table) override {
    PoolExecutor executor(ctx);
    return SetScalar(ctx, 0, static_cast<int64_t>(table.EvictCold(&executor)));
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecTableEvict").Device(tensorflow::DEVICE_CPU), EvictOp);

}  // namespace
}  // namespace mxrec
