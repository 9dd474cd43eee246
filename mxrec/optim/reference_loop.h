// The loops of scalar references, and the sum over a row that has one order everywhere.
#ifndef MXREC_OPTIM_REFERENCE_LOOP_H_
#define MXREC_OPTIM_REFERENCE_LOOP_H_

#include <cmath>
#include <cstddef>

#include "mxrec/optim/optimizer.h"

namespace mxrec::internal {

// Sums over a row have kSumLanes partial sums: column c goes to partial sum c mod kSumLanes, in ascending order; then
// partial sum j takes that of j + 8, then of j + 4, j + 2, j + 1. So vectors of 1, 4, 8 and 16 floats give the same bits.
inline constexpr size_t kSumLanes = 16;

inline float FoldPartialSums(float* partial) {
  for (size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) partial[j] = partial[j] + partial[j + half];
  }
  return partial[0];
}

// The sum of term(c) over the columns c of a row.
template <typename Term>
float SumOverRow(size_t dim, const Term& term) {
  float partial[kSumLanes] = {};
  for (size_t c = 0; c < dim; ++c) partial[c % kSumLanes] = partial[c % kSumLanes] + term(c);
  return FoldPartialSums(partial);
}

// Calls update(g, row) for every row: g its gradient, row its values and slots. Returns the number of rows that hold a
// non-finite value afterwards.
template <typename Update>
size_t ForEachRow(const RowBatch& batch, const Update& update) {
  size_t non_finite_rows = 0;
  for (size_t i = 0; i < batch.count; ++i) {
    float* const row = batch.rows[i];
    update(batch.grads[i], row);
    bool finite = true;
    for (size_t c = 0; c < batch.dim; ++c) finite = finite && std::isfinite(row[c]);
    if (!finite) ++non_finite_rows;
  }
  return non_finite_rows;
}

// Calls update(g, w, slot) for every element of every row: g its gradient, w a reference to its value, slot(k) a reference to
// its place in slot k. Returns as ForEachRow.
template <typename Update>
size_t ForEachElement(const RowBatch& batch, const Update& update) {
  return ForEachRow(batch, [&](const float* g, float* row) {
    for (size_t c = 0; c < batch.dim; ++c) {
      const auto slot = [row, c, &batch](size_t k) -> float& { return row[(1 + k) * batch.dim + c]; };
      update(g[c], row[c], slot);
    }
  });
}

}  // namespace mxrec::internal

#endif  // MXREC_OPTIM_REFERENCE_LOOP_H_
