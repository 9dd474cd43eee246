// The operations of pooled lookups: bags of ids in, one row a bag out. Kernels: tf/kernels/pool_kernels.cc.
//
// None of them touches a table: they work on what MxrecLookup gave, and are stateless.
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

// Inputs inverse, offsets and weights from `first` on; *bags is the number of bags, *occurrences the shape [n] of inverse.
TfStatus BagInputs(InferenceContext* c, int first, DimensionHandle* bags, ShapeHandle* occurrences) {
  ShapeHandle offsets, weights;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 1, occurrences));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 1), 1, &offsets));
  MXREC_TF_RETURN_IF_ERROR(c->Subtract(c->Dim(offsets, 0), 1, bags));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 2), 1, &weights));
  const DimensionHandle size = c->Dim(weights, 0), n = c->Dim(*occurrences, 0);
  if (c->ValueKnown(size) && c->ValueKnown(n) && c->Value(size) != 0 && c->Value(size) != c->Value(n)) {
    return absl::InvalidArgumentError("weights has " + std::to_string(c->Value(size)) + " values; expected 0 or one for each of " +
                                      std::to_string(c->Value(n)) + " ids");
  }
  return TfStatus();
}

TfStatus PoolShape(InferenceContext* c) {
  ShapeHandle rows, occurrences;
  DimensionHandle bags;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
  MXREC_TF_RETURN_IF_ERROR(BagInputs(c, 1, &bags, &occurrences));
  c->set_output(0, c->Matrix(bags, c->Dim(rows, 1)));
  return TfStatus();
}

// A gradient [bags, dim] at input `at` fits the bags and the rows.
TfStatus CheckGradient(InferenceContext* c, int at, ShapeHandle rows, DimensionHandle bags) {
  ShapeHandle gradient;
  DimensionHandle unused;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(at), 2, &gradient));
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(gradient, 0), bags, &unused));
  return c->Merge(c->Dim(gradient, 1), c->Dim(rows, 1), &unused);
}

TfStatus PoolGradientShape(InferenceContext* c) {
  ShapeHandle rows, occurrences;
  DimensionHandle bags;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &rows));
  MXREC_TF_RETURN_IF_ERROR(BagInputs(c, 2, &bags, &occurrences));
  MXREC_TF_RETURN_IF_ERROR(CheckGradient(c, 0, rows, bags));
  c->set_output(0, rows);
  return TfStatus();
}

TfStatus PoolWeightGradientShape(InferenceContext* c) {
  ShapeHandle rows, occurrences;
  DimensionHandle bags;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &rows));
  MXREC_TF_RETURN_IF_ERROR(BagInputs(c, 3, &bags, &occurrences));
  MXREC_TF_RETURN_IF_ERROR(CheckGradient(c, 0, rows, bags));
  MXREC_TF_RETURN_IF_ERROR(CheckGradient(c, 1, rows, bags));
  c->set_output(0, occurrences);
  return TfStatus();
}

TfStatus PoolSharesShape(InferenceContext* c) {
  ShapeHandle occurrences;
  DimensionHandle bags;
  MXREC_TF_RETURN_IF_ERROR(BagInputs(c, 0, &bags, &occurrences));
  c->set_output(0, occurrences);
  c->set_output(1, c->Vector(c->UnknownDim()));
  return TfStatus();
}

TfStatus SparseOffsetsShape(InferenceContext* c) {
  ShapeHandle indices, weight_indices, dense_shape;
  DimensionHandle unused;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &indices));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &dense_shape));
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(indices, 1), c->Dim(dense_shape, 0), &unused));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &weight_indices));
  MXREC_TF_RETURN_IF_ERROR(c->Merge(indices, weight_indices, &weight_indices));
  // The number of rows, where the dense shape is known.
  ShapeHandle shape;
  DimensionHandle rows = c->UnknownDim();
  MXREC_TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(1, &shape));
  if (c->RankKnown(shape) && c->Rank(shape) >= 2) {
    rows = c->MakeDim(1);
    for (int d = 0; d + 1 < c->Rank(shape); ++d) MXREC_TF_RETURN_IF_ERROR(c->Multiply(rows, c->Dim(shape, d), &rows));
    MXREC_TF_RETURN_IF_ERROR(c->Add(rows, 1, &rows));
  }
  c->set_output(0, c->Vector(rows));
  return TfStatus();
}

TfStatus ClipShape(InferenceContext* c) {
  ShapeHandle rows;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
  if (c->num_inputs() > 1) MXREC_TF_RETURN_IF_ERROR(c->Merge(rows, c->input(1), &rows));
  float max_norm = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("max_norm", &max_norm));
  if (!(max_norm > 0)) {
    return absl::InvalidArgumentError("max_norm must be above 0, found " + std::to_string(max_norm));
  }
  c->set_output(0, rows);
  return TfStatus();
}

