// The kernels of the collective operations for a group of one rank: this version has one process.
//
// A group of one rank makes every collective a copy, but attributes and inputs are checked as for many. A world of several ranks is
// refused when the kernel is made: to hand the input back would train each rank alone.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/hcom_groups.h"
#include "tf/kernels/table_resource.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// The world must be one process.
Status CheckAlone() {
  const HcomWorld world = GetHcomWorld();
  if (world.size == 1) return OkStatus();
  return UnimplementedError("this process is rank " + std::to_string(world.rank) + " of " + std::to_string(world.size) +
                            ": this version has collectives within one process only");
}

class RuntimeOp : public OpKernel {
 public:
  explicit RuntimeOp(OpKernelConstruction* ctx) : OpKernel(ctx) { OP_REQUIRES_OK(ctx, ToTf(CheckAlone())); }
  void Compute(OpKernelContext*) override {}
};

// What all collectives share: the group, and the attributes that name ranks of it.
class GroupOp : public OpKernel {
 public:
  explicit GroupOp(OpKernelConstruction* ctx) : OpKernel(ctx) { OP_REQUIRES_OK(ctx, ToTf(ReadGroup(ctx))); }

 protected:
  Status Wrong(const std::string& text) const { return InvalidArgumentError(name() + ": " + text); }
  int64_t group_size() const { return group_size_; }

 private:
  Status ReadGroup(OpKernelConstruction* ctx) {
    MXREC_RETURN_IF_ERROR(CheckAlone());
    std::string group;
    MXREC_RETURN_IF_ERROR(FromTf(ctx->GetAttr("group", &group)));
    MXREC_ASSIGN_OR_RETURN(const std::vector<int> ranks, FindHcomGroup(group));
    group_size_ = static_cast<int64_t>(ranks.size());
    int64_t value = 0;
    if (ctx->HasAttr("rank_size")) {
      MXREC_RETURN_IF_ERROR(FromTf(ctx->GetAttr("rank_size", &value)));
      if (value != group_size_) {
        return Wrong("rank_size is " + std::to_string(value) + ", but group '" + group + "' has " + std::to_string(group_size_) +
                     " ranks");
      }
    }
    for (const char* attr : {"root_rank", "rank"}) {
      if (!ctx->HasAttr(attr)) continue;
      MXREC_RETURN_IF_ERROR(FromTf(ctx->GetAttr(attr, &value)));
      if (value < 0 || value >= group_size_) {
        return Wrong(std::string(attr) + " is " + std::to_string(value) + ", but group '" + group + "' has " +
                     std::to_string(group_size_) + " ranks");
      }
    }
    for (const char* attr : {"dest_rank", "src_rank"}) {
      if (ctx->HasAttr(attr)) {
        return Wrong(std::string(attr) + " must be another rank, but group '" + group + "' has this one only");
      }
    }
    return OkStatus();
  }

  int64_t group_size_ = 0;
};

// Every collective of one rank that hands its inputs on.
class IdentityOp : public GroupOp {
 public:
  using GroupOp::GroupOp;

  void Compute(OpKernelContext* ctx) override {
    for (int i = 0; i < ctx->num_inputs(); ++i) ctx->set_output(i, ctx->input(i));
  }
};

class AllGatherOp : public GroupOp {
 public:
  using GroupOp::GroupOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    OP_REQUIRES(ctx, input.dims() >= 1, ToTf(Wrong("input must have a first dimension, found a scalar")));
    if (ctx->op_kernel().type_string() == "HcomReduceScatter") {
      OP_REQUIRES(ctx, input.dim_size(0) % group_size() == 0,
                  ToTf(Wrong("the first dimension must be divisible by rank_size " + std::to_string(group_size()) +
                             ", found shape " + ShapeText(input))));
    }
    ctx->set_output(0, input);
  }
};

class AllToAllOp : public GroupOp {
 public:
  using GroupOp::GroupOp;

