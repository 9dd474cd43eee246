// MxrecMergeSlices: the sum of sparse gradients over a few ranks, in two exchanges.
//
// 1. Every rank finds its distinct indices and gives them to all. So all know the whole result's indices, by first occurrence, rank
//    after rank, and which rows of which rank come first in it: the fresh rows of a rank lie one behind the other.
// 2. Every rank sums its rows straight to where its fresh ones belong in the output, and those that a rank before it has too into a
//    buffer. Both are gathered in their places: nothing is copied before it travels, nor after. At the end the rows of the buffer
//    are added, in the order of ranks.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/comm/collectives.h"
#include "mxrec/shard/route.h"
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
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    Result<Membership> group = FindGroup();
    MXREC_REQUIRES_OK_ASYNC(ctx, group.status(), done);
    const auto merge = std::make_shared<Merge>();
    merge->group = std::move(*group);
    merge->name = AgreedName(ctx);
    Result<Part> part = Indices(ctx, merge);
    MXREC_REQUIRES_OK_ASYNC(ctx, part.status(), done);
    Run(ctx, merge->group, One(std::move(*part)), [this, ctx, merge, done] {
      if (!ctx->status().ok()) return done();
      // This is the progress thread, which has other things to do.
      (*ctx->runner())([this, ctx, merge, done] { ExchangeRows(ctx, merge, done); });
    });
  }

 private:
  struct Merge {
    Membership group;
    std::string name;
    size_t dim = 0;
    Tensor inverse;               // [n]: the place of each row among the distinct indices of this rank
    Tensor distinct;              // [U]
    Tensor gathered;              // the distinct indices of all ranks, rank after rank
    std::vector<int64_t> counts;  // how many each rank gave
    // Once they are known.
    Tensor values;
    std::vector<int32_t> places;  // of each gathered index: its row in the result
    std::vector<int64_t> fresh;   // how many of a rank no rank before it has
    Tensor repeated;              // the other rows of all ranks, rank after rank
    std::vector<int32_t> onto;    // the row of the result that each of them is added to
  };
  using Shared = std::shared_ptr<Merge>;

  Status Route(std::span<const uint64_t> ids, int32_t* inverse, const std::function<Result<uint64_t*>(size_t)>& output) const {
    int64_t unique = 0;
    const Status status = RouteIds(ids, 1, OwnerRule::kMod, inverse, {&unique, 1}, [&](size_t count) -> Result<RoutedKeys> {
      MXREC_ASSIGN_OR_RETURN(uint64_t* const keys, output(count));
      return RoutedKeys{keys, nullptr};
    });
    return status.ok() ? status : Status(status.code(), name() + ": " + std::string(status.message()));
  }

  // Distinct ids into a tensor of the type of the indices.
  Status RouteTo(OpKernelContext* ctx, std::span<const uint64_t> ids, int32_t* inverse,
                 const std::function<TfStatus(const TensorShape&, Tensor*)>& allocate) const {
    Tensor made;
    std::vector<uint64_t> wide;
    MXREC_RETURN_IF_ERROR(Route(ids, inverse, [&](size_t count) -> Result<uint64_t*> {
      MXREC_RETURN_IF_ERROR(FromTf(allocate(TensorShape({static_cast<int64_t>(count)}), &made)));
      if (made.dtype() == tensorflow::DT_INT64) return reinterpret_cast<uint64_t*>(made.data());
      wide.resize(count);
      return wide.data();
    }));
    if (made.dtype() == tensorflow::DT_INT32) {
      std::transform(wide.begin(), wide.end(), MutableData<int32_t>(&made), [](uint64_t id) { return static_cast<int32_t>(id); });
    }
    return OkStatus();
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
    MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(tensorflow::DT_INT32, indices.shape(), &merge->inverse)));
    MXREC_RETURN_IF_ERROR(RouteTo(ctx, keys, MutableData<int32_t>(&merge->inverse), [&](const TensorShape& shape, Tensor* made) {
      const TfStatus status = ctx->allocate_temp(indices.dtype(), shape, &merge->distinct);
      *made = merge->distinct;
      return status;
    }));
    Part part;
    part.request.kind = Collective::kAllGather;
    part.request.name = merge->name + "/indices";
    MXREC_ASSIGN_OR_RETURN(part.request.dtype, ToDType(indices.dtype()));
    part.request.shape = {merge->distinct.dim_size(0)};
    part.request.input = merge->distinct.data();
    part.allocate = [merge](OpKernelContext* ctx, const Agreed& agreed) -> Result<void*> {
      const TensorShape shape({std::accumulate(agreed.received.begin(), agreed.received.end(), int64_t{0})});
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(merge->distinct.dtype(), shape, &merge->gathered)));
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
    MXREC_REQUIRES_OK_ASYNC(ctx, LayOut(ctx, *merge), done);
    MXREC_REQUIRES_OK_ASYNC(ctx, SumOwnRows(ctx, *merge), done);
    const size_t me = static_cast<size_t>(merge->group.me);
    const int64_t before = std::accumulate(merge->fresh.begin(), merge->fresh.begin() + merge->group.me, int64_t{0});
    std::vector<Part> parts = One(RowsPart("/rows", *merge, &merge->values, merge->fresh[me], before));
    // All ranks know whether there are any.
    const int64_t repeated = merge->repeated.dim_size(0);
    if (repeated > 0) {
      int64_t first = 0;
      for (size_t r = 0; r < me; ++r) first += merge->counts[r] - merge->fresh[r];
      parts.push_back(RowsPart("/repeated", *merge, &merge->repeated, merge->counts[me] - merge->fresh[me], first));
    }
    Run(ctx, merge->group, std::move(parts), [ctx, merge, done, repeated] {
      if (repeated == 0 || !ctx->status().ok()) return done();
      (*ctx->runner())([ctx, merge, done] {
        AddRepeated(*merge);
        done();
      });
    });
  }

  // `count` rows from row `first` of *rows on, which go to all, as do those of the others: in place.
  static Part RowsPart(const char* suffix, const Merge& merge, Tensor* rows, int64_t count, int64_t first) {
    Part part;
    part.request.kind = Collective::kAllGather;
    part.request.name = merge.name + suffix;
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
    merge.places.resize(keys.size());
    MXREC_RETURN_IF_ERROR(RouteTo(ctx, keys, merge.places.data(), [&](const TensorShape& shape, Tensor* made) {
      const TfStatus status = ctx->allocate_output(1, shape, &indices);
      if (status.ok()) *made = *indices;
      return status;
    }));
    int32_t rows = 0;
    size_t at = 0;
    for (const int64_t count : merge.counts) {
      const int32_t before = rows;
      for (const size_t end = at + static_cast<size_t>(count); at < end; ++at) {
        if (merge.places[at] == rows) {
          ++rows;
        } else {
          merge.onto.push_back(merge.places[at]);
        }
      }
      merge.fresh.push_back(rows - before);
    }
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
