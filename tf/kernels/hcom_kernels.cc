// The kernels of the collective ops under the names of the original (tf/ops/hcom_ops.cc), and the start and end of the collective
// runtime. A group of one rank makes every collective a copy, but attributes and inputs are checked as for many.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/comm_runtime.h"
#include "tf/kernels/collective_kernel.h"
#include "tf/kernels/hcom_groups.h"
#include "tf/kernels/table_resource.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// NPUInit, NPUShutdown.
class RuntimeOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    if (GetHcomWorld().size == 1) return done();
    const auto end = [ctx, done = std::move(done)](const Status& status) {
      if (!status.ok()) ctx->SetStatus(ToTf(status));
      done();
    };
    if (type_string() == "NPUInit") {
      StartComm(end);
    } else {
      ShutdownComm(end);
    }
  }
};

// What all of them share: the attributes that name ranks of the group.
class HcomKernel : public CollectiveKernel {
 public:
  explicit HcomKernel(OpKernelConstruction* ctx) : CollectiveKernel(ctx) {
    for (const auto& [name, value] : {std::pair{"rank_size", &rank_size_},
                                      {"root_rank", &root_},
                                      {"rank", &rank_},
                                      {"dest_rank", &peer_},
                                      {"src_rank", &peer_},
                                      {"sr_tag", &tag_}}) {
      if (ctx->HasAttr(name)) OP_REQUIRES_OK(ctx, ctx->GetAttr(name, value));
    }
    std::string reduction = "sum";
    if (ctx->HasAttr("reduction")) OP_REQUIRES_OK(ctx, ctx->GetAttr("reduction", &reduction));
    const Result<ReduceOp> parsed = ParseReduction(reduction);
    OP_REQUIRES_OK(ctx, ToTf(parsed.status()));
    reduction_ = *parsed;
    // A wrong attribute is an error before anything runs.
    if (const Status wrong = Check(FindGroup()); !wrong.ok()) RefuseToBeMade(ctx, wrong);
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const Result<Membership> group = FindGroup();
    MXREC_REQUIRES_OK_ASYNC(ctx, group.status(), done);
    MXREC_TAKES_PART_IF_OK(ctx, *group, Check(group), done);
    Result<std::vector<Part>> parts = MakeParts(ctx, *group);
    MXREC_TAKES_PART_IF_OK(ctx, *group, parts.status(), done);
    Run(ctx, *group, std::move(*parts), std::move(done));
  }

 protected:
  virtual Result<std::vector<Part>> MakeParts(OpKernelContext* ctx, const Membership& group) = 0;
  // A send, or the receive that it meets.
  CommRequest Asks(const Membership& group) const override {
    CommRequest request;
    const bool sends = type_string() == "HcomSend";
    if (!sends && type_string() != "HcomReceive") return request;
    request.kind = sends ? Collective::kSend : Collective::kReceive;
    request.peer = static_cast<int>(peer_);
    request.tag = tag_;
    const int64_t from = sends ? group.me : peer_, to = sends ? peer_ : group.me;
    request.name = "send " + std::to_string(tag_) + " " + std::to_string(from) + " to " + std::to_string(to);
    return request;
  }

  int64_t root_ = -1;
  int64_t rank_ = -1;
  int64_t peer_ = -1;
  int64_t tag_ = 0;
  ReduceOp reduction_ = ReduceOp::kSum;

 private:
  Status Check(const Result<Membership>& group) const {
    MXREC_RETURN_IF_ERROR(group.status());
    if (rank_size_ >= 0 && rank_size_ != group->size()) {
      return Wrong("rank_size is " + std::to_string(rank_size_) + ", but group '" + group_name() + "' has " +
                   std::to_string(group->size()) + " ranks");
    }
    if (root_ >= 0) MXREC_RETURN_IF_ERROR(CheckRank("root_rank", root_, *group));
    if (rank_ >= 0) {
      MXREC_RETURN_IF_ERROR(CheckRank("rank", rank_, *group));
      if (rank_ != group->me) {
        return Wrong("rank is " + std::to_string(rank_) + ", but this process is rank " + std::to_string(group->me) +
                     " of group '" + group_name() + "'");
      }
    }
    if (peer_ < 0) return OkStatus();
    const char* attribute = type_string() == "HcomSend" ? "dest_rank" : "src_rank";
    if (group->size() == 1) {
      return Wrong(std::string(attribute) + " must be another rank, but group '" + group_name() + "' has this one only");
    }
    MXREC_RETURN_IF_ERROR(CheckRank(attribute, peer_, *group));
    if (peer_ == group->me)
      return Wrong(std::string(attribute) + " must be another rank, found this one, " + std::to_string(peer_));
    return OkStatus();
  }

