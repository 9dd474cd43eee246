// float16 and bfloat16 tensors as float32 ones, for kernels that are not elementwise: they compute in float32 or float64 only.
#ifndef MXREC_TF_KERNELS_WIDE_TENSORS_H_
#define MXREC_TF_KERNELS_WIDE_TENSORS_H_

#include <vector>

#include "mxrec/kernels/moments.h"
#include "tf/kernels/float_blocks.h"
#include "tf/kernels/strided_index.h"
#include "tf/status_adapter.h"

namespace mxrec {

inline bool IsNarrow(tensorflow::DataType dtype) { return dtype == tensorflow::DT_HALF || dtype == tensorflow::DT_BFLOAT16; }

// *wide is `in` itself where its type is float32 or float64, else its values as float32.
inline TfStatus WidenTensor(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& in, tensorflow::Tensor* wide) {
  if (!IsNarrow(in.dtype())) {
    *wide = in;
    return TfStatus();
  }
  MXREC_TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DT_FLOAT, in.shape(), wide));
  ForBlocks(ctx, static_cast<size_t>(in.NumElements()), [&](size_t begin, size_t count) {
    WidenFloats(in.dtype(), in.data(), begin, count, static_cast<float*>(wide->data()) + begin);
  });
  return TfStatus();
}

// An output and where to compute it: the output itself, or a float32 tensor that Finish rounds into it.
class WideOutput {
 public:
  TfStatus Allocate(tensorflow::OpKernelContext* ctx, int index, const tensorflow::TensorShape& shape) {
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(index, shape, &output_));
    if (!IsNarrow(output_->dtype())) {
      work_ = *output_;
      return TfStatus();
    }
    return ctx->allocate_temp(tensorflow::DT_FLOAT, shape, &work_);
  }
  template <typename T>
  T* data() const {
    return static_cast<T*>(work_.data());
  }
  void Finish(tensorflow::OpKernelContext* ctx) {
    if (!IsNarrow(output_->dtype())) return;
    ForBlocks(ctx, static_cast<size_t>(work_.NumElements()), [&](size_t begin, size_t count) {
      NarrowFloats(output_->dtype(), static_cast<const float*>(work_.data()) + begin, begin, count, output_->data());
    });
  }

 private:
  tensorflow::Tensor* output_ = nullptr;
  tensorflow::Tensor work_;
};

// body(float{}) or body(double{}), whichever the type is computed in.
template <typename Body>
void WithWideType(tensorflow::DataType dtype, const Body& body) {
  dtype == tensorflow::DT_DOUBLE ? body(double{}) : body(float{});
}

// A sum over n numbers in blocks of kFloatBlock on the intra-op threads, added in the order of the blocks. part(begin, count) gives
// that of one block.
template <typename Part>
double BlockSum(tensorflow::OpKernelContext* ctx, size_t n, const Part& part) {
  std::vector<double> parts((n + kFloatBlock - 1) / kFloatBlock);
  ForBlocks(ctx, n, [&](size_t begin, size_t count) { parts[begin / kFloatBlock] = part(begin, count); });
  double sum = 0;
  for (const double p : parts) sum += p;
  return sum;
}

// sums[k] = sum of the elements of x that meet element k of the small tensor, in an order that depends on the shapes alone. sums
// holds index.small() zeros, and none are left out.
template <typename T>
void SumToSmall(tensorflow::OpKernelContext* ctx, const StridedIndex& index, const T* x, size_t n, std::vector<double>* sums) {
  if (n == 0) return;
  if (index.small() == 1) {
    (*sums)[0] = BlockSum(ctx, n, [x](size_t begin, size_t count) { return Sum(x + begin, count); });
    return;
  }
  const auto add = [&](size_t begin, size_t end) {
    index.ForRuns(begin, end, [&](size_t i, size_t count, size_t at, size_t stride) {
      if (stride == 0) {
        (*sums)[at] += Sum(x + i, count);
      } else {
        AddEach(x + i, count, sums->data() + at);
      }
    });
  };
  // Outer slices that share no sum go on several threads.
  if (!index.outer_is_own()) return add(0, n);
  const size_t slice = n / index.outer(), each = std::max<size_t>(1, kFloatBlock / slice);
  PoolExecutor executor(ctx);
  executor.ParallelFor((index.outer() + each - 1) / each, [&](size_t item) {
    const ScopedIeeeFloat ieee;
    add(item * each * slice, std::min(index.outer(), (item + 1) * each) * slice);
  });
}

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_WIDE_TENSORS_H_
