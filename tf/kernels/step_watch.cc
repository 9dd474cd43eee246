#include "tf/kernels/step_watch.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <unordered_map>

#include "tensorflow/core/framework/cancellation.h"
#include "tf/comm_runtime.h"
#include "tf/node_attrs.h"
#include "tf/status_adapter.h"

namespace mxrec {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

namespace {

// Ops that run at once and functions have random numbers of steps, which are not watched.
constexpr int64_t kMostSteps = int64_t{1} << 61;
// Reasons that are remembered: those of the last steps that failed.
constexpr size_t kMostReasons = 64;

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::string, std::weak_ptr<Turn>> turns;
  std::deque<std::pair<int64_t, Status>> reasons;  // by step, oldest first
};

// Never destroyed: kernels may outlive static objects.
Registry& GetRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

std::optional<Status> ReasonOf(int64_t step) {
  Registry& registry = GetRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  // The first one of a step counts.
  for (const auto& [of, reason] : registry.reasons) {
    if (of == step) return reason;
  }
  return std::nullopt;
}

}  // namespace

bool Turn::Take(int64_t step) {
  if (step >= kMostSteps) return true;
  int64_t last = last_.load();
  while (last < 2 * step) {
    if (last_.compare_exchange_weak(last, 2 * step)) return true;
  }
  return last != 2 * step + 1;
}

bool Turn::Refuse(int64_t step) {
  if (step >= kMostSteps) return false;
  int64_t last = last_.load();
  while (last < 2 * step) {
    if (last_.compare_exchange_weak(last, 2 * step + 1)) return true;
  }
  return false;
}

bool Turn::Asked(int64_t step) const { return step < kMostSteps && last_.load() == 2 * step; }

void Turn::Add(const void* kernel, std::function<void(const Status&)> tell) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kernels_.emplace_back(kernel, std::move(tell));
}

void Turn::Remove(const void* kernel) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(kernels_, [&](const auto& entry) { return entry.first == kernel; });
}

void Turn::Tell(const Status& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!kernels_.empty()) kernels_.back().second(why);
}

std::shared_ptr<Turn> TurnOf(const std::string& key) {
  Registry& registry = GetRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  std::weak_ptr<Turn>& place = registry.turns[key];
  if (std::shared_ptr<Turn> turn = place.lock(); turn != nullptr) return turn;
  std::shared_ptr<Turn> turn(new Turn, [key](Turn* last) {
    {
      Registry& of = GetRegistry();
      const std::lock_guard<std::mutex> lock(of.mutex);
      const auto found = of.turns.find(key);
      if (found != of.turns.end() && found->second.expired()) of.turns.erase(found);
    }
    delete last;
  });
  place = turn;
  return turn;
}

void NoteStepFailure(const OpKernelContext* ctx, const Status& why) {
  if (ConfiguredComm().size == 1 || ctx->step_id() >= kMostSteps) return;
  Registry& registry = GetRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.reasons.emplace_back(ctx->step_id(), why);
  if (registry.reasons.size() > kMostReasons) registry.reasons.pop_front();
}

std::string StepFailure(int64_t step) {
  const std::optional<Status> reason = ReasonOf(step);
  return reason.has_value() ? std::string(reason->message()) : std::string();
}

NotesFailure::~NotesFailure() {
  if (!ctx_->status().ok()) NoteStepFailure(ctx_, FromTf(ctx_->status()));
}

namespace {

class StepWatchOp : public OpKernel {
 public:
  explicit StepWatchOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<std::string> keys;
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kWatchedAttr, &keys));
    auto turns = std::make_shared<std::vector<std::shared_ptr<Turn>>>();
    for (const std::string& key : keys) turns->push_back(TurnOf(key));
    turns_ = std::move(turns);
  }

  void Compute(OpKernelContext* ctx) override {
    tensorflow::CancellationManager* const manager = ctx->cancellation_manager();
    if (manager == nullptr) return;
    // Called when the step fails, else at its end, when nothing is left to refuse.
    const auto ended = [turns = turns_, step = ctx->step_id()] {
      std::optional<Status> reason = ReasonOf(step);
      if (!reason.has_value()) {
        const auto asked = [step](const std::shared_ptr<Turn>& turn) { return turn->Asked(step); };
        if (std::none_of(turns->begin(), turns->end(), asked)) return;
        reason = CancelledError("its step has failed or was cancelled");
      }
      for (const std::shared_ptr<Turn>& turn : *turns) {
        if (turn->Refuse(step)) turn->Tell(*reason);
      }
    };
    if (!manager->RegisterCallback(manager->get_cancellation_token(), ended)) ended();
  }

 private:
  std::shared_ptr<const std::vector<std::shared_ptr<Turn>>> turns_;
};
REGISTER_KERNEL_BUILDER(Name("MxrecStepWatch").Device(tensorflow::DEVICE_CPU), StepWatchOp);

}  // namespace

}  // namespace mxrec
