// Operations of neural networks under the names they have on the NPU: dropout, activations, normalisation, pieces of optimizers.
// Kernels: tf/kernels/npu_*_kernels.cc. Gradients: python/mxrec/_npu_gradients.py.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/keep_prob.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::Tensor;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
using tensorflow::shape_inference::UnchangedShape;

// The length of the mask of as many elements, or unknown.
TfStatus MaskLength(InferenceContext* c, ShapeHandle shape, DimensionHandle* bytes) {
  const DimensionHandle elements = c->NumElements(shape);
  *bytes = c->UnknownDim();
  if (!c->ValueKnown(elements)) return TfStatus();
  const int64_t n = c->Value(elements);
  if (n > std::numeric_limits<int64_t>::max() - 127) {
    return absl::InvalidArgumentError("a mask of " + std::to_string(n) + " elements is too large");
  }
  *bytes = c->MakeDim((n + 127) / 128 * 16);
  return TfStatus();
}

// Input `at` is a scalar and, where its value is known, a probability.
TfStatus CheckKeepProb(InferenceContext* c, int at) {
  ShapeHandle unused;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(at), 0, &unused));
  const Tensor* value = c->input_tensor(at);
  double keep_prob = 0;
  return value == nullptr ? TfStatus() : ToTf(ReadKeepProb(*value, &keep_prob));
}

// Input `at`, a mask, is long enough for n elements, where both are known.
TfStatus CheckMask(InferenceContext* c, int at, DimensionHandle n) {
  ShapeHandle mask;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(at), 1, &mask));
  const DimensionHandle bytes = c->Dim(mask, 0);
  if (c->ValueKnown(bytes) && c->ValueKnown(n) && c->Value(n) > 0 && (c->Value(n) - 1) / 8 >= c->Value(bytes)) {
    return absl::InvalidArgumentError("mask has " + std::to_string(c->Value(bytes)) + " bytes; expected one bit for each of " +
                                      std::to_string(c->Value(n)) + " elements");
  }
  return TfStatus();
}

TfStatus GenMaskShape(InferenceContext* c) {
  ShapeHandle vector, shape;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &vector));
  MXREC_TF_RETURN_IF_ERROR(CheckKeepProb(c, 1));
  MXREC_TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(0, &shape));
  DimensionHandle bytes;
  MXREC_TF_RETURN_IF_ERROR(MaskLength(c, shape, &bytes));
  c->set_output(0, c->Vector(bytes));
  return TfStatus();
}

TfStatus DoMaskShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckMask(c, 1, c->NumElements(c->input(0))));
  MXREC_TF_RETURN_IF_ERROR(CheckKeepProb(c, 2));
  return UnchangedShape(c);
}

TfStatus BroadcastMaskShape(InferenceContext* c) {
  ShapeHandle vector, noise, shape;
  for (int i : {1, 2}) MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &vector));
  MXREC_TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(1, &noise));
  MXREC_TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(2, &shape));
  MXREC_TF_RETURN_IF_ERROR(CheckMask(c, 0, c->NumElements(noise)));
  if (c->RankKnown(noise) && c->RankKnown(shape)) {
    const int behind = c->Rank(shape) - c->Rank(noise);
    bool fits = behind >= 0;
    for (int d = 0; fits && d < c->Rank(noise); ++d) {
      const DimensionHandle small = c->Dim(noise, d), large = c->Dim(shape, behind + d);
      fits = !c->ValueKnown(small) || !c->ValueKnown(large) || c->Value(small) == 1 || c->Value(small) == c->Value(large);
    }
    if (!fits) {
      return absl::InvalidArgumentError("noise_shape " + c->DebugString(noise) + " does not broadcast to shape " +
                                        c->DebugString(shape));
    }
  }
  DimensionHandle bytes;
  MXREC_TF_RETURN_IF_ERROR(MaskLength(c, shape, &bytes));
  c->set_output(0, c->Vector(bytes));
  return TfStatus();
}

