#include "tf/kernels/memory_shelf.h"

#include <sys/mman.h>

#include <cstdlib>

namespace mxrec {
namespace {

constexpr size_t kPage = size_t{2} << 20;

}  // namespace

MemoryShelf::~MemoryShelf() {
  for (const Block& block : idle_) std::free(block.data);
}

MemoryShelf::Block MemoryShelf::Take(size_t bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = idle_.size(); i-- > 0;) {
      const Block block = idle_[i];
      if (block.bytes < bytes || block.bytes / 2 > bytes) continue;
      idle_.erase(idle_.begin() + static_cast<ptrdiff_t>(i));
      bytes_ -= block.bytes;
      return block;
    }
  }
  // Room for a next one that is a little larger.
  Block block{nullptr, (bytes + bytes / 16 + kPage - 1) / kPage * kPage};
  block.data = std::aligned_alloc(kPage, block.bytes);
#ifdef MADV_HUGEPAGE
  if (block.data != nullptr) madvise(block.data, block.bytes, MADV_HUGEPAGE);
#endif
  return block;
}

void MemoryShelf::Give(Block block) {
  if (block.bytes > most_bytes_ || most_blocks_ == 0) return std::free(block.data);
#ifdef MADV_FREE
  madvise(block.data, block.bytes, MADV_FREE);
#endif
  std::vector<Block> dropped;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(block);
    bytes_ += block.bytes;
    while (bytes_ > most_bytes_ || idle_.size() > most_blocks_) {
      bytes_ -= idle_.front().bytes;
      dropped.push_back(idle_.front());
      idle_.erase(idle_.begin());
    }
  }
  for (const Block& each : dropped) std::free(each.data);
}

size_t MemoryShelf::idle_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

}  // namespace mxrec
