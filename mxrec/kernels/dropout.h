// Dropout: random bits, one an element, and their use.
//
// Elements go in groups of 64. Group g uses the 16 counters first + 16 g + j, 0 <= j < 16, of Philox 4x32-10 (first_row.h); the
// 128-bit counter is (the low 64 bits just named, stream), the generator's key is the seed. Word k of counter j belongs to
// element 64 g + 16 k + j, which is kept when the word is below the threshold. So a bit depends on seed, stream and counter
// alone, not on threads, targets or the elements around it. Bit i of a mask is bit i % 8, counted from the lowest, of byte i / 8.
#ifndef MXREC_KERNELS_DROPOUT_H_
#define MXREC_KERNELS_DROPOUT_H_

#include <cstddef>
#include <cstdint>

namespace mxrec {

struct DropoutStream {
  uint64_t seed, stream;
  uint64_t first;      // a multiple of 16
  uint64_t threshold;  // 1 to 2^32: that share of 2^32 is kept
};

// The threshold for a share of kept elements, 0 < keep_prob <= 1: keep_prob 2^32, rounded to nearest, at least 1.
uint64_t DropoutThreshold(double keep_prob);

// The bits of groups [group, group + count): 8 * count bytes at mask.
void DropoutMask(const DropoutStream& stream, uint64_t group, size_t count, uint8_t* mask);
// Scalar reference of the same; equal to the bit.
void DropoutMaskReference(const DropoutStream& stream, uint64_t group, size_t count, uint8_t* mask);

// out[i] = x[i] / keep_prob where bit i of mask is set, else +0, also for NaN and infinite x. mask has ceil(n / 8) bytes. x and out
// may be the same.
void DropoutApply(const float* x, const uint8_t* mask, size_t n, float keep_prob, float* out);
void DropoutApply(const double* x, const uint8_t* mask, size_t n, double keep_prob, double* out);
// Scalar references of the same; equal to the bit.
void DropoutApplyReference(const float* x, const uint8_t* mask, size_t n, float keep_prob, float* out);
void DropoutApplyReference(const double* x, const uint8_t* mask, size_t n, double keep_prob, double* out);

}  // namespace mxrec

#endif  // MXREC_KERNELS_DROPOUT_H_
