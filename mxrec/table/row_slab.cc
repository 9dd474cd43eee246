#include "mxrec/table/row_slab.h"

#include <algorithm>
#include <string>
#include <utility>

#include "mxrec/base/check.h"

namespace mxrec {
namespace {

constexpr size_t kChunkBytes = size_t{512} << 10;
constexpr size_t kLargestRegion = size_t{64} << 20;

}  // namespace

Result<RowSlab> RowSlab::Create(size_t stride_bytes) {
  RowSlab slab;
  slab.SetStride(stride_bytes);
  const size_t chunks = (size_t{1} << 31) >> slab.shift_;
  MXREC_ASSIGN_OR_RETURN(slab.directory_memory_,
                         MappedMemory::Allocate(chunks * sizeof(char*), "a row directory", MappedMemory::Pages::kSmall));
  slab.directory_ = static_cast<char**>(slab.directory_memory_.data());
  return slab;
}

void RowSlab::SetStride(size_t stride_bytes) {
  stride_ = stride_bytes;
  shift_ = 4;
  while (shift_ < 16 && (stride_bytes << (shift_ + 1)) <= kChunkBytes) ++shift_;
}

void RowSlab::Clear(size_t stride_bytes) {
  MXREC_CHECK(directory_ != nullptr && stride_bytes <= stride_) << "the directory is made for records of " << stride_ << " bytes";
  SetStride(stride_bytes);
  regions_.clear();
  backed_records_ = 0;
  next_.store(0);
}

RowSlab& RowSlab::operator=(RowSlab&& other) noexcept {
  stride_ = other.stride_;
  shift_ = other.shift_;
  directory_ = std::exchange(other.directory_, nullptr);
  directory_memory_ = std::move(other.directory_memory_);
  regions_ = std::move(other.regions_);
  backed_records_ = std::exchange(other.backed_records_, 0);
  next_.store(other.next_.exchange(0));
  return *this;
}

Status RowSlab::AddRegion() {
  const size_t chunk_bytes = stride_ << shift_;
  // The first region is one chunk; each further one as large as all before it, up to 64 MiB, up to the end of the directory.
  const size_t so_far = static_cast<size_t>(backed_records_ >> shift_);
  const size_t most = std::max<size_t>(1, kLargestRegion / chunk_bytes);
  const size_t chunks = std::min(std::clamp<size_t>(so_far, 1, most), directory_memory_.bytes() / sizeof(char*) - so_far);
  MXREC_ASSIGN_OR_RETURN(MappedMemory memory, MappedMemory::Allocate(chunks * chunk_bytes, "rows"));
  char* data = static_cast<char*>(memory.data());
  for (size_t c = 0; c < chunks; ++c) directory_[so_far + c] = data + c * chunk_bytes;
  regions_.push_back(std::move(memory));
  backed_records_ += chunks << shift_;
  return OkStatus();
}

Result<uint32_t> RowSlab::AllocateRun(uint32_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t first = next_.load(std::memory_order_relaxed);
  if (first + count > kMaxRecords) {
    return ResourceExhaustedError("a table holds at most " + std::to_string(kMaxRecords) + " rows; " + std::to_string(first) +
                                  " are allocated and " + std::to_string(count) + " more were asked for");
  }
  while (backed_records_ < first + count) MXREC_RETURN_IF_ERROR(AddRegion());
  next_.store(first + count, std::memory_order_relaxed);
  return static_cast<uint32_t>(first);
}

}  // namespace mxrec