  int64_t rank_size_ = -1;
};

class AllReduceOp : public HcomKernel {
 public:
  explicit AllReduceOp(OpKernelConstruction* ctx) : HcomKernel(ctx) { OP_REQUIRES_OK(ctx, ctx->GetAttr("average", &average_)); }

 private:
  Result<std::vector<Part>> MakeParts(OpKernelContext* ctx, const Membership& group) override {
    MXREC_ASSIGN_OR_RETURN(Part part, MakePart(ctx, Collective::kAllReduce, 0));
    part.request.op = reduction_;
    if (average_) Average(group, 0, &part);
    part.output = 0;
    part.forwards = true;
    return One(std::move(part));
  }

  bool average_ = false;
};

class ReduceOpKernel : public HcomKernel {
 public:
  using HcomKernel::HcomKernel;

 private:
  Result<std::vector<Part>> MakeParts(OpKernelContext* ctx, const Membership& group) override {
    MXREC_ASSIGN_OR_RETURN(Part part, MakePart(ctx, Collective::kReduce, 0));
    part.request.op = reduction_;
    part.request.root = static_cast<int>(root_);
    part.output = 0;
    // The others get their own tensor back, whatever was put in the memory that they lent.
    if (group.me != root_) {
      part.finish = [](OpKernelContext* ctx, const Agreed&) {
        const Tensor& input = ctx->input(0);
        if (input.TotalBytes() != 0) std::memcpy(ctx->mutable_output(0)->data(), input.data(), input.TotalBytes());
        return OkStatus();
      };
    }
    return One(std::move(part));
  }
};

class BroadcastOp : public HcomKernel {
 public:
  using HcomKernel::HcomKernel;

 private:
  Result<std::vector<Part>> MakeParts(OpKernelContext* ctx, const Membership& group) override {
    std::vector<Part> parts;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      MXREC_ASSIGN_OR_RETURN(Part part, MakeBroadcastPart(ctx, group, i, root_));
      parts.push_back(std::move(part));
    }
    return parts;
  }
};

// HcomAllGather, HcomReduceScatter.
class RowsOp : public HcomKernel {
 public:
  using HcomKernel::HcomKernel;

 private:
  Result<std::vector<Part>> MakeParts(OpKernelContext* ctx, const Membership& group) override {
    const Tensor& input = ctx->input(0);
    const bool scatter = type_string() == "HcomReduceScatter";
    if (input.dims() < 1) return Wrong("input must have a first dimension, found a scalar");
    if (scatter && input.dim_size(0) % group.size() != 0) {
      return Wrong("the first dimension must be divisible by rank_size " + std::to_string(group.size()) + ", found shape " +
                   ShapeText(input));
    }
    MXREC_ASSIGN_OR_RETURN(Part part, MakePart(ctx, scatter ? Collective::kReduceScatter : Collective::kAllGather, 0));
    part.request.op = reduction_;
    part.output = 0;
    return One(std::move(part));
  }
};

class SendOp : public HcomKernel {
 public:
  using HcomKernel::HcomKernel;

 private:
  Result<std::vector<Part>> MakeParts(OpKernelContext* ctx, const Membership& group) override {
    MXREC_ASSIGN_OR_RETURN(Part part, MakePart(ctx, Collective::kSend, 0));
    CommRequest request = Asks(group);
    request.dtype = part.request.dtype;
    request.shape = std::move(part.request.shape);
    request.input = part.request.input;
    part.request = std::move(request);
    return One(std::move(part));
  }
};

class ReceiveOp : public HcomKernel {
 public:
  explicit ReceiveOp(OpKernelConstruction* ctx) : HcomKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shape", &shape_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &type_));
  }

 private:
  Result<std::vector<Part>> MakeParts(OpKernelContext*, const Membership& group) override {
    Part part;
    part.request = Asks(group);
    MXREC_ASSIGN_OR_RETURN(part.request.dtype, ToDType(type_));
    for (int i = 0; i < shape_.dims(); ++i) part.request.shape.push_back(shape_.dim_size(i));
    part.output = 0;
    return One(std::move(part));
  }

  TensorShape shape_;
  tensorflow::DataType type_ = tensorflow::DT_FLOAT;
};

