// The collective operations, under the type names of the original (HcomAllReduce, ...), and the start and end of the collective
// runtime. Kernels: tf/kernels/hcom_kernels.cc. Python: python/npu_bridge/hccl/hccl_ops.py.
//
// All are stateful: TensorFlow neither merges two that look alike nor folds them away. Every rank of a group must run ops
// of the same names; the order is its own affair. Fusion (0 none, 1 by the gradient split strategy, 2 with the ops of the same
// fusion_id) is a hint about speed and changes no result.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

#define MXREC_HCOM_SUMMABLE "{int8, int16, int32, int64, half, bfloat16, float, double}"
#define MXREC_HCOM_MOVABLE "{int8, int16, int32, int64, uint8, uint16, uint32, uint64, half, bfloat16, float, double}"

constexpr size_t kMaxGroupName = 127;

TfStatus Wrong(std::string text) { return absl::InvalidArgumentError(std::move(text)); }

TfStatus CheckGroup(InferenceContext* c) {
  std::string group;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("group", &group));
  if (group.empty()) return Wrong("group must be the name of a group, found ''");
  if (group.size() > kMaxGroupName) {
    return Wrong("group must have at most 127 characters, found " + std::to_string(group.size()) + ": '" + group + "'");
  }
  return TfStatus();
}

// An attribute that must lie in [low, high].
TfStatus CheckRange(InferenceContext* c, const char* name, int64_t low, int64_t high) {
  int64_t value = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr(name, &value));
  if (value < low || value > high) {
    return Wrong(std::string(name) + " must be " + std::to_string(low) + " to " + std::to_string(high) + ", found " +
                 std::to_string(value));
  }
  return TfStatus();
}

constexpr int64_t kMaxRanks = 32768;
TfStatus CheckRank(InferenceContext* c, const char* name) { return CheckRange(c, name, 0, kMaxRanks - 1); }
TfStatus CheckRankSize(InferenceContext* c) { return CheckRange(c, "rank_size", 1, kMaxRanks); }

// Fusion by the split strategy (1) is for gradients, so for allreduce alone.
TfStatus CheckFusion(InferenceContext* c, bool gradients) {
  int64_t fusion = 0, id = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("fusion", &fusion));
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("fusion_id", &id));
  if (fusion != 0 && fusion != 2 && !(gradients && fusion == 1)) {
    return Wrong(std::string("fusion must be ") + (gradients ? "0, 1" : "0") + " or 2, found " + std::to_string(fusion));
  }
  if (fusion == 2 && (id < 0 || id > std::numeric_limits<int32_t>::max())) {
    return Wrong("fusion_id must be 0 to 2147483647 with fusion 2, found " + std::to_string(id));
  }
  return TfStatus();
}

TfStatus AllReduceShape(InferenceContext* c) {
  std::string reduction;
  bool average = false;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("reduction", &reduction));
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("average", &average));
  if (average && reduction != "sum") return Wrong("average goes with the reduction sum, found '" + reduction + "'");
  MXREC_TF_RETURN_IF_ERROR(CheckGroup(c));
  MXREC_TF_RETURN_IF_ERROR(CheckFusion(c, true));
  return tensorflow::shape_inference::UnchangedShape(c);
}

TfStatus ReduceShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckGroup(c));
  MXREC_TF_RETURN_IF_ERROR(CheckFusion(c, false));
  MXREC_TF_RETURN_IF_ERROR(CheckRank(c, "root_rank"));
  return tensorflow::shape_inference::UnchangedShape(c);
}

TfStatus BroadcastShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckGroup(c));
  MXREC_TF_RETURN_IF_ERROR(CheckFusion(c, false));
  MXREC_TF_RETURN_IF_ERROR(CheckRank(c, "root_rank"));
  for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
  return TfStatus();
}

// The shape of input 0 with its first dimension replaced; unknown rank stays unknown.
TfStatus FirstDimension(InferenceContext* c, DimensionHandle first) {
  ShapeHandle output;
  MXREC_TF_RETURN_IF_ERROR(c->ReplaceDim(c->input(0), 0, first, &output));
  c->set_output(0, output);
  return TfStatus();
}

TfStatus AllGatherShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckGroup(c));
  MXREC_TF_RETURN_IF_ERROR(CheckFusion(c, false));
  MXREC_TF_RETURN_IF_ERROR(CheckRankSize(c));
  ShapeHandle input;
  MXREC_TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &input));
  if (!c->RankKnown(input)) {
    c->set_output(0, c->UnknownShape());
    return TfStatus();
  }
  int64_t size = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("rank_size", &size));
  DimensionHandle rows;
  MXREC_TF_RETURN_IF_ERROR(c->Multiply(c->Dim(input, 0), size, &rows));
  return FirstDimension(c, rows);
}

