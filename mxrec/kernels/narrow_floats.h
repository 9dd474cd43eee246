// Arrays of float16 and bfloat16 to float32 and back, with the rounding of mxrec/numeric/half.h, which is the scalar reference.
#ifndef MXREC_KERNELS_NARROW_FLOATS_H_
#define MXREC_KERNELS_NARROW_FLOATS_H_

#include <cstddef>
#include <cstdint>

namespace mxrec {

// out[i] of in[i], i in [0, n); the arrays do not overlap. Equal to the bit on every target, denormal numbers included, where
// the thread does not flush them (float_mode.h).
void HalfToFloats(const uint16_t* in, size_t n, float* out);
void FloatsToHalf(const float* in, size_t n, uint16_t* out);
void BFloat16ToFloats(const uint16_t* in, size_t n, float* out);
void FloatsToBFloat16(const float* in, size_t n, uint16_t* out);

}  // namespace mxrec

#endif  // MXREC_KERNELS_NARROW_FLOATS_H_
