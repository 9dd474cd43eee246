// MxrecMergeSlices: the sum of sparse gradients over a few ranks, in two exchanges.
//
// 1. Every rank finds its distinct indices and gives them to all. So all know the whole result's indices, by first occurrence, rank
//    after rank, and which rows of which rank come first in it: the fresh rows of a rank lie one behind the other.
// 2. Every rank sums its rows straight to where its fresh ones belong in the output, and those that a rank before it has too into a
//    buffer. Both are gathered in their places: nothing is copied before it travels, nor after. At the end the rows of the buffer
//    are added, in the order of ranks.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/comm/collectives.h"
#include "mxrec/shard/distinct_ids.h"
#include "mxrec/shard/route.h"
#include "mxrec/table/scratch.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tf/kernels/collective_kernel.h"
#include "tf/kernels/id_keys.h"
#include "tf/kernels/kept_tensor.h"
#include "tf/kernels/pool_executor.h"
#include "tf/kernels/table_resource.h"

namespace mxrec {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class MergeSlicesOp : public CollectiveKernel {
 public:
  explicit MergeSlicesOp(OpKernelConstruction* ctx) : CollectiveKernel(ctx) { set_first_stage("/indices"); }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    Result<Membership> group = FindGroup();
    MXREC_REQUIRES_OK_ASYNC(ctx, group.status(), done);
    const auto merge = std::make_shared<Merge>();
    merge->group = std::move(*group);
    Result<Part> part = Indices(ctx, merge);
    MXREC_TAKES_PART_IF_OK(ctx, merge->group, part.status(), done);
    Run(ctx, merge->group, One(std::move(*part)), [this, ctx, merge, done] {
      // What failed here alone: the others go on.
      if (!merge->failure.ok()) return RefuseStage(ctx, merge->group, kRows, merge->failure, done);
      if (!ctx->status().ok()) return done();
      // This is the progress thread, which has other things to do.
      (*ctx->runner())([this, ctx, merge, done] { ExchangeRows(ctx, merge, done); });
    });
  }

 private:
  static constexpr char kRows[] = "/rows";

  struct Merge {
    Membership group;
    Status failure;  // of this rank in the first exchange, which all have agreed to
    size_t dim = 0;
    ScratchLease<DistinctIds> ids;  // of this rank, then of all
    Tensor inverse;                 // [n]: the place of each row among the distinct indices of this rank
    Tensor distinct;                // [U]
    Tensor gathered;                // the distinct indices of all ranks, rank after rank
    std::vector<int64_t> counts;    // how many each rank gave
    // Once they are known.
    Tensor values;
    std::vector<int32_t> places;  // of each gathered index: its row in the result
    std::vector<int64_t> fresh;   // how many of a rank no rank before it has
    Tensor repeated;              // the other rows of all ranks, rank after rank
    std::vector<int32_t> onto;    // the row of the result that each of them is added to
  };
  using Shared = std::shared_ptr<Merge>;

  // Rows have 32 bit numbers.
  Status CheckCount(size_t count) const {
    if (count <= static_cast<size_t>(std::numeric_limits<int32_t>::max())) return OkStatus();
    return Wrong("expected at most 2147483647 indices, found " + std::to_string(count));
  }

  // To a tensor of the type of the indices.
  static void CopyIds(std::span<const uint64_t> ids, Tensor* to) {
    if (to->dtype() == tensorflow::DT_INT32) {
      std::transform(ids.begin(), ids.end(), MutableData<int32_t>(to), [](uint64_t id) { return static_cast<int32_t>(id); });
    } else {
      std::copy(ids.begin(), ids.end(), MutableData<uint64_t>(to));
    }
  }

