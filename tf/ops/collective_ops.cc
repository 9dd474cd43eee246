// Collective operations with everything that a distributed training library asks for: several tensors in one op, scales, means,
// unequal first dimensions, names that the caller chooses. Kernels: tf/kernels/collective_kernels.cc. Python:
// python/mxrec/_collective.py. The ops of the original's names are in hcom_ops.cc.
//
// All are stateful. `tensor_name` is what the ranks agree on; empty: the name of the node. Ops with one name must not run at the
// same time. Tensor i of several goes by the name with "/i" added.
#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

#define MXREC_SUMMABLE "{uint8, int8, int16, int32, int64, half, bfloat16, float, double}"

TfStatus CheckText(InferenceContext* c, const char* name, size_t low, size_t high) {
  std::string text;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr(name, &text));
  if (text.size() >= low && text.size() <= high) return TfStatus();
  return absl::InvalidArgumentError(std::string(name) + " must have " + std::to_string(low) + " to " + std::to_string(high) +
                                    " characters, found '" + text + "'");
}

TfStatus CheckNames(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckText(c, "group", 1, 127));
  return CheckText(c, "tensor_name", 0, 1000);
}

TfStatus SameShapes(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckNames(c));
  for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
  return TfStatus();
}

// The first dimension becomes unknown; a scalar is refused.
TfStatus OpenFirstDimension(InferenceContext* c, int index) {
  ShapeHandle input;
  MXREC_TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(index), 1, &input));
  ShapeHandle output = c->UnknownShape();
  if (c->RankKnown(input)) MXREC_TF_RETURN_IF_ERROR(c->ReplaceDim(input, 0, c->UnknownDim(), &output));
  c->set_output(index, output);
  return TfStatus();
}

TfStatus OtherRows(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckNames(c));
  for (int i = 0; i < c->num_inputs(); ++i) MXREC_TF_RETURN_IF_ERROR(OpenFirstDimension(c, i));
  return TfStatus();
}

TfStatus AllGatherShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(OtherRows(c));
  c->set_output(c->num_inputs(), c->Matrix(c->num_inputs(), c->UnknownDim()));
  return TfStatus();
}

TfStatus AllToAllShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckNames(c));
  MXREC_TF_RETURN_IF_ERROR(OpenFirstDimension(c, 0));
  ShapeHandle splits;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &splits));
  c->set_output(1, c->Vector(c->UnknownDim()));
  return TfStatus();
}

