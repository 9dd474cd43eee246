// MxrecMergeSlices: the sum of sparse gradients over a few ranks, in two exchanges that the ranks agree on together.
//
// 1. Every rank finds its distinct indices and gives them to all.
// 2. Every rank sums its rows, by distinct index, straight to where they lie in a block that holds those of all ranks, rank after
//    rank. It is gathered in its place: nothing is copied before it travels, nor after. Meanwhile another thread finds out which
//    rows belong to one index (mxrec/shard/merged_rows.h).
// At the end rows of one index are added up within the block, whose begin is the output.
#include <algorithm>
#include <atomic>
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
#include "mxrec/shard/merged_rows.h"
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
  explicit MergeSlicesOp(OpKernelConstruction* ctx) : CollectiveKernel(ctx) { set_parts(2); }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    Result<Membership> group = FindGroup();
    MXREC_REQUIRES_OK_ASYNC(ctx, group.status(), done);
    const auto merge = std::make_shared<Merge>();
    merge->group = std::move(*group);
    merge->done = std::move(done);
    Result<Part> indices = Indices(ctx, merge);
    MXREC_TAKES_PART_IF_OK(ctx, merge->group, indices.status(), merge->done);
    std::vector<Part> parts = One(std::move(*indices));
    parts.push_back(Rows(merge));
    Run(ctx, merge->group, std::move(parts), [ctx, merge] { Ended(ctx, merge, /*progress_thread=*/true); });
  }

 private:
  // What takes longer does not run on the progress thread, which has other things to do.
  static constexpr size_t kFewIndices = 4096;
  static constexpr size_t kFewFloats = size_t{1} << 18;

  struct Merge {
    Membership group;
    DoneCallback done;
    size_t dim = 0;
    ScratchLease<DistinctIds> ids;  // of this rank, then of all
    Tensor inverse;                 // [n]: the place of each row among the distinct indices of this rank
    Tensor distinct;                // [U]
    Tensor gathered;                // the distinct indices of all ranks, rank after rank
    Tensor rows;                    // their rows
    ScratchLease<MergedRows> merged;
    std::atomic<int> left{1};  // the exchanges, and the layout once there is something to lay out
    Status laid_out;
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
      const TensorShape shape({Total(agreed)});
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(merge->distinct.dtype(), shape, &merge->gathered)));
      return merge->gathered.data();
    };
    part.finish = [this, merge](OpKernelContext* ctx, const Agreed& agreed) {
      merge->left.fetch_add(1);
      const auto lay_out = [this, ctx, merge, counts = agreed.received](bool progress_thread) {
        merge->laid_out = LayOut(ctx, *merge, counts);
        Ended(ctx, merge, progress_thread);
      };
      if (static_cast<size_t>(Total(agreed)) <= kFewIndices) {
        lay_out(true);
      } else {
        (*ctx->runner())([lay_out] { lay_out(false); });
      }
      return OkStatus();
    };
    return part;
  }

  // The second one: in place.
  Part Rows(const Shared& merge) const {
    Part part;
    part.request.kind = Collective::kAllGather;
    part.request.dtype = DType::kFloat32;
    part.request.shape = {merge->distinct.dim_size(0), static_cast<int64_t>(merge->dim)};
    part.request.input = kInPlace;
    part.allocate = [this, merge](OpKernelContext* ctx, const Agreed& agreed) -> Result<void*> {
      MXREC_RETURN_IF_ERROR(CheckCount(static_cast<size_t>(Total(agreed))));
      TensorShape shape = ctx->input(0).shape();
      shape.set_dim(0, Total(agreed));
      MXREC_ASSIGN_OR_RETURN(merge->rows, KeptTensor(ctx, tensorflow::DT_FLOAT, shape));
      float* const rows = MutableData<float>(&merge->rows);
      const int64_t before = std::accumulate(agreed.received.begin(), agreed.received.begin() + merge->group.me, int64_t{0});
      // Every rank does this now, whether here or elsewhere, so nobody waits longer.
      PoolExecutor executor(ctx);
      MXREC_RETURN_IF_ERROR(SumRoutedGradients(DataSpan<int32_t>(merge->inverse), DataSpan<float>(ctx->input(0)).data(),
                                               static_cast<size_t>(merge->distinct.dim_size(0)), merge->dim,
                                               {.sums = rows + static_cast<size_t>(before) * merge->dim}, &executor));
      return static_cast<void*>(rows);
    };
    return part;
  }

  static int64_t Total(const Agreed& agreed) { return std::accumulate(agreed.received.begin(), agreed.received.end(), int64_t{0}); }

  Status LayOut(OpKernelContext* ctx, Merge& merge, std::span<const int64_t> counts) const {
    Tensor widened;
    std::span<const uint64_t> keys;
    MXREC_RETURN_IF_ERROR(FromTf(IdsAsKeys(ctx, merge.gathered, &widened, &keys)));
    MXREC_RETURN_IF_ERROR(CheckCount(keys.size()));
    merge.merged->LayOut(keys, counts, static_cast<size_t>(merge.group.me), &*merge.ids);
    if (merge.gathered.dtype() == tensorflow::DT_INT32) {
      merge.merged->Move(MutableData<int32_t>(&merge.gathered));
    } else {
      merge.merged->Move(MutableData<uint64_t>(&merge.gathered));
    }
    return OkStatus();
  }

  // The exchanges or the layout.
  static void Ended(OpKernelContext* ctx, const Shared& merge, bool progress_thread) {
    if (merge->left.fetch_sub(1) != 1) return;
    if (ctx->status().ok() && !merge->laid_out.ok()) ctx->SetStatus(ToTf(merge->laid_out));
    if (!ctx->status().ok()) return merge->done();
    const auto finish = [ctx, merge] {
      merge->merged->AddUp(MutableData<float>(&merge->rows), merge->dim);
      const auto rows = static_cast<int64_t>(merge->merged->size());
      ctx->set_output(0, merge->rows.Slice(0, rows));
      ctx->set_output(1, merge->gathered.Slice(0, rows));
      // So that the op that takes them may write to them.
      merge->rows = merge->gathered = Tensor();
      merge->done();
    };
    if (!progress_thread || merge->merged->touched() * merge->dim <= kFewFloats) return finish();
    (*ctx->runner())(finish);
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecMergeSlices").Device(tensorflow::DEVICE_CPU), MergeSlicesOp);

}  // namespace
}  // namespace mxrec