  // The first exchange.
  Result<Part> Indices(OpKernelContext* ctx, const Shared& merge) const {
    const Tensor &values = ctx->input(0), &indices = ctx->input(1);
    if (values.dims() < 1 || indices.dims() != 1 || values.dim_size(0) != indices.dim_size(0)) {
      return Wrong("values must have shape [n, ...] and indices [n], found " + ShapeText(values) + " and " + ShapeText(indices));
    }
    merge->dim = 1;
    for (int d = 1; d < values.dims(); ++d) merge->dim *= static_cast<size_t>(values.dim_size(d));
    Tensor widened;
    std::span<const uint64_t> keys;
    MXREC_RETURN_IF_ERROR(FromTf(IdsAsKeys(ctx, indices, &widened, &keys)));
    MXREC_RETURN_IF_ERROR(CheckCount(keys.size()));
    MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(tensorflow::DT_INT32, indices.shape(), &merge->inverse)));
    DistinctIds& ids = *merge->ids;
    ids.Start();
    ids.Add(keys, MutableData<int32_t>(&merge->inverse));
    const std::span<const uint64_t> distinct(ids.keys(), ids.size());
    MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(indices.dtype(), TensorShape({std::ssize(distinct)}), &merge->distinct)));
    CopyIds(distinct, &merge->distinct);
    Part part;
    part.request.kind = Collective::kAllGather;
    MXREC_ASSIGN_OR_RETURN(part.request.dtype, ToDType(indices.dtype()));
    part.request.shape = {merge->distinct.dim_size(0)};
    part.request.input = merge->distinct.data();
    part.allocate = [merge](OpKernelContext* ctx, const Agreed& agreed) -> Result<void*> {
      const TensorShape shape({std::accumulate(agreed.received.begin(), agreed.received.end(), int64_t{0})});
      merge->failure = FromTf(ctx->allocate_temp(merge->distinct.dtype(), shape, &merge->gathered));
      MXREC_RETURN_IF_ERROR(merge->failure);
      return merge->gathered.data();
    };
    part.finish = [merge](OpKernelContext*, const Agreed& agreed) {
      merge->counts = agreed.received;
      return OkStatus();
    };
    return part;
  }

  // The second one.
  void ExchangeRows(OpKernelContext* ctx, const Shared& merge, DoneCallback done) {
    Status made = LayOut(ctx, *merge);
    if (made.ok()) made = SumOwnRows(ctx, *merge);
    if (!made.ok()) return RefuseStage(ctx, merge->group, kRows, made, done);
    const size_t me = static_cast<size_t>(merge->group.me);
    const int64_t before = std::accumulate(merge->fresh.begin(), merge->fresh.begin() + merge->group.me, int64_t{0});
    std::vector<Part> parts = One(RowsPart(*merge, &merge->values, merge->fresh[me], before));
    // All ranks know whether there are any.
    const int64_t repeated = merge->repeated.dim_size(0);
    if (repeated > 0) {
      int64_t first = 0;
      for (size_t r = 0; r < me; ++r) first += merge->counts[r] - merge->fresh[r];
      parts.push_back(RowsPart(*merge, &merge->repeated, merge->counts[me] - merge->fresh[me], first));
    }
    RunStage(ctx, merge->group, kRows, std::move(parts), [ctx, merge, done, repeated] {
      if (repeated == 0 || !ctx->status().ok()) return done();
      (*ctx->runner())([ctx, merge, done] {
        AddRepeated(*merge);
        done();
      });
    });
  }

  // `count` rows from row `first` of *rows on, which go to all, as do those of the others: in place.
  static Part RowsPart(const Merge& merge, Tensor* rows, int64_t count, int64_t first) {
    Part part;
    part.request.kind = Collective::kAllGather;
    part.request.dtype = DType::kFloat32;
    part.request.shape = {count, static_cast<int64_t>(merge.dim)};
    float* const data = MutableData<float>(rows);
    part.request.input = data + static_cast<size_t>(first) * merge.dim;
    part.allocate = [data](OpKernelContext*, const Agreed&) -> Result<void*> { return static_cast<void*>(data); };
    return part;
  }

  Status LayOut(OpKernelContext* ctx, Merge& merge) const {
    Tensor widened, *indices = nullptr;
    std::span<const uint64_t> keys;
    MXREC_RETURN_IF_ERROR(FromTf(IdsAsKeys(ctx, merge.gathered, &widened, &keys)));
    MXREC_RETURN_IF_ERROR(CheckCount(keys.size()));
    // This rank's have their numbers; those of the others follow.
    DistinctIds& ids = *merge.ids;
    merge.places.resize(keys.size());
    const size_t me = static_cast<size_t>(merge.group.me);
    size_t at = 0;
    for (size_t r = 0; r < merge.counts.size(); ++r) {
      const size_t count = static_cast<size_t>(merge.counts[r]);
      int32_t* const numbers = merge.places.data() + at;
      if (r == me) {
        std::iota(numbers, numbers + count, 0);
      } else {
        ids.Add(keys.subspan(at, count), numbers);
      }
      at += count;
    }
    // The result's rows: by first occurrence, rank after rank.
    const size_t distinct = ids.size();
    MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(1, TensorShape({static_cast<int64_t>(distinct)}), &indices)));
    std::vector<uint64_t> wide(indices->dtype() == tensorflow::DT_INT64 ? 0 : distinct);
    uint64_t* const result = wide.empty() ? reinterpret_cast<uint64_t*>(indices->data()) : wide.data();
    std::vector<int32_t> row_of(distinct, -1);  // by number
    int32_t rows = 0;
    at = 0;
    for (const int64_t count : merge.counts) {
      const int32_t before = rows;
      for (const size_t end = at + static_cast<size_t>(count); at < end; ++at) {
        int32_t& row = row_of[static_cast<size_t>(merge.places[at])];
        if (row < 0) {
          result[rows] = keys[at];
          row = rows++;
        } else {
          merge.onto.push_back(row);
        }
        merge.places[at] = row;
      }
      merge.fresh.push_back(rows - before);
    }
    if (!wide.empty()) CopyIds(wide, indices);
    TensorShape shape = ctx->input(0).shape();
    shape.set_dim(0, rows);
    MXREC_ASSIGN_OR_RETURN(merge.values, KeptTensor(ctx, tensorflow::DT_FLOAT, shape));
    ctx->set_output(0, merge.values);
    const TensorShape repeated({std::ssize(merge.onto), static_cast<int64_t>(merge.dim)});
    MXREC_ASSIGN_OR_RETURN(merge.repeated, KeptTensor(ctx, tensorflow::DT_FLOAT, repeated));
    return OkStatus();
  }

  Status SumOwnRows(OpKernelContext* ctx, Merge& merge) const {
    const size_t me = static_cast<size_t>(merge.group.me), count = static_cast<size_t>(merge.counts[me]);
    size_t begin = 0;
    int64_t row = 0, repeated = 0;
    for (size_t r = 0; r < me; ++r) {
      begin += static_cast<size_t>(merge.counts[r]);
      row += merge.fresh[r];
      repeated += merge.counts[r] - merge.fresh[r];
    }
    float* fresh = MutableData<float>(&merge.values) + static_cast<size_t>(row) * merge.dim;
    float* other = MutableData<float>(&merge.repeated) + static_cast<size_t>(repeated) * merge.dim;
    std::vector<float*> places(count);
    for (size_t u = 0; u < count; ++u) {
      if (merge.places[begin + u] == row) {
        places[u] = fresh;
        fresh += merge.dim;
        ++row;
      } else {
        places[u] = other;
        other += merge.dim;
      }
    }
    PoolExecutor executor(ctx);
    return SumRoutedGradients(DataSpan<int32_t>(merge.inverse), DataSpan<float>(ctx->input(0)).data(), count, merge.dim,
                              {.places = places.data()}, &executor);
  }

  // Rows of one index come rank after rank.
  static void AddRepeated(Merge& merge) {
    std::vector<uint8_t> seen(static_cast<size_t>(merge.values.dim_size(0)), 1);
    ScatterSumRows(DataSpan<float>(merge.repeated).data(), merge.onto.data(), merge.onto.size(), merge.dim, 0,
                   static_cast<int32_t>(merge.values.dim_size(0)), seen.data(), {MutableData<float>(&merge.values)});
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecMergeSlices").Device(tensorflow::DEVICE_CPU), MergeSlicesOp);

}  // namespace
}  // namespace mxrec
