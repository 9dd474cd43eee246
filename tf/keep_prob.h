// ReadKeepProb: the share of elements that dropout keeps, out of a tensor of any floating type.
#ifndef MXREC_TF_KEEP_PROB_H_
#define MXREC_TF_KEEP_PROB_H_

#include <cstdint>
#include <string>

#include "mxrec/base/status.h"
#include "mxrec/numeric/half.h"
#include "tensorflow/core/framework/tensor.h"

namespace mxrec {

// The value of a scalar of type float16, bfloat16, float32 or float64; kInvalidArgument outside (0, 1] and for NaN.
inline Status ReadKeepProb(const tensorflow::Tensor& tensor, double* keep_prob) {
  if (tensor.NumElements() != 1 || tensor.dims() != 0) {
    return InvalidArgumentError("keep_prob must be a scalar, found shape " + tensor.shape().DebugString());
  }
  const void* data = tensor.data();
  switch (tensor.dtype()) {
    case tensorflow::DT_HALF:
      *keep_prob = static_cast<double>(HalfToFloat(*static_cast<const uint16_t*>(data)));
      break;
    case tensorflow::DT_BFLOAT16:
      *keep_prob = static_cast<double>(BFloat16ToFloat(*static_cast<const uint16_t*>(data)));
      break;
    case tensorflow::DT_FLOAT:
      *keep_prob = static_cast<double>(*static_cast<const float*>(data));
      break;
    default:
      *keep_prob = *static_cast<const double*>(data);
  }
  if (*keep_prob > 0 && *keep_prob <= 1) return OkStatus();
  return InvalidArgumentError("keep_prob must be above 0 and at most 1, found " + std::to_string(*keep_prob));
}

}  // namespace mxrec

#endif  // MXREC_TF_KEEP_PROB_H_
