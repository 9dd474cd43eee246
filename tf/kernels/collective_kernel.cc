#include "tf/kernels/collective_kernel.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "mxrec/comm/collectives.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tf/comm_runtime.h"
#include "tf/kernels/hcom_groups.h"
#include "tf/kernels/kept_tensor.h"
#include "tf/kernels/table_resource.h"
#include "tf/node_attrs.h"
#include "tf/turn_key.h"

namespace mxrec {

using tensorflow::DataType;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

// Iterations of a loop that run at the same time get different names; TensorFlow runs 10 at a time unless told otherwise.
constexpr int64_t kNamedIterations = 64;
constexpr uint64_t kNamedFrames = 4096;

std::vector<int64_t> ShapeOf(const Tensor& tensor) {
  std::vector<int64_t> shape(static_cast<size_t>(tensor.dims()));
  for (int i = 0; i < tensor.dims(); ++i) shape[static_cast<size_t>(i)] = tensor.dim_size(i);
  return shape;
}

size_t Elements(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  return count;
}

// Results of this size would be mappings of their own, made anew in every step: their pages cost a quarter of the exchange.
constexpr int64_t kKeptBytes = int64_t{32} << 20;

template <typename T>
void Divide(void* data, size_t count, int64_t size) {
  T* values = static_cast<T*>(data);
  for (size_t i = 0; i < count; ++i) {
    const int64_t value = static_cast<int64_t>(values[i]);
    values[i] = static_cast<T>(value >= 0 ? value / size : -((-(value + 1)) / size) - 1);
  }
}

// Divides integers by `size`, rounding down.
void DivideDown(void* data, size_t count, DType dtype, int64_t size) {
  switch (dtype) {
    case DType::kInt8:
      return Divide<int8_t>(data, count, size);
    case DType::kInt16:
      return Divide<int16_t>(data, count, size);
    case DType::kInt32:
      return Divide<int32_t>(data, count, size);
    case DType::kInt64:
      return Divide<int64_t>(data, count, size);
    case DType::kUInt8:
      return Divide<uint8_t>(data, count, size);
    default:
      MXREC_CHECK(false) << "no integer: " << DTypeName(dtype);
  }
}

std::string OriginOf(const std::string& node, const std::string& line) {
  return line.empty() ? "node " + node : "node " + node + ", " + line;
}

// Unavailable and Aborted would make monitored sessions start again for ever, which cannot mend a world of which a rank is gone.
TfStatus ToOpStatus(const Status& status, const std::string& node, bool cancelled_here) {
  StatusCode code = status.code();
  if (code == StatusCode::kUnavailable || code == StatusCode::kAborted) code = StatusCode::kInternal;
  if (code == StatusCode::kCancelled && !cancelled_here) code = StatusCode::kInternal;
  if (code != StatusCode::kCancelled && !CommHealth().ok()) code = StatusCode::kInternal;
  std::string text(status.message());
  if (text.find(node) == std::string::npos) text = node + ": " + text;
  return ToTf(Status(code, std::move(text)));
}

}  // namespace

Result<ReduceOp> ParseReduction(const std::string& text) {
  if (text == "sum") return ReduceOp::kSum;
  if (text == "min") return ReduceOp::kMin;
  if (text == "max") return ReduceOp::kMax;
  if (text == "prod") return ReduceOp::kProduct;
  if (text == "adasum") return ReduceOp::kAdasum;
  return InvalidArgumentError("unknown reduction '" + text + "'");
}

