// Kernels of the Mxrec* collective ops (tf/ops/collective_ops.cc): an op of several tensors submits each of them at once.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tf/kernels/collective_kernel.h"
#include "tf/kernels/table_resource.h"

namespace mxrec {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

Result<double> ParseNumber(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') return InvalidArgumentError(name + " must be a number, found '" + text + "'");
  return value;
}

// MxrecAllReduce, MxrecReduceScatter.
class ReduceKernel : public CollectiveKernel {
 public:
  explicit ReduceKernel(OpKernelConstruction* ctx) : CollectiveKernel(ctx) { OP_REQUIRES_OK(ctx, ToTf(Read(ctx))); }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const Result<Membership> group = FindGroup();
    MXREC_REQUIRES_OK_ASYNC(ctx, group.status(), done);
    std::vector<Part> parts;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      Result<Part> made = MakePart(ctx, kind_, i);
      MXREC_TAKES_PART_IF_OK(ctx, *group, made.status(), done);
      CommRequest& request = made->request;
      if (kind_ == Collective::kReduceScatter && request.shape.empty()) {
        MXREC_TAKES_PART_IF_OK(ctx, *group, Wrong("input " + std::to_string(i) + " must have a first dimension, found a scalar"),
                               done);
      }
      request.op = reduction_;
      request.prescale = prescale_;
      request.postscale = postscale_;
      request.wire = request.dtype == DType::kFloat32 ? wire_ : DType::kFloat32;
      const bool floating = IsFloating(request.dtype);
      if (!floating && (prescale_ != 1 || postscale_ != 1)) {
        MXREC_TAKES_PART_IF_OK(ctx, *group,
                               Wrong("prescale and postscale need a floating type, found " + std::string(DTypeName(request.dtype))),
                               done);
      }
      if (average_) Average(*group, i, &*made);
      made->output = i;
      made->forwards = kind_ == Collective::kAllReduce;
      parts.push_back(std::move(*made));
    }
    Run(ctx, *group, std::move(parts), std::move(done));
  }

 private:
  Status Read(OpKernelConstruction* ctx) {
    kind_ = type_string() == "MxrecAllReduce" ? Collective::kAllReduce : Collective::kReduceScatter;
    std::string text;
    MXREC_RETURN_IF_ERROR(FromTf(ctx->GetAttr("reduction", &text)));
    MXREC_ASSIGN_OR_RETURN(reduction_, ParseReduction(text));
    MXREC_RETURN_IF_ERROR(FromTf(ctx->GetAttr("average", &average_)));
    if (average_ && reduction_ != ReduceOp::kSum) return Wrong("average needs the reduction sum, found '" + text + "'");
    MXREC_RETURN_IF_ERROR(FromTf(ctx->GetAttr("prescale", &text)));
    MXREC_ASSIGN_OR_RETURN(prescale_, ParseNumber(name() + ": prescale", text));
    MXREC_RETURN_IF_ERROR(FromTf(ctx->GetAttr("postscale", &text)));
    MXREC_ASSIGN_OR_RETURN(postscale_, ParseNumber(name() + ": postscale", text));
    if (ctx->HasAttr("wire")) {
      MXREC_RETURN_IF_ERROR(FromTf(ctx->GetAttr("wire", &text)));
      if (!text.empty()) wire_ = DTypeFromName(text).value_or(DType::kFloat32);
    }
    return OkStatus();
  }

  Collective kind_ = Collective::kAllReduce;
  ReduceOp reduction_ = ReduceOp::kSum;
  bool average_ = false;
  double prescale_ = 1;
  double postscale_ = 1;
  DType wire_ = DType::kFloat32;
};

class AllGatherKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const Result<Membership> group = FindGroup();
    MXREC_REQUIRES_OK_ASYNC(ctx, group.status(), done);
    const int count = ctx->num_inputs();
    Tensor* rows = nullptr;
    MXREC_TAKES_PART_IF_OK(ctx, *group, FromTf(ctx->allocate_output(count, TensorShape({count, group->size()}), &rows)), done);
    std::vector<Part> parts;
    for (int i = 0; i < count; ++i) {
      Result<Part> made = GatherPart(ctx, i);
      MXREC_TAKES_PART_IF_OK(ctx, *group, made.status(), done);
      const auto inner = std::move(made->finish);
      int64_t* place = MutableData<int64_t>(rows) + i * group->size();
      made->finish = [inner, place, ranks = group->size()](OpKernelContext* ctx, const Agreed& agreed) {
        for (int64_t rank = 0; rank < ranks; ++rank) place[rank] = agreed.received[static_cast<size_t>(rank)];
        return inner ? inner(ctx, agreed) : OkStatus();
      };
      parts.push_back(std::move(*made));
    }
    Run(ctx, *group, std::move(parts), std::move(done));
  }

 private:
  Result<Part> GatherPart(OpKernelContext* ctx, int index) const {
    if (ctx->input(index).dims() == 0) {
      return Wrong("input " + std::to_string(index) + " must have a first dimension, found a scalar");
    }
    MXREC_ASSIGN_OR_RETURN(Part part, MakePart(ctx, Collective::kAllGather, index));
    part.output = index;
    return part;
  }
};

