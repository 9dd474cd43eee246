#include "mxrec/table/memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace mxrec {
namespace {

constexpr size_t kMapThreshold = size_t{16} << 10;
std::atomic<bool> g_poison{false};
std::atomic<int64_t> g_successes{-1};  // negative: no limit

Status OutOfMemory(size_t bytes, const char* what) {
  return ResourceExhaustedError("out of memory: cannot allocate " + std::to_string(bytes) + " bytes for " + what);
}

// Whether a test wants this allocation to fail.
bool MustFail() {
  int64_t left = g_successes.load(std::memory_order_relaxed);
  while (left > 0 && !g_successes.compare_exchange_weak(left, left - 1)) {
  }
  return left == 0;
}

}  // namespace

void PoisonFreshMemoryForTesting(bool on) { g_poison = on; }
void FailAllocationsForTesting(int64_t successes) { g_successes = successes; }

MappedMemory::MappedMemory(MappedMemory&& other) noexcept { *this = std::move(other); }

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  if (this != &other) {
    Free();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    map_ = std::exchange(other.map_, nullptr);
    map_bytes_ = std::exchange(other.map_bytes_, 0);
  }
  return *this;
}

MappedMemory::~MappedMemory() { Free(); }

void MappedMemory::Free() {
  if (map_ != nullptr) {
    munmap(map_, map_bytes_);
  } else {
    std::free(data_);
  }
  data_ = map_ = nullptr;
  bytes_ = map_bytes_ = 0;
}

void MappedMemory::Discard(char* begin, char* end) {
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / kHugePage * kHugePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

Result<MappedMemory> MappedMemory::Allocate(size_t bytes, const char* what, Pages pages) {
  MappedMemory memory;
  if (bytes == 0) return memory;
  if (MustFail()) return OutOfMemory(bytes, what);
  if (bytes < kMapThreshold) {
    const size_t rounded = (bytes + 63) / 64 * 64;
    memory.data_ = std::aligned_alloc(64, rounded);
    if (memory.data_ == nullptr) return OutOfMemory(bytes, what);
    std::memset(memory.data_, 0, rounded);
  } else {
    const bool huge = bytes >= kHugePage && pages == Pages::kHugeIfLarge;
    memory.map_bytes_ = bytes + (huge ? kHugePage : 0);
    void* map = mmap(nullptr, memory.map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
      memory.map_bytes_ = 0;
      return OutOfMemory(bytes, what);
    }
    memory.map_ = map;
    uintptr_t begin = reinterpret_cast<uintptr_t>(map);
    if (huge) {
      begin = (begin + kHugePage - 1) / kHugePage * kHugePage;
#ifdef MADV_HUGEPAGE
      // Only whole huge pages: a rounded-up tail would be resident memory that holds nothing.
      madvise(reinterpret_cast<void*>(begin), bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
    }
    memory.data_ = reinterpret_cast<void*>(begin);
  }
  memory.bytes_ = bytes;
  if (g_poison.load(std::memory_order_relaxed)) std::memset(memory.data_, 0xFF, bytes);
  return memory;
}

}  // namespace mxrec
