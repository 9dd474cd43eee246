// Ids to small numbers: dense numbers for sparse ids (on a table of the engine), the places of sharded rows, a cache of ids.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/engine/clock.h"
#include "mxrec/engine/embedding_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/lru_index.h"
#include "tf/kernels/step_watch.h"
#include "tf/kernels/table_resource.h"

namespace mxrec {

// A table whose rows are one number each, kept by its bits: tables copy first rows and never compute with them here.
class FeatureMappingResource : public tensorflow::ResourceBase {
 public:
  FeatureMappingResource(std::shared_ptr<EmbeddingTable> table, int64_t threshold)
      : table(std::move(table)), threshold(threshold) {}
  std::string DebugString() const override { return table->name(); }

  const std::shared_ptr<EmbeddingTable> table;
  const int64_t threshold;
  std::mutex mutex;
  int32_t next = 0;  // under mutex
};

class LruCacheResource : public tensorflow::ResourceBase {
 public:
  explicit LruCacheResource(size_t places) : index(places) {}
  std::string DebugString() const override { return "cache of " + std::to_string(index.places()) + " ids"; }

  std::mutex mutex;
  LruIndex index;  // under mutex
};

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class CountOnly final : public RowUpdater {
 public:
  Status Begin(SlotRecord*) override { return OkStatus(); }
  size_t UpdateRows(float* const*, const float* const*, size_t) const override { return 0; }
};

class FeatureMappingOp : public OpKernel {
 public:
  explicit FeatureMappingOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("threshold", &threshold_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table_name", &table_name_));
    OP_REQUIRES(ctx, threshold_ <= 0x7FFFFFFF,
                ToTf(InvalidArgumentError(name() + ": threshold is too large, found " + std::to_string(threshold_))));
  }

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    tensorflow::ResourceMgr* manager = ctx->resource_manager();
    FeatureMappingResource* found = nullptr;
    OP_REQUIRES_OK(ctx, manager->LookupOrCreate<FeatureMappingResource>(
                            manager->default_container(), "mxrec/feature_mapping/" + table_name_, &found,
                            [this](FeatureMappingResource** made) -> TfStatus {
                              EmbeddingTableConfig config;
                              config.table.name = "feature mapping " + table_name_;
                              config.table.dim = 1;
                              config.table.initializer = {InitializerSpec::Kind::kConstant, 0.0, 0.0};
                              config.table.keep_counts = threshold_ > 1;
                              config.table.min_used_times = static_cast<uint32_t>(threshold_ > 1 ? threshold_ : 0);
                              Result<std::shared_ptr<EmbeddingTable>> table = EmbeddingTable::Create(std::move(config));
                              if (!table.ok()) return ToTf(table.status());
                              *made = new FeatureMappingResource(*std::move(table), threshold_);
                              return TfStatus();
                            }));
    const tensorflow::core::ScopedUnref held(found);
    OP_REQUIRES(ctx, found->threshold == threshold_,
                ToTf(FailedPreconditionError(found->table->name() + " is there with threshold " + std::to_string(found->threshold) +
                                             ", found " + std::to_string(threshold_))));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(0).shape(), &output));
    const std::lock_guard<std::mutex> lock(found->mutex);
    OP_REQUIRES_OK(ctx, ToTf(Map(found, KeySpan(ctx->input(0)), MutableData<int32_t>(output))));
  }

 private:
  static Status Map(FeatureMappingResource* map, std::span<const uint64_t> ids, int32_t* numbers) {
    const float none = std::bit_cast<float>(int32_t{-1});
    std::vector<float> rows;
    std::vector<uint64_t> keys;
    std::vector<uint32_t> handles, counts;
    std::vector<int32_t> inverse(ids.size());
    uint64_t generation = 0;
    LookupOptions options;
    options.default_row = {&none, 1};
    MXREC_RETURN_IF_ERROR(map->table->Lookup(
        ids, options, inverse.data(), nullptr,
        [&](size_t unique) -> Result<UniqueOutputs> {
          rows.resize(unique);
          keys.resize(unique);
          handles.resize(unique);
          counts.resize(unique);
          return UniqueOutputs{.rows = rows.data(), .keys = keys.data(), .handles = handles.data(), .counts = counts.data()};
        },
        &generation, nullptr));
    int32_t next = map->next;
    std::vector<bool> numbered(keys.size(), false);
    for (const int32_t place : inverse) {
      const auto u = static_cast<size_t>(place);
      if (handles[u] != kUnseen || numbered[u]) continue;
      if (next == 0x7FFFFFFF) return ResourceExhaustedError(map->table->name() + " has given out all 2147483647 numbers");
      rows[u] = std::bit_cast<float>(next++);
      numbered[u] = true;
    }
    UpdatePart part;
    part.keys = keys;
    part.handles = handles;
    part.counts = counts;
    part.generation = generation;
    part.first_rows = rows.data();
    CountOnly count_only;
    UpdateReport report;
    MXREC_RETURN_IF_ERROR(map->table->table().Update({&part, 1}, &count_only, {.now_ms = NowMs()}, nullptr, &report));
    map->next = next;
    for (size_t i = 0; i < ids.size(); ++i) numbers[i] = std::bit_cast<int32_t>(rows[static_cast<size_t>(inverse[i])]);
    return OkStatus();
  }

  int64_t threshold_ = 1;
  std::string table_name_;
};