TfStatus UnpackMaskShape(InferenceContext* c) {
  ShapeHandle vector, shape;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &vector));
  MXREC_TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(1, &shape));
  MXREC_TF_RETURN_IF_ERROR(CheckMask(c, 0, c->NumElements(shape)));
  c->set_output(0, shape);
  return TfStatus();
}

// All inputs and the one output have one shape.
TfStatus OneShape(InferenceContext* c) {
  ShapeHandle shape = c->input(0);
  for (int i = 1; i < c->num_inputs(); ++i) MXREC_TF_RETURN_IF_ERROR(c->Merge(shape, c->input(i), &shape));
  c->set_output(0, shape);
  return TfStatus();
}

// Input `small` broadcasts to input `large`, where both are known, without making it larger.
TfStatus CheckBroadcast(InferenceContext* c, int small, int large) {
  const ShapeHandle weight = c->input(small), x = c->input(large);
  if (!c->RankKnown(weight) || !c->RankKnown(x)) return TfStatus();
  const int behind = c->Rank(x) - c->Rank(weight);
  bool fits = behind >= 0;
  for (int d = 0; fits && d < c->Rank(weight); ++d) {
    const DimensionHandle own = c->Dim(weight, d), of_x = c->Dim(x, behind + d);
    fits = !c->ValueKnown(own) || c->Value(own) == 1 || !c->ValueKnown(of_x) || c->Value(own) == c->Value(of_x);
  }
  if (fits) return TfStatus();
  return absl::InvalidArgumentError("weight of shape " + c->DebugString(weight) + " does not broadcast to x of shape " +
                                    c->DebugString(x));
}

TfStatus PReluShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckBroadcast(c, 1, 0));
  return UnchangedShape(c);
}

TfStatus PReluGradShape(InferenceContext* c) {
  ShapeHandle shape;
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->input(0), c->input(1), &shape));
  MXREC_TF_RETURN_IF_ERROR(CheckBroadcast(c, 2, 1));
  c->set_output(0, shape);
  c->set_output(1, c->input(2));
  return TfStatus();
}

// An attribute that counts the dimensions of x, from the last where negative.
TfStatus AxisAttr(InferenceContext* c, const char* name, int rank, int* axis) {
  int64_t value = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr(name, &value));
  if (value < -rank || value >= rank) {
    return absl::InvalidArgumentError(std::string(name) + " is " + std::to_string(value) + " for x of rank " +
                                      std::to_string(rank));
  }
  *axis = static_cast<int>(value < 0 ? value + rank : value);
  return TfStatus();
}

// The shapes of mean and variance, and of gamma and beta; both unknown where the rank of x is. Two handles then: to graph
// optimizers one handle means one shape.
TfStatus NormShapes(InferenceContext* c, ShapeHandle x, ShapeHandle* statistics, ShapeHandle* parameters) {
  *statistics = c->UnknownShape();
  *parameters = c->UnknownShape();
  if (!c->RankKnown(x)) return TfStatus();
  int norm = 0, params = 0;
  MXREC_TF_RETURN_IF_ERROR(AxisAttr(c, "begin_norm_axis", c->Rank(x), &norm));
  MXREC_TF_RETURN_IF_ERROR(AxisAttr(c, "begin_params_axis", c->Rank(x), &params));
  std::vector<DimensionHandle> dims;
  for (int d = 0; d < c->Rank(x); ++d) dims.push_back(d < norm ? c->Dim(x, d) : c->MakeDim(1));
  *statistics = c->MakeShape(dims);
  return c->Subshape(x, params, parameters);
}

TfStatus LayerNormShape(InferenceContext* c) {
  ShapeHandle statistics, parameters;
  MXREC_TF_RETURN_IF_ERROR(NormShapes(c, c->input(0), &statistics, &parameters));
  for (int i : {1, 2}) MXREC_TF_RETURN_IF_ERROR(c->Merge(parameters, c->input(i), &parameters));
  c->set_output(0, c->input(0));
  c->set_output(1, statistics);
  c->set_output(2, statistics);
  return TfStatus();
}

