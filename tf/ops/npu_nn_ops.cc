// Operations of neural networks under the names they have on the NPU: dropout, activations, normalisation, pieces of optimizers.
// Kernels: tf/kernels/npu_*_kernels.cc. Gradients: python/mxrec/_npu_gradients.py.
#include <cstdint>
#include <limits>
#include <string>

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

}  // namespace
}  // namespace mxrec
