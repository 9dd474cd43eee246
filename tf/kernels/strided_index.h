// StridedIndex: walks a tensor in row-major order beside a smaller one that is broadcast to it.
#ifndef MXREC_TF_KERNELS_STRIDED_INDEX_H_
#define MXREC_TF_KERNELS_STRIDED_INDEX_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace mxrec {

class StridedIndex {
 public:
  // Per dimension of the large tensor, outermost first: its size, and whether the small tensor has it (else it is repeated there).
  StridedIndex(const std::vector<size_t>& sizes, const std::vector<bool>& own) {
    size_t stride = 1;
    for (size_t d = sizes.size(); d-- > 0;) {
      if (sizes[d] == 1) continue;
      const size_t step = own[d] ? stride : 0;
      if (own[d]) stride *= sizes[d];
      // A dimension that goes on where the one inside it ends is one with it.
      if (!size_.empty() && (step == 0) == (stride_.back() == 0)) {
        size_.back() *= sizes[d];
      } else {
        size_.push_back(sizes[d]);
        stride_.push_back(step);
      }
    }
    small_ = stride;
    if (size_.empty()) {
      size_.push_back(1);
      stride_.push_back(0);
    }
    std::reverse(size_.begin(), size_.end());
    std::reverse(stride_.begin(), stride_.end());
  }

  size_t small() const { return small_; }  // elements of the small tensor
  size_t outer() const { return size_[0]; }
  // Whether different outermost indices meet different elements of the small tensor.
  bool outer_is_own() const { return stride_[0] != 0; }

  // visit(begin, count, at, stride) for runs that cover elements [begin, end): element begin + i meets element at + i * stride of
  // the small tensor; stride is 0 or 1.
  template <typename Visit>
  void ForRuns(size_t begin, size_t end, const Visit& visit) const {
    const size_t inner = size_.size() - 1;
    std::vector<size_t> at(size_.size());
    size_t rest = begin, place = 0;
    for (size_t d = size_.size(); d-- > 0; rest /= size_[d]) place += stride_[d] * (at[d] = rest % size_[d]);
    while (begin < end) {
      const size_t count = std::min(size_[inner] - at[inner], end - begin);
      visit(begin, count, place, stride_[inner]);
      begin += count;
      place += stride_[inner] * count;
      at[inner] += count;
      for (size_t d = inner; d > 0 && at[d] == size_[d]; --d) {
        place -= stride_[d] * size_[d];
        at[d] = 0;
        place += stride_[d - 1];
        ++at[d - 1];
      }
    }
  }

 private:
  std::vector<size_t> size_, stride_;
  size_t small_ = 1;
};

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_STRIDED_INDEX_H_
