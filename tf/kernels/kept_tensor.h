// KeptTensor: a tensor of changing size whose memory is kept for the next one when it is freed.
//
// A sum of sparse gradients has another size in every step, tens of megabytes long, and the C library gives such blocks back to the
// system: a step would pay for thousands of fresh pages. Up to 16 idle blocks and 128 MiB are kept, in large pages where the system
// has them. Tensors below 1 MiB are TensorFlow's own. Threads: any.
#ifndef MXREC_TF_KERNELS_KEPT_TENSOR_H_
#define MXREC_TF_KERNELS_KEPT_TENSOR_H_

#include "mxrec/base/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace mxrec {

// Not initialized. ResourceExhausted: the system has no memory.
Result<tensorflow::Tensor> KeptTensor(tensorflow::OpKernelContext* ctx, tensorflow::DataType dtype,
                                      const tensorflow::TensorShape& shape);

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_KEPT_TENSOR_H_
