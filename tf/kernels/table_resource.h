// The table as TensorFlow holds it, and what every kernel needs to reach and read it.
//
// The session's ResourceMgr owns the resource, as it owns variables; a kernel holds a reference while it runs, so a table
// outlives neither its session nor a save in flight.
#ifndef MXREC_TF_KERNELS_TABLE_RESOURCE_H_
#define MXREC_TF_KERNELS_TABLE_RESOURCE_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "mxrec/engine/embedding_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tf/status_adapter.h"

namespace mxrec {

class MxrecTableResource : public tensorflow::ResourceBase {
 public:
  explicit MxrecTableResource(std::shared_ptr<EmbeddingTable> table)
      : table_(std::move(table)), config_text_(table_->config().ToJson()) {}
  std::string DebugString() const override { return "sparse table " + table_->name(); }
  EmbeddingTable& table() const { return *table_; }
  // The canonical text of its config: a step compares it with its handle op's, which costs less than comparing fields.
  const std::string& config_text() const { return config_text_; }

 private:
  const std::shared_ptr<EmbeddingTable> table_;
  const std::string config_text_;
};

// A reference to a table; empty until filled by FindTable.
using TableRef = tensorflow::core::RefCountPtr<MxrecTableResource>;

// The table behind input `index`. kFailedPrecondition, as for variables, when the session (or the parameter server) no longer
// has it, so that monitored sessions recover.
TfStatus FindTable(tensorflow::OpKernelContext* ctx, int index, TableRef* table);

// kFailedPrecondition unless the op's dim is the table's.
Status CheckDim(const EmbeddingTable& table, int64_t dim, const char* op);
// A size of -1 allows any.
bool HasShape(const tensorflow::Tensor& tensor, std::initializer_list<int64_t> expected);
// kInvalidArgument, naming table, input and what was found, unless the tensor has this shape. A size of -1 allows any.
Status CheckShape(const EmbeddingTable& table, const std::string& what, const tensorflow::Tensor& tensor,
                  std::initializer_list<int64_t> expected);
std::string ShapeText(const tensorflow::Tensor& tensor);

// Tensors as the engine's spans; keys are taken by their bits.
inline std::span<const uint64_t> KeySpan(const tensorflow::Tensor& keys) {
  return {reinterpret_cast<const uint64_t*>(keys.data()), static_cast<size_t>(keys.NumElements())};
}
template <typename T>
std::span<const T> DataSpan(const tensorflow::Tensor& tensor) {
  return {reinterpret_cast<const T*>(tensor.data()), static_cast<size_t>(tensor.NumElements())};
}
template <typename T>
T* MutableData(tensorflow::Tensor* tensor) {
  return reinterpret_cast<T*>(tensor->data());
}

// Writes a scalar output.
TfStatus SetScalar(tensorflow::OpKernelContext* ctx, int index, int64_t value);

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_TABLE_RESOURCE_H_
