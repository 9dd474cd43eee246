// The kernel of NpuAllFinite.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "mxrec/kernels/non_finite.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tf/kernels/pool_executor.h"

namespace mxrec {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr size_t kPieceValues = size_t{1} << 16;

// A value is NaN or infinite when all bits of its exponent are set. No branch inside: the compiler makes vectors of it.
template <typename Bits>
bool AllFiniteBits(const char* values, size_t n, Bits exponent) {
  Bits any = 0;
  for (size_t i = 0; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, values + i * sizeof(Bits), sizeof(Bits));
    any = static_cast<Bits>(any | ((bits & exponent) == exponent));
  }
  return any == 0;
}

struct Piece {
  const Tensor* tensor;
  size_t begin, end;
};

bool AllFinite(const Piece& piece) {
  const tensorflow::DataType dtype = piece.tensor->dtype();
  const char* const data = static_cast<const char*>(piece.tensor->data()) + piece.begin * tensorflow::DataTypeSize(dtype);
  const size_t n = piece.end - piece.begin;
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return FirstNonFinite(reinterpret_cast<const float*>(data), n) == n;
    case tensorflow::DT_DOUBLE:
      return AllFiniteBits<uint64_t>(data, n, 0x7FF0000000000000u);
    case tensorflow::DT_HALF:
      return AllFiniteBits<uint16_t>(data, n, 0x7C00u);
    default:  // bfloat16; the op registration allows no other type
      return AllFiniteBits<uint16_t>(data, n, 0x7F80u);
  }
}

class NpuAllFiniteOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    std::vector<Piece> pieces;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const Tensor& tensor = ctx->input(i);
      const auto n = static_cast<size_t>(tensor.NumElements());
      for (size_t begin = 0; begin < n; begin += kPieceValues) {
        pieces.push_back({&tensor, begin, std::min(n, begin + kPieceValues)});
      }
    }
    std::atomic<bool> finite{true};
    const auto check = [&](size_t i) {
      if (finite.load(std::memory_order_relaxed) && !AllFinite(pieces[i])) finite.store(false, std::memory_order_relaxed);
    };
    size_t values = 0;
    for (const Piece& piece : pieces) values += piece.end - piece.begin;
    if (values <= 2 * kPieceValues) {  // too little for threads
      for (size_t i = 0; i < pieces.size(); ++i) check(i);
    } else {
      PoolExecutor executor(ctx);
      executor.ParallelFor(pieces.size(), check);
    }
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &output));
    output->scalar<bool>()() = finite;
  }
};
REGISTER_KERNEL_BUILDER(Name("NpuAllFinite").Device(tensorflow::DEVICE_CPU), NpuAllFiniteOp);

}  // namespace
}  // namespace mxrec
