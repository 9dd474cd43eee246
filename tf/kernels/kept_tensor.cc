#include "tf/kernels/kept_tensor.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorBuffer;

constexpr size_t kLeast = size_t{1} << 20, kMostIdle = size_t{128} << 20, kMostBlocks = 16;
constexpr size_t kPage = size_t{2} << 20;

struct Block {
  void* data = nullptr;
  size_t bytes = 0;
};

struct Shelf {
  std::mutex mutex;
  std::vector<Block> idle;  // the one put there last is at the end
  size_t bytes = 0;
};
Shelf& TheShelf() {
  static Shelf* const shelf = new Shelf;  // never destroyed: tensors may outlive static destruction
  return *shelf;
}

// Data null: no memory.
Block Take(size_t bytes) {
  Shelf& shelf = TheShelf();
  {
    const std::lock_guard<std::mutex> lock(shelf.mutex);
    for (size_t i = shelf.idle.size(); i-- > 0;) {
      const Block block = shelf.idle[i];
      if (block.bytes < bytes || block.bytes / 2 > bytes) continue;
      shelf.idle.erase(shelf.idle.begin() + static_cast<ptrdiff_t>(i));
      shelf.bytes -= block.bytes;
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

void Give(Block block) {
  std::vector<Block> dropped;
  {
    Shelf& shelf = TheShelf();
    const std::lock_guard<std::mutex> lock(shelf.mutex);
    shelf.idle.push_back(block);
    shelf.bytes += block.bytes;
    while (shelf.bytes > kMostIdle || shelf.idle.size() > kMostBlocks) {
      shelf.bytes -= shelf.idle.front().bytes;
      dropped.push_back(shelf.idle.front());
      shelf.idle.erase(shelf.idle.begin());
    }
  }
  for (const Block& each : dropped) std::free(each.data);
}

class KeptBuffer final : public TensorBuffer {
 public:
  KeptBuffer(Block block, size_t bytes) : TensorBuffer(block.data), block_(block), bytes_(bytes) {}
  ~KeptBuffer() override { Give(block_); }

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(bytes_));
    proto->set_allocated_bytes(static_cast<int64_t>(block_.bytes));
    proto->set_allocator_name("mxrec_kept");
    proto->set_ptr(reinterpret_cast<uintptr_t>(data()));
  }

 private:
  const Block block_;
  const size_t bytes_;
};

}  // namespace

Result<Tensor> KeptTensor(tensorflow::OpKernelContext* ctx, tensorflow::DataType dtype, const tensorflow::TensorShape& shape) {
  const size_t bytes = static_cast<size_t>(shape.num_elements()) * static_cast<size_t>(tensorflow::DataTypeSize(dtype));
  if (bytes < kLeast) {
    Tensor small;
    MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(dtype, shape, &small)));
    return small;
  }
  const Block block = Take(bytes);
  if (block.data == nullptr) return ResourceExhaustedError("no memory for a tensor of " + std::to_string(bytes) + " bytes");
  KeptBuffer* const buffer = new KeptBuffer(block, bytes);
  Tensor tensor(dtype, shape, buffer);
  buffer->Unref();  // the tensor has its own
  return tensor;
}

}  // namespace mxrec