TfStatus LayerNormGradShape(InferenceContext* c) {
  ShapeHandle x, statistics, parameters;
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->input(0), c->input(1), &x));
  MXREC_TF_RETURN_IF_ERROR(NormShapes(c, x, &statistics, &parameters));
  for (int i = 2; i < c->num_inputs(); ++i) {
    ShapeHandle* expected = i == 4 ? &parameters : &statistics;
    MXREC_TF_RETURN_IF_ERROR(c->Merge(*expected, c->input(i), expected));
  }
  c->set_output(0, x);
  c->set_output(1, parameters);
  c->set_output(2, parameters);
  return TfStatus();
}

TfStatus CentralizationShape(InferenceContext* c) {
  std::vector<int32_t> axes;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("axes", &axes));
  const ShapeHandle x = c->input(0);
  for (const int32_t axis : axes) {
    if (c->RankKnown(x) && (axis < -c->Rank(x) || axis >= c->Rank(x))) {
      return absl::InvalidArgumentError("axes has " + std::to_string(axis) + " for x of rank " + std::to_string(c->Rank(x)));
    }
  }
  return UnchangedShape(c);
}

// Pairs of weights and gradients, then scalars.
TfStatus LarsShape(InferenceContext* c) {
  const int pairs = c->num_outputs();
  ShapeHandle shape;
  for (int i = 0; i < pairs; ++i) {
    MXREC_TF_RETURN_IF_ERROR(c->Merge(c->input(i), c->input(pairs + i), &shape));
    c->set_output(i, shape);
  }
  for (int i = 2 * pairs; i < c->num_inputs(); ++i) MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &shape));
  return TfStatus();
}

// A gradient, three states (refs are outputs too), then scalars.
TfStatus AdamShape(InferenceContext* c) {
  ShapeHandle shape = c->input(0), unused;
  for (int i = 1; i < 4 && c->num_outputs() > 0; ++i) MXREC_TF_RETURN_IF_ERROR(c->Merge(shape, c->input(i), &shape));
  for (int i = 1; i < 4 && c->num_outputs() == 0; ++i) MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  for (int i = 4; i < c->num_inputs(); ++i) MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, shape);
  return TfStatus();
}

TfStatus NonZeroShape(InferenceContext* c) {
  bool transpose = false;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("transpose", &transpose));
  const ShapeHandle x = c->input(0);
  const DimensionHandle rank = c->RankKnown(x) ? c->MakeDim(c->Rank(x)) : c->UnknownDim(), found = c->UnknownDim();
  const ShapeHandle indices = transpose ? c->Matrix(rank, found) : c->Matrix(found, rank);
  if (c->num_outputs() == 1) {
    c->set_output(0, indices);
    return TfStatus();
  }
  c->set_output(0, c->Vector(found));
  c->set_output(1, indices);
  c->set_output(2, c->Vector(1));
  return TfStatus();
}

REGISTER_OP("DropOutGenMask")
    .Input("shape: T")
    .Input("prob: S")
    .Output("output: uint8")
    .Attr("T: {int32, int64}")
    .Attr("S: {half, bfloat16, float, double} = DT_FLOAT")
    .Attr("seed: int = 0")
    .Attr("seed2: int = 0")
    .SetIsStateful()
    .SetShapeFn(GenMaskShape)
    .Doc(R"doc(
A random bit for each element of a shape: 1 with probability prob.

The bits come from a counter-based generator (Philox 4x32-10), one 32-bit word an element; they depend on the seeds, on how often this op
ran before in its session, and on the place of the element, not on threads. With both seeds 0 each session draws its own. InvalidArgument:
prob outside (0, 1], a negative size.

shape: [rank], the shape of what will be dropped out.
prob: Scalar, the share of elements to keep.
output: [ceil(n / 128) * 16] for n elements. Bit i of it, lowest first within a byte, belongs to element i; bits from n on are 0.
T: Type of the sizes.
S: Type of the probability.
seed: The graph's seed.
seed2: The op's seed.
)doc");

