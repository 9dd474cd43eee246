// Ids of any type that lookups take, as the keys that tables know.
#ifndef MXREC_TF_KERNELS_ID_KEYS_H_
#define MXREC_TF_KERNELS_ID_KEYS_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/table_resource.h"

namespace mxrec {

// int64 and uint64 as they lie in memory, int32 sign-extended into *widened, which then holds them.
inline TfStatus IdsAsKeys(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& ids, tensorflow::Tensor* widened,
                          std::span<const uint64_t>* keys) {
  if (ids.dtype() != tensorflow::DT_INT32) {
    *keys = KeySpan(ids);
    return TfStatus();
  }
  MXREC_TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DT_INT64, ids.shape(), widened));
  const std::span<const int32_t> narrow = DataSpan<int32_t>(ids);
  std::copy(narrow.begin(), narrow.end(), MutableData<int64_t>(widened));
  *keys = KeySpan(*widened);
  return TfStatus();
}

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_ID_KEYS_H_
