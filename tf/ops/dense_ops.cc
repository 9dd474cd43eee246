// Dense operations under the names of the original's ops: one LSTM step, a round of k-means, a scatter of elements.
// Kernels: tf/kernels/dense_kernels.cc.
#include <cstdint>
#include <string>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

TfStatus LstmShape(InferenceContext* c) {
  ShapeHandle x, state, w, b;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &x));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &state));
  MXREC_TF_RETURN_IF_ERROR(c->Merge(state, c->input(2), &state));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 2, &w));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 1, &b));
  DimensionHandle batch, hidden, wide, deep;
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(x, 0), c->Dim(state, 0), &batch));
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(w, 1), c->Dim(b, 0), &wide));
  MXREC_TF_RETURN_IF_ERROR(c->Divide(wide, 4, /*evenly_divisible=*/true, &hidden));
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(state, 1), hidden, &hidden));
  MXREC_TF_RETURN_IF_ERROR(c->Add(c->Dim(x, 1), hidden, &deep));
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(w, 0), deep, &deep));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Matrix(batch, hidden));
  return TfStatus();
}

TfStatus KMeansShape(InferenceContext* c) {
  ShapeHandle x, y, of_y, of_x;
  DimensionHandle dim;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &x));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &y));
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(x, 1), c->Dim(y, 1), &dim));
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->input(2), c->Matrix(1, c->Dim(y, 0)), &of_y));
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->input(3), c->Matrix(c->Dim(x, 0), 1), &of_x));
  c->set_output(0, c->Matrix(c->Dim(y, 0), dim));
  c->set_output(1, c->Matrix(c->Dim(y, 0), 1));
  c->set_output(2, c->Vector(1));
  return TfStatus();
}

TfStatus ScatterShape(InferenceContext* c) {
  ShapeHandle data = c->input(0), indices = c->input(1), updates;
  MXREC_TF_RETURN_IF_ERROR(c->Merge(indices, c->input(2), &updates));
  if (c->RankKnown(data)) MXREC_TF_RETURN_IF_ERROR(c->WithRank(indices, c->Rank(data), &indices));
  int64_t axis = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("axis", &axis));
  if (c->RankKnown(data) && (axis < -c->Rank(data) || axis >= c->Rank(data))) {
    return absl::InvalidArgumentError("axis must be at least -" + std::to_string(c->Rank(data)) + " and below " +
                                      std::to_string(c->Rank(data)) + ", found " + std::to_string(axis));
  }
  c->set_output(0, data);
  return TfStatus();
}

REGISTER_OP("BasicLSTMCell")
    .Input("x: T")
    .Input("h: T")
    .Input("c: T")
    .Input("w: T")
    .Input("b: T")
    .Output("ct: T")
    .Output("ht: T")
    .Output("it: T")
    .Output("jt: T")
    .Output("ft: T")
    .Output("ot: T")
    .Output("tanhct: T")
    .Attr("T: {half, float}")
    .Attr("keep_prob: float = 1.0")
    .Attr("forget_bias: float = 1.0")
    .Attr("state_is_tuple: bool = true")
    .Attr("activation: string = 'tanh'")
    .SetShapeFn(LstmShape)
    .Doc(R"doc(
One step of an LSTM cell. The gates i, j, f, o are the four quarters of [x h] w + b.

x: [batch, inputs].
h: [batch, hidden], the output of the step before.
c: [batch, hidden], the cell of the step before.
w: [inputs + hidden, 4 hidden].
b: [4 hidden].
ct: [batch, hidden] as all outputs: c ft + it jt.
ht: ot tanhct.
it: Sigmoid of its quarter.
jt: Tanh of its quarter, the candidate.
ft: Sigmoid of its quarter plus forget_bias.
ot: Sigmoid of its quarter.
tanhct: Tanh of ct.
T: Type of all; half is computed in float.
keep_prob: 1; others are Unimplemented.
forget_bias: Added to the forget gate.
state_is_tuple: No meaning here: h and c are two tensors either way.
activation: tanh; others are Unimplemented.
)doc");

REGISTER_OP("KMeansCentroids")
    .Input("x: float")
    .Input("y: float")
    .Input("sum_square_y: float")
    .Input("sum_square_x: float")
    .Output("segment_sum: float")
    .Output("segment_count: float")
    .Output("kmean_total_sum: float")
    .Attr("use_actual_distance: bool = false")
    .SetShapeFn(KMeansShape)
    .Doc(R"doc(
One round of k-means: each point goes to the center with the smallest sum_square_y - 2 x y', the first of equal ones.

x: [n, dim], the points.
y: [k, dim], the centers; k >= 1.
sum_square_y: [1, k], the squared norm of each center.
sum_square_x: [n, 1], the squared norm of each point; read where use_actual_distance.
segment_sum: [k, dim], the sum of each center's points.
segment_count: [k, 1], their number.
kmean_total_sum: [1], the sum over the points of the smallest value, plus sum_square_x where use_actual_distance.
use_actual_distance: Whether that sum is the one of squared distances.
)doc");

REGISTER_OP("ScatterElements")
    .Input("data: T")
    .Input("indices: Tindices")
    .Input("updates: T")
    .Output("y: T")
    .Attr("axis: int = 0")
    .Attr("T: type")
    .Attr("Tindices: {int32, int64}")
    .SetShapeFn(ScatterShape)
    .Doc(R"doc(
A copy of data in which, for each place p of updates, the element at p with its coordinate along axis replaced by indices[p] is
updates[p]. Of several updates of one element the last in row-major order stays.

data: Rank r >= 1.
indices: Rank r, along the other axes not larger than data; each at least -size and below size of data along axis.
updates: The shape of indices.
y: The shape of data.
axis: At least -r and below r.
T: Any type of fixed size.
Tindices: Type of the indices.
)doc");

}  // namespace
}  // namespace mxrec