REGISTER_OP("DropOutDoMask")
    .Input("x: T")
    .Input("mask: uint8")
    .Input("keep_prob: T")
    .Output("y: T")
    .Attr("T: {half, bfloat16, float, double}")
    .SetShapeFn(DoMaskShape)
    .Doc(R"doc(
Elements divided by keep_prob where the mask has a 1, zeros elsewhere. Its gradient is the same op, with the same mask.

x: Any shape.
mask: [at least ceil(n / 8)] for n elements of x, as DropOutGenMask gives it.
keep_prob: Scalar in (0, 1].
y: The shape of x. A zero of the mask gives 0 for NaN and infinite elements too.
T: Type of the elements.
)doc");

REGISTER_OP("MxrecDropOutBroadcastMask")
    .Input("mask: uint8")
    .Input("noise_shape: T")
    .Input("shape: T")
    .Output("output: uint8")
    .Attr("T: {int32, int64}")
    .SetShapeFn(BroadcastMaskShape)
    .Doc(R"doc(
The mask of noise_shape as a mask of shape: dimensions of size 1 are repeated, as in broadcasting.

mask: [at least ceil(m / 8)] for the m elements of noise_shape.
noise_shape: [r], r at most the rank of shape; each size is 1 or that of the dimension, counted from the last.
shape: [rank].
output: [ceil(n / 128) * 16] for the n elements of shape; bits from n on are 0.
T: Type of the sizes.
)doc");

REGISTER_OP("MxrecDropOutUnpackMask")
    .Input("mask: uint8")
    .Input("shape: T")
    .Output("output: dtype")
    .Attr("T: {int32, int64}")
    .Attr("dtype: {bool, uint8, half, bfloat16, float} = DT_BOOL")
    .SetShapeFn(UnpackMaskShape)
    .Doc(R"doc(
A mask with one element for each bit: 1 (true) where an element is kept, 0 elsewhere.

mask: [at least ceil(n / 8)] for the n elements of shape.
shape: [rank].
output: That shape.
T: Type of the sizes.
dtype: Type of the output.
)doc");

REGISTER_OP("Gelu")
    .Input("features: T")
    .Output("activations: T")
    .Attr("T: {half, bfloat16, float, double}")
    .SetShapeFn(UnchangedShape)
    .Doc(R"doc(
Gaussian error linear unit, tanh form: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).

features: Any shape.
activations: The same shape.
T: Type of the elements; 16-bit types are computed in float32 and rounded once.
)doc");

REGISTER_OP("GeluGrad")
    .Input("gradients: T")
    .Input("features: T")
    .Input("outputs: T")
    .Output("backprops: T")
    .Attr("T: {half, bfloat16, float, double}")
    .SetShapeFn(OneShape)
    .Doc(R"doc(
The gradient of Gelu.

gradients: For Gelu's output.
features: As given to Gelu.
outputs: Gelu's output. Only its shape is used.
backprops: The same shape.
T: Type of the elements.
)doc");

REGISTER_OP("FastGelu")
    .Input("x: T")
    .Output("y: T")
    .Attr("T: {half, bfloat16, float, double}")
    .SetShapeFn(UnchangedShape)
    .Doc(R"doc(
Gaussian error linear unit, sigmoid form: x / (1 + exp(-1.702 x)).

x: Any shape.
y: The same shape.
T: Type of the elements; 16-bit types are computed in float32 and rounded once.
)doc");

REGISTER_OP("FastGeluGrad")
    .Input("dy: T")
    .Input("x: T")
    .Output("z: T")
    .Attr("T: {half, bfloat16, float, double}")
    .SetShapeFn(OneShape)
    .Doc(R"doc(
The gradient of FastGelu.

dy: For FastGelu's output.
x: As given to FastGelu.
z: The same shape.
T: Type of the elements.
)doc");