Result<DType> ToDType(DataType type) {
  switch (type) {
    case tensorflow::DT_FLOAT:
      return DType::kFloat32;
    case tensorflow::DT_DOUBLE:
      return DType::kFloat64;
    case tensorflow::DT_HALF:
      return DType::kFloat16;
    case tensorflow::DT_BFLOAT16:
      return DType::kBFloat16;
    case tensorflow::DT_INT8:
      return DType::kInt8;
    case tensorflow::DT_INT16:
      return DType::kInt16;
    case tensorflow::DT_INT32:
      return DType::kInt32;
    case tensorflow::DT_INT64:
      return DType::kInt64;
    case tensorflow::DT_UINT8:
      return DType::kUInt8;
    case tensorflow::DT_UINT16:
      return DType::kUInt16;
    case tensorflow::DT_UINT32:
      return DType::kUInt32;
    case tensorflow::DT_UINT64:
      return DType::kUInt64;
    case tensorflow::DT_BOOL:
      return DType::kBool;
    default:
      return UnimplementedError("tensors of type " + tensorflow::DataTypeString(type) + " cannot be exchanged");
  }
}

CollectiveKernel::CollectiveKernel(tensorflow::OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
  OP_REQUIRES_OK(ctx, ctx->GetAttr("group", &group_));
  if (ctx->HasAttr("tensor_name")) OP_REQUIRES_OK(ctx, ctx->GetAttr("tensor_name", &tensor_name_));
  // Of a node of a graph a hidden attribute, of an op that runs at once one of its own.
  std::string line;
  for (const char* const attribute : {"line", kLineAttr}) {
    if (line.empty() && ctx->HasAttr(attribute)) OP_REQUIRES_OK(ctx, ctx->GetAttr(attribute, &line));
  }
  origin_ = OriginOf(name(), line);
  std::vector<DataType> types;
  if (ctx->HasAttr("T") && ctx->GetAttr("T", &types).ok()) parts_ = static_cast<int>(types.size());
  if (ctx->HasAttr(kMergedNamesAttr)) OP_REQUIRES_OK(ctx, ToTf(ReadMerged(ctx)));
  turn_ = TurnOf(TurnKey(name(), tensorflow::AttrSlice(def())));
  turn_->Add(this, [this](const Status& why) {
    const Result<Membership> group = FindGroup();
    if (group.ok()) TellOthers(*group, AgreedName(nullptr) + first_stage_, parts_, why);
  });
}

CollectiveKernel::~CollectiveKernel() {
  if (turn_ != nullptr) turn_->Remove(this);
}

Status CollectiveKernel::ReadMerged(tensorflow::OpKernelConstruction* ctx) {
  std::vector<std::string> names, nodes, lines;
  bool group_must_exist = false;
  MXREC_RETURN_IF_ERROR(FromTf(ctx->GetAttr(kMergedNamesAttr, &names)));
  MXREC_RETURN_IF_ERROR(FromTf(ctx->GetAttr(kMergedNodesAttr, &nodes)));
  MXREC_RETURN_IF_ERROR(FromTf(ctx->GetAttr(kMergedLinesAttr, &lines)));
  MXREC_RETURN_IF_ERROR(FromTf(ctx->GetAttr(kMergedHcomAttr, &group_must_exist)));
  const size_t count = static_cast<size_t>(ctx->num_inputs());
  if (names.size() != count || nodes.size() != count || lines.size() != count) {
    return Wrong(std::string(kMergedNamesAttr) + ", " + kMergedNodesAttr + " and " + kMergedLinesAttr + " must have " +
                 std::to_string(count) + " entries, found " + std::to_string(names.size()) + ", " + std::to_string(nodes.size()) +
                 " and " + std::to_string(lines.size()));
  }
  for (size_t i = 0; i < count; ++i) merged_.push_back({names[i], nodes[i], OriginOf(nodes[i], lines[i])});
  return group_must_exist ? FindGroup().status() : OkStatus();
}

Result<CollectiveKernel::Membership> CollectiveKernel::FindGroup() const {
  Membership group;
  Result<std::vector<int>> ranks = FindHcomGroup(group_);
  if (!ranks.ok()) return Status(ranks.status().code(), NodeOf(0) + ": " + std::string(ranks.status().message()));
  group.ranks = std::move(*ranks);
  const int rank = GetHcomWorld().rank;
  const auto me = std::find(group.ranks.begin(), group.ranks.end(), rank);
  if (me == group.ranks.end()) {
    return FailedPreconditionError(NodeOf(0) + ": this process, rank " + std::to_string(rank) + " of the world, is not in group '" +
                                   group_ + "'");
  }
  group.me = static_cast<int>(me - group.ranks.begin());
  return group;
}