REGISTER_OP("MxrecAllReduce")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: list(" MXREC_SUMMABLE ") >= 1")
    .Attr("reduction: {'sum', 'min', 'max', 'prod', 'adasum'} = 'sum'")
    .Attr("average: bool = false")
    .Attr("prescale: string = '1'")
    .Attr("postscale: string = '1'")
    .Attr("wire: {'', 'float16', 'bfloat16'} = ''")
    .Attr("tensor_name: string = ''")
    .Attr("group: string = 'hccl_world_group'")
    .Attr("line: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes)
    .Doc(R"doc(
The reductions of the tensors of all ranks of a group, the same on each.

input: Each of one shape on all ranks.
output: Same shapes.
T: Types of the tensors.
reduction: How the values of the ranks become one.
average: Divide the sum by the number of ranks; integers are rounded down.
prescale: A number in decimal: each rank's values are multiplied by it first.
postscale: A number in decimal: the result is multiplied by it.
wire: Type that float32 values have between ranks; empty: their own.
tensor_name: What the ranks call it; empty: the node's name.
group: Name of the group.
line: The Python line of the op, for messages.
)doc");

REGISTER_OP("MxrecReduceScatter")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: list(" MXREC_SUMMABLE ") >= 1")
    .Attr("reduction: {'sum', 'min', 'max', 'prod'} = 'sum'")
    .Attr("average: bool = false")
    .Attr("prescale: string = '1'")
    .Attr("postscale: string = '1'")
    .Attr("tensor_name: string = ''")
    .Attr("group: string = 'hccl_world_group'")
    .Attr("line: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(OtherRows)
    .Doc(R"doc(
Each rank's rows of the reductions of the tensors of all ranks. Of n rows and r ranks each gets n / r, and the first n mod r ranks one
more.

input: Each of rank 1 or more and one shape on all ranks.
output: This rank's rows.
T: Types of the tensors.
reduction: How the values of the ranks become one.
average: Divide the sum by the number of ranks; integers are rounded down.
prescale: A number in decimal: each rank's values are multiplied by it first.
postscale: A number in decimal: the result is multiplied by it.
tensor_name: What the ranks call it; empty: the node's name.
group: Name of the group.
line: The Python line of the op, for messages.
)doc");

REGISTER_OP("MxrecAllGather")
    .Input("input: T")
    .Output("output: T")
    .Output("rows: int64")
    .Attr("T: list(type) >= 1")
    .Attr("tensor_name: string = ''")
    .Attr("group: string = 'hccl_world_group'")
    .Attr("line: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(AllGatherShape)
    .Doc(R"doc(
The tensors of all ranks one after another along the first dimension, in the order of ranks.

input: Each of rank 1 or more; the ranks' shapes may differ in the first dimension.
output: As many rows as the ranks have together.
rows: [tensors, ranks], how many rows each rank gave.
T: Types of the tensors.
tensor_name: What the ranks call it; empty: the node's name.
group: Name of the group.
line: The Python line of the op, for messages.
)doc");

REGISTER_OP("MxrecBroadcast")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: list(type) >= 1")
    .Attr("root_rank: int >= 0")
    .Attr("tensor_name: string = ''")
    .Attr("group: string = 'hccl_world_group'")
    .Attr("line: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes)
    .Doc(R"doc(
The tensors of one rank, on all ranks.

input: Each of one type and shape on all ranks.
output: As input.
T: Types of the tensors.
root_rank: The rank, in the group, whose tensors all get.
tensor_name: What the ranks call it; empty: the node's name.
group: Name of the group.
line: The Python line of the op, for messages.
)doc");

REGISTER_OP("MxrecAllToAll")
    .Input("input: T")
    .Input("splits: int64")
    .Output("output: T")
    .Output("received: int64")
    .Attr("T: type")
    .Attr("tensor_name: string = ''")
    .Attr("group: string = 'hccl_world_group'")
    .Attr("line: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(AllToAllShape)
    .Doc(R"doc(
Each rank sends rows to each rank.

input: Rank 1 or more; the ranks' shapes may differ in the first dimension.
splits: [ranks], how many rows go to each, zeros allowed; or empty: the same number to each.
output: The rows for this rank, in the order of ranks.
received: [ranks], how many rows came from each.
T: Type of the values.
tensor_name: What the ranks call it; empty: the node's name.
group: Name of the group.
line: The Python line of the op, for messages.
)doc");

REGISTER_OP("MxrecBarrier")
    .Attr("tensor_name: string = ''")
    .Attr("group: string = 'hccl_world_group'")
    .Attr("line: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(CheckNames)
    .Doc(R"doc(
Waits until all ranks of the group have come here.

tensor_name: What the ranks call it; empty: the node's name.
group: Name of the group.
line: The Python line of the op, for messages.
)doc");

REGISTER_OP("MxrecStepWatch")
    .Attr("watched: list(string) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Refuses what a failed step has not asked for (tf/kernels/step_watch.h). Only the graph pass makes it.

watched: What the watch knows the collective nodes of the graph by.
)doc");

REGISTER_OP("MxrecJoin")
    .Output("last: int32")
    .Attr("tensor_name: string = ''")
    .Attr("group: string = 'hccl_world_group'")
    .Attr("line: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* c) -> TfStatus {
      MXREC_TF_RETURN_IF_ERROR(CheckNames(c));
      c->set_output(0, c->Scalar());
      return TfStatus();
    })
    .Doc(R"doc(
Says that this rank has no more work, and waits until all ranks say so. Until then it gives zeros to the reductions of the others.

last: The rank that joined last.
tensor_name: What the ranks call it; empty: the node's name.
group: Name of the group.
line: The Python line of the op, for messages.
)doc");

}  // namespace
}  // namespace mxrec
