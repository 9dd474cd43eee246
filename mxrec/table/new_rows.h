// NewRows: fills rows that were just taken from their shard's stock. Part of Table's inside (table_impl.h).
#ifndef MXREC_TABLE_NEW_ROWS_H_
#define MXREC_TABLE_NEW_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "mxrec/table/scratch.h"
#include "mxrec/table/table_impl.h"

namespace mxrec {

// Collects new rows whose first values are to be generated: a block of them costs little more than one. Their counts are 0; all
// are filled after Flush(). REQUIRES: exclusive lock of their shard.
class NewRows {
 public:
  NewRows(const Table::Impl* impl, uint64_t now_ms) : impl_(*impl), now_ms_(now_ms) {}
  void Add(uint64_t key, char* row) {
    if (count_ == kBlock) Flush();
    adjoining_ = adjoining_ && (count_ == 0 || row == rows_[count_ - 1] + impl_.layout.stride_bytes());
    rows_[count_] = row;
    keys_[count_++] = key;
  }
  void Flush() {
    if (count_ == 0) return;
    const RowLayout& layout = impl_.layout;
    const auto generate = [&](float* to, size_t stride) {
      GenerateFirstRows(impl_.options.initializer, impl_.options.seed, keys_, count_, layout.dim, to, stride);
    };
    if (adjoining_) {
      generate(reinterpret_cast<float*>(rows_[0]), layout.stride_bytes() / sizeof(float));
    } else {
      float* values = Ensure(&scratch_->values, kBlock * layout.dim);
      generate(values, layout.dim);
      for (size_t i = 0; i < count_; ++i) std::memcpy(rows_[i], values + i * layout.dim, layout.dim * sizeof(float));
    }
    for (size_t i = 0; i < count_; ++i) impl_.InitBehindValues(rows_[i], 0, now_ms_);
    count_ = 0;
    adjoining_ = true;
  }

 private:
  static constexpr size_t kBlock = 64;
  struct Scratch {
    std::vector<float> values;
  };

  const Table::Impl& impl_;
  uint64_t now_ms_;
  bool adjoining_ = true;  // each row right behind the one before
  size_t count_ = 0;
  ScratchLease<Scratch> scratch_;
  char* rows_[kBlock];
  uint64_t keys_[kBlock];
};

}  // namespace mxrec

#endif  // MXREC_TABLE_NEW_ROWS_H_
