// The embedding hash-table operations of the original on tables of the engine: one EmbeddingTable for each table number, found in
// the session's ResourceMgr. Handles are the numbers themselves.
//
// Where the original ties a row's first values and moments to a slot of its hash table, these belong to the row: moments lie beside
// it, and a key's first row is chosen by its hash among the sampled ones. A full table is an error, not an unwritten row.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/base/hash.h"
#include "mxrec/engine/clock.h"
#include "mxrec/engine/embedding_table.h"
#include "mxrec/optim/optimizer.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/pool_executor.h"
#include "tf/kernels/table_resource.h"

namespace mxrec {

// The table of one number.
class HashMapResource : public tensorflow::ResourceBase {
 public:
  HashMapResource(int64_t number, int64_t bucket_size, int64_t dim) : number(number), bucket_size(bucket_size), dim(dim) {}
  std::string DebugString() const override { return name(); }
  std::string name() const { return "embedding hash table " + std::to_string(number); }

  // Makes the (empty) table anew. REQUIRES: the lock.
  Status Recreate(uint32_t filter) {
    EmbeddingTableConfig config;
    config.table.name = name();
    config.table.dim = static_cast<uint32_t>(dim);
    config.table.initializer = {InitializerSpec::Kind::kConstant, static_cast<double>(constant), 0.0};
    config.table.capacity_policy = CapacityPolicy::kError;
    config.table.capacity_rows = static_cast<uint64_t>(bucket_size);
    config.table.keep_counts = true;
    config.table.min_used_times = filter;
    MXREC_ASSIGN_OR_RETURN(table, EmbeddingTable::Create(std::move(config)));
    taken.assign(sampled.size() / static_cast<size_t>(dim), false);
    taken_count = 0;
    return OkStatus();
  }

  const int64_t number, bucket_size, dim;
  std::mutex mutex;  // protects all below; held over whole operations, which the engine would take one after the other anyway
  std::shared_ptr<EmbeddingTable> table;
  float constant = 0;
  std::vector<float> sampled;  // [rows, dim], or empty: constant
  std::vector<bool> taken;     // which of the sampled rows a key began with
  size_t taken_count = 0;
};

namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

using HashMapRef = tensorflow::core::RefCountPtr<HashMapResource>;

constexpr int64_t kMaxDim = 65536;        // as of mxrec.get_embedding_table
constexpr uint32_t kNoRow = 0x80000000u;  // handles from here on name no row (table.h)

std::string ResourceName(int64_t number) { return "mxrec/hash_map/" + std::to_string(number); }

Status OneElement(const char* what, const Tensor& tensor) {
  if (tensor.NumElements() == 1) return OkStatus();
  return InvalidArgumentError(std::string(what) + " must have one element, found shape " + ShapeText(tensor));
}

Status TableNumber(const Tensor& tensor, int64_t* number) {
  MXREC_RETURN_IF_ERROR(OneElement("a table's number or handle", tensor));
  *number = tensor.dtype() == tensorflow::DT_INT32 ? DataSpan<int32_t>(tensor)[0] : DataSpan<int64_t>(tensor)[0];
  return OkStatus();
}

TfStatus FindHashMap(OpKernelContext* ctx, int64_t number, HashMapRef* map) {
  HashMapResource* found = nullptr;
  tensorflow::ResourceMgr* manager = ctx->resource_manager();
  const TfStatus status = manager->Lookup<HashMapResource>(manager->default_container(), ResourceName(number), &found);
  if (absl::IsNotFound(status)) {
    return ToTf(FailedPreconditionError("embedding hash table " + std::to_string(number) +
                                        " is not in this session: run init_embedding_hashmap_v2 first"));
  }
  if (status.ok()) map->reset(found);
  return status;
}

// A kernel on the table of input 0, with the lock held. Sizes given as attributes are checked.
class HashMapOp : public OpKernel {
 public:
  explicit HashMapOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("bucket_size", &bucket_size_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("embedding_dim", &dim_));
  }

  void Compute(OpKernelContext* ctx) final {
    int64_t number = 0;
    OP_REQUIRES_OK(ctx, ToTf(TableNumber(ctx->input(0), &number)));
    HashMapRef map;
    OP_REQUIRES_OK(ctx, FindHashMap(ctx, number, &map));
    OP_REQUIRES_OK(ctx, ToTf(CheckSizes(*map)));
    const std::lock_guard<std::mutex> lock(map->mutex);
    OP_REQUIRES_OK(ctx, Run(ctx, map.get()));
  }
  virtual TfStatus Run(OpKernelContext* ctx, HashMapResource* map) = 0;

