// What the kernels of all collective ops share: the group, the names that the ranks agree on, submission without blocking an
// executor thread, cancellation, and the case of a group of one rank, which needs no communicator.
//
// A kernel describes each of its tensors as a Part and calls Run, which ends the op when all parts have ended. Names: `tensor_name`
// when the op has one, else the node's name, with the iteration when the node stands in a loop (iterations that run at the same
// time must meet their likes on the other ranks); PartSuffix(i) is added for tensor i of several. A node that the graph pass made
// of several (tf/graph/merge_pass.h) has for each tensor the name and the origin that its own node had, and messages name that
// node; when one of its tensors fails, the others are cancelled, as the end of the step would have done with their nodes.
#ifndef MXREC_TF_KERNELS_COLLECTIVE_KERNEL_H_
#define MXREC_TF_KERNELS_COLLECTIVE_KERNEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/comm/communicator.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/step_watch.h"
#include "tf/status_adapter.h"

namespace mxrec {

// The engine's number for a type; Unimplemented for types that cannot be exchanged as numbers.
Result<DType> ToDType(tensorflow::DataType type);

// The reduction of an attribute's text.
Result<ReduceOp> ParseReduction(const std::string& text);

class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit CollectiveKernel(tensorflow::OpKernelConstruction* ctx);
  ~CollectiveKernel() override;

 protected:
  // A group as this rank sees it.
  struct Membership {
    std::vector<int> ranks;
    int me = 0;
    int64_t size() const { return static_cast<int64_t>(ranks.size()); }
  };

  struct Part {
    // kind, dtype, shape, op, scales, root, peer, tag, splits, wire and input; Run fills in the rest.
    CommRequest request;
    // Of these two the first that is given makes the memory of the output; on the progress thread.
    std::function<Result<void*>(tensorflow::OpKernelContext*, const Agreed&)> allocate;
    int output = -1;        // allocated with the agreed shape
    bool forwards = false;  // the input of the same index may become the output
    // After success, on the progress thread: what is left to do to outputs.
    std::function<Status(tensorflow::OpKernelContext*, const Agreed&)> finish;
    // Keeps a packed input alive.
    tensorflow::Tensor packed;
  };

  // The group of the op now; NotFound for an unknown one, FailedPrecondition when this rank is no member.
  Result<Membership> FindGroup() const;
  // A part for input `index`.
  Result<Part> MakePart(tensorflow::OpKernelContext* ctx, Collective kind, int index) const;
  // A part that gives input `index` of rank `root` to all, as output `index`. Any type that has a value: strings too.
  Result<Part> MakeBroadcastPart(tensorflow::OpKernelContext* ctx, const Membership& group, int index, int64_t root) const;
  // The parts of an op that has one.
  static std::vector<Part> One(Part part) {
    std::vector<Part> parts;
    parts.push_back(std::move(part));
    return parts;
  }
  // Makes a sum, output `output`, the mean over the ranks; integers are rounded down.
  static void Average(const Membership& group, int output, Part* part);
  void Run(tensorflow::OpKernelContext* ctx, const Membership& group, std::vector<Part> parts, DoneCallback done);
  // Ends this run of the op with `why`, and tells the other ranks of the group, which would wait for it. For what is found wrong
  // before Run.
  void Refuse(tensorflow::OpKernelContext* ctx, const Membership& group, const Status& why, const DoneCallback& done);
  // The same for kernels that exchange several times, one after the other: `stage`, which follows the op's name, tells them apart.
  // They name the first one with set_first_stage, when they are made. A rank that has taken part in one of them has to ask for the
  // next one or to refuse it, unless the exchange failed for all.
  void RunStage(tensorflow::OpKernelContext* ctx, const Membership& group, const std::string& stage, std::vector<Part> parts,
                DoneCallback done);
  void RefuseStage(tensorflow::OpKernelContext* ctx, const Membership& group, const std::string& stage, const Status& why,
                   const DoneCallback& done);
  void set_first_stage(std::string stage) { first_stage_ = std::move(stage); }
  // For kernels that run more or fewer tensors than attribute T has.
  void set_parts(int parts) { parts_ = parts; }
  // For constructors: lets the other ranks know that there is no kernel here, and fails it.
  void RefuseToBeMade(tensorflow::OpKernelConstruction* ctx, const Status& why);
  // What a run asks for as far as a refusal has to say it: kind, and for two ranks alone their name, peer and tag.
  virtual CommRequest Asks(const Membership& group) const { return CommRequest(); }

  // InvalidArgument unless `rank`, the value of attribute `attribute`, is one of the group's.
  Status CheckRank(const char* attribute, int64_t rank, const Membership& group) const;

  Status Wrong(const std::string& text) const { return InvalidArgumentError(name() + ": " + text); }
  // The node in the user's graph that input `index` belongs to.
  const std::string& NodeOf(size_t index) const { return merged_.empty() ? name() : merged_[index].node; }
  const std::string& group_name() const { return group_; }

 private:
  struct Call;
  // What was a node of its own.
  struct Merged {
    std::string name, node, origin;
  };
  // What the ranks call a run of the op; null: the only one of a step.
  std::string AgreedName(const tensorflow::OpKernelContext* ctx) const;
  // Tells the other ranks that this one does not take part.
  void TellOthers(const Membership& group, const std::string& agreed, int parts, const Status& why) const;
  Status ReadMerged(tensorflow::OpKernelConstruction* ctx);
  Result<Part> MakeStringPart(tensorflow::OpKernelContext* ctx, const Membership& group, int index, int64_t root) const;
  void RunAlone(tensorflow::OpKernelContext* ctx, std::vector<Part> parts, DoneCallback done) const;

  std::string group_;
  std::string tensor_name_;  // empty: the node's
  std::string origin_;
  std::vector<Merged> merged_;  // one an input, or none
  std::string first_stage_;
  int parts_ = 1;  // tensors of an op of several
  std::shared_ptr<Turn> turn_;
};

}  // namespace mxrec

// Ends an async op with a Status of ours.
#define MXREC_REQUIRES_OK_ASYNC(ctx, expr, done)                             \
  do {                                                                       \
    if (const ::mxrec::Status mxrec_status_ = (expr); !mxrec_status_.ok()) { \
      (ctx)->SetStatus(::mxrec::ToTf(mxrec_status_));                        \
      (done)();                                                              \
      return;                                                                \
    }                                                                        \
  } while (false)

// Ends an async op of the group's with a Status of ours, and lets the other ranks know: in methods of a CollectiveKernel.
#define MXREC_TAKES_PART_IF_OK(ctx, group, expr, done)                       \
  do {                                                                       \
    if (const ::mxrec::Status mxrec_status_ = (expr); !mxrec_status_.ok()) { \
      Refuse((ctx), (group), mxrec_status_, (done));                         \
      return;                                                                \
    }                                                                        \
  } while (false)

#endif  // MXREC_TF_KERNELS_COLLECTIVE_KERNEL_H_
