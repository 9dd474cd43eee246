// Elementwise work over tensors of a floating type, in blocks on the intra-op threads.
//
// The engine's kernels compute in float32 and float64. float16 and bfloat16 pass through float32: each number is widened, computed
// and rounded once. Blocks have a fixed size, so results do not depend on the number of threads.
#ifndef MXREC_TF_KERNELS_FLOAT_BLOCKS_H_
#define MXREC_TF_KERNELS_FLOAT_BLOCKS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "mxrec/kernels/float_mode.h"
#include "mxrec/kernels/narrow_floats.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/pool_executor.h"

namespace mxrec {

inline constexpr size_t kFloatBlock = size_t{1} << 14;    // elements of one item of work
inline constexpr size_t kElementBlock = size_t{1} << 12;  // where no sums depend on it: threads end closer to each other
inline constexpr size_t kNarrowBlock = 512;               // of these, in one widened piece; both are multiples of it

// Runs body(begin, count) over [0, n) in blocks of `size`, in IEEE mode.
template <typename Body>
void ForBlocks(tensorflow::OpKernelContext* ctx, size_t n, const Body& body, size_t size = kFloatBlock) {
  PoolExecutor executor(ctx);
  executor.ParallelFor((n + size - 1) / size, [&](size_t block) {
    const ScopedIeeeFloat ieee;
    const size_t begin = block * size;
    body(begin, std::min(size, n - begin));
  });
}

// Widens n numbers of a 16-bit type, and narrows them.
inline void WidenFloats(tensorflow::DataType dtype, const void* from, size_t begin, size_t n, float* to) {
  const uint16_t* narrow = static_cast<const uint16_t*>(from) + begin;
  dtype == tensorflow::DT_HALF ? HalfToFloats(narrow, n, to) : BFloat16ToFloats(narrow, n, to);
}
inline void NarrowFloats(tensorflow::DataType dtype, const float* from, size_t begin, size_t n, void* to) {
  uint16_t* narrow = static_cast<uint16_t*>(to) + begin;
  dtype == tensorflow::DT_HALF ? FloatsToHalf(from, n, narrow) : FloatsToBFloat16(from, n, narrow);
}

// Runs body(in, out, begin, count) over blocks of n elements. in: std::array<const T*, kIn>, out: std::array<T*, kOut>, both
// already at element `begin`; T is float or double. All tensors have dtype (float32, float64, float16 or bfloat16) and n elements;
// an output may be an input.
template <size_t kIn, size_t kOut, typename Body>
void ForFloatBlocks(tensorflow::OpKernelContext* ctx, tensorflow::DataType dtype, const std::array<const void*, kIn>& in,
                    const std::array<void*, kOut>& out, size_t n, const Body& body) {
  const auto plain = [&]<typename T>(T, size_t begin, size_t count) {
    std::array<const T*, kIn> from;
    std::array<T*, kOut> to;
    for (size_t i = 0; i < kIn; ++i) from[i] = static_cast<const T*>(in[i]) + begin;
    for (size_t i = 0; i < kOut; ++i) to[i] = static_cast<T*>(out[i]) + begin;
    body(from, to, begin, count);
  };
  const auto one = [&](size_t begin, size_t count) {
    if (dtype == tensorflow::DT_FLOAT) return plain(float{}, begin, count);
    if (dtype == tensorflow::DT_DOUBLE) return plain(double{}, begin, count);
    float wide_in[kIn][kNarrowBlock], wide_out[kOut][kNarrowBlock];
    std::array<const float*, kIn> from;
    std::array<float*, kOut> to;
    for (size_t i = 0; i < kIn; ++i) from[i] = wide_in[i];
    for (size_t i = 0; i < kOut; ++i) to[i] = wide_out[i];
    for (size_t done = 0; done < count; done += kNarrowBlock) {
      const size_t piece = std::min(kNarrowBlock, count - done);
      for (size_t i = 0; i < kIn; ++i) WidenFloats(dtype, in[i], begin + done, piece, wide_in[i]);
      body(from, to, begin + done, piece);
      for (size_t i = 0; i < kOut; ++i) NarrowFloats(dtype, wide_out[i], begin + done, piece, out[i]);
    }
  };
  ForBlocks(ctx, n, one, kElementBlock);
}

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_FLOAT_BLOCKS_H_