 protected:
  Status CheckSizes(const HashMapResource& map) const {
    if (map.bucket_size == bucket_size_ && map.dim == dim_) return OkStatus();
    return FailedPreconditionError(map.name() + " has bucket_size " + std::to_string(map.bucket_size) + " and embedding_dim " +
                                   std::to_string(map.dim) + ", but " + name() + " was built for " + std::to_string(bucket_size_) +
                                   " and " + std::to_string(dim_));
  }
  int64_t bucket_size_ = 0, dim_ = 0;
};

class InitMapOp : public OpKernel {
 public:
  explicit InitMapOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("bucket_size", &bucket_size_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("embedding_dim", &dim_));
    OP_REQUIRES(ctx, dim_ <= kMaxDim,
                ToTf(InvalidArgumentError(name() + ": embedding_dim must be at most " + std::to_string(kMaxDim) + ", found " +
                                          std::to_string(dim_))));
  }

  void Compute(OpKernelContext* ctx) override {
    int64_t number = 0;
    OP_REQUIRES_OK(ctx, ToTf(TableNumber(ctx->input(0), &number)));
    tensorflow::ResourceMgr* manager = ctx->resource_manager();
    HashMapResource* found = nullptr;
    OP_REQUIRES_OK(ctx, manager->LookupOrCreate<HashMapResource>(
                            manager->default_container(), ResourceName(number), &found, [&](HashMapResource** made) -> TfStatus {
                              HashMapRef fresh(new HashMapResource(number, bucket_size_, dim_));
                              MXREC_TF_RETURN_IF_ERROR(ToTf(fresh->Recreate(0)));
                              *made = fresh.release();
                              return TfStatus();
                            }));
    const HashMapRef map(found);
    OP_REQUIRES(ctx, map->bucket_size == bucket_size_ && map->dim == dim_,
                ToTf(FailedPreconditionError(map->name() + " is there with bucket_size " + std::to_string(map->bucket_size) +
                                             " and embedding_dim " + std::to_string(map->dim) + ", found " +
                                             std::to_string(bucket_size_) + " and " + std::to_string(dim_))));
    Tensor* handle = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(0).shape(), &handle));
    *MutableData<int64_t>(handle) = number;
  }

 private:
  int64_t bucket_size_ = 0, dim_ = 0;
};

class DeinitMapOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override {
    int64_t number = 0;
    OP_REQUIRES_OK(ctx, ToTf(TableNumber(ctx->input(0), &number)));
    tensorflow::ResourceMgr* manager = ctx->resource_manager();
    const TfStatus status = manager->Delete<HashMapResource>(manager->default_container(), ResourceName(number));
    if (!absl::IsNotFound(status)) OP_REQUIRES_OK(ctx, status);
  }
};

class MapHandleOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override {
    int64_t number = 0;
    OP_REQUIRES_OK(ctx, ToTf(TableNumber(ctx->input(0), &number)));
    HashMapRef map;
    OP_REQUIRES_OK(ctx, FindHashMap(ctx, number, &map));
    Tensor* handle = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(0).shape(), &handle));
    *MutableData<int64_t>(handle) = number;
  }
};

class InitRowsOp : public HashMapOp {
 public:
  explicit InitRowsOp(OpKernelConstruction* ctx) : HashMapOp(ctx) {
    std::string mode;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("initializer_mode", &mode));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("constant_value", &constant_));
    random_ = mode == "random";
  }

  TfStatus Run(OpKernelContext* ctx, HashMapResource* map) override {
    const Tensor& sampled = ctx->input(1);
    if (random_ && (sampled.dims() != 2 || sampled.dim_size(0) < 1 || sampled.dim_size(1) != dim_)) {
      return ToTf(InvalidArgumentError(map->name() + ": sampled_values must have shape [rows," + std::to_string(dim_) +
                                       "] with at least one row, found " + ShapeText(sampled)));
    }
    map->sampled.clear();
    if (random_) map->sampled.assign(DataSpan<float>(sampled).begin(), DataSpan<float>(sampled).end());
    map->constant = random_ ? 0.0f : constant_;
    return ToTf(map->Recreate(map->table->config().table.min_used_times));
  }

 private:
  bool random_ = true;
  float constant_ = 0;
};