REGISTER_OP("FastGeluV2")
    .Input("x: T")
    .Output("y: T")
    .Attr("T: {half, bfloat16, float, double}")
    .SetShapeFn(UnchangedShape)
    .Doc(R"doc(
Gaussian error linear unit in pieces of a quadratic polynomial: x (0.5 + sgn(x) (0.5 - 0.1444 t^2)), t = min(|x| / sqrt(2), 1.769) - 1.769.

That is x for x > 2.51, 0 for x < -2.51, within 0.02 of the exact unit between. The polynomial stands for erf in I-BERT (Kim and others, 2021).

x: Any shape.
y: The same shape.
T: Type of the elements; 16-bit types are computed in float32 and rounded once.
)doc");

REGISTER_OP("FastGeluV2Grad")
    .Input("dy: T")
    .Input("x: T")
    .Output("z: T")
    .Attr("T: {half, bfloat16, float, double}")
    .SetShapeFn(OneShape)
    .Doc(R"doc(
The gradient of FastGeluV2; 0.5 at 0, where the polynomial has a kink.

dy: For FastGeluV2's output.
x: As given to FastGeluV2.
z: The same shape.
T: Type of the elements.
)doc");

REGISTER_OP("PRelu")
    .Input("x: T")
    .Input("weight: T")
    .Output("y: T")
    .Attr("T: {half, bfloat16, float, double}")
    .SetShapeFn(PReluShape)
    .Doc(R"doc(
max(0, x) + weight min(0, x). NaN stays NaN.

x: Any shape.
weight: Broadcasts to x: a scalar, one number a channel (the last dimension), the shape of x without the batch, and so on.
y: The shape of x.
T: Type of the elements.
)doc");

REGISTER_OP("PReluGrad")
    .Input("grads: T")
    .Input("features: T")
    .Input("weights: T")
    .Output("dx: T")
    .Output("da: T")
    .Attr("T: {half, bfloat16, float, double}")
    .SetShapeFn(PReluGradShape)
    .Doc(R"doc(
The gradients of PRelu. At 0 that of x is weight times the gradient.

grads: For PRelu's output.
features: x as given to PRelu.
weights: As given to PRelu.
dx: The shape of features.
da: The shape of weights: sums in float64, in an order that depends on the shapes alone.
T: Type of the elements.
)doc");

