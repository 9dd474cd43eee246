// The operations of tables that are spread over ranks. Kernels: tf/kernels/shard_kernels.cc. Python: python/mxrec/_sharded.py.
//
//   ids -> MxrecRouteIds -> MxrecExchangeKeys -> MxrecLookupReceived (at the owner) -> MxrecExchangeRows -> rows of the distinct
//   ids gradient -> MxrecSumRouted -> MxrecExchangeGradients -> MxrecApply (at the owner)
//
// Each exchange carries the parts of N lookups at once; a graph pass makes one of all those of a step. Every rank of the group must
// run an exchange when one does, also with no ids.
#include <cstdint>
#include <string>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Inputs [first, first + count) are vectors; with `same` their lengths agree pairwise with those from there on.
TfStatus CheckVectors(InferenceContext* c, int first, int count) {
  ShapeHandle unused;
  for (int i = first; i < first + count; ++i) MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &unused));
  return TfStatus();
}

TfStatus Lists(InferenceContext* c, int* n) {
  int64_t value = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("N", &value));
  *n = static_cast<int>(value);
  return TfStatus();
}

TfStatus RouteIdsShape(InferenceContext* c) {
  const DimensionHandle unique = c->UnknownDim();
  c->set_output(0, c->input(0));
  c->set_output(1, c->Vector(unique));
  c->set_output(2, c->Vector(unique));
  c->set_output(3, c->Vector(c->UnknownDim()));
  c->set_output(4, c->Vector(c->UnknownDim()));
  c->set_output(5, c->Scalar());
  c->set_output(6, c->Scalar());
  return TfStatus();
}

TfStatus ExchangeKeysShape(InferenceContext* c) {
  int n = 0;
  MXREC_TF_RETURN_IF_ERROR(Lists(c, &n));
  MXREC_TF_RETURN_IF_ERROR(CheckVectors(c, 0, 3 * n));
  for (int t = 0; t < n; ++t) {
    DimensionHandle unique;
    MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(c->input(t), 0), c->Dim(c->input(n + t), 0), &unique));
    const DimensionHandle received = c->UnknownDim();
    c->set_output(t, c->Vector(received));
    c->set_output(n + t, c->Vector(received));
    c->set_output(2 * n + t, c->input(2 * n + t));
  }
  return TfStatus();
}

TfStatus LookupReceivedShape(InferenceContext* c) {
  int64_t dim_value = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim_value));
  ShapeHandle unused;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  MXREC_TF_RETURN_IF_ERROR(CheckVectors(c, 1, 3));
  DimensionHandle received;
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(c->input(1), 0), c->Dim(c->input(3), 0), &received));
  const DimensionHandle size = c->Dim(c->input(2), 0);
  if (c->ValueKnown(size) && c->Value(size) != 0 && c->Value(size) != dim_value) {
    return absl::InvalidArgumentError("default_row has " + std::to_string(c->Value(size)) + " values; expected 0 or " +
                                      std::to_string(dim_value));
  }
  const DimensionHandle unique = c->UnknownDim();
  c->set_output(0, c->Matrix(unique, c->MakeDim(dim_value)));
  c->set_output(1, c->Vector(received));
  for (int vector : {2, 3, 4}) c->set_output(vector, c->Vector(unique));
  c->set_output(5, c->Scalar());
  return TfStatus();
}

// Matrices at [0, n); vectors behind them, two or three lists; matrices of the same widths out.
TfStatus ExchangeFloatsShape(InferenceContext* c) {
  int n = 0;
  MXREC_TF_RETURN_IF_ERROR(Lists(c, &n));
  MXREC_TF_RETURN_IF_ERROR(CheckVectors(c, n, c->num_inputs() - n));
  for (int t = 0; t < n; ++t) {
    ShapeHandle rows;
    MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(t), 2, &rows));
    c->set_output(t, c->Matrix(c->UnknownDim(), c->Dim(rows, 1)));
  }
  return TfStatus();
}