// Rows are inserted and counted, and stay as they are.
class CountOnly final : public RowUpdater {
 public:
  Status Begin(SlotRecord*) override { return OkStatus(); }
  size_t UpdateRows(float* const*, const float* const*, size_t) const override { return 0; }
};

// What a lookup finds, in memory of its own.
struct Found {
  std::vector<float> rows;
  std::vector<uint64_t> keys;
  std::vector<uint32_t> handles, counts;
  std::vector<int32_t> inverse;
  uint64_t generation = 0;

  Status Run(EmbeddingTable* table, std::span<const uint64_t> ids, const LookupOptions& options, bool with_rows,
             Executor* executor) {
    inverse.resize(ids.size());
    return table->Lookup(
        ids, options, inverse.data(), nullptr,
        [&](size_t unique) -> Result<UniqueOutputs> {
          if (with_rows) rows.resize(unique * table->dim());
          keys.resize(unique);
          handles.resize(unique);
          counts.resize(unique);
          return UniqueOutputs{
              .rows = with_rows ? rows.data() : nullptr, .keys = keys.data(), .handles = handles.data(), .counts = counts.data()};
        },
        &generation, executor);
  }
};

class LookupOrInsertOp : public HashMapOp {
 public:
  explicit LookupOrInsertOp(OpKernelConstruction* ctx) : HashMapOp(ctx) {
    std::string mode;
    int64_t freq = 0;
    bool skip = false;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("filter_mode", &mode));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("filter_freq", &freq));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("default_key_or_value", &default_is_key_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("default_key", &default_key_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("default_value", &default_value_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("filter_key_flag", &skip));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("filter_key", &filter_key_));
    OP_REQUIRES(ctx, freq <= std::numeric_limits<int32_t>::max(),
                ToTf(InvalidArgumentError(name() + ": filter_freq is too large, found " + std::to_string(freq))));
    filter_ = mode == "counter" && freq > 1 ? static_cast<uint32_t>(freq) : 0;
    if (skip) skipped_.push_back(static_cast<uint64_t>(filter_key_));
  }

  TfStatus Run(OpKernelContext* ctx, HashMapResource* map) override {
    MXREC_TF_RETURN_IF_ERROR(ToTf(UseFilter(map)));
    Table& table = map->table->table();
    const Tensor& keys = ctx->input(1);
    TensorShape shape = keys.shape();
    shape.AddDim(dim_);
    Tensor* values = nullptr;
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(0, shape, &values));

    const auto dim = static_cast<size_t>(dim_);
    std::vector<float> default_row(dim, default_value_);
    if (default_is_key_) {
      std::vector<float> row(dim);
      bool present = false;
      const auto key = static_cast<uint64_t>(default_key_);
      table.Find({&key, 1}, row.data(), &present, nullptr);
      if (present) default_row = row;
    }
    Found found;
    PoolExecutor executor(ctx);
    LookupOptions options;
    options.default_row = default_row;
    options.never_trained = skipped_;
    MXREC_TF_RETURN_IF_ERROR(ToTf(found.Run(map->table.get(), KeySpan(keys), options, /*with_rows=*/true, &executor)));
    const std::vector<size_t> taken = TakeSampled(map, &found);

    UpdatePart part;
    part.keys = found.keys;
    part.handles = found.handles;
    part.counts = found.counts;
    part.generation = found.generation;
    part.first_rows = found.rows.data();
    CountOnly count_only;
    UpdateReport report;
    const Status status = table.Update({&part, 1}, &count_only, {.now_ms = NowMs()}, &executor, &report);
    if (!status.ok()) {
      for (const size_t row : taken) map->taken[row] = false;
      map->taken_count -= taken.size();
      return ToTf(status);
    }
    float* to = MutableData<float>(values);
    for (const int32_t u : found.inverse) to = std::copy_n(found.rows.data() + static_cast<size_t>(u) * dim, dim, to);
    return TfStatus();
  }

 private:
  // The first lookup of an empty table says what its filter is.
  Status UseFilter(HashMapResource* map) const {
    const uint32_t now = map->table->config().table.min_used_times;
    if (now == filter_) return OkStatus();
    const TableStats stats = map->table->table().stats();
    if (stats.rows == 0 && stats.candidates == 0) return map->Recreate(filter_);
    return FailedPreconditionError(map->name() + " is filled under filter_freq " + std::to_string(now) + ", but " + name() +
                                   " asks for " + std::to_string(filter_) + " (0: no filter)");
  }

  // Gives unseen keys sampled rows. Returns which; they count as taken.
  static std::vector<size_t> TakeSampled(HashMapResource* map, Found* found) {
    std::vector<size_t> chosen;
    const size_t dim = static_cast<size_t>(map->dim), n = map->taken.size();
    if (n == 0) return chosen;
    for (size_t u = 0; u < found->keys.size(); ++u) {
      if (found->handles[u] != kUnseen) continue;
      size_t row = Mix64(found->keys[u]) % n;
      if (map->taken_count < n) {
        while (map->taken[row]) row = row + 1 == n ? 0 : row + 1;
        map->taken[row] = true;
        ++map->taken_count;
        chosen.push_back(row);
      }
      std::copy_n(map->sampled.data() + row * dim, dim, found->rows.data() + u * dim);
    }
    return chosen;
  }

  bool default_is_key_ = false;
  int64_t default_key_ = 0, filter_key_ = -1;
  float default_value_ = 0;
  uint32_t filter_ = 0;
  std::vector<uint64_t> skipped_;
};