Result<CollectiveKernel::Part> CollectiveKernel::MakePart(OpKernelContext* ctx, Collective kind, int index) const {
  const Tensor& input = ctx->input(index);
  Part part;
  part.request.kind = kind;
  const Result<DType> dtype = ToDType(input.dtype());
  if (!dtype.ok()) return Status(dtype.status().code(), name() + ": " + std::string(dtype.status().message()));
  part.request.dtype = *dtype;
  part.request.shape = ShapeOf(input);
  part.request.input = input.data();
  return part;
}

Status CollectiveKernel::CheckRank(const char* attribute, int64_t rank, const Membership& group) const {
  if (rank >= 0 && rank < group.size()) return OkStatus();
  return Wrong(std::string(attribute) + " is " + std::to_string(rank) + ", but group '" + group_ + "' has " +
               std::to_string(group.size()) + " ranks");
}

Result<CollectiveKernel::Part> CollectiveKernel::MakeBroadcastPart(OpKernelContext* ctx, const Membership& group, int index,
                                                                   int64_t root) const {
  const Tensor& input = ctx->input(index);
  if (input.dtype() == tensorflow::DT_STRING) return MakeStringPart(ctx, group, index, root);
  Part part;
  if (ToDType(input.dtype()).ok()) {
    MXREC_ASSIGN_OR_RETURN(part, MakePart(ctx, Collective::kBroadcast, index));
    part.output = index;
    part.forwards = true;
  } else if (tensorflow::DataTypeCanUseMemcpy(input.dtype())) {
    // Travels as bytes.
    part.request.kind = Collective::kBroadcast;
    part.request.dtype = DType::kUInt8;
    part.request.shape = {static_cast<int64_t>(input.TotalBytes())};
    part.request.input = input.data();
    part.allocate = [index](OpKernelContext* ctx, const Agreed&) -> Result<void*> {
      Tensor* output = nullptr;
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(index, ctx->input(index).shape(), &output)));
      return output->data();
    };
  } else {
    return Status(StatusCode::kUnimplemented,
                  name() + ": tensors of type " + tensorflow::DataTypeString(input.dtype()) + " cannot be exchanged");
  }
  part.request.root = static_cast<int>(root);
  return part;
}

// Strings: the root gives a row of bytes (the lengths, then the texts) and the others none, all of which is gathered.
Result<CollectiveKernel::Part> CollectiveKernel::MakeStringPart(OpKernelContext* ctx, const Membership& group, int index,
                                                                int64_t root) const {
  const Tensor& input = ctx->input(index);
  const auto texts = input.flat<tensorflow::tstring>();
  std::string bytes;
  if (group.me == root) {
    for (int64_t i = 0; i < texts.size(); ++i) {
      const uint64_t length = texts(i).size();
      bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
    }
    for (int64_t i = 0; i < texts.size(); ++i) bytes.append(texts(i).data(), texts(i).size());
  }
  Part part;
  part.request.kind = Collective::kAllGather;
  part.request.dtype = DType::kUInt8;
  part.request.shape = {std::ssize(bytes)};
  part.packed = Tensor(tensorflow::DT_UINT8, TensorShape({std::ssize(bytes)}));
  if (!bytes.empty()) std::memcpy(part.packed.data(), bytes.data(), bytes.size());
  part.request.input = part.packed.data();
  const auto gathered = std::make_shared<std::string>();
  part.allocate = [gathered](OpKernelContext*, const Agreed& agreed) -> Result<void*> {
    gathered->resize(Elements(agreed.shape));
    return static_cast<void*>(gathered->data());
  };
  part.finish = [gathered, index, node = name()](OpKernelContext* ctx, const Agreed&) {
    Tensor* output = nullptr;
    MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(index, ctx->input(index).shape(), &output)));
    auto texts = output->flat<tensorflow::tstring>();
    const size_t count = static_cast<size_t>(texts.size());
    size_t place = count * sizeof(uint64_t);
    for (size_t i = 0; i < count && place <= gathered->size(); ++i) {
      uint64_t length = 0;
      std::memcpy(&length, gathered->data() + i * sizeof length, sizeof length);
      if (length > gathered->size() - place) break;
      texts(static_cast<int64_t>(i)).assign(gathered->data() + place, length);
      place += length;
    }
    if (place == gathered->size()) return OkStatus();
    return InvalidArgumentError(node + ": the root's strings do not fit the shape " + output->shape().DebugString() +
                                " of this rank's");
  };
  return part;
}

