#include "mxrec/shard/merged_rows.h"

#include <algorithm>
#include <cstring>

#include "mxrec/base/check.h"
#include "mxrec/kernels/float_mode.h"
#include "mxrec/kernels/scatter_rows.h"
#include "mxrec/table/scratch.h"

namespace mxrec {

void MergedRows::LayOut(std::span<const uint64_t> keys, std::span<const int64_t> counts, size_t me, DistinctIds* ids) {
  repeated_.clear();
  onto_.clear();
  from_.clear();
  to_.clear();
  // By number of an index: its first row.
  int32_t* const first = Ensure(&first_, keys.size());
  std::fill_n(first, keys.size(), -1);
  size_t begin = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    const size_t count = static_cast<size_t>(counts[r]);
    MXREC_CHECK(count <= keys.size() - begin) << "counts beyond " << keys.size() << " keys";
    const int32_t* numbers = nullptr;
    if (r != me) {
      int32_t* const made = Ensure(&numbers_, count);
      ids->Add(keys.subspan(begin, count), made);
      numbers = made;
    }
    for (size_t i = 0; i < count; ++i) {
      int32_t& row = first[numbers != nullptr ? static_cast<size_t>(numbers[i]) : i];
      if (row < 0) {
        row = static_cast<int32_t>(begin + i);
      } else {
        repeated_.push_back(static_cast<int32_t>(begin + i));
        onto_.push_back(row);
      }
    }
    begin += count;
  }
  MXREC_CHECK(begin == keys.size()) << "counts of " << begin << " in all for " << keys.size() << " keys";
  size_ = keys.size() - repeated_.size();
  // As many rows lie behind the result and stay as there are places for them in it.
  const auto behind = std::lower_bound(repeated_.begin(), repeated_.end(), static_cast<int32_t>(size_));
  to_.assign(repeated_.begin(), behind);
  auto gone = behind;
  for (int32_t row = static_cast<int32_t>(size_); from_.size() < to_.size(); ++row) {
    if (gone != repeated_.end() && *gone == row) {
      ++gone;
    } else {
      from_.push_back(row);
    }
  }
}

void MergedRows::AddUp(float* rows, size_t dim) const {
  const ScopedIeeeFloat ieee;  // the result must not depend on the thread
  AddRowsOnto(rows, repeated_.data(), onto_.data(), repeated_.size(), dim);
  if (dim == 0) return;
  for (size_t i = 0; i < from_.size(); ++i) {
    std::memcpy(rows + static_cast<size_t>(to_[i]) * dim, rows + static_cast<size_t>(from_[i]) * dim, dim * sizeof(float));
  }
}

}  // namespace mxrec