// AdamW with the powers of the op instead of the table's own.
class AdamWStep final : public RowUpdater {
 public:
  // start: what the slots of a row begin with.
  AdamWStep(const Optimizer& optimizer, std::span<const float> hyper, std::vector<float> powers, std::vector<float> start,
            size_t dim)
      : optimizer_(optimizer), hyper_(hyper), powers_(std::move(powers)), start_(std::move(start)), dim_(dim) {}

  Status Begin(SlotRecord* record) override {
    OptimizerState state{record->step, powers_};
    MXREC_RETURN_IF_ERROR(optimizer_.BeginStep(hyper_, &state, &constants_));
    powers_ = state.scalars;
    record->optimizer_kind = optimizer_.kind();
    record->slot_names = optimizer_.slot_names();
    record->slot_initial_values = start_;
    record->slot_widths = optimizer_.slot_widths(dim_);
    record->scalar_names = optimizer_.scalar_names();
    record->scalars = powers_;
    record->step = state.step;
    return OkStatus();
  }
  size_t UpdateRows(float* const* rows, const float* const* grads, size_t count) const override {
    return optimizer_.UpdateRows(constants_, {rows, grads, count, dim_});
  }
  const std::vector<float>& powers() const { return powers_; }

 private:
  const Optimizer& optimizer_;
  std::span<const float> hyper_;
  std::vector<float> powers_;
  const std::vector<float> start_;
  const size_t dim_;
  StepConstants constants_{};
};

