// Gradients: the gradients of an update by key, once OccurrenceSort has brought them there.
//
// A key's gradients are summed in order of parts and, within a part, of position; so the sum is the same for any number of threads.
#ifndef MXREC_TABLE_GRADIENTS_H_
#define MXREC_TABLE_GRADIENTS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "mxrec/table/occurrences.h"
#include "mxrec/table/table.h"
#include "mxrec/table/touch.h"

namespace mxrec {

class Gradients {
 public:
  Gradients(std::span<const UpdatePart> parts, size_t dim) : parts_(parts), dim_(dim) {}

  // What the sort found; it must outlive this.
  void SetOrder(const OccurrenceSort& sort, bool scaled) {
    offsets_ = sort.offsets();
    rows_ = sort.value_rows();
    scales_ = scaled ? sort.scales() : nullptr;
  }

  bool Has(size_t key) const { return offsets_[key] != offsets_[key + 1]; }

  // The summed gradient of a key: its gradient row itself when there is one, unscaled, else summed into `sum` [dim].
  // REQUIRES: Has(key).
  const float* Sum(size_t key, float* sum) const {
    const uint32_t begin = offsets_[key], count = offsets_[key + 1] - begin;
    if (count == 1 && scales_ == nullptr && parts_.size() == 1) return Row(parts_[0], rows_[begin]);
    return SumSeveral(begin, count, sum);
  }

  // Loads the first gradients of the keys [begin, end): see touch.h.
  void Touch(size_t begin, size_t end) const {
    if (parts_.size() != 1) return;
    constexpr uint32_t kMost = 256;  // of one key there may be very many
    const uint32_t last = offsets_[end] - offsets_[begin] < kMost ? offsets_[end] : offsets_[begin] + kMost;
    for (uint32_t o = offsets_[begin]; o < last; ++o) TouchRange(Row(parts_[0], rows_[o]), dim_ * sizeof(float));
  }

 private:
  const float* Row(const UpdatePart& part, uint32_t row) const { return part.values + static_cast<size_t>(row) * dim_; }
  const float* SumSeveral(uint32_t begin, uint32_t count, float* sum) const;

  std::span<const UpdatePart> parts_;
  size_t dim_;
  const uint32_t* offsets_ = nullptr;
  const uint32_t* rows_ = nullptr;  // numbered over all parts
  const float* scales_ = nullptr;   // null: 1 each
};

}  // namespace mxrec

#endif  // MXREC_TABLE_GRADIENTS_H_