class BroadcastKernel : public CollectiveKernel {
 public:
  explicit BroadcastKernel(OpKernelConstruction* ctx) : CollectiveKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("root_rank", &root_));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const Result<Membership> group = FindGroup();
    MXREC_REQUIRES_OK_ASYNC(ctx, group.status(), done);
    MXREC_TAKES_PART_IF_OK(ctx, *group, CheckRank("root_rank", root_, *group), done);
    std::vector<Part> parts;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      Result<Part> made = MakeBroadcastPart(ctx, *group, i, root_);
      MXREC_TAKES_PART_IF_OK(ctx, *group, made.status(), done);
      parts.push_back(std::move(*made));
    }
    Run(ctx, *group, std::move(parts), std::move(done));
  }

 private:
  int64_t root_ = 0;
};

class AllToAllKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const Result<Membership> group = FindGroup();
    MXREC_REQUIRES_OK_ASYNC(ctx, group.status(), done);
    Result<Part> part = MakePart(ctx, Collective::kAllToAll, 0);
    MXREC_TAKES_PART_IF_OK(ctx, *group, part.status(), done);
    MXREC_TAKES_PART_IF_OK(ctx, *group, ReadSplits(ctx, *group, &part->request), done);
    Tensor* received = nullptr;
    MXREC_TAKES_PART_IF_OK(ctx, *group, FromTf(ctx->allocate_output(1, TensorShape({group->size()}), &received)), done);
    part->output = 0;
    part->finish = [received](OpKernelContext*, const Agreed& agreed) {
      std::copy(agreed.received.begin(), agreed.received.end(), MutableData<int64_t>(received));
      return OkStatus();
    };
    std::vector<Part> parts;
    parts.push_back(std::move(*part));
    Run(ctx, *group, std::move(parts), std::move(done));
  }

 private:
  Status ReadSplits(OpKernelContext* ctx, const Membership& group, CommRequest* request) const {
    if (request->shape.empty()) return Wrong("input must have a first dimension, found a scalar");
    const Tensor& splits = ctx->input(1);
    if (splits.dims() != 1 || (splits.NumElements() != 0 && splits.NumElements() != group.size())) {
      return Wrong("splits must have one value for each of " + std::to_string(group.size()) + " ranks, found shape " +
                   ShapeText(splits));
    }
    const int64_t rows = request->shape[0];
    if (splits.NumElements() == 0) {
      if (rows % group.size() != 0) {
        return Wrong("without splits the first dimension must be divisible by the " + std::to_string(group.size()) +
                     " ranks, found shape " + ShapeText(ctx->input(0)));
      }
      request->splits.assign(static_cast<size_t>(group.size()), rows / group.size());
      return OkStatus();
    }
    int64_t left = rows;
    for (const int64_t split : DataSpan<int64_t>(splits)) {
      if (split < 0 || split > left) break;
      left -= split;
      request->splits.push_back(split);
    }
    if (left != 0 || std::ssize(request->splits) != group.size()) {
      return Wrong("splits must be at least 0 and add up to the first dimension, " + std::to_string(rows) + ", found " +
                   splits.SummarizeValue(64));
    }
    return OkStatus();
  }
};

class BarrierKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const Result<Membership> group = FindGroup();
    MXREC_REQUIRES_OK_ASYNC(ctx, group.status(), done);
    std::vector<Part> parts(1);
    parts[0].request.kind = Collective::kBarrier;
    Run(ctx, *group, std::move(parts), std::move(done));
  }
};

class JoinKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const Result<Membership> group = FindGroup();
    MXREC_REQUIRES_OK_ASYNC(ctx, group.status(), done);
    std::vector<Part> parts(1);
    parts[0].request.kind = Collective::kJoin;
    parts[0].finish = [](OpKernelContext* ctx, const Agreed& agreed) {
      Tensor* last = nullptr;
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(0, TensorShape(), &last)));
      *MutableData<int32_t>(last) = agreed.received.empty() ? 0 : static_cast<int32_t>(agreed.received[0]);
      return OkStatus();
    };
    Run(ctx, *group, std::move(parts), std::move(done));
  }
};

#define MXREC_REGISTER(op, kernel) REGISTER_KERNEL_BUILDER(Name(op).Device(tensorflow::DEVICE_CPU), kernel)
MXREC_REGISTER("MxrecAllReduce", ReduceKernel);
MXREC_REGISTER("MxrecReduceScatter", ReduceKernel);
MXREC_REGISTER("MxrecAllGather", AllGatherKernel);
MXREC_REGISTER("MxrecBroadcast", BroadcastKernel);
MXREC_REGISTER("MxrecAllToAll", AllToAllKernel);
MXREC_REGISTER("MxrecBarrier", BarrierKernel);
MXREC_REGISTER("MxrecJoin", JoinKernel);

}  // namespace
}  // namespace mxrec
