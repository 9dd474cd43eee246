// The kernels of channels. A channel belongs to the process, so that sessions can talk to each other; each session that uses one
// keeps it alive through a resource of its own, and the last of them takes it along.
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tf/kernels/feed_queue.h"
#include "tf/status_adapter.h"

namespace mxrec {

using Element = std::vector<tensorflow::Tensor>;
using Channel = FeedQueue<Element>;

class ChannelResource : public tensorflow::ResourceBase {
 public:
  explicit ChannelResource(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
  std::string DebugString() const override { return "channel " + channel_->name(); }
  const std::shared_ptr<Channel>& channel() const { return channel_; }

 private:
  const std::shared_ptr<Channel> channel_;
};

namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::CancellationManager;
using tensorflow::CancellationToken;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr size_t kCapacity = 1024;  // elements of a channel

// The process's channel of that name, made when there is none.
std::shared_ptr<Channel> ProcessChannel(const std::string& name) {
  static std::mutex mutex;
  static auto* channels = new std::map<std::string, std::weak_ptr<Channel>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<Channel>& known = (*channels)[name];
  std::shared_ptr<Channel> channel = known.lock();
  if (channel == nullptr) {
    channel = std::make_shared<Channel>(name, kCapacity);
    std::erase_if(*channels, [&name](const auto& entry) { return entry.second.expired() && entry.first != name; });
    (*channels)[name] = channel;
  }
  return channel;
}

// What the kernels of channels share.
class ChannelOp : public AsyncOpKernel {
 public:
  explicit ChannelOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("channel_name", &channel_name_));
    OP_REQUIRES(ctx, !channel_name_.empty(), ToTf(InvalidArgumentError(name() + ": channel_name must not be empty")));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) final {
    ChannelResource* resource = nullptr;
    OP_REQUIRES_OK_ASYNC(ctx,
                         ctx->resource_manager()->LookupOrCreate<ChannelResource>(
                             ctx->resource_manager()->default_container(), channel_name_, &resource,
                             [this](ChannelResource** created) -> TfStatus {
                               *created = new ChannelResource(ProcessChannel(channel_name_));
                               return TfStatus();
                             }),
                         done);
    const tensorflow::core::ScopedUnref held(resource);
    Run(ctx, resource->channel(), std::move(done));
  }

  virtual void Run(OpKernelContext* ctx, std::shared_ptr<Channel> channel, DoneCallback done) = 0;

 protected:
  // Starts what may wait: begin(end) returns its number for Cancel and calls end(status) once, after all it has to do with ctx.
  // A cancelled step ends the wait.
  template <typename Begin>
  static void Wait(OpKernelContext* ctx, const std::shared_ptr<Channel>& channel, DoneCallback done, const Begin& begin) {
    CancellationManager* manager = ctx->cancellation_manager();
    if (manager == nullptr) {
      begin([ctx, done](const TfStatus& status) {
        ctx->SetStatus(status);
        done();
      });
      return;
    }
    // The number is known only when begin returns; a cancellation before that is seen below. The channel, not the step, is
    // what the callback touches: the step may be over.
    const auto number = std::make_shared<std::atomic<uint64_t>>(0);
    const CancellationToken token = manager->get_cancellation_token();
    const bool registered = manager->RegisterCallback(token, [channel, number] {
      if (const uint64_t known = *number; known != 0) channel->Cancel(known);
    });
    if (!registered) {
      ctx->SetStatus(absl::CancelledError("channel \"" + channel->name() + "\": the step was cancelled"));
      done();
      return;
    }
    // end may run, and the step be over, before begin returns: what is used afterwards is kept alive by hand.
    const auto over = std::make_shared<Ending>();
    const uint64_t mine = begin([ctx, manager, token, over, done](const TfStatus& status) {
      // A cancelled wait ends inside the manager's callback, which must not wait for itself.
      if (!absl::IsCancelled(status)) manager->DeregisterCallback(token);
      bool told = false;
      {
        const std::lock_guard<std::mutex> lock(over->mutex);
        over->status = status;
        told = over->begun;
        over->ended = true;
      }
      if (!told) return;
      ctx->SetStatus(status);
      done();
    });
    *number = mine;
    if (manager->IsCancelling() || manager->IsCancelled()) channel->Cancel(mine);
    bool ended = false;
    {
      const std::lock_guard<std::mutex> lock(over->mutex);
      over->begun = true;
      ended = over->ended;
    }
    if (!ended) return;
    ctx->SetStatus(over->status);
    done();
  }

