#include "mxrec/table/gradients.h"

#include <algorithm>

#include "mxrec/kernels/sum_rows.h"

namespace mxrec {

const float* Gradients::SumSeveral(uint32_t begin, uint32_t count, float* sum) const {
  const float* scales = scales_ != nullptr ? scales_ + begin : nullptr;
  if (parts_.size() == 1) {
    SumRows(parts_[0].values, rows_ + begin, scales, count, dim_, false, sum);
    return sum;
  }
  // Row by row: the occurrences come in order of parts, so the part only moves on.
  size_t part = 0;
  uint64_t first = 0;  // row of values of that part, in the numbering over all parts
  for (uint32_t o = begin; o < begin + count; ++o) {
    while (rows_[o] - first >= ValueRowCount(parts_[part])) first += ValueRowCount(parts_[part++]);
    const float* row = Row(parts_[part], static_cast<uint32_t>(rows_[o] - first));
    if (count == 1 && scales == nullptr) return row;
    const uint32_t own = 0;
    SumRows(row, &own, scales != nullptr ? scales + (o - begin) : nullptr, 1, dim_, o != begin, sum);
  }
  return sum;
}

}  // namespace mxrec