class ApplyAdamWOp : public HashMapOp {
 public:
  explicit ApplyAdamWOp(OpKernelConstruction* ctx) : HashMapOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("maximize", &maximize_));
    bool amsgrad = false;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("amsgrad", &amsgrad));
    const OptimizerOption options[] = {{"amsgrad", amsgrad ? 1.0f : 0.0f}};
    Result<std::shared_ptr<const Optimizer>> optimizer = MakeOptimizer("adamw", options);
    OP_REQUIRES_OK(ctx, ToTf(optimizer.status()));
    optimizer_ = *std::move(optimizer);
  }

  TfStatus Run(OpKernelContext* ctx, HashMapResource* map) override {
    const Tensor &keys = ctx->input(1), &grad = ctx->input(11);
    const EmbeddingTable& table = *map->table;
    MXREC_TF_RETURN_IF_ERROR(ToTf(CheckShape(table, "keys of an AdamW step", keys, {-1})));
    const int64_t n = keys.dim_size(0);
    MXREC_TF_RETURN_IF_ERROR(ToTf(CheckShape(table, "gradient of an AdamW step", grad, {n, dim_})));
    std::vector<float> start;
    static constexpr const char* kMoments[] = {"m", "v", "max_grad_norm"};
    static constexpr int kInputs[] = {2, 3, 12};
    for (size_t i = 0; i < optimizer_->slot_names().size(); ++i) {
      if (kInputs[i] >= ctx->num_inputs()) {
        start.push_back(0);
        continue;
      }
      const std::span<const float> moments = DataSpan<float>(ctx->input(kInputs[i]));
      if (moments.empty() || std::any_of(moments.begin(), moments.end(), [&](float x) { return !(x == moments[0]); })) {
        return ToTf(InvalidArgumentError(map->name() + ": " + kMoments[i] +
                                         " must hold one value all over, what moments begin with: they are kept in the table"));
      }
      start.push_back(moments[0]);
    }
    static constexpr const char* kScalars[] = {"beta1_power", "beta2_power", "lr", "weight_decay", "beta1", "beta2", "epsilon"};
    float scalars[7];
    for (int i = 0; i < 7; ++i) {
      MXREC_TF_RETURN_IF_ERROR(ToTf(OneElement(kScalars[i], ctx->input(4 + i))));
      scalars[i] = DataSpan<float>(ctx->input(4 + i))[0];
    }

    // The keys that have rows, and their occurrences.
    Found found;
    PoolExecutor executor(ctx);
    LookupOptions options;
    options.mode = LookupMode::kPredict;
    MXREC_TF_RETURN_IF_ERROR(ToTf(found.Run(map->table.get(), KeySpan(keys), options, /*with_rows=*/false, &executor)));
    std::vector<int32_t> place(found.keys.size(), -1), index, value_rows;
    std::vector<uint64_t> present;
    std::vector<uint32_t> handles;
    for (size_t u = 0; u < found.keys.size(); ++u) {
      if (found.handles[u] >= kNoRow || found.keys[u] == ~uint64_t{0}) continue;
      place[u] = static_cast<int32_t>(present.size());
      present.push_back(found.keys[u]);
      handles.push_back(found.handles[u]);
    }
    for (size_t j = 0; j < found.inverse.size(); ++j) {
      const int32_t at = place[static_cast<size_t>(found.inverse[j])];
      if (at < 0) continue;
      index.push_back(at);
      value_rows.push_back(static_cast<int32_t>(j));
    }
    const std::vector<uint32_t> counts(present.size(), 0);  // an update is no use: lookups count
    const std::vector<float> scales(maximize_ ? index.size() : 0, -1.0f);
    UpdatePart part;
    part.keys = present;
    part.handles = handles;
    part.counts = counts;
    part.generation = found.generation;
    part.index = index;
    part.values = DataSpan<float>(grad).data();
    part.value_rows = value_rows;
    part.scales = scales;
    part.value_count = static_cast<size_t>(n);
    AdamWStep step(*optimizer_, {scalars + 2, 5}, {scalars[0], scalars[1]}, std::move(start), static_cast<size_t>(dim_));
    UpdateReport report;
    MXREC_TF_RETURN_IF_ERROR(ToTf(map->table->table().Update({&part, 1}, &step, {.now_ms = NowMs()}, &executor, &report)));
    ctx->set_output(0, ctx->input(2));
    ctx->set_output(1, ctx->input(3));
    for (int i = 0; i < 2; ++i) {
      Tensor* power = nullptr;
      MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(2 + i, ctx->input(4 + i).shape(), &power));
      *MutableData<float>(power) = step.powers()[static_cast<size_t>(i)];
    }
    return TfStatus();
  }

 private:
  bool maximize_ = false;
  std::shared_ptr<const Optimizer> optimizer_;
};

