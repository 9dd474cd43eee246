// Communicator: named collective operations that the ranks of a world agree on. What TensorFlow kernels, sharded tables and C++
// users call.
//
// A rank submits requests in any order, from any thread, and never waits in Submit. Rank 0 coordinates: an operation starts once
// all ranks of its group have asked for its name with agreeing arguments (type, shape, operation, root, scale), and all ranks start
// operations in one agreed order. Names that repeat with equal arguments travel as one bit each. Small reductions of one type and
// group are fused into one buffer, packed in the agreed order. Requests that disagree fail on every rank of the group with a
// message that names the ranks, the values and the origins. One progress thread a communicator runs the operations; callbacks run
// on it and must not block.
//
// Failure: the death of a rank, a passed deadline or a protocol error fails all pending requests of all groups, here and on the
// survivors, with one message saying which rank, which name and why; every later Submit fails with it, until a new
// Communicator is made. Its code is FailedPrecondition, whatever failed underneath. A disagreement over one name fails that name
// alone.
#ifndef MXREC_COMM_COMMUNICATOR_H_
#define MXREC_COMM_COMMUNICATOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/comm/collectives.h"
#include "mxrec/comm/transport.h"
#include "mxrec/numeric/dtype.h"

namespace mxrec {

struct CommOptions {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  // Where rank 0 listens. Port 0 is allowed only with a store path (below).
  std::string chief_host = "127.0.0.1";
  int chief_port = 0;
  // A path that all ranks of one host or shared file system see; rank 0 publishes its address there. Empty: chief_port it is.
  std::string store_path;
  // Address this rank listens at; empty: the one that reaches the chief.
  std::string bind_host;
  // Shared secret of the hello; ranks with another one are turned away with a message. May be empty on loopback only.
  std::string secret;
  // Two jobs that meet at one port by accident tell each other apart by it.
  std::string job;
  // "auto" (shared memory when all ranks are on one host, Open MPI when started by it, else Gloo), "shm", "gloo", "mpi".
  std::string transport = "auto";
  // Folder of the transport plug-ins; empty: beside the library.
  std::string plugin_folder;
  std::chrono::milliseconds connect_timeout{120'000};
  std::chrono::milliseconds stall_warning{60'000};
  // An operation that some ranks have asked for and others not for this long, or that takes this long to run, fails the world.
  std::chrono::milliseconds stall_abort{300'000};
  // How long a rank may be silent (stopped, not dead) before the others give up on it.
  std::chrono::milliseconds heartbeat_timeout{300'000};
  int64_t fusion_bytes = 64 << 20;
  // Fixed algorithm whatever the transport: the same bits on shared memory, Gloo and MPI.
  bool deterministic = false;
  Algorithm algorithm = Algorithm::kAuto;
  // A Chrome trace of negotiation and execution is written there (controller/timeline.h); empty: none.
  std::string timeline_path;
};

enum class Collective : uint8_t {
  kAllReduce = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kReduce = 4,
  kReduceScatter = 5,
  kAllToAll = 6,
  kSend = 7,
  kReceive = 8,
  kBarrier = 9,
  kJoin = 10,
};
std::string_view CollectiveName(Collective kind);

// What tensor `part` of an operation of several is called after the name of tensor 0: "/i" for i > 0.
std::string PartSuffix(int part);

// What the ranks agreed on, given to the allocator and to the end of a request.
struct Agreed {
  // Shape of this rank's output.
  std::vector<int64_t> shape;
  // kAllGather: first dimension given by each group rank. kAllToAll: elements (or rows) received from each. kJoin: the last
  // rank that joined, alone.
  std::vector<int64_t> received;
};

struct CommRequest {
  Collective kind = Collective::kAllReduce;
  // Unique among pending requests of a group on this rank (a second one is AlreadyExists, D-41). At most 1,024 bytes.
  std::string name;
  // Graph node and Python line that made the operation, for messages only.
  std::string origin;
  std::string group = "hccl_world_group";
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;  // of the input
  ReduceOp op = ReduceOp::kSum;
  // Applied before and after the reduction; a mean is kSum with postscale 1 / size (postscale_by_size: exact division).
  double prescale = 1;
  double postscale = 1;
  bool divide_by_size = false;
  int root = 0;  // group rank: kBroadcast, kReduce
  int peer = 0;  // group rank: kSend, kReceive
  int64_t tag = 0;
  // kAllToAll: rows (first dimension) for each group rank; their sum is the first dimension.
  std::vector<int64_t> splits;
  // kAllReduce: send float32 as this type over the wire (kFloat16, kBFloat16; sums still in float32); kFloat32: as it is.
  DType wire = DType::kFloat32;
  // Of an operation of several tensors: how many they are, which ranks agree on, and which one this is. Tensor i goes by the
  // name of tensor 0 and PartSuffix(i).
  int parts = 1;
  int part = 0;
  // Stays valid until `done`. kAllGather: kInPlace (collectives.h) when `allocate` puts it in its place in the output.
  const void* input = nullptr;
  // Gives the memory for the output once its shape is known, on the progress thread; may return `input` for in-place.
  // Called once before done(OK), never after an error. Not called for kSend, kBarrier and ranks that joined.
  std::function<Result<void*>(const Agreed&)> allocate;
  // Called exactly once, on the progress thread (or in Submit's caller when Submit fails).
  std::function<void(const Status&, const Agreed&)> done;
};

struct CommStats {
  uint64_t operations = 0;
  uint64_t fused_buffers = 0;
  uint64_t agreements = 0;     // messages from rank 0
  uint64_t full_requests = 0;  // requests that travelled with all their fields, not as a bit
  uint64_t control_bytes_sent = 0;
  uint64_t data_bytes_sent = 0;
  uint64_t data_parts_sent = 0;
};

class Communicator {
 public:
  // Meets the other ranks. With size 1 nothing is opened. InvalidArgument: options; Unavailable: names the ranks that did not come
  // in connect_timeout, the address and what to check; PermissionDenied: another secret; FailedPrecondition: another version or
  // job.
  static Result<std::unique_ptr<Communicator>> Create(const CommOptions& options);
  virtual ~Communicator() = default;

  virtual const CommOptions& options() const = 0;

  // Takes over the request. Never blocks. The error of a request that could not be taken is also given to its `done`.
  virtual void Submit(CommRequest request) = 0;
  // The same for several, which then cost less, and of which small reductions are fused into one.
  virtual void Submit(std::vector<CommRequest> requests) = 0;
  // Submits and waits: for callers that have a thread to spare. `request.done` is not called.
  virtual Status Run(CommRequest request, Agreed* agreed = nullptr) = 0;
  // Gives up waiting for a name: its `done` gets Cancelled; the other ranks learn it and get Cancelled naming this rank
  // and `why`, if that is known.
  virtual void Cancel(const std::string& group, const std::string& name, const std::string& why = "") = 0;
  // Says that this rank does not take part, this time, in the operation of `request.parts` tensors that a request like this would
  // have asked for: its kind, group, name, peer and tag count; 0 parts: for the tensor of this name alone. The other ranks get
  // InvalidArgument naming this rank and `why`, at once if they have asked, else when they do. Nothing while the name is pending
  // here. What Submit finds wrong with a request's arguments it tells the others itself.
  virtual void Refuse(const CommRequest& request, const Status& why) = 0;

  // Collective among the members alone; agreement that all gave the same ranks. AlreadyExists, InvalidArgument.
  virtual Status AddGroup(const std::string& name, std::vector<int> world_ranks) = 0;
  virtual Status RemoveGroup(const std::string& name) = 0;
  virtual Result<std::vector<int>> Group(const std::string& name) const = 0;

  // Answers of this rank to others outside any collective: `handler` gets the caller's rank and bytes, on a thread of its own.
  using Handler = std::function<Result<std::string>(int from, std::string_view request)>;
  virtual void Serve(const std::string& service, Handler handler) = 0;
  // Asks one rank. NotFound: it serves no such thing. Chunks answers of any size.
  virtual Result<std::string> Call(int rank, const std::string& service, std::string_view request, Deadline deadline) = 0;

  // Of each rank the number of its machine, from 0 in the order in which ranks name them first.
  virtual std::vector<int> Machines() const = 0;

  // OK, or why the world is broken: FailedPrecondition.
  virtual Status health() const = 0;
  // Of the whole life, also after Shutdown.
  virtual CommStats stats() const = 0;

  // Says goodbye: pending requests end with Cancelled; a rank that leaves while others wait for it in an operation makes those
  // fail, naming it. Also done by the destructor. Idempotent.
  virtual Status Shutdown() = 0;
};

}  // namespace mxrec

#endif  // MXREC_COMM_COMMUNICATOR_H_