TfStatus ReduceScatterShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckGroup(c));
  MXREC_TF_RETURN_IF_ERROR(CheckFusion(c, false));
  MXREC_TF_RETURN_IF_ERROR(CheckRankSize(c));
  ShapeHandle input;
  MXREC_TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &input));
  if (!c->RankKnown(input)) {
    c->set_output(0, c->UnknownShape());
    return TfStatus();
  }
  int64_t size = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("rank_size", &size));
  const DimensionHandle rows = c->Dim(input, 0);
  if (c->ValueKnown(rows) && c->Value(rows) % size != 0) {
    return Wrong("the first dimension must be divisible by rank_size " + std::to_string(size) + ", found " +
                 std::to_string(c->Value(rows)));
  }
  DimensionHandle part;
  MXREC_TF_RETURN_IF_ERROR(c->Divide(rows, size, /*evenly_divisible=*/true, &part));
  return FirstDimension(c, part);
}

TfStatus SendShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckGroup(c));
  return CheckRank(c, "dest_rank");
}

TfStatus ReceiveShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckGroup(c));
  MXREC_TF_RETURN_IF_ERROR(CheckRank(c, "src_rank"));
  PartialTensorShape shape;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("shape", &shape));
  if (!shape.IsFullyDefined()) return Wrong("shape must be fully defined, found " + shape.DebugString());
  ShapeHandle output;
  MXREC_TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shape, &output));
  c->set_output(0, output);
  return TfStatus();
}

TfStatus AllToAllVShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckGroup(c));
  ShapeHandle ranks = c->Vector(c->UnknownDim());
  for (int i = 1; i < 5; ++i) {
    ShapeHandle counts;
    MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &counts));
    MXREC_TF_RETURN_IF_ERROR(c->Merge(counts, ranks, &ranks));
  }
  c->set_output(0, c->Vector(c->UnknownDim()));
  return TfStatus();
}

TfStatus AllToAllVCShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckGroup(c));
  MXREC_TF_RETURN_IF_ERROR(CheckFusion(c, false));
  MXREC_TF_RETURN_IF_ERROR(CheckRank(c, "rank"));
  ShapeHandle matrix;
  DimensionHandle unused;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &matrix));
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(matrix, 0), c->Dim(matrix, 1), &unused));
  c->set_output(0, c->Vector(c->UnknownDim()));
  return TfStatus();
}

REGISTER_OP("NPUInit").SetIsStateful().SetIsDistributedCommunication().SetShapeFn(tensorflow::shape_inference::NoOutputs).Doc(R"doc(
Starts the collective runtime. Again: nothing. Collectives start it by themselves.
)doc");

REGISTER_OP("NPUShutdown")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Ends the collective runtime. Again, or before a start: nothing.
)doc");

// What the collectives share: attributes, and the lines about them.
#define MXREC_HCOM_FUSION .Attr("fusion: int = 0").Attr("fusion_id: int = -1")
#define MXREC_HCOM_FUSION_DOC "fusion: 0 none, 2 with ops of the same fusion_id.\nfusion_id: Which ops are fused with fusion 2.\n"
#define MXREC_HCOM_GROUP .Attr("group: string = 'hccl_world_group'").SetIsStateful().SetIsDistributedCommunication()
#define MXREC_HCOM_GROUP_DOC "group: Name of the group.\n"

REGISTER_OP("HcomAllReduce")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: " MXREC_HCOM_SUMMABLE)
    .Attr("reduction: {'min', 'max', 'prod', 'sum'}")
    .Attr("average: bool = false")
    .Attr("fusion: int = 1")
    .Attr("fusion_id: int = -1") MXREC_HCOM_GROUP.SetShapeFn(AllReduceShape)
    .Doc(R"doc(
The reduction of the tensors of all ranks of a group, the same on each.

input: Of one shape on all ranks.
output: Same shape.
T: Type of the values.
reduction: How the values of the ranks become one.
average: Divide the sum by the number of ranks; integers are rounded down. Not in the original.
fusion: 0 none, 1 by the gradient split strategy, 2 with ops of the same fusion_id.
fusion_id: Which ops are fused with fusion 2.
)doc" MXREC_HCOM_GROUP_DOC);

REGISTER_OP("HcomReduce")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: " MXREC_HCOM_SUMMABLE)
    .Attr("reduction: {'min', 'max', 'prod', 'sum'}")
    .Attr("root_rank: int") MXREC_HCOM_FUSION MXREC_HCOM_GROUP.SetShapeFn(ReduceShape)
    .Doc(R"doc(
The reduction of the tensors of all ranks, on one of them; the others get their own input back.

input: Of one shape on all ranks.
output: Same shape.
T: Type of the values.
reduction: How the values of the ranks become one.
root_rank: The rank that gets the result.
)doc" MXREC_HCOM_FUSION_DOC MXREC_HCOM_GROUP_DOC);

