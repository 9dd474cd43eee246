// MergedRows: how rows of several ranks that lie in one block, rank after rank, become one row for each index.
//
// A rank has at most one row of an index. The first row of an index stays and takes those of later ranks, in the order of ranks.
// Then the rows behind the place where the result ends move into the places of rows that were added to others, both in ascending
// order. So with few indices that several ranks have hardly a row is touched, and the result depends on the indices alone, not on
// the rank that computes it. Memory is kept for the next use. Threads: one at a time.
#ifndef MXREC_SHARD_MERGED_ROWS_H_
#define MXREC_SHARD_MERGED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mxrec/shard/distinct_ids.h"

namespace mxrec {

class MergedRows {
 public:
  // keys: the indices of all ranks, rank after rank; counts: how many each has. `ids` has numbered those of rank `me`, in the order
  // in which they stand among the keys, and numbers the others now. REQUIRES: the counts add up to keys.size() < 2^31.
  void LayOut(std::span<const uint64_t> keys, std::span<const int64_t> counts, size_t me, DistinctIds* ids);

  // Rows of the result.
  size_t size() const { return size_; }
  // Rows that are added or moved.
  size_t touched() const { return repeated_.size() + from_.size(); }

  // On rows [keys.size(), dim]: the first size() become the result.
  void AddUp(float* rows, size_t dim) const;
  // The same for what is one for each row, such as the indices.
  template <typename T>
  void Move(T* each) const {
    for (size_t i = 0; i < from_.size(); ++i) each[to_[i]] = each[from_[i]];
  }

 private:
  size_t size_ = 0;
  std::vector<int32_t> repeated_, onto_;  // rows that are added, ascending, and those that they are added to
  std::vector<int32_t> from_, to_;        // moves
  std::vector<int32_t> numbers_, first_;  // scratch
};

}  // namespace mxrec

#endif  // MXREC_SHARD_MERGED_ROWS_H_
