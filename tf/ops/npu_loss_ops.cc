// The operation behind loss scaling: one check of all gradients. Kernel: tf/kernels/npu_loss_kernels.cc.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace mxrec {
namespace {

REGISTER_OP("NpuAllFinite")
    .Input("values: T")
    .Output("finite: bool")
    .Attr("T: list({bfloat16, half, float, double}) >= 1")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Whether no tensor holds a NaN or an infinity. Reads each value once and stops at the first that is not finite.

values: Tensors of any shape.
finite: Scalar; true also when all tensors are empty.
)doc");

}  // namespace
}  // namespace mxrec
