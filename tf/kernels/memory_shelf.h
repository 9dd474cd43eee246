// MemoryShelf: large blocks of memory that are kept for the next one who needs such a block.
//
// The C library gives a block of tens of megabytes back to the system when it is freed, and whoever asks for the next one pays for
// fresh pages, which the system fills with zeros. Blocks here lie in large pages where the system has them. An idle block is marked
// as free to the system: it takes the pages away when it runs short of memory, and costs nothing when it does not.
// Threads: any.
#ifndef MXREC_TF_KERNELS_MEMORY_SHELF_H_
#define MXREC_TF_KERNELS_MEMORY_SHELF_H_

#include <cstddef>
#include <mutex>
#include <vector>

namespace mxrec {

class MemoryShelf {
 public:
  struct Block {
    void* data = nullptr;
    size_t bytes = 0;
  };

  // What stays idle at most; beyond it the blocks that were given first go back to the system.
  MemoryShelf(size_t most_idle_bytes, size_t most_idle_blocks) : most_bytes_(most_idle_bytes), most_blocks_(most_idle_blocks) {}
  ~MemoryShelf();
  MemoryShelf(const MemoryShelf&) = delete;
  MemoryShelf& operator=(const MemoryShelf&) = delete;

  // A block of at least `bytes`, with any contents: an idle one of at most twice the size, the one given last first, or a new one.
  // Data null: the system has no memory.
  Block Take(size_t bytes);
  // Puts back what Take gave. Nobody uses it any more.
  void Give(Block block);

  size_t idle_bytes() const;

 private:
  const size_t most_bytes_, most_blocks_;
  mutable std::mutex mutex_;
  std::vector<Block> idle_;  // the one given last is at the end
  size_t bytes_ = 0;
};

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_MEMORY_SHELF_H_
