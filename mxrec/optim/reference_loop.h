// ForEachElement: the loop of a scalar reference, and of what it returns.
#ifndef MXREC_OPTIM_REFERENCE_LOOP_H_
#define MXREC_OPTIM_REFERENCE_LOOP_H_

#include <cmath>
#include <cstddef>

#include "mxrec/kernels/float_mode.h"
#include "mxrec/optim/optimizer.h"

namespace mxrec::internal {

// Calls update(g, w, slot) for every element of every row: g its gradient, w a reference to its value, slot(k) a reference to
// its place in slot k. Returns the number of rows that hold a non-finite value afterwards.
template <typename Update>
size_t ForEachElement(const RowBatch& batch, const Update& update) {
  const ScopedIeeeFloat ieee;
  size_t non_finite_rows = 0;
  for (size_t i = 0; i < batch.count; ++i) {
    float* const row = batch.rows[i];
    bool finite = true;
    for (size_t c = 0; c < batch.dim; ++c) {
      const auto slot = [row, c, &batch](size_t k) -> float& { return row[(1 + k) * batch.dim + c]; };
      update(batch.grads[i][c], row[c], slot);
      finite = finite && std::isfinite(row[c]);
    }
    if (!finite) ++non_finite_rows;
  }
  return non_finite_rows;
}

}  // namespace mxrec::internal

#endif  // MXREC_OPTIM_REFERENCE_LOOP_H_
