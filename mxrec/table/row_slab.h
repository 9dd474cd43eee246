// RowSlab: fixed-size records that never move, addressed by a 31-bit handle.
//
//   handle -> directory[handle >> shift] + (handle & mask) * stride        (no padding between records)
//
// Memory comes in regions that double from one chunk to 64 MiB; the directory has one pointer a chunk and is itself lazily
// backed memory, so it never moves either: readers need no lock while other threads allocate.
//
// Threads: AllocateRun may be called from several threads; At() for any handle that was handed out before (with the usual
// happens-before of the handle itself).
#ifndef MXREC_TABLE_ROW_SLAB_H_
#define MXREC_TABLE_ROW_SLAB_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/table/memory.h"

namespace mxrec {

class RowSlab {
 public:
  static constexpr uint32_t kMaxRecords = 0x7FFFFF00u;

  // kResourceExhausted when even the directory cannot be reserved.
  static Result<RowSlab> Create(size_t stride_bytes);
  RowSlab() = default;
  RowSlab(RowSlab&& other) noexcept { *this = std::move(other); }
  RowSlab& operator=(RowSlab&& other) noexcept;

  size_t stride_bytes() const { return stride_; }
  uint32_t shift() const { return shift_; }
  char* const* directory() const { return directory_; }
  char* At(uint32_t handle) const {
    return directory_[handle >> shift_] + static_cast<size_t>(handle & ((1u << shift_) - 1)) * stride_;
  }

  // Hands out `count` records with consecutive handles, never handed out before. Contents: whatever fresh memory holds.
  Result<uint32_t> AllocateRun(uint32_t count);
  // Takes everything back and frees it; from now on records have `stride_bytes`, at most what they had. Never fails: the
  // directory stays. REQUIRES: nobody uses a record.
  void Clear(size_t stride_bytes);
  // Records handed out so far.
  uint64_t allocated() const { return next_.load(std::memory_order_relaxed); }

 private:
  Status AddRegion();
  void SetStride(size_t stride_bytes);

  size_t stride_ = 0;
  uint32_t shift_ = 0;
  char** directory_ = nullptr;
  MappedMemory directory_memory_;
  std::mutex mutex_;
  std::vector<MappedMemory> regions_;
  uint64_t backed_records_ = 0;
  std::atomic<uint64_t> next_{0};
};

}  // namespace mxrec

#endif  // MXREC_TABLE_ROW_SLAB_H_