REGISTER_OP("HcomAllGather")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: " MXREC_HCOM_MOVABLE)
    .Attr("rank_size: int") MXREC_HCOM_FUSION MXREC_HCOM_GROUP.SetShapeFn(AllGatherShape)
    .Doc(R"doc(
The tensors of all ranks one after another along the first dimension, in the order of ranks.

input: Rank 1 or more, of one shape on all ranks.
output: rank_size times as many rows.
T: Type of the values.
rank_size: Size of the group.
)doc" MXREC_HCOM_FUSION_DOC MXREC_HCOM_GROUP_DOC);

REGISTER_OP("HcomReduceScatter")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: " MXREC_HCOM_SUMMABLE)
    .Attr("reduction: {'min', 'max', 'prod', 'sum'}")
    .Attr("rank_size: int") MXREC_HCOM_FUSION MXREC_HCOM_GROUP.SetShapeFn(ReduceScatterShape)
    .Doc(R"doc(
Each rank's part of the reduction of the tensors of all ranks: rows r * n / rank_size to (r + 1) * n / rank_size of the result on
rank r.

input: Rank 1 or more, of one shape [n, ...] on all ranks, n divisible by rank_size.
output: [n / rank_size, ...].
T: Type of the values.
reduction: How the values of the ranks become one.
rank_size: Size of the group.
)doc" MXREC_HCOM_FUSION_DOC MXREC_HCOM_GROUP_DOC);

REGISTER_OP("HcomBroadcast")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: list(type) >= 1")
    .Attr("root_rank: int")
    .Attr("fusion: int = 2")
    .Attr("fusion_id: int = 0") MXREC_HCOM_GROUP.SetShapeFn(BroadcastShape)
    .Doc(R"doc(
The tensors of one rank, on all ranks.

input: Of the same types and shapes on all ranks.
output: As input.
T: Types of the tensors.
root_rank: The rank whose tensors all get.
)doc" MXREC_HCOM_FUSION_DOC MXREC_HCOM_GROUP_DOC);

REGISTER_OP("HcomSend")
    .Input("input: T")
    .Attr("T: " MXREC_HCOM_MOVABLE)
    .Attr("sr_tag: int")
    .Attr("dest_rank: int") MXREC_HCOM_GROUP.SetShapeFn(SendShape)
    .Doc(R"doc(
Sends a tensor to another rank, whose HcomReceive has the same tag.

input: What is sent.
T: Type of the values.
sr_tag: Pairs send and receive.
dest_rank: The rank it goes to.
)doc" MXREC_HCOM_GROUP_DOC);

REGISTER_OP("HcomReceive")
    .Output("output: T")
    .Attr("T: " MXREC_HCOM_MOVABLE)
    .Attr("shape: shape")
    .Attr("sr_tag: int")
    .Attr("src_rank: int") MXREC_HCOM_GROUP.SetShapeFn(ReceiveShape)
    .Doc(R"doc(
Receives a tensor from another rank, whose HcomSend has the same tag.

output: What was sent.
T: Type of the values.
shape: Shape of what was sent, fully defined.
sr_tag: Pairs send and receive.
src_rank: The rank it comes from.
)doc" MXREC_HCOM_GROUP_DOC);

REGISTER_OP("HcomAllToAllV")
    .Input("send_data: T")
    .Input("send_counts: int64")
    .Input("send_displacements: int64")
    .Input("recv_counts: int64")
    .Input("recv_displacements: int64")
    .Output("recv_data: T")
    .Attr("T: " MXREC_HCOM_MOVABLE) MXREC_HCOM_GROUP.SetShapeFn(AllToAllVShape)
    .Doc(R"doc(
Each rank sends a part of its data to each rank. Counts and displacements are in elements, one of each for every rank.

send_data: Taken as one row of elements.
send_counts: [ranks], how many elements go to each.
send_displacements: [ranks], where they begin in send_data.
recv_counts: [ranks], how many elements come from each.
recv_displacements: [ranks], where they begin in recv_data.
recv_data: [n], up to the end of the part that ends last; zero where no part is.
T: Type of the values.
)doc" MXREC_HCOM_GROUP_DOC);

REGISTER_OP("HcomAllToAllVC")
    .Input("send_data: T")
    .Input("send_count_matrix: int64")
    .Output("recv_data: T")
    .Attr("T: " MXREC_HCOM_MOVABLE)
    .Attr("rank: int") MXREC_HCOM_FUSION MXREC_HCOM_GROUP.SetShapeFn(AllToAllVCShape)
    .Doc(R"doc(
As HcomAllToAllV, with one matrix of all counts, the same on every rank; parts follow each other without gaps.

send_data: Taken as one row of elements.
send_count_matrix: [ranks, ranks]; row i, column j: how many elements go from rank i to rank j.
recv_data: [sum of column `rank`].
T: Type of the values.
rank: This rank.
)doc" MXREC_HCOM_FUSION_DOC MXREC_HCOM_GROUP_DOC);

}  // namespace
}  // namespace mxrec
