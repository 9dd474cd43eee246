// Coordinator: rank 0's view of what all ranks have asked for, and the one order in which they do it. A state machine without
// sockets, threads or clocks: requests go in with the time, agreements come out.
//
// An operation is agreed once every rank of its group has asked for its name (ranks that joined count). Its requests are compared
// then; when they disagree, every rank gets the error. A rank that cannot take part says so (a refusal), and every other one gets
// that error, once for each refusal. Agreed reductions of one kind are packed together. All ranks get their
// executions in one global order, so that no two groups wait for each other. Threads: one at a time.
#ifndef MXREC_COMM_CONTROLLER_COORDINATOR_H_
#define MXREC_COMM_CONTROLLER_COORDINATOR_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/comm/controller/wire.h"

namespace mxrec {

struct CoordinatorOptions {
  int size = 1;
  // Most bytes of tensors packed into one reduction.
  int64_t fusion_bytes = 64 << 20;
  // Larger tensors travel alone, in place: copying them costs more than a start.
  int64_t fuse_below = 256 << 10;
  std::chrono::milliseconds stall_warning{60'000};
  std::chrono::milliseconds stall_abort{300'000};
  // Names that keep a number; above it those not used for longest lose theirs.
  size_t max_names = 16'384;
  // Names that are asked for together, at least this many, are remembered as one (coordinator_batches.cc).
  size_t batch_names = 8;
  std::string world_group = "hccl_world_group";
  // How messages call each rank; empty: "rank 3".
  std::vector<std::string> who;
};

// The name under which both ends of a send meet, and that of a join.
std::string PointToPointName(int from, int to, int64_t tag);
inline constexpr std::string_view kJoinName = "\x1fjoin";

class Coordinator {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit Coordinator(CoordinatorOptions options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  void set_fuse_below(int64_t bytes);
  // DataLoss: the rank broke the protocol; nothing it asked for after that was taken.
  Status Take(int rank, const Requests& requests, Time now);
  // How many executions a rank has completed, for messages.
  void Finished(int rank, uint64_t executions);
  // What is to be told to whom now, rank by rank; empty when there is nothing.
  std::vector<std::pair<int, Agreement>> Flush();
  // Texts to log: operations that have waited too long, each told once. An error: one has waited for stall_abort.
  Status CheckStalls(Time now, std::vector<std::string>* warnings);

  bool left(int rank) const;
  int ranks_left() const;
  // Operations that some rank has asked for and that are not agreed on.
  size_t waiting() const;
  // Whether another rank than this one has asked for, or has to hear of, anything: what this rank asks for may be answered at once.
  bool OthersWaitFor(int rank) const;
  // "rank 2 (...): after 'x', its 7th operation".
  std::string LastOperation(int rank) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROLLER_COORDINATOR_H_