// Which elements go to, or come from, each rank.
struct Places {
  std::vector<int64_t> counts;
  std::vector<int64_t> starts;
  bool gapless = true;
  int64_t end = 0;  // of the part that ends last
};

class AllToAllOp : public HcomKernel {
 public:
  using HcomKernel::HcomKernel;

 protected:
  // The part that sends `send` and puts what comes at `receive`.
  Result<Part> MakeExchange(OpKernelContext* ctx, const Membership& group, const Places& send, const Places& receive) const {
    const Tensor& data = ctx->input(0);
    const size_t me = static_cast<size_t>(group.me);
    if (send.counts[me] != receive.counts[me]) {
      return Wrong("rank " + std::to_string(group.me) + " sends " + std::to_string(send.counts[me]) +
                   " elements to itself, but expects " + std::to_string(receive.counts[me]));
    }
    MXREC_ASSIGN_OR_RETURN(Part part, MakePart(ctx, Collective::kAllToAll, 0));
    const size_t each = DTypeSize(part.request.dtype);
    const int64_t total = std::accumulate(send.counts.begin(), send.counts.end(), int64_t{0});
    part.request.shape = {total};
    part.request.splits = send.counts;
    if (!send.gapless) {
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(data.dtype(), TensorShape({total}), &part.packed)));
      char* to = static_cast<char*>(part.packed.data());
      for (size_t i = 0; i < send.counts.size(); ++i) {
        const size_t bytes = static_cast<size_t>(send.counts[i]) * each;
        if (bytes == 0) continue;
        std::memcpy(to, static_cast<const char*>(data.data()) + static_cast<size_t>(send.starts[i]) * each, bytes);
        to += bytes;
      }
      part.request.input = part.packed.data();
    }
    // Room for what comes, in rank order; then it goes to its places, if those are others.
    const auto came = std::make_shared<Tensor>();
    part.allocate = [this, came, receive, type = data.dtype()](OpKernelContext* ctx, const Agreed& agreed) -> Result<void*> {
      for (size_t i = 0; i < receive.counts.size(); ++i) {
        if (agreed.received[i] == receive.counts[i]) continue;
        return Wrong("rank " + std::to_string(i) + " sends " + std::to_string(agreed.received[i]) +
                     " elements to this rank, which expects " + std::to_string(receive.counts[i]));
      }
      Tensor* output = nullptr;
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(0, TensorShape({receive.end}), &output)));
      if (receive.gapless) return output->data();
      const int64_t total = std::accumulate(receive.counts.begin(), receive.counts.end(), int64_t{0});
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(type, TensorShape({total}), came.get())));
      return came->data();
    };
    part.finish = [came, receive, each](OpKernelContext* ctx, const Agreed&) {
      if (receive.gapless) return OkStatus();
      Tensor* output = ctx->mutable_output(0);
      char* to = static_cast<char*>(output->data());
      if (receive.end != 0) std::memset(to, 0, static_cast<size_t>(receive.end) * each);
      const char* from = static_cast<const char*>(came->data());
      for (size_t i = 0; i < receive.counts.size(); ++i) {
        const size_t bytes = static_cast<size_t>(receive.counts[i]) * each;
        if (bytes == 0) continue;
        std::memcpy(to + static_cast<size_t>(receive.starts[i]) * each, from, bytes);
        from += bytes;
      }
      return OkStatus();
    };
    return part;
  }

  Status AddSend(const Tensor& data, int64_t count, int64_t start, Places* places) const {
    const int64_t all = data.NumElements();
    if (count < 0 || start < 0 || start > all || count > all - start) {
      return Wrong("send_data has " + std::to_string(all) + " elements, but " + std::to_string(count) + " from element " +
                   std::to_string(start) + " on are to be sent");
    }
    return Add(count, start, places);
  }

  Status AddReceive(int64_t count, int64_t start, Places* places) const {
    const std::string index = std::string("[").append(std::to_string(places->counts.size())).append("]");
    if (count < 0) return Wrong("recv_counts" + index + " must not be negative, found " + std::to_string(count));
    if (start < 0) return Wrong("recv_displacements" + index + " must not be negative, found " + std::to_string(start));
    if (count > kMost || start > kMost - count) {
      return Wrong("recv_displacements" + index + " is too big: " + std::to_string(start) + " with " + std::to_string(count) +
                   " elements");
    }
    return Add(count, start, places);
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 40;

  static Status Add(int64_t count, int64_t start, Places* places) {
    const int64_t usual = places->counts.empty() ? 0 : places->starts.back() + places->counts.back();
    // A part without elements leaves no trace, wherever it would begin.
    if (count == 0) start = usual;
    places->gapless &= start == usual;
    places->counts.push_back(count);
    places->starts.push_back(start);
    places->end = std::max(places->end, start + count);
    return OkStatus();
  }
};