REGISTER_OP("MxrecSparseOffsets")
    .Input("indices: int64")
    .Input("dense_shape: int64")
    .Input("weight_indices: int64")
    .Output("offsets: int32")
    .SetShapeFn(SparseOffsetsShape)
    .Doc(R"doc(
Where the ids of each row of a SparseTensor begin and end, rows counted over all dimensions but the last.

Rows without ids are there too, at the end as well. Indices whose rows descend, indices outside the dense shape, and weights with
other indices are InvalidArgument.

indices: [n, rank], rank >= 2, in the order of rows.
dense_shape: [rank].
weight_indices: [n, rank], the indices of the weights, which must be the same; without weights indices once more.
offsets: [rows + 1]; the ids of row r are those at offsets[r] to offsets[r + 1] (exclusive).
)doc");

REGISTER_OP("MxrecPool")
    .Input("rows: float")
    .Input("inverse: int32")
    .Input("offsets: Toffsets")
    .Input("weights: float")
    .Output("output: float")
    .Attr("combiner: {'sum', 'mean', 'sqrtn'}")
    .Attr("Toffsets: {int32, int64} = DT_INT32")
    .SetShapeFn(PoolShape)
    .Doc(R"doc(
One row a bag out of the rows of its ids: their weighted sum, that divided by the sum of weights (mean), or by the root of the sum of
squared weights (sqrtn).

A bag without ids is zeros, and so is one whose divisor is zero. Sums are made in the order of the ids; they do not depend on threads.

rows: [U, dim], as MxrecLookup gave them.
inverse: [n], the row of each id, each value in [0, U).
offsets: [B + 1], from 0 to n, not descending: bag b holds the ids at offsets[b] to offsets[b + 1] (exclusive).
weights: [n], or [0] for 1 each.
output: [B, dim].
combiner: How a bag's rows become one.
Toffsets: Type of the offsets.
)doc");

REGISTER_OP("MxrecPoolGradient")
    .Input("gradient: float")
    .Input("rows: float")
    .Input("inverse: int32")
    .Input("offsets: Toffsets")
    .Input("weights: float")
    .Output("output: float")
    .Attr("combiner: {'sum', 'mean', 'sqrtn'}")
    .Attr("Toffsets: {int32, int64} = DT_INT32")
    .SetShapeFn(PoolGradientShape)
    .Doc(R"doc(
The gradient of MxrecPool for its rows. An optimizer of mxrec reads this op's inputs instead of running it.

gradient: [B, dim], for MxrecPool's output.
rows: [U, dim], as given to MxrecPool; only the shape is used.
inverse: As given to MxrecPool.
offsets: As given to MxrecPool.
weights: As given to MxrecPool.
output: [U, dim], for each row the sum over its ids, in their order, of the bag's gradient times the id's share.
combiner: As given to MxrecPool.
Toffsets: Type of the offsets.
)doc");

REGISTER_OP("MxrecPoolWeightGradient")
    .Input("gradient: float")
    .Input("pooled: float")
    .Input("rows: float")
    .Input("inverse: int32")
    .Input("offsets: Toffsets")
    .Input("weights: float")
    .Output("output: float")
    .Attr("combiner: {'sum', 'mean', 'sqrtn'}")
    .Attr("Toffsets: {int32, int64} = DT_INT32")
    .SetShapeFn(PoolWeightGradientShape)
    .Doc(R"doc(
The gradient of MxrecPool for its weights. Zeros in bags whose divisor is zero.

gradient: [B, dim], for MxrecPool's output.
pooled: [B, dim], MxrecPool's output.
rows: As given to MxrecPool.
inverse: As given to MxrecPool.
offsets: As given to MxrecPool.
weights: As given to MxrecPool.
output: [n].
combiner: As given to MxrecPool.
Toffsets: Type of the offsets.
)doc");

REGISTER_OP("MxrecPoolShares")
    .Input("inverse: int32")
    .Input("offsets: Toffsets")
    .Input("weights: float")
    .Output("bags: int32")
    .Output("shares: float")
    .Attr("combiner: {'sum', 'mean', 'sqrtn'}")
    .Attr("Toffsets: {int32, int64} = DT_INT32")
    .SetShapeFn(PoolSharesShape)
    .Doc(R"doc(
What MxrecApply needs of a pooled lookup: the bag of each id and the share its row has in the bag's row.

inverse: As given to MxrecPool.
offsets: As given to MxrecPool.
weights: As given to MxrecPool.
bags: [n].
shares: [n], or [0] where all are 1 (a sum without weights).
combiner: As given to MxrecPool.
Toffsets: Type of the offsets.
)doc");

REGISTER_OP("MxrecClipRows").Input("rows: float").Output("output: float").Attr("max_norm: float").SetShapeFn(ClipShape).Doc(R"doc(
Scales rows whose Euclidean norm is above max_norm down to it; others stay as they are to the bit.

rows: [U, dim].
output: [U, dim].
max_norm: Above 0.
)doc");

REGISTER_OP("MxrecClipRowsGradient")
    .Input("rows: float")
    .Input("gradient: float")
    .Output("output: float")
    .Attr("max_norm: float")
    .SetShapeFn(ClipShape)
    .Doc(R"doc(
The gradient of MxrecClipRows.

rows: [U, dim], as given to MxrecClipRows.
gradient: [U, dim], for its output.
output: [U, dim].
max_norm: As given to MxrecClipRows.
)doc");

}  // namespace
}  // namespace mxrec