 protected:
  // Copies this rank's part of its own data, [from, from + count), to [to, to + count) of an output that ends there.
  void Deliver(OpKernelContext* ctx, int64_t from, int64_t count, int64_t to) {
    const Tensor& data = ctx->input(0);
    OP_REQUIRES(ctx, count >= 0 && from >= 0 && from <= data.NumElements() && count <= data.NumElements() - from,
                ToTf(Wrong("send_data has " + std::to_string(data.NumElements()) + " elements, but " + std::to_string(count) +
                           " from element " + std::to_string(from) + " on are to be sent")));
    OP_REQUIRES(ctx, to >= 0, ToTf(Wrong("recv_displacements[0] must not be negative, found " + std::to_string(to))));
    // A part without elements leaves no trace, wherever it would begin.
    if (count == 0) to = 0;
    const size_t each = static_cast<size_t>(tensorflow::DataTypeSize(data.dtype()));
    Tensor* output = nullptr;
    OP_REQUIRES(ctx, to <= (int64_t{1} << 40) - count, ToTf(Wrong("recv_displacements[0] is too big: " + std::to_string(to))));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({to + count}), &output));
    if (to + count == 0) return;
    char* bytes = static_cast<char*>(output->data());
    std::memset(bytes, 0, static_cast<size_t>(to) * each);
    std::memcpy(bytes + static_cast<size_t>(to) * each, static_cast<const char*>(data.data()) + static_cast<size_t>(from) * each,
                static_cast<size_t>(count) * each);
  }
};

class AllToAllVOp : public AllToAllOp {
 public:
  using AllToAllOp::AllToAllOp;

  void Compute(OpKernelContext* ctx) override {
    static constexpr const char* kNames[] = {"send_counts", "send_displacements", "recv_counts", "recv_displacements"};
    int64_t values[4];
    for (int i = 0; i < 4; ++i) {
      const Tensor& input = ctx->input(i + 1);
      OP_REQUIRES(ctx, input.dims() == 1 && input.NumElements() == group_size(),
                  ToTf(Wrong(std::string(kNames[i]) + " must have one value for each of " + std::to_string(group_size()) +
                             " ranks, found shape " + ShapeText(input))));
      values[i] = DataSpan<int64_t>(input)[0];
    }
    OP_REQUIRES(
        ctx, values[0] == values[2],
        ToTf(Wrong("rank 0 sends " + std::to_string(values[0]) + " elements to itself, but expects " + std::to_string(values[2]))));
    Deliver(ctx, values[1], values[0], values[3]);
  }
};

class AllToAllVCOp : public AllToAllOp {
 public:
  using AllToAllOp::AllToAllOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& matrix = ctx->input(1);
    OP_REQUIRES(ctx, matrix.dims() == 2 && matrix.dim_size(0) == group_size() && matrix.dim_size(1) == group_size(),
                ToTf(Wrong("send_count_matrix must have shape [" + std::to_string(group_size()) + "," +
                           std::to_string(group_size()) + "], found " + ShapeText(matrix))));
    Deliver(ctx, 0, DataSpan<int64_t>(matrix)[0], 0);
  }
};

#define MXREC_REGISTER(op, kernel) REGISTER_KERNEL_BUILDER(Name(op).Device(tensorflow::DEVICE_CPU), kernel)
MXREC_REGISTER("NPUInit", RuntimeOp);
MXREC_REGISTER("NPUShutdown", RuntimeOp);
MXREC_REGISTER("HcomAllReduce", IdentityOp);
MXREC_REGISTER("HcomReduce", IdentityOp);
MXREC_REGISTER("HcomBroadcast", IdentityOp);
MXREC_REGISTER("HcomAllGather", AllGatherOp);
MXREC_REGISTER("HcomReduceScatter", AllGatherOp);
MXREC_REGISTER("HcomSend", IdentityOp);
MXREC_REGISTER("HcomReceive", IdentityOp);
MXREC_REGISTER("HcomAllToAllV", AllToAllVOp);
MXREC_REGISTER("HcomAllToAllVC", AllToAllVCOp);

}  // namespace
}  // namespace mxrec
