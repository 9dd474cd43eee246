// The operations of channels: named first-in first-out queues between graphs, sessions and the host. Their names are those of the
// original's ops. Kernels: tf/kernels/feed_kernels.cc.
#include <string>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

TfStatus NothingShape(InferenceContext*) { return TfStatus(); }

TfStatus TakeShape(InferenceContext* c) {
  std::vector<tensorflow::PartialTensorShape> shapes;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("output_shapes", &shapes));
  if (static_cast<int>(shapes.size()) != c->num_outputs()) {
    return absl::InvalidArgumentError("output_shapes has " + std::to_string(shapes.size()) + " entries, output_types " +
                                      std::to_string(c->num_outputs()) + "; expected as many");
  }
  for (int i = 0; i < c->num_outputs(); ++i) {
    ShapeHandle shape;
    MXREC_TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    c->set_output(i, shape);
  }
  return TfStatus();
}

REGISTER_OP("OutfeedEnqueueOp")
    .Input("inputs: T")
    .Attr("channel_name: string")
    .Attr("T: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn(NothingShape)
    .Doc(R"doc(
Puts one element, a tuple of tensors, into a channel. Waits while the channel is full.

All sessions of the process that use a channel of this name share it; it goes, with what is in it, when the last of them does.
After StopOutfeedDequeueOp this is FailedPrecondition.

inputs: The element.
channel_name: Name of the channel.
T: Types of the element's tensors.
)doc");

REGISTER_OP("OutfeedDequeueOp")
    .Output("outputs: output_types")
    .Attr("channel_name: string")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .SetIsStateful()
    .SetShapeFn(TakeShape)
    .Doc(R"doc(
Takes the oldest element out of a channel. Waits for one; once the channel is stopped and empty this is OutOfRange.

An element of other types or shapes is InvalidArgument and stays in the channel.

outputs: The element.
channel_name: Name of the channel.
output_types: Types that the element must have.
output_shapes: Shapes that it must fit.
)doc");

REGISTER_OP("GetNext")
    .Output("components: output_types")
    .Attr("channel_name: string")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .SetIsStateful()
    .SetShapeFn(TakeShape)
    .Doc(R"doc(
Takes the oldest element out of a channel, as OutfeedDequeueOp does: the side of the graph that is fed.

components: The element.
channel_name: Name of the channel.
output_types: Types that the element must have.
output_shapes: Shapes that it must fit.
)doc");

REGISTER_OP("StopOutfeedDequeueOp").Attr("channel_name: string").SetIsStateful().SetShapeFn(NothingShape).Doc(R"doc(
Stops a channel: what is in it can still be taken out, then taking is OutOfRange; putting in is FailedPrecondition from now on.

channel_name: Name of the channel.
)doc");

}  // namespace
}  // namespace mxrec