class AllToAllVOp : public AllToAllOp {
 public:
  using AllToAllOp::AllToAllOp;

 private:
  Result<std::vector<Part>> MakeParts(OpKernelContext* ctx, const Membership& group) override {
    static constexpr const char* kNames[] = {"send_counts", "send_displacements", "recv_counts", "recv_displacements"};
    for (int i = 0; i < 4; ++i) {
      const Tensor& input = ctx->input(i + 1);
      if (input.dims() != 1 || input.NumElements() != group.size()) {
        return Wrong(std::string(kNames[i]) + " must have one value for each of " + std::to_string(group.size()) +
                     " ranks, found shape " + ShapeText(input));
      }
    }
    Places send, receive;
    for (size_t rank = 0; rank < static_cast<size_t>(group.size()); ++rank) {
      const auto value = [&](int input) { return DataSpan<int64_t>(ctx->input(input))[rank]; };
      MXREC_RETURN_IF_ERROR(AddSend(ctx->input(0), value(1), value(2), &send));
      MXREC_RETURN_IF_ERROR(AddReceive(value(3), value(4), &receive));
    }
    MXREC_ASSIGN_OR_RETURN(Part part, MakeExchange(ctx, group, send, receive));
    return One(std::move(part));
  }
};

class AllToAllVCOp : public AllToAllOp {
 public:
  using AllToAllOp::AllToAllOp;

 private:
  Result<std::vector<Part>> MakeParts(OpKernelContext* ctx, const Membership& group) override {
    const Tensor& matrix = ctx->input(1);
    if (matrix.dims() != 2 || matrix.dim_size(0) != group.size() || matrix.dim_size(1) != group.size()) {
      return Wrong("send_count_matrix must have shape [" + std::to_string(group.size()) + "," + std::to_string(group.size()) +
                   "], found " + ShapeText(matrix));
    }
    const size_t size = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.me);
    const auto counts = DataSpan<int64_t>(matrix);
    Places send, receive;
    for (size_t rank = 0; rank < size; ++rank) {
      MXREC_RETURN_IF_ERROR(AddSend(ctx->input(0), counts[me * size + rank], send.end, &send));
      MXREC_RETURN_IF_ERROR(AddReceive(counts[rank * size + me], receive.end, &receive));
    }
    MXREC_ASSIGN_OR_RETURN(Part part, MakeExchange(ctx, group, send, receive));
    return One(std::move(part));
  }
};

#define MXREC_REGISTER(op, kernel) REGISTER_KERNEL_BUILDER(Name(op).Device(tensorflow::DEVICE_CPU), kernel)
MXREC_REGISTER("NPUInit", RuntimeOp);
MXREC_REGISTER("NPUShutdown", RuntimeOp);
MXREC_REGISTER("HcomAllReduce", AllReduceOp);
MXREC_REGISTER("HcomReduce", ReduceOpKernel);
MXREC_REGISTER("HcomBroadcast", BroadcastOp);
MXREC_REGISTER("HcomAllGather", RowsOp);
MXREC_REGISTER("HcomReduceScatter", RowsOp);
MXREC_REGISTER("HcomSend", SendOp);
MXREC_REGISTER("HcomReceive", ReceiveOp);
MXREC_REGISTER("HcomAllToAllV", AllToAllVOp);
MXREC_REGISTER("HcomAllToAllVC", AllToAllVCOp);

}  // namespace
}  // namespace mxrec
