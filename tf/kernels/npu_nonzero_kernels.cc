// The kernels of NonZero and NonZeroWithValue.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/float_blocks.h"
#include "tf/kernels/table_resource.h"

namespace mxrec {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Numbers of 16 bits are zero when nothing but the sign is set.
struct Half {
  uint16_t bits;
  bool operator!=(int) const { return (bits & 0x7FFFu) != 0; }
};

// body(T{}) with a type that stands for dtype: `!= 0` says whether an element counts.
template <typename Body>
void WithElementType(tensorflow::DataType dtype, const Body& body) {
  switch (dtype) {
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
      return body(Half{});
    case tensorflow::DT_FLOAT:
      return body(float{});
    case tensorflow::DT_DOUBLE:
      return body(double{});
    default:
      break;
  }
  switch (tensorflow::DataTypeSize(dtype)) {
    case 1:
      return body(uint8_t{});
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    default:
      return body(uint64_t{});
  }
}

class NonZeroOp : public OpKernel {
 public:
  explicit NonZeroOp(OpKernelConstruction* ctx) : OpKernel(ctx), with_value_(type_string() == "NonZeroWithValue") {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("transpose", &transpose_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_type", &index_type_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const auto n = static_cast<size_t>(x.NumElements());
    OP_REQUIRES(ctx, index_type_ == tensorflow::DT_INT64 || n <= static_cast<size_t>(std::numeric_limits<int32_t>::max()),
                ToTf(InvalidArgumentError(name() + ": x has " + std::to_string(n) + " elements, too many for int32 indices")));
    WithElementType(x.dtype(), [&]<typename T>(T) {
      if (index_type_ == tensorflow::DT_INT64) {
        Run<T, int64_t>(ctx, x, n);
      } else {
        Run<T, int32_t>(ctx, x, n);
      }
    });
  }

 private:
  template <typename T, typename Index>
  void Run(OpKernelContext* ctx, const Tensor& x, size_t n) const {
    const T* from = DataSpan<T>(x).data();
    std::vector<size_t> first((n + kFloatBlock - 1) / kFloatBlock + 1);  // place of each block's first find
    ForBlocks(ctx, n, [&](size_t begin, size_t count) {
      size_t found = 0;
      for (size_t i = begin; i < begin + count; ++i) found += from[i] != 0 ? 1 : 0;
      first[begin / kFloatBlock + 1] = found;
    });
    for (size_t b = 1; b < first.size(); ++b) first[b] += first[b - 1];
    const size_t total = first.back(), rank = static_cast<size_t>(x.dims());
    const auto size = static_cast<int64_t>(total), width = static_cast<int64_t>(rank);
    Tensor *values = nullptr, *indices = nullptr, *counted = nullptr;
    if (with_value_) {
      OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({size}), &values));
      OP_REQUIRES_OK(ctx, ctx->allocate_output(2, TensorShape({1}), &counted));
      *MutableData<Index>(counted) = static_cast<Index>(total);
    }
    OP_REQUIRES_OK(ctx, ctx->allocate_output(with_value_ ? 1 : 0,
                                             transpose_ ? TensorShape({width, size}) : TensorShape({size, width}), &indices));
    std::vector<size_t> sizes;
    for (int d = 0; d < x.dims(); ++d) sizes.push_back(static_cast<size_t>(x.dim_size(d)));
    Index* to = MutableData<Index>(indices);
    ForBlocks(ctx, n, [&](size_t begin, size_t count) {
      size_t place = first[begin / kFloatBlock];
      for (size_t i = begin; i < begin + count; ++i) {
        if (!(from[i] != 0)) continue;
        size_t rest = i;
        for (size_t d = rank; d-- > 0; rest /= sizes[d]) {
          to[transpose_ ? d * total + place : place * rank + d] = static_cast<Index>(rest % sizes[d]);
        }
        if (values != nullptr) MutableData<T>(values)[place] = from[i];
        ++place;
      }
    });
  }

  const bool with_value_;
  bool transpose_ = false;
  tensorflow::DataType index_type_ = tensorflow::DT_INT64;
};

REGISTER_KERNEL_BUILDER(Name("NonZero").Device(tensorflow::DEVICE_CPU), NonZeroOp);
REGISTER_KERNEL_BUILDER(Name("NonZeroWithValue").Device(tensorflow::DEVICE_CPU), NonZeroOp);

}  // namespace
}  // namespace mxrec
