// What becomes of a session's step of which something of ours fails: the collectives that the step has not asked for yet are
// refused, so that the other ranks, which wait for them, learn at once which rank failed and why.
//
// A graph pass (tf/graph/watch_pass.h) gives each graph with collectives one MxrecStepWatch, which names those that always run. It
// learns of the end of the step from TensorFlow. A kernel of ours that fails leaves its reason first (NoteStepFailure,
// NotesFailure). A step that fails without such a reason (the end of the data, an op of TensorFlow's) before it has asked for
// anything refuses nothing: the caller may try again, and nobody notices.
// Threads: any.
#ifndef MXREC_TF_KERNELS_STEP_WATCH_H_
#define MXREC_TF_KERNELS_STEP_WATCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/base/status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace mxrec {

// One collective node: of each step either the node asks for it, or the watch refuses it.
class Turn {
 public:
  // The node asks, or says itself that it does not. False: the watch has refused it for this step. Steps have rising numbers; of
  // one older than the last that took its turn nothing is refused.
  bool Take(int64_t step);
  // For the watch. True: it is to tell the others.
  bool Refuse(int64_t step);
  bool Asked(int64_t step) const;

  // The kernels of the node, in whatever sessions; `tell` tells the other ranks that this one does not take part.
  void Add(const void* kernel, std::function<void(const Status&)> tell);
  void Remove(const void* kernel);
  void Tell(const Status& why);

 private:
  std::atomic<int64_t> last_{0};  // twice the step, and one if it was refused
  std::mutex mutex_;
  std::vector<std::pair<const void*, std::function<void(const Status&)>>> kernels_;
};

// The node's with this key (tf/turn_key.h). Lives as long as someone holds it.
std::shared_ptr<Turn> TurnOf(const std::string& key);

// Why this step is going to fail: before the kernel gives its status to `ctx`. The first reason counts.
void NoteStepFailure(const tensorflow::OpKernelContext* ctx, const Status& why);
// That reason's text; empty: there is none.
std::string StepFailure(int64_t step);

// First in Compute of a kernel whose failure the other ranks are to learn of: notes it when Compute ends with one.
class NotesFailure {
 public:
  explicit NotesFailure(const tensorflow::OpKernelContext* ctx) : ctx_(ctx) {}
  ~NotesFailure();
  NotesFailure(const NotesFailure&) = delete;
  NotesFailure& operator=(const NotesFailure&) = delete;

 private:
  const tensorflow::OpKernelContext* const ctx_;
};

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_STEP_WATCH_H_
