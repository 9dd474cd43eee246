#include "tf/kernels/kept_tensor.h"

#include <cstddef>
#include <string>
#include <utility>

#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tf/kernels/memory_shelf.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorBuffer;

constexpr size_t kLeast = size_t{1} << 20, kMostIdle = size_t{256} << 20, kMostBlocks = 16;

MemoryShelf& TheShelf() {
  static MemoryShelf* const shelf = new MemoryShelf(kMostIdle, kMostBlocks);  // tensors may outlive static destruction
  return *shelf;
}

class KeptBuffer final : public TensorBuffer {
 public:
  KeptBuffer(MemoryShelf::Block block, size_t bytes) : TensorBuffer(block.data), block_(block), bytes_(bytes) {}
  ~KeptBuffer() override { TheShelf().Give(block_); }

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(bytes_));
    proto->set_allocated_bytes(static_cast<int64_t>(block_.bytes));
    proto->set_allocator_name("mxrec_kept");
    proto->set_ptr(reinterpret_cast<uintptr_t>(data()));
  }

 private:
  const MemoryShelf::Block block_;
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
  const MemoryShelf::Block block = TheShelf().Take(bytes);
  if (block.data == nullptr) return ResourceExhaustedError("no memory for a tensor of " + std::to_string(bytes) + " bytes");
  KeptBuffer* const buffer = new KeptBuffer(block, bytes);
  Tensor tensor(dtype, shape, buffer);
  buffer->Unref();  // the tensor has its own
  return tensor;
}

}  // namespace mxrec