// What EmbeddingRankId and EmbeddingLocalIndex share: which shard and row of it an index means.
class ShardedRowsOp : public OpKernel {
 public:
  explicit ShardedRowsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string mode;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("row_memory", &row_memory_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("mode", &mode));
    by_order_ = mode == "order";
  }

 protected:
  struct Place {
    size_t shard;
    uint64_t row;
  };

  Status Locate(OpKernelContext* ctx, std::vector<Place>* places) const {
    const Tensor &table = ctx->input(0), &index = ctx->input(1);
    if (table.dims() != 2 || table.dim_size(1) != 3 || table.dim_size(0) < 1 || index.dims() != 1) {
      return InvalidArgumentError(name() + ": expected addr_table [shards,3] and index [n], found " + ShapeText(table) + " and " +
                                  ShapeText(index));
    }
    const auto shards = static_cast<uint64_t>(table.dim_size(0));
    std::vector<uint64_t> begin(shards + 1, 0);  // by order: the first row of each shard
    for (uint64_t s = 0; s < shards; ++s) begin[s + 1] = begin[s] + Entry(table, s, 2) / static_cast<uint64_t>(row_memory_);
    for (int64_t i = 0; i < index.NumElements(); ++i) {
      const auto at = static_cast<size_t>(i);
      int64_t row = 0;
      if (index.dtype() == tensorflow::DT_INT32) {
        row = DataSpan<int32_t>(index)[at];
      } else {
        row = DataSpan<int64_t>(index)[at];  // uint64 by its bits: no address space holds half of them
      }
      const auto bad = [&](const std::string& expected) {
        return InvalidArgumentError(name() + ": index[" + std::to_string(i) + "] is " + std::to_string(row) + ", expected " +
                                    expected);
      };
      if (row < 0) return bad("at least 0");
      const auto wanted = static_cast<uint64_t>(row);
      if (!by_order_) {
        places->push_back({static_cast<size_t>(wanted % shards), wanted / shards});
        continue;
      }
      if (wanted >= begin[shards]) return bad("below " + std::to_string(begin[shards]) + ", the rows that all shards hold");
      const auto s = static_cast<size_t>(std::upper_bound(begin.begin(), begin.end(), wanted) - begin.begin()) - 1;
      places->push_back({s, wanted - begin[s]});
    }
    return OkStatus();
  }
  static uint64_t Entry(const Tensor& table, uint64_t shard, size_t column) {
    return DataSpan<uint64_t>(table)[shard * 3 + column];
  }

  int64_t row_memory_ = 320;

 private:
  bool by_order_ = false;
};