class ExportMapsOp : public OpKernel {
 public:
  explicit ExportMapsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("embedding_dims", &dims_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("filtered_export_flag", &rows_only_));
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList handles;
    OP_REQUIRES_OK(ctx, ctx->input_list("table_handles", &handles));
    for (int i = 0; i < handles.size(); ++i) OP_REQUIRES_OK(ctx, One(ctx, handles[i], handles.size(), i));
  }

 private:
  TfStatus One(OpKernelContext* ctx, const Tensor& handle, int n, int i) {
    int64_t number = 0;
    MXREC_TF_RETURN_IF_ERROR(ToTf(TableNumber(handle, &number)));
    HashMapRef map;
    MXREC_TF_RETURN_IF_ERROR(FindHashMap(ctx, number, &map));
    const std::lock_guard<std::mutex> lock(map->mutex);
    if (dims_[static_cast<size_t>(i)] != map->dim) {
      return ToTf(FailedPreconditionError(map->name() + " has embedding_dim " + std::to_string(map->dim) + ", but " + name() +
                                          " was built for " + std::to_string(dims_[static_cast<size_t>(i)])));
    }
    const std::unique_ptr<Table::Snapshot> snapshot = map->table->table().TakeSnapshot();
    const auto total = static_cast<int64_t>(snapshot->rows() + (rows_only_ ? 0 : snapshot->candidates()));
    const auto dim = static_cast<size_t>(map->dim);
    Tensor *keys = nullptr, *counters = nullptr, *flags = nullptr, *values = nullptr;
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(i, TensorShape({total}), &keys));
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(n + i, TensorShape({total}), &counters));
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(2 * n + i, TensorShape({total}), &flags));
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(3 * n + i, TensorShape({total, map->dim}), &values));
    size_t at = 0;
    for (int shard = 0; shard < kShardCount; ++shard) {
      MXREC_TF_RETURN_IF_ERROR(ToTf(snapshot->ForEachBlock(shard, 4096, [&](const RowBlock& block) {
        std::copy_n(block.keys, block.count, MutableData<uint64_t>(keys) + at);
        std::copy_n(block.use_counts, block.count, MutableData<uint64_t>(counters) + at);
        std::fill_n(MutableData<uint8_t>(flags) + at, block.count, uint8_t{1});
        std::copy_n(block.values, block.count * dim, MutableData<float>(values) + at * dim);
        at += block.count;
        return OkStatus();
      })));
    }
    for (int shard = 0; !rows_only_ && shard < kShardCount; ++shard) {
      MXREC_TF_RETURN_IF_ERROR(ToTf(snapshot->ForEachCandidate(shard, [&](std::span<const Candidate> candidates) {
        for (const Candidate& candidate : candidates) {
          MutableData<uint64_t>(keys)[at] = candidate.key;
          MutableData<uint64_t>(counters)[at] = candidate.count;
          MutableData<uint8_t>(flags)[at] = 0;
          std::fill_n(MutableData<float>(values) + at * dim, dim, 0.0f);
          ++at;
        }
        return OkStatus();
      })));
    }
    return TfStatus();
  }

  std::vector<int32_t> dims_;
  bool rows_only_ = false;
};

class ImportMapsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override {
    OpInputList handles, keys, counters, flags, values;
    OP_REQUIRES_OK(ctx, ctx->input_list("table_handles", &handles));
    OP_REQUIRES_OK(ctx, ctx->input_list("keys", &keys));
    OP_REQUIRES_OK(ctx, ctx->input_list("counters", &counters));
    OP_REQUIRES_OK(ctx, ctx->input_list("filter_flags", &flags));
    OP_REQUIRES_OK(ctx, ctx->input_list("values", &values));
    for (int i = 0; i < handles.size(); ++i) {
      OP_REQUIRES_OK(ctx, One(ctx, handles[i], keys[i], counters[i], flags[i], values[i]));
    }
  }

 private:
  static TfStatus One(OpKernelContext* ctx, const Tensor& handle, const Tensor& keys, const Tensor& counters, const Tensor& flags,
                      const Tensor& values) {
    int64_t number = 0;
    MXREC_TF_RETURN_IF_ERROR(ToTf(TableNumber(handle, &number)));
    HashMapRef map;
    MXREC_TF_RETURN_IF_ERROR(FindHashMap(ctx, number, &map));
    const std::lock_guard<std::mutex> lock(map->mutex);
    const EmbeddingTable& table = *map->table;
    MXREC_TF_RETURN_IF_ERROR(ToTf(CheckShape(table, "keys of an import", keys, {-1})));
    const int64_t n = keys.dim_size(0);
    const auto dim = static_cast<size_t>(map->dim);
    MXREC_TF_RETURN_IF_ERROR(ToTf(CheckShape(table, "counters of an import", counters, {n})));
    MXREC_TF_RETURN_IF_ERROR(ToTf(CheckShape(table, "filter_flags of an import", flags, {n})));
    if (values.dims() == 1) {
      MXREC_TF_RETURN_IF_ERROR(ToTf(CheckShape(table, "values of an import", values, {n * map->dim})));
    } else {
      MXREC_TF_RETURN_IF_ERROR(ToTf(CheckShape(table, "values of an import", values, {n, map->dim})));
    }
    const bool filters = table.config().table.min_used_times > 1;
    std::vector<uint64_t> row_keys;
    std::vector<uint32_t> row_counts;
    std::vector<float> row_values;
    std::vector<Candidate> candidates;
    const auto now = static_cast<uint64_t>(NowMs());
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(DataSpan<uint64_t>(counters)[i], 0xFFFFFFFFu));
      const uint64_t key = KeySpan(keys)[i];
      if (DataSpan<uint8_t>(flags)[i] == 0) {
        // Without a filter nothing waits: the key comes in with its first lookup.
        if (filters) candidates.push_back({key, count, now});
        continue;
      }
      row_keys.push_back(key);
      row_counts.push_back(count);
      const float* row = DataSpan<float>(values).data() + i * dim;
      row_values.insert(row_values.end(), row, row + dim);
    }
    if (row_keys.size() > static_cast<size_t>(map->bucket_size)) {
      return ToTf(ResourceExhaustedError(map->name() + ": an import of " + std::to_string(row_keys.size()) +
                                         " rows does not fit bucket_size " + std::to_string(map->bucket_size)));
    }
    Result<std::unique_ptr<Table::Loader>> loader =
        map->table->table().BeginLoad(SlotRecord(), row_keys.size(), static_cast<int64_t>(now));
    MXREC_TF_RETURN_IF_ERROR(ToTf(loader.status()));
    RowBlock block;
    block.count = row_keys.size();
    block.keys = row_keys.data();
    block.values = row_values.data();
    block.use_counts = row_counts.data();
    if (block.count > 0) MXREC_TF_RETURN_IF_ERROR(ToTf((*loader)->AddRows(block)));
    if (!candidates.empty()) MXREC_TF_RETURN_IF_ERROR(ToTf((*loader)->AddCandidates(candidates)));
    (*loader)->Commit();
    return TfStatus();
  }
};