void CollectiveKernel::Average(const Membership& group, int output, Part* part) {
  if (IsFloating(part->request.dtype)) {
    part->request.divide_by_size = true;
    return;
  }
  if (group.size() == 1) return;
  part->finish = [output, dtype = part->request.dtype, size = group.size()](OpKernelContext* ctx, const Agreed&) {
    Tensor* sum = ctx->mutable_output(output);
    DivideDown(sum->data(), static_cast<size_t>(sum->NumElements()), dtype, size);
    return OkStatus();
  };
}

std::string CollectiveKernel::AgreedName(const OpKernelContext* ctx) const {
  std::string agreed = tensor_name_.empty() ? name() : tensor_name_;
  if (ctx == nullptr) return agreed;
  const tensorflow::FrameAndIter place = ctx->frame_iter();
  if (place.frame_id != 0) {
    agreed.append("@").append(std::to_string(place.frame_id % kNamedFrames));
    agreed.append("#").append(std::to_string(place.iter_id % kNamedIterations));
  }
  return agreed;
}

// One run of the op. Kept alive by the callbacks of its parts.
struct CollectiveKernel::Call {
  OpKernelContext* ctx = nullptr;
  DoneCallback done;
  std::vector<Part> parts;
  std::vector<std::string> names;
  std::string group;
  const CollectiveKernel* kernel = nullptr;  // until `done`
  int64_t step = 0;
  std::atomic<size_t> left{0};
  std::atomic<bool> cancelled{false};
  std::atomic<bool> given_up{false};  // a part of a merged node has failed
  tensorflow::CancellationManager* manager = nullptr;
  tensorflow::CancellationToken token = 0;
  std::mutex mutex;
  Status failure;
  size_t failed = 0;

  void Fail(const Status& status, size_t part) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      // What was cancelled because another part failed says less than that part.
      if (failure.ok() || failure.code() == StatusCode::kCancelled) {
        failure = status;
        failed = part;
      }
    }
    // What was a node of its own would be cancelled now, at the end of the step; other ranks may never ask for it.
    if (!kernel->merged_.empty() && !given_up.exchange(true)) CancelAll();
  }

  void CancelAll() const {
    const std::string why = StepFailure(step);
    for (const std::string& name : names) CancelComm(group, name, this, why);
  }

  void PartEnded() {
    if (left.fetch_sub(1) != 1) return;
    // Never waits: a cancellation that is under way touches nothing but this object.
    if (manager != nullptr) manager->TryDeregisterCallback(token);
    if (!failure.ok()) {
      const TfStatus status = ToOpStatus(failure, kernel->NodeOf(failed), cancelled);
      if (status.code() != absl::StatusCode::kCancelled) NoteStepFailure(ctx, FromTf(status));
      ctx->SetStatus(status);
    }
    DoneCallback end = std::move(done);
    parts.clear();
    end();
  }
};

void CollectiveKernel::Run(OpKernelContext* ctx, const Membership& group, std::vector<Part> parts, DoneCallback done) {
  RunStage(ctx, group, first_stage_, std::move(parts), std::move(done));
}

