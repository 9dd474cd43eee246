// FirstRows: fills rows with random numbers that depend on (seed, key, column) alone.
//
// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC11). The generator's 64-bit key is
// the seed; its 128-bit counter is (row key low, row key high, column / 4, 0); the four words of its output belong to four
// neighbouring columns. A word becomes a float32 through float32 operations in a fixed order, without fused multiply-add:
//   uniform           a + (word >> 8) 2^-24 (b - a), but never b
//   normal            a + b z: the highest bit is the sign, the other 31 bits k give x = (k + 0.5) 2^-31, and
//                     z = inverse of the normal distribution at 0.5 + x / 2; |z| <= 6.34
//   truncated normal  the same with x times (2 Phi(2) - 1), the share of the normal distribution within two deviations
// z = x P(w) with w = -log((1 - x) (1 + x)); log is a polynomial, P is one polynomial of w below 5 and one of sqrt(w) above.
// Worst relative error of z measured on a grid of the 2^31 values of k and at both ends: 4e-7 (first_row_test.cc, bound 5e-7).
// These bits are what tables and checkpoints are made of: first_row_test.cc pins them.
#ifndef MXREC_KERNELS_FIRST_ROW_H_
#define MXREC_KERNELS_FIRST_ROW_H_

#include <cstddef>
#include <cstdint>

namespace mxrec {

enum class Distribution : uint8_t { kUniform, kNormal, kTruncatedNormal };

// a, b: minval and maxval (a < b, b - a finite), or mean and standard deviation (b >= 0).
struct FirstRowFormula {
  Distribution distribution;
  float a;
  float b;
};

// Row i of `count` at out + i * stride, dim floats each; nothing else is written. dim <= 2^34.
void FirstRows(const FirstRowFormula& formula, uint64_t seed, const uint64_t* keys, size_t count, size_t dim, float* out,
               size_t stride);
// Scalar reference of the same; equal to the bit.
void FirstRowsReference(const FirstRowFormula& formula, uint64_t seed, const uint64_t* keys, size_t count, size_t dim, float* out,
                        size_t stride);

// One call of the generator: out[4] from counter[4] and key[2]. What the reference uses.
void Philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
// z of the comment above for one word. What the reference uses.
float NormalFromWord(uint32_t word);
float TruncatedNormalFromWord(uint32_t word);

}  // namespace mxrec

#endif  // MXREC_KERNELS_FIRST_ROW_H_