TfStatus SumRoutedShape(InferenceContext* c) {
  ShapeHandle values, index, unused;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &values));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &index));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
  DimensionHandle occurrences;
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(values, 0), c->Dim(index, 0), &occurrences));
  c->set_output(0, c->Matrix(c->UnknownDim(), c->Dim(values, 1)));
  return TfStatus();
}

TfStatus MergeSlicesShape(InferenceContext* c) {
  ShapeHandle values, indices, inner, merged;
  MXREC_TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &values));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &indices));
  DimensionHandle unused;
  if (c->RankKnown(values)) MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(values, 0), c->Dim(indices, 0), &unused));
  const DimensionHandle rows = c->UnknownDim();
  MXREC_TF_RETURN_IF_ERROR(c->Subshape(values, 1, &inner));
  MXREC_TF_RETURN_IF_ERROR(c->Concatenate(c->Vector(rows), inner, &merged));
  c->set_output(0, merged);
  c->set_output(1, c->Vector(rows));
  return TfStatus();
}

REGISTER_OP("MxrecRouteIds")
    .Input("ids: Tids")
    .Output("inverse: int32")
    .Output("keys: int64")
    .Output("counts: int32")
    .Output("splits: int64")
    .Output("hot: int32")
    .Output("hot_begin: int32")
    .Output("rank: int32")
    .Attr("Tids: {int64, int32, uint64}")
    .Attr("group: string = 'hccl_world_group'")
    .Attr("owner: {'mod', 'hash'} = 'mod'")
    .Attr("hot_keys: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(RouteIdsShape)
    .Doc(R"doc(
The distinct ids of a batch, owner after owner, for one owner by first occurrence. Sends nothing.

ids: Ids of any shape, empty allowed. int32 is sign-extended, uint64 taken by its bits.
inverse: The shape of ids; inverse[i] is the place of ids[i] in keys.
keys: [U], the distinct ids.
counts: [U], how often each occurs in ids.
splits: [ranks of the group], how many of the keys each rank owns; this rank's includes the hot keys.
hot: [H], the hot keys among the ids, as places in hot_keys.
hot_begin: Scalar, the place in keys of the first hot key; they lie one behind the other, behind the keys that this rank owns.
rank: Scalar, this rank's place in the group.
Tids: Type of the ids.
group: The ranks that the table is spread over.
owner: Rule by which a key belongs to a rank: floor-mod of the key, or a hash of it.
hot_keys: Distinct keys that do not travel.
)doc");

REGISTER_OP("MxrecExchangeKeys")
    .Input("keys: N * int64")
    .Input("counts: N * int32")
    .Input("splits: N * int64")
    .Output("received_keys: N * int64")
    .Output("received_counts: N * int32")
    .Output("received_splits: N * int64")
    .Attr("N: int >= 1")
    .Attr("group: string = 'hccl_world_group'")
    .Attr("tensor_name: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(ExchangeKeysShape)
    .Doc(R"doc(
Sends each rank the keys that it owns, and receives those that this rank owns: for N lookups in one exchange.

keys: Per lookup: [U], as MxrecRouteIds gave them, as are the two that follow.
counts: [U].
splits: [ranks].
received_keys: Per lookup: [R], rank after rank; a key that several ranks sent comes several times.
received_counts: [R].
received_splits: [ranks], how many of the received keys came from each rank.
N: Number of lookups.
group: The ranks that take part.
tensor_name: The name that the ranks agree on; empty means that of the node.
)doc");

REGISTER_OP("MxrecLookupReceived")
    .Input("handle: resource")
    .Input("ids: int64")
    .Input("default_row: float")
    .Input("occurrences: int32")
    .Output("rows: float")
    .Output("inverse: int32")
    .Output("handles: int32")
    .Output("keys: int64")
    .Output("counts: int32")
    .Output("generation: int64")
    .Attr("dim: int >= 1")
    .Attr("training: bool = true")
    .Attr("never_trained: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(LookupReceivedShape)
    .Doc(R"doc(
MxrecLookup of keys that ranks asked for, each of which counted how often.

handle: The table.
ids: [R], the received keys.
default_row: As in MxrecLookup.
occurrences: [R], how often each counts.
rows: As in MxrecLookup, as all outputs.
inverse: [R].
handles: [U].
keys: [U].
counts: [U], the sums of occurrences.
generation: Scalar.
dim: Values in a row; must be the table's.
training: Whether unseen ids are answered with their first row.
never_trained: Ids that are read only.
)doc");

REGISTER_OP("MxrecExchangeRows")
    .Input("rows: N * float")
    .Input("inverse: N * int32")
    .Input("received_splits: N * int64")
    .Input("splits: N * int64")
    .Output("output: N * float")
    .Attr("N: int >= 1")
    .Attr("group: string = 'hccl_world_group'")
    .Attr("tensor_name: string = ''")
    .Attr("training: bool = true")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(ExchangeFloatsShape)
    .Doc(R"doc(
Answers each rank with the rows of the keys that it sent, and receives those that this rank asked for: for N lookups in one exchange.

rows: Per lookup: [V, dim], the rows that the owner found.
inverse: Per lookup: [R], the row of each received key.
received_splits: Per lookup: [ranks], as MxrecExchangeKeys gave them.
splits: Per lookup: [ranks], as MxrecRouteIds gave them.
output: Per lookup: [U, dim], the rows of the keys of MxrecRouteIds.
N: Number of lookups.
group: The ranks that take part.
tensor_name: The name that the ranks agree on; empty means that of the node.
training: Whether the rows may be trained.
)doc");

REGISTER_OP("MxrecSumRouted")
    .Input("values: float")
    .Input("index: int32")
    .Input("splits: int64")
    .Output("sums: float")
    .SetShapeFn(SumRoutedShape)
    .Doc(R"doc(
Sums gradients of occurrences by distinct key, in the order in which they stand.

values: [n, dim].
index: [n], the key of each.
splits: [ranks], as MxrecRouteIds gave them; they add up to the number of keys, U.
sums: [U, dim]; zeros where there are none.
)doc");

REGISTER_OP("MxrecMergeSlices")
    .Input("values: float")
    .Input("indices: Tindices")
    .Output("merged_values: float")
    .Output("merged_indices: Tindices")
    .Attr("Tindices: {int64, int32}")
    .Attr("group: string = 'hccl_world_group'")
    .Attr("tensor_name: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(MergeSlicesShape)
    .Doc(R"doc(
The sum of sparse gradients over the ranks, which may have different numbers of rows: the same bits on all of them.

values: [n, ...].
indices: [n], the index of each row; an index may come several times.
merged_values: [R, ...], a row for each index that any rank has: rows of one rank added in their order, ranks in theirs.
merged_indices: [R], in the same order on all ranks: by first occurrence, rank after rank, but for the last ones, which stand in the
  places of those that a rank before has too.
Tindices: Type of the indices.
group: The ranks that take part.
tensor_name: The name that the ranks agree on; empty means that of the node.
)doc");

REGISTER_OP("MxrecExchangeGradients")
    .Input("gradients: N * float")
    .Input("splits: N * int64")
    .Input("received_splits: N * int64")
    .Output("output: N * float")
    .Attr("N: int >= 1")
    .Attr("mean: list(bool)")
    .Attr("group: string = 'hccl_world_group'")
    .Attr("tensor_name: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(ExchangeFloatsShape)
    .Doc(R"doc(
Sends each rank the gradients of the keys that it owns: for N lookups in one exchange.

gradients: Per lookup: [U, dim], summed, for the keys of MxrecRouteIds.
splits: Per lookup: [ranks], as MxrecRouteIds gave them.
received_splits: Per lookup: [ranks], as MxrecExchangeKeys gave them.
output: Per lookup: [R, dim], the gradients of the received keys.
N: Number of lookups.
mean: Per lookup, whether gradients are divided by the number of ranks, so that their sum at the owner is a mean.
group: The ranks that take part.
tensor_name: The name that the ranks agree on; empty means that of the node.
)doc");

}  // namespace
}  // namespace mxrec
