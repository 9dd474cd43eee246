// PoolRows: sums, means and square-root means of rows over bags of ids, and the gradients of that. The rows of the occurrences are
// never written out: [ids, dim] exists nowhere.
//
// Bag b holds the occurrences offsets[b] .. offsets[b + 1]; occurrence j is row inverse[j] with weight w_j (1 without weights).
//   sum    S = sum of w_j * r_j              scale of an occurrence  w_j
//   mean   S / W,  W = sum of w_j                                    w_j / W
//   sqrtn  S / R,  R = sqrt(sum of w_j^2)                            w_j / R
// A bag without occurrences is zeros. Where W or R is zero (weights that are zero, or cancel) the pooled row, all scales and all
// gradients are zero: everything stays finite. A weight or row that is NaN or infinite shows in its own bag only.
//
// Everything is summed in the order of occurrence without fused multiply-add, so the result is the same to the bit on every target
// and for any cut of the bags into ranges. Threads: each call reads and writes only its arguments.
#ifndef MXREC_KERNELS_POOL_ROWS_H_
#define MXREC_KERNELS_POOL_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "mxrec/base/executor.h"

namespace mxrec {

enum class Combiner : uint8_t { kSum, kMean, kSqrtN };

struct Bags {
  const int32_t* offsets = nullptr;  // [count + 1]; REQUIRES: CheckOffsets found them right
  size_t count = 0;
  const int32_t* inverse = nullptr;  // [occurrences]
  size_t occurrences = 0;
  const float* weights = nullptr;  // [occurrences], or null: 1 each
  Combiner combiner = Combiner::kSum;
};

// Offsets [count + 1] start at 0, never descend and end at `occurrences` (below 2^31). Returns count + 1 when that holds, else the
// first position where it does not.
template <typename T>
size_t CheckOffsets(const T* offsets, size_t count, size_t occurrences) {
  T before = 0;
  for (size_t b = 0; b <= count; ++b) {
    const bool right = offsets[b] >= before && static_cast<uint64_t>(offsets[b]) <= occurrences && (b != 0 || offsets[b] == 0);
    if (!right || (b == count && static_cast<uint64_t>(offsets[b]) != occurrences)) return b;
    before = offsets[b];
  }
  return count + 1;
}

// out[b] = pooled row of bag b for b in [begin, end); rows is [unique, dim], out [count, dim]; they must not overlap. Returns
// bags.occurrences, or the first occurrence of the range whose row is outside [0, unique), in which case its bag and later ones
// are not written.
size_t PoolRows(const float* rows, size_t unique, size_t dim, const Bags& bags, size_t begin, size_t end, float* out);
// Scalar reference of the same.
size_t PoolRowsReference(const float* rows, size_t unique, size_t dim, const Bags& bags, size_t begin, size_t end, float* out);

// Whether all scales are 1, so that nobody need multiply by them.
inline bool UnitScales(const Bags& bags) { return bags.combiner == Combiner::kSum && bags.weights == nullptr; }
// For the occurrences of the bags [begin, end): their bag, and (null: not wanted) their scale.
void OccurrenceScales(const Bags& bags, size_t begin, size_t end, int32_t* bag_of, float* scales);

// Gradient for rows: out[u] = sum over the occurrences j of row u of scale_j * grads[bag of j]; grads is [count, dim], out
// [unique, dim]. Zeros for a row without occurrences. Returns as PoolRows; then out is not written.
// Takes 8 bytes of memory for each occurrence.
size_t PoolRowsGradient(const float* grads, const Bags& bags, size_t unique, size_t dim, Executor* executor, float* out);

// Gradient for weights, for the occurrences of the bags [begin, end). pooled [count, dim] is what PoolRows gave for them.
//   sum    g . r_j
//   mean   (g . r_j - g . pooled) / W
//   sqrtn  g . r_j / R - (g . pooled) * w_j / R^2
// Returns as PoolRows.
size_t PoolWeightGradient(const float* grads, const float* pooled, const float* rows, size_t unique, size_t dim, const Bags& bags,
                          size_t begin, size_t end, float* out);

}  // namespace mxrec

#endif  // MXREC_KERNELS_POOL_ROWS_H_