void CollectiveKernel::RunStage(OpKernelContext* ctx, const Membership& group, const std::string& stage, std::vector<Part> parts,
                                DoneCallback done) {
  if (group.size() == 1) return RunAlone(ctx, std::move(parts), std::move(done));
  if (parts.empty()) return done();
  const auto call = std::make_shared<Call>();
  call->ctx = ctx;
  call->done = std::move(done);
  call->parts = std::move(parts);
  call->group = group_;
  call->kernel = this;
  call->step = ctx->step_id();
  const size_t count = call->parts.size();
  const std::string agreed = AgreedName(ctx) + stage;
  std::vector<CommRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    Part& part = call->parts[i];
    CommRequest& request = requests[i];
    request = std::move(part.request);
    request.group = group_;
    // Kernels name what two ranks alone agree on (send and receive).
    if (!merged_.empty()) {
      request.name = merged_[i].name;
    } else if (request.name.empty()) {
      request.name = agreed + PartSuffix(static_cast<int>(i));
      request.parts = static_cast<int>(count);
      request.part = static_cast<int>(i);
    }
    request.origin = merged_.empty() ? origin_ : merged_[i].origin;
    call->names.push_back(request.name);
    if (part.allocate) {
      request.allocate = [call, i](const Agreed& result) { return call->parts[i].allocate(call->ctx, result); };
    } else if (part.output >= 0) {
      request.allocate = [call, i](const Agreed& result) -> Result<void*> {
        const Part& part = call->parts[i];
        TensorShape shape;
        for (const int64_t size : result.shape) MXREC_RETURN_IF_ERROR(FromTf(shape.AddDimWithStatus(size)));
        Tensor* output = nullptr;
        if (part.forwards && call->ctx->forward_input_to_output_with_shape(part.output, part.output, shape, &output)) {
          return output->data();
        }
        const DataType type = call->ctx->expected_output_dtype(part.output);
        if (shape.num_elements() >= kKeptBytes / tensorflow::DataTypeSize(type)) {
          MXREC_ASSIGN_OR_RETURN(const Tensor kept, KeptTensor(call->ctx, type, shape));
          call->ctx->set_output(part.output, kept);
          return kept.data();
        }
        MXREC_RETURN_IF_ERROR(FromTf(call->ctx->allocate_output(part.output, shape, &output)));
        return output->data();
      };
    }
    request.done = [call, i](const Status& status, const Agreed& result) {
      if (!status.ok()) {
        call->Fail(status, i);
      } else if (const auto& finish = call->parts[i].finish; finish) {
        if (const Status finished = finish(call->ctx, result); !finished.ok()) call->Fail(finished, i);
      }
      call->PartEnded();
    };
  }
  call->left = count + 1;  // one for this function, which still reads `call` when the last part has ended
  call->manager = ctx->cancellation_manager();
  if (call->manager != nullptr) {
    call->token = call->manager->get_cancellation_token();
    // A copy of the pointer inside of the manager would keep the call alive for ever: it goes when the callback is deregistered.
    const bool registered = call->manager->RegisterCallback(call->token, [call] {
      call->cancelled = true;
      call->CancelAll();
    });
    if (!registered) call->manager = nullptr;
    call->cancelled = call->cancelled || !registered;
  }
  const bool first = stage == first_stage_;
  // Of the first exchange of a step that has failed the watch tells the others, if they are to know.
  if ((call->cancelled && call->manager == nullptr) || (first && !turn_->Take(ctx->step_id()))) {
    const Status cancelled = CancelledError("the step was cancelled");
    if (!first) TellOthers(group, agreed, static_cast<int>(count), cancelled);
    call->cancelled = true;
    call->given_up = true;
    call->Fail(cancelled, 0);
    call->left = 1;
    return call->PartEnded();
  }
  const bool repeatable = tensor_name_.empty();
  SubmitComm(std::move(requests), call.get(), repeatable);
  // What was cancelled meanwhile may not have been there yet.
  if (call->cancelled || call->given_up) call->CancelAll();
  call->PartEnded();
}