REGISTER_OP("LayerNorm")
    .Input("x: T")
    .Input("gamma: T")
    .Input("beta: T")
    .Output("y: T")
    .Output("mean: T")
    .Output("variance: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("begin_norm_axis: int = 0")
    .Attr("begin_params_axis: int = 0")
    .Attr("epsilon: float = 1e-7")
    .SetShapeFn(LayerNormShape)
    .Doc(R"doc(
(x - mean) / sqrt(variance + epsilon) gamma + beta; mean and variance (divided by the count) over the dimensions from begin_norm_axis on.

x: Rank at least 1.
gamma: The shape of x from begin_params_axis on.
beta: The shape of gamma.
y: The shape of x.
mean: The shape of x with 1 for the normalized dimensions.
variance: The shape of mean.
T: Type of the elements. Sums are made in float64.
begin_norm_axis: Negative numbers count from the last dimension.
begin_params_axis: Negative numbers count from the last dimension.
epsilon: Added to the variance.
)doc");

REGISTER_OP("LayerNormGrad")
    .Input("dy: T")
    .Input("x: T")
    .Input("variance: T")
    .Input("mean: T")
    .Input("gamma: T")
    .Output("pd_x: T")
    .Output("pd_gamma: T")
    .Output("pd_beta: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("begin_norm_axis: int = 0")
    .Attr("begin_params_axis: int = 0")
    .Attr("epsilon: float = 1e-7")
    .SetShapeFn(LayerNormGradShape)
    .Doc(R"doc(
The gradients of LayerNorm's first output.

dy: For y.
x: As given to LayerNorm.
variance: LayerNorm's output.
mean: LayerNorm's output.
gamma: As given to LayerNorm.
pd_x: The shape of x.
pd_gamma: The shape of gamma.
pd_beta: The shape of gamma.
T: Type of the elements.
begin_norm_axis: As given to LayerNorm.
begin_params_axis: As given to LayerNorm.
epsilon: As given to LayerNorm.
)doc");

REGISTER_OP("MxrecLayerNormGrad")
    .Input("dy: T")
    .Input("x: T")
    .Input("variance: T")
    .Input("mean: T")
    .Input("gamma: T")
    .Input("dmean: T")
    .Input("dvariance: T")
    .Output("pd_x: T")
    .Output("pd_gamma: T")
    .Output("pd_beta: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("begin_norm_axis: int = 0")
    .Attr("begin_params_axis: int = 0")
    .Attr("epsilon: float = 1e-7")
    .SetShapeFn(LayerNormGradShape)
    .Doc(R"doc(
The gradients of all outputs of LayerNorm.

dy: For y.
x: As given to LayerNorm.
variance: LayerNorm's output.
mean: LayerNorm's output.
gamma: As given to LayerNorm.
dmean: For mean.
dvariance: For variance.
pd_x: The shape of x.
pd_gamma: The shape of gamma.
pd_beta: The shape of gamma.
T: Type of the elements.
begin_norm_axis: As given to LayerNorm.
begin_params_axis: As given to LayerNorm.
epsilon: As given to LayerNorm.
)doc");

REGISTER_OP("Centralization")
    .Input("x: T")
    .Output("y: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("axes: list(int) = [-1]")
    .SetShapeFn(CentralizationShape)
    .Doc(R"doc(
x minus its mean over axes. Its gradient is the same op.

x: Any shape.
y: The shape of x.
T: Type of the elements. Sums are made in float64.
axes: Dimensions of x; negative numbers count from the last.
)doc");

REGISTER_OP("LARS")
    .Input("inputs_w: N * T")
    .Input("inputs_g: N * T")
    .Input("weight_decay: T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("hyperpara: float = 0.001")
    .Attr("epsilon: float = 0.00001")
    .SetShapeFn(LarsShape)
    .Doc(R"doc(
Layer-wise adaptive rate scaling: gradients times a rate of each layer's own.

output = r (g + weight_decay w), r = hyperpara |w| / (|g| + weight_decay |w| + epsilon), and 1 where |w| or |g| is 0.

inputs_w: The weights.
inputs_g: Their gradients, of the same shapes.
weight_decay: Scalar.
outputs: The new gradients.
N: How many layers.
T: Type of the elements.
hyperpara: The trust coefficient.
epsilon: Keeps the divisor above 0.
)doc");

REGISTER_OP("LarsV2")
    .Input("input_weight: T")
    .Input("input_grad: T")
    .Input("weight_decay: T")
    .Input("learning_rate: T")
    .Output("output_grad: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("hyperpara: float = 0.001")
    .Attr("epsilon: float = 0.00001")
    .Attr("use_clip: bool = false")
    .SetShapeFn(LarsShape)
    .Doc(R"doc(
LARS of one layer. With use_clip its rate becomes min(r / learning_rate, 1): the step is at most learning_rate.

input_weight: The weights.
input_grad: Their gradient.
weight_decay: Scalar.
learning_rate: Scalar; used with use_clip only.
output_grad: The new gradient.
T: Type of the elements.
hyperpara: The trust coefficient.
epsilon: Keeps the divisor above 0.
use_clip: Whether to limit the rate.
)doc");

// The steps of Adam: on variables by reference and by resource, without and with weight decay (mul4_x).
#define MXREC_ADAM_INPUTS(variable) \
  .Input("input0: T")               \
      .Input("input1: " variable)   \
      .Input("input2: " variable)   \
      .Input("input3: " variable)   \
      .Input("input4: T")           \
      .Input("mul0_x: T")           \
      .Input("mul1_x: T")           \
      .Input("mul2_x: T")           \
      .Input("mul3_x: T")
#define MXREC_ADAM_OUTPUTS .Output("output0: Ref(T)").Output("output1: Ref(T)").Output("output2: Ref(T)")
#define MXREC_ADAM_REST .Attr("T: {half, bfloat16, float, double}").SetIsStateful().SetShapeFn(AdamShape)
#define MXREC_ADAM_DOC(kind, decay, decay_term, decay_input, outputs)                                                 \
  "\nOne step of Adam without correction of the bias" decay kind                                                      \
  ", in one pass over gradient, moments and variable.\n\n"                                                            \
  "m <- m mul0_x + g mul1_x;  v <- v mul2_x + g^2 mul3_x;  w <- w - input4 (m / (sqrt(v) + add2_y)" decay_term        \
  ")\n\n"                                                                                                             \
  "input0: The gradient g.\ninput1: The variable v, the second moment.\ninput2: The variable m, the first moment.\n"  \
  "input3: The variable w.\ninput4: Scalar, the learning rate.\nmul0_x: Scalar, beta1.\nmul1_x: Scalar, 1 - beta1.\n" \
  "mul2_x: Scalar, beta2.\nmul3_x: Scalar, 1 - beta2.\n" decay_input "add2_y: Scalar, epsilon.\n" outputs             \
  "T: Type of the elements.\n"
#define MXREC_ADAM_OUTPUTS_DOC "output0: input1.\noutput1: input2.\noutput2: input3.\n"
#define MXREC_ADAM_DECAY_DOC "mul4_x: Scalar, the weight decay.\n"

REGISTER_OP("AdamApplyOneAssign")
MXREC_ADAM_INPUTS("Ref(T)").Input("add2_y: T") MXREC_ADAM_OUTPUTS MXREC_ADAM_REST.Doc(MXREC_ADAM_DOC("", "", "", "",
                                                                                                     MXREC_ADAM_OUTPUTS_DOC));

REGISTER_OP("MxrecResourceAdamApplyOneAssign")
MXREC_ADAM_INPUTS("resource").Input("add2_y: T") MXREC_ADAM_REST.Doc(MXREC_ADAM_DOC(", of resource variables", "", "", "", ""));

REGISTER_OP("AdamApplyOneWithDecayAssign")
MXREC_ADAM_INPUTS("Ref(T)")
    .Input("mul4_x: T")
    .Input("add2_y: T") MXREC_ADAM_OUTPUTS MXREC_ADAM_REST.Doc(MXREC_ADAM_DOC("", ", with weight decay", " + mul4_x w",
                                                                              MXREC_ADAM_DECAY_DOC, MXREC_ADAM_OUTPUTS_DOC));

REGISTER_OP("MxrecResourceAdamApplyOneWithDecayAssign")
MXREC_ADAM_INPUTS("resource")
    .Input("mul4_x: T")
    .Input("add2_y: T") MXREC_ADAM_REST.Doc(MXREC_ADAM_DOC(", of resource variables", ", with weight decay", " + mul4_x w",
                                                           MXREC_ADAM_DECAY_DOC, ""));

REGISTER_OP("NonZero")
    .Input("x: T")
    .Output("y: output_type")
    .Attr("T: {bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64, half, bfloat16, float, double}")
    .Attr("transpose: bool = false")
    .Attr("output_type: {int32, int64} = DT_INT64")
    .SetShapeFn(NonZeroShape)
    .Doc(R"doc(
Where the elements of x are that are not zero, in row-major order. NaN is not zero.

x: Any shape.
y: [found, rank of x], or [rank of x, found] with transpose.
T: Type of the elements.
transpose: Whether each dimension has a row of y.
output_type: Type of the indices.
)doc");

REGISTER_OP("NonZeroWithValue")
    .Input("x: T")
    .Output("value: T")
    .Output("index: output_type")
    .Output("count: output_type")
    .Attr("T: {bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64, half, bfloat16, float, double}")
    .Attr("transpose: bool = false")
    .Attr("output_type: {int32, int64} = DT_INT64")
    .SetShapeFn(NonZeroShape)
    .Doc(R"doc(
The elements of x that are not zero, where they are, and how many, in row-major order. NaN is not zero.

x: Any shape.
value: [found].
index: [found, rank of x], or [rank of x, found] with transpose.
count: [1].
T: Type of the elements.
transpose: Whether each dimension has a row of index.
output_type: Type of the indices and the count.
)doc");

}  // namespace
}  // namespace mxrec
