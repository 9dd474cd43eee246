// KeptTensor: a large tensor whose memory is kept for the next one when it is freed (tf/kernels/memory_shelf.h): sums of sparse
// gradients, which have another size in every step, and results of collectives from 32 MiB on. The process keeps up to 16 idle
// blocks and 256 MiB. Tensors below 1 MiB are TensorFlow's own. Threads: any.
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