class MapSizesOp : public OpKernel {
 public:
  explicit MapSizesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("filter_export_flag", &rows_only_));
  }
  void Compute(OpKernelContext* ctx) override {
    const Tensor& numbers = ctx->input(0);
    Tensor* sizes = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, numbers.shape(), &sizes));
    const bool narrow = numbers.dtype() == tensorflow::DT_INT32;
    for (int64_t i = 0; i < numbers.NumElements(); ++i) {
      const auto at = static_cast<size_t>(i);
      HashMapRef map;
      OP_REQUIRES_OK(ctx, FindHashMap(ctx, narrow ? DataSpan<int32_t>(numbers)[at] : DataSpan<int64_t>(numbers)[at], &map));
      const std::lock_guard<std::mutex> lock(map->mutex);
      const TableStats stats = map->table->table().stats();
      MutableData<int64_t>(sizes)[i] = static_cast<int64_t>(stats.rows + (rows_only_ ? 0 : stats.candidates));
    }
  }

 private:
  bool rows_only_ = false;
};

REGISTER_KERNEL_BUILDER(Name("InitEmbeddingHashmapV2").Device(tensorflow::DEVICE_CPU), InitMapOp);
REGISTER_KERNEL_BUILDER(Name("DeinitEmbeddingHashmapV2").Device(tensorflow::DEVICE_CPU), DeinitMapOp);
REGISTER_KERNEL_BUILDER(Name("TableToResourceV2").Device(tensorflow::DEVICE_CPU), MapHandleOp);
REGISTER_KERNEL_BUILDER(Name("InitEmbeddingHashTable").Device(tensorflow::DEVICE_CPU), InitRowsOp);
REGISTER_KERNEL_BUILDER(Name("EmbeddingHashTableLookupOrInsert").Device(tensorflow::DEVICE_CPU), LookupOrInsertOp);
REGISTER_KERNEL_BUILDER(Name("EmbeddingHashTableApplyAdamW").Device(tensorflow::DEVICE_CPU), ApplyAdamWOp);
REGISTER_KERNEL_BUILDER(Name("EmbeddingHashTableExport").Device(tensorflow::DEVICE_CPU), ExportMapsOp);
REGISTER_KERNEL_BUILDER(Name("EmbeddingHashTableImport").Device(tensorflow::DEVICE_CPU), ImportMapsOp);
REGISTER_KERNEL_BUILDER(Name("EmbeddingHashmapSize").Device(tensorflow::DEVICE_CPU), MapSizesOp);

}  // namespace
}  // namespace mxrec
