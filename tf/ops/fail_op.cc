// MxrecFail: the way by which a graph pass reports what is wrong with a session's options. Kernel: tf/kernels/fail_kernel.cc.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec {
namespace {

REGISTER_OP("MxrecFail")
    .Attr("code: int")
    .Attr("message: string")
    .Attr("T: list(type) >= 0 = []")
    .Output("outputs: T")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc(R"doc(
Fails with a message. It has outputs where it stands in for another op.

code: the canonical status code.
message: the text of the failure.
T: Types of the outputs.
)doc");

}  // namespace
}  // namespace mxrec