class RankIdOp : public ShardedRowsOp {
 public:
  using ShardedRowsOp::ShardedRowsOp;
  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    std::vector<Place> places;
    OP_REQUIRES_OK(ctx, ToTf(Locate(ctx, &places)));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({static_cast<int64_t>(places.size()), 3}), &output));
    auto* to = MutableData<uint64_t>(output);
    const auto bytes = static_cast<uint64_t>(row_memory_);
    for (const Place& place : places) {
      *to++ = Entry(ctx->input(0), place.shard, 0);
      *to++ = Entry(ctx->input(0), place.shard, 1) + place.row * bytes;
      *to++ = bytes;
    }
  }
};

template <typename T>
class LocalIndexOp : public ShardedRowsOp {
 public:
  using ShardedRowsOp::ShardedRowsOp;
  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    std::vector<Place> places;
    OP_REQUIRES_OK(ctx, ToTf(Locate(ctx, &places)));
    const int64_t shards = ctx->input(0).dim_size(0);
    Tensor *local = nullptr, *nums = nullptr, *recover = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(1).shape(), &local));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, TensorShape({shards}), &nums));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, ctx->input(1).shape(), &recover));
    std::vector<size_t> next(static_cast<size_t>(shards) + 1, 0);
    for (const Place& place : places) ++next[place.shard + 1];
    for (size_t s = 0; s < static_cast<size_t>(shards); ++s) {
      MutableData<T>(nums)[s] = static_cast<T>(next[s + 1]);
      next[s + 1] += next[s];
    }
    for (size_t i = 0; i < places.size(); ++i) {
      const size_t to = next[places[i].shard]++;
      MutableData<T>(local)[to] = static_cast<T>(places[i].row);
      MutableData<T>(recover)[to] = static_cast<T>(i);
    }
  }
};

class LruCacheOp : public OpKernel {
 public:
  explicit LruCacheOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    int64_t size = 0;
    float load = 1;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("cache_size", &size));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("load_factor", &load));
    OP_REQUIRES(ctx, load > 0 && load <= 1,
                ToTf(InvalidArgumentError(name() + ": load_factor must be above 0 and at most 1, found " + std::to_string(load))));
    OP_REQUIRES(ctx, size < 0x7FFFFFFF,
                ToTf(InvalidArgumentError(name() + ": cache_size is too large, found " + std::to_string(size))));
    places_ = std::max<size_t>(1, static_cast<size_t>(std::floor(static_cast<double>(size) * static_cast<double>(load))));
    OP_REQUIRES_OK(ctx, container_.Init(ctx->resource_manager(), def(), /*use_node_name_as_default=*/true));
    handle_ = Tensor(tensorflow::DT_RESOURCE, TensorShape({}));
    handle_.scalar<tensorflow::ResourceHandle>()() =
        tensorflow::MakeResourceHandle<LruCacheResource>(ctx, container_.container(), container_.name());
  }

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    LruCacheResource* cache = nullptr;
    OP_REQUIRES_OK(ctx, ctx->resource_manager()->LookupOrCreate<LruCacheResource>(container_.container(), container_.name(), &cache,
                                                                                  [this](LruCacheResource** made) -> TfStatus {
                                                                                    *made = new LruCacheResource(places_);
                                                                                    return TfStatus();
                                                                                  }));
    const tensorflow::core::ScopedUnref held(cache);
    ctx->set_output(0, handle_);
  }

 private:
  size_t places_ = 1;
  tensorflow::ContainerInfo container_;
  Tensor handle_;
};

// Ids as 64-bit numbers, and back.
template <typename T>
std::vector<uint64_t> Widened(const Tensor& ids) {
  const std::span<const T> from = DataSpan<T>(ids);
  return {from.begin(), from.end()};
}

template <typename T>
TfStatus SetVector(OpKernelContext* ctx, int output, const std::vector<uint64_t>& values, const TensorShape& shape) {
  Tensor* to = nullptr;
  MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(output, shape, &to));
  std::transform(values.begin(), values.end(), MutableData<T>(to), [](uint64_t value) { return static_cast<T>(value); });
  return TfStatus();
}