void CollectiveKernel::Refuse(OpKernelContext* ctx, const Membership& group, const Status& why, const DoneCallback& done) {
  RefuseStage(ctx, group, first_stage_, why, done);
}

void CollectiveKernel::RefuseStage(OpKernelContext* ctx, const Membership& group, const std::string& stage, const Status& why,
                                   const DoneCallback& done) {
  const bool first = stage == first_stage_;
  if (!first || turn_->Take(ctx->step_id())) TellOthers(group, AgreedName(ctx) + stage, first ? parts_ : 1, why);
  NoteStepFailure(ctx, why);
  ctx->SetStatus(ToTf(why));
  done();
}

void CollectiveKernel::RefuseToBeMade(tensorflow::OpKernelConstruction* ctx, const Status& why) {
  const Result<Membership> group = FindGroup();
  if (group.ok()) TellOthers(*group, AgreedName(nullptr) + first_stage_, parts_, why);
  ctx->SetStatus(ToTf(why));
}

void CollectiveKernel::TellOthers(const Membership& group, const std::string& agreed, int parts, const Status& why) const {
  if (group.size() == 1) return;
  const auto tell = [&](CommRequest request, const std::string& node, const std::string& origin) {
    request.group = group_;
    std::string text(why.message());
    if (text.find(node) == std::string::npos) text = node + ": " + text;
    RefuseComm(std::move(request), Status(why.code(), text + " (" + origin + ")"));
  };
  for (const Merged& merged : merged_) {
    CommRequest request;
    request.name = merged.name;
    tell(std::move(request), merged.node, merged.origin);
  }
  if (!merged_.empty()) return;
  CommRequest request = Asks(group);
  if (request.name.empty()) request.name = agreed;
  request.parts = parts;
  tell(std::move(request), name(), origin_);
}

void CollectiveKernel::RunAlone(OpKernelContext* ctx, std::vector<Part> parts, DoneCallback done) const {
  for (Part& part : parts) {
    const CommRequest& request = part.request;
    if (request.kind == Collective::kSend || request.kind == Collective::kReceive) {
      MXREC_REQUIRES_OK_ASYNC(ctx, Wrong("the other rank must be another one, but group '" + group_ + "' has this one only"), done);
    }
    Agreed agreed;
    agreed.shape = request.shape;
    if (request.kind == Collective::kJoin) {
      agreed.shape.clear();
      agreed.received = {0};
    } else if (request.kind == Collective::kAllGather || request.kind == Collective::kAllToAll) {
      agreed.received = {request.shape.empty() ? 0 : request.shape[0]};
    }
    const bool scaled = request.prescale != 1 || request.postscale != 1;
    if (part.allocate) {
      const Result<void*> output = part.allocate(ctx, agreed);
      MXREC_REQUIRES_OK_ASYNC(ctx, output.status(), done);
      const size_t bytes = Elements(request.shape) * DTypeSize(request.dtype);
      if (bytes != 0 && request.input != kInPlace && *output != request.input) std::memcpy(*output, request.input, bytes);
    } else if (part.output >= 0 && !scaled) {
      ctx->set_output(part.output, ctx->input(part.output));
    } else if (part.output >= 0) {
      Tensor* output = nullptr;
      const TensorShape shape = ctx->input(part.output).shape();
      MXREC_REQUIRES_OK_ASYNC(ctx, FromTf(ctx->forward_input_or_allocate_output({part.output}, part.output, shape, &output)), done);
      const size_t count = Elements(request.shape);
      if (count != 0 && output->data() != request.input)
        std::memcpy(output->data(), request.input, count * DTypeSize(request.dtype));
      if (request.prescale != 1) Scale(output->data(), count, request.dtype, request.prescale);
      if (request.postscale != 1) Scale(output->data(), count, request.dtype, request.postscale);
    }
    if (part.finish) MXREC_REQUIRES_OK_ASYNC(ctx, part.finish(ctx, agreed), done);
  }
  done();
}

}  // namespace mxrec
