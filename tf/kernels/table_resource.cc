#include "tf/kernels/table_resource.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tf/kernels/hcom_groups.h"
#include "tf/kernels/shard_tables.h"
#include "tf/kernels/step_watch.h"

namespace mxrec {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class TableHandleOp : public OpKernel {
 public:
  explicit TableHandleOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string text;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("config", &text));
    Result<EmbeddingTableConfig> config = EmbeddingTableConfig::FromJson(text);
    OP_REQUIRES_OK(ctx, ToTf(config.status()));
    config_ = *std::move(config);
    config_text_ = config_.ToJson();
    const HcomWorld world = GetHcomWorld();
    OP_REQUIRES(ctx, world.size == 1 || config_.distribution != Distribution::kNone,
                ToTf(FailedPreconditionError("table \"" + config_.table.name +
                                             "\" is of a graph that was made by one process, but this is "
                                             "rank " +
                                             std::to_string(world.rank) + " of " + std::to_string(world.size) +
                                             ": each would train a table of its own. Make the graph in this job")));
    OP_REQUIRES_OK(ctx, container_.Init(ctx->resource_manager(), def(), /*use_node_name_as_default=*/true));
    handle_ = Tensor(tensorflow::DT_RESOURCE, TensorShape({}));
    handle_.scalar<tensorflow::ResourceHandle>()() =
        tensorflow::MakeResourceHandle<MxrecTableResource>(ctx, container_.container(), container_.name());
  }

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    MxrecTableResource* resource = nullptr;
    OP_REQUIRES_OK(ctx, ctx->resource_manager()->LookupOrCreate<MxrecTableResource>(
                            container_.container(), container_.name(), &resource, [this](MxrecTableResource** created) -> TfStatus {
                              Result<std::shared_ptr<EmbeddingTable>> table =
                                  TrainedByRanks(config_) ? OpenWithRanks(config_) : EmbeddingTable::Create(config_);
                              if (!table.ok()) return ToTf(table.status());
                              *created = new MxrecTableResource(*std::move(table));
                              return TfStatus();
                            }));
    const TableRef held(resource);
    OP_REQUIRES(ctx, held->config_text() == config_text_,
                ToTf(FailedPreconditionError("table \"" + config_.table.name +
                                             "\" exists in this session with another config than in this graph: " +
                                             held->table().config().FirstDifference(config_))));
    ctx->set_output(0, handle_);
  }

 private:
  EmbeddingTableConfig config_;
  std::string config_text_;
  tensorflow::ContainerInfo container_;
  Tensor handle_;
};
REGISTER_KERNEL_BUILDER(Name("MxrecTable").Device(tensorflow::DEVICE_CPU), TableHandleOp);

}  // namespace

TfStatus FindTable(OpKernelContext* ctx, int index, TableRef* table) {
  const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(ctx, index);
  TfStatus status = tensorflow::LookupResource(ctx, handle, table);
  if (absl::IsNotFound(status)) {
    return ToTf(FailedPreconditionError("table \"" + handle.name() + "\" is not in this session (container \"" +
                                        handle.container() + "\"): its server was restarted or its session was closed or reset"));
  }
  return status;
}

Status CheckDim(const EmbeddingTable& table, int64_t dim, const char* op) {
  if (static_cast<int64_t>(table.dim()) == dim) return OkStatus();
  return FailedPreconditionError("table \"" + table.name() + "\" has dim " + std::to_string(table.dim()) + ", but " + op +
                                 " was built for dim " + std::to_string(dim));
}

std::string ShapeText(const Tensor& tensor) { return tensor.shape().DebugString(); }

bool HasShape(const Tensor& tensor, std::initializer_list<int64_t> expected) {
  if (tensor.dims() != static_cast<int>(expected.size())) return false;
  int i = 0;
  return std::all_of(expected.begin(), expected.end(), [&](int64_t size) { return tensor.dim_size(i++) == size || size < 0; });
}

Status CheckShape(const EmbeddingTable& table, const std::string& what, const Tensor& tensor,
                  std::initializer_list<int64_t> expected) {
  if (HasShape(tensor, expected)) return OkStatus();
  std::string text = "[";
  for (int64_t size : expected) {
    if (text.size() > 1) text += ",";
    text += size < 0 ? "?" : std::to_string(size);
  }
  return InvalidArgumentError("table \"" + table.name() + "\": " + what + ": expected shape " + text + "], found " +
                              ShapeText(tensor));
}

TfStatus SetScalar(OpKernelContext* ctx, int index, int64_t value) {
  Tensor* output = nullptr;
  MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(index, TensorShape({}), &output));
  *MutableData<int64_t>(output) = value;
  return TfStatus();
}

}  // namespace mxrec