 private:
  // Whether begin has returned and whether the wait is over: whichever comes last reports.
  struct Ending {
    std::mutex mutex;
    bool begun = false, ended = false;
    TfStatus status;
  };

  std::string channel_name_;
};

class EnqueueOp : public ChannelOp {
 public:
  using ChannelOp::ChannelOp;
  void Run(OpKernelContext* ctx, std::shared_ptr<Channel> channel, DoneCallback done) override {
    // Copies: an input may be the buffer of a variable, which the next step overwrites. A resource handle is nobody's buffer, and
    // DeepCopy does not take one.
    Element element;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const tensorflow::Tensor& input = ctx->input(i);
      element.push_back(input.dtype() == tensorflow::DT_RESOURCE ? input : tensorflow::tensor::DeepCopy(input));
    }
    Wait(ctx, channel, std::move(done), [&](auto end) {
      return channel->Put(std::move(element), [end = std::move(end)](const Status& status) { end(ToTf(status)); });
    });
  }
};

class DequeueOp : public ChannelOp {
 public:
  explicit DequeueOp(OpKernelConstruction* ctx) : ChannelOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_types", &types_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_shapes", &shapes_));
    OP_REQUIRES(ctx, types_.size() == shapes_.size(),
                ToTf(InvalidArgumentError(name() + ": expected one of output_shapes for each of " + std::to_string(types_.size()) +
                                          " output_types, found " + std::to_string(shapes_.size()))));
  }

  void Run(OpKernelContext* ctx, std::shared_ptr<Channel> channel, DoneCallback done) override {
    Wait(ctx, channel, std::move(done), [&](auto end) {
      return channel->Take(
          [this, name = channel->name()](const Element& element) { return Fits(name, element); },
          [ctx, end = std::move(end), name = channel->name()](const Status& status, std::optional<Element> element) {
            if (!status.ok()) return end(ToTf(status));
            if (!element.has_value()) {
              return end(absl::OutOfRangeError("channel \"" + name + "\" was stopped and is empty"));
            }
            for (size_t i = 0; i < element->size(); ++i) ctx->set_output(static_cast<int>(i), (*element)[i]);
            end(TfStatus());
          });
    });
  }

 private:
  Status Fits(const std::string& channel, const Element& element) const {
    const std::string where = name() + ": the next element of channel \"" + channel + "\" ";
    if (element.size() != types_.size()) {
      return InvalidArgumentError(where + "has " + std::to_string(element.size()) + " tensors, expected " +
                                  std::to_string(types_.size()));
    }
    for (size_t i = 0; i < types_.size(); ++i) {
      const std::string part = where + "has at " + std::to_string(i);
      if (element[i].dtype() != types_[i]) {
        return InvalidArgumentError(part + " type " + tensorflow::DataTypeString(element[i].dtype()) + ", expected " +
                                    tensorflow::DataTypeString(types_[i]));
      }
      if (!shapes_[i].IsCompatibleWith(element[i].shape())) {
        return InvalidArgumentError(part + " shape " + element[i].shape().DebugString() + ", expected " + shapes_[i].DebugString());
      }
    }
    return OkStatus();
  }

  tensorflow::DataTypeVector types_;
  std::vector<tensorflow::PartialTensorShape> shapes_;
};

class StopOp : public ChannelOp {
 public:
  using ChannelOp::ChannelOp;
  void Run(OpKernelContext*, std::shared_ptr<Channel> channel, DoneCallback done) override {
    channel->Stop();
    done();
  }
};

REGISTER_KERNEL_BUILDER(Name("OutfeedEnqueueOp").Device(tensorflow::DEVICE_CPU), EnqueueOp);
REGISTER_KERNEL_BUILDER(Name("OutfeedDequeueOp").Device(tensorflow::DEVICE_CPU), DequeueOp);
REGISTER_KERNEL_BUILDER(Name("GetNext").Device(tensorflow::DEVICE_CPU), DequeueOp);
REGISTER_KERNEL_BUILDER(Name("StopOutfeedDequeueOp").Device(tensorflow::DEVICE_CPU), StopOp);

}  // namespace
}  // namespace mxrec
