// MappedMemory: a zeroed block of memory that fails with a Status and uses huge pages where they pay.
//
// Blocks of 16 KiB and more come from mmap (lazily backed, so untouched parts cost nothing); from 2 MiB on they are aligned
// to 2 MiB and advised as huge pages (as far as whole huge pages fit). Smaller ones come from the heap, aligned to 64 bytes.
#ifndef MXREC_TABLE_MEMORY_H_
#define MXREC_TABLE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "mxrec/base/status.h"

namespace mxrec {

class MappedMemory {
 public:
  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  // kSmall: never huge pages, for large blocks of which little is touched.
  enum class Pages : uint8_t { kHugeIfLarge, kSmall };

  // kResourceExhausted names `what` and the bytes.
  static Result<MappedMemory> Allocate(size_t bytes, const char* what, Pages pages = Pages::kHugeIfLarge);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  static constexpr size_t kHugePage = size_t{2} << 20;
  // Gives the memory of whole huge pages within [begin, end) of a block back to the system; they hold zeros from then on.
  static void Discard(char* begin, char* end);

 private:
  void Free();
  void* data_ = nullptr;
  size_t bytes_ = 0;
  void* map_ = nullptr;  // null: heap
  size_t map_bytes_ = 0;
};

// Fills fresh blocks with a NaN pattern instead of zeros, so that tests see every read of memory that nobody wrote.
void PoisonFreshMemoryForTesting(bool on);
// Allocate succeeds `successes` more times and then fails as if memory had run out, until told otherwise; negative: never.
void FailAllocationsForTesting(int64_t successes);

}  // namespace mxrec

#endif  // MXREC_TABLE_MEMORY_H_