template <typename T>
TfStatus SetVector(OpKernelContext* ctx, int output, const std::vector<uint64_t>& values) {
  return SetVector<T>(ctx, output, values, TensorShape({static_cast<int64_t>(values.size())}));
}

class CacheOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) final {
    const NotesFailure notes(ctx);
    tensorflow::core::RefCountPtr<LruCacheResource> cache;
    OP_REQUIRES_OK(ctx, tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, 0), &cache));
    const std::lock_guard<std::mutex> lock(cache->mutex);
    OP_REQUIRES_OK(ctx, Run(ctx, &cache->index));
  }
  virtual TfStatus Run(OpKernelContext* ctx, LruIndex* index) = 0;
};

template <typename T>
class CacheAddOp : public CacheOp {
 public:
  using CacheOp::CacheOp;
  TfStatus Run(OpKernelContext* ctx, LruIndex* index) override {
    LruIndex::Changes changes;
    MXREC_TF_RETURN_IF_ERROR(ToTf(index->Add(Widened<T>(ctx->input(1)), &changes)));
    MXREC_TF_RETURN_IF_ERROR(SetVector<T>(ctx, 0, changes.in_ids));
    MXREC_TF_RETURN_IF_ERROR(SetVector<T>(ctx, 1, changes.in_places));
    MXREC_TF_RETURN_IF_ERROR(SetVector<T>(ctx, 2, changes.out_ids));
    return SetVector<T>(ctx, 3, changes.out_places);
  }
};

template <typename T>
class CachePlacesOp : public CacheOp {
 public:
  using CacheOp::CacheOp;
  TfStatus Run(OpKernelContext* ctx, LruIndex* index) override {
    const std::vector<uint64_t> ids = Widened<T>(ctx->input(1));
    std::vector<uint64_t> places(ids.size());
    MXREC_TF_RETURN_IF_ERROR(ToTf(index->Places(ids, places.data())));
    return SetVector<T>(ctx, 0, places, ctx->input(1).shape());
  }
};

template <typename T>
class CacheIdsOp : public CacheOp {
 public:
  using CacheOp::CacheOp;
  TfStatus Run(OpKernelContext* ctx, LruIndex* index) override { return SetVector<T>(ctx, 0, index->Ids()); }
};

REGISTER_KERNEL_BUILDER(Name("HostFeatureMapping").Device(tensorflow::DEVICE_CPU), FeatureMappingOp);
REGISTER_KERNEL_BUILDER(Name("EmbeddingRankId").Device(tensorflow::DEVICE_CPU), RankIdOp);
REGISTER_KERNEL_BUILDER(Name("LruCache").Device(tensorflow::DEVICE_CPU), LruCacheOp);
#define MXREC_REGISTER_LOCAL_INDEX(T) \
  REGISTER_KERNEL_BUILDER(Name("EmbeddingLocalIndex").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), LocalIndexOp<T>)
MXREC_REGISTER_LOCAL_INDEX(int32_t);
MXREC_REGISTER_LOCAL_INDEX(int64_t);
MXREC_REGISTER_LOCAL_INDEX(uint64_t);
#define MXREC_REGISTER_CACHE(T)                                                                                   \
  REGISTER_KERNEL_BUILDER(Name("CacheAdd").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), CacheAddOp<T>); \
  REGISTER_KERNEL_BUILDER(Name("CacheRemoteIndexToLocal").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),  \
                          CachePlacesOp<T>);                                                                      \
  REGISTER_KERNEL_BUILDER(Name("CacheAllIndexToLocal").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("dtype"), CacheIdsOp<T>)
MXREC_REGISTER_CACHE(int32_t);
MXREC_REGISTER_CACHE(uint32_t);
MXREC_REGISTER_CACHE(int64_t);
MXREC_REGISTER_CACHE(uint64_t);
#undef MXREC_REGISTER_LOCAL_INDEX
#undef MXREC_REGISTER_CACHE

}  // namespace
}  // namespace mxrec
