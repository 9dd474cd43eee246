// How the pieces run.
//
// The progress thread is nearly always in one of two places: in Pump, waiting for messages and for new requests, or in Execute. Who
// is in Pump holds pump_mutex_ and with it the coordinator and the reading side of the control plane. So a message is acted on by
// the thread that reads it, without a hand-over. While an execution takes long, the watch thread takes over the pumping: death of a
// rank, signs of life, stores and calls do not wait for a big reduction. It looks every few milliseconds whether the progress
// thread is still in the execution it saw before.
//
// mutex_ guards names, queues and health; never held while a callback, a collective or a system call runs. Order: pump_mutex_,
// mutex_.
//
// A request's life: Submit puts it into its name's record and the name into queue_; SendRequests tells rank 0 (or the coordinator
// here); the answer makes a Task; the progress thread runs it, takes the request out of the record and calls `done`.
#include "mxrec/comm/controller/communicator_impl.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "mxrec/base/log.h"
#include "mxrec/comm/control/call_service.h"
#include "mxrec/comm/control/control_plane.h"
#include "mxrec/comm/control/status_wire.h"
#include "mxrec/comm/control/store_service.h"
#include "mxrec/comm/controller/coordinator.h"
#include "mxrec/comm/controller/executor.h"
#include "mxrec/comm/controller/timeline.h"
#include "mxrec/comm/controller/wire.h"

namespace mxrec::internal {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint8_t kRequestsFrame = 16, kAgreementFrame = 17, kFailFrame = 18;
constexpr milliseconds kWatchInterval{25};
// When a transport fails, the control plane may know better why a moment later.
constexpr milliseconds kChiefGrace{250}, kRankGrace{3'000};
// How long a leaving rank waits for rank 0's farewell, and rank 0 for the others to leave.
constexpr milliseconds kGoodbyeTimeout{5'000}, kLinger{10'000}, kFailLinger{1'000};
constexpr size_t kNamesAMessage = 4096;

Difference Compare(const RequestFields& a, const CommRequest& b) {
  if (a.kind != b.kind || a.dtype != b.dtype || a.op != b.op || a.prescale != b.prescale || a.postscale != b.postscale ||
      a.divide_by_size != b.divide_by_size || a.root != b.root || a.peer != b.peer || a.tag != b.tag || a.wire != b.wire ||
      a.shape.size() != b.shape.size() || a.splits.size() != b.splits.size()) {
    return Difference::kMore;
  }
  if (!a.shape.empty() && !std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1)) return Difference::kMore;
  if ((!a.shape.empty() && a.shape[0] != b.shape[0]) || a.splits != b.splits) return Difference::kRows;
  return Difference::kNone;
}

Status Prefixed(std::string_view front, const Status& status) {
  return Status(status.code(), std::string(front) + std::string(status.message()));
}

Status CheckOptions(const CommOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return InvalidArgumentError("rank " + std::to_string(options.rank) + " of " + std::to_string(options.size) +
                                " ranks: expected 0 <= rank < size");
  }
  if (options.size > 1 && options.chief_port == 0 && options.store_path.empty()) {
    return InvalidArgumentError("neither the port of rank 0 nor a store path is given: the ranks cannot find each other");
  }
  if (options.chief_port < 0 || options.chief_port > 65535) {
    return InvalidArgumentError("port " + std::to_string(options.chief_port) + " of rank 0: expected 0 to 65535");
  }
  if (options.fusion_bytes < 0)
    return InvalidArgumentError("fusion_bytes is " + std::to_string(options.fusion_bytes) + ": expected 0 or more");
  for (const auto& [name, value] : {std::pair{"connect_timeout", options.connect_timeout},
                                    {"stall_warning", options.stall_warning},
                                    {"stall_abort", options.stall_abort},
                                    {"heartbeat_timeout", options.heartbeat_timeout}}) {
    if (value <= milliseconds(0))
      return InvalidArgumentError(std::string(name) + " is " + std::to_string(value.count()) + " ms: expected more than 0");
  }
  return OkStatus();
}

class CommunicatorImpl final : public Communicator, private ControlPlane::Handler {
 public:
  explicit CommunicatorImpl(const CommOptions& options) : options_(options), process_(::getpid()) {}
  ~CommunicatorImpl() override { static_cast<void>(Shutdown()); }

  Status Start(const TransportMaker& make_transport);

  const CommOptions& options() const override { return options_; }
  void Submit(CommRequest request) override;
  Status Run(CommRequest request, Agreed* agreed) override;
  void Cancel(const std::string& group, const std::string& name) override;
  Status AddGroup(const std::string& name, std::vector<int> world_ranks) override;
  Status RemoveGroup(const std::string& name) override;
  Result<std::vector<int>> Group(const std::string& name) const override;
  void Serve(const std::string& service, Communicator::Handler handler) override;
  Result<std::string> Call(int rank, const std::string& service, std::string_view request, Deadline deadline) override;
  Status health() const override;
  CommStats stats() const override;
  Status Shutdown() override;

 private:
  struct GroupInfo {
    uint32_t id = 0;
    std::string name;
    std::vector<int> ranks;
    int me = 0;
    int live = 0;         // pending requests
    bool joined = false;  // a join is pending
  };

  enum class State : uint8_t { kIdle, kQueued, kAsked, kAgreed };
  // What is known of one name of a group.
  struct Name {
    uint32_t group = 0;
    std::string name;      // as agreed on
    uint64_t id = 0;       // rank 0's number for it; 0: none
    RequestFields agreed;  // what the number stands for, when id is not 0
    State state = State::kIdle;
    bool asked_by_number = false;
    Clock::time_point asked;  // by the caller
    CommRequest request;      // unless kIdle
  };

  struct Task {
    Job job;
    std::vector<Name*> names;  // as job.tensors; null: joined
    // Of a request that fails without running.
    Status error;
    bool counts = false;  // an execution that rank 0 counts
  };

  struct GroupWait {
    std::optional<Status> status;
  };

  struct Ended {
    std::function<void(const Status&, const Agreed&)> done;
    Status status;
    Agreed agreed;
  };

  static std::string KeyOf(uint32_t group, std::string_view name) {
    std::string key(reinterpret_cast<const char*>(&group), sizeof(group));
    key += name;
    return key;
  }

  bool chief() const { return options_.rank == 0; }
  std::string NameOfRank(int rank) const { return plane_ ? plane_->Describe(rank) : "rank " + std::to_string(rank); }

  Status Check(const CommRequest& request, const GroupInfo& group) const;
  Status Enqueue(CommRequest& request);
  Status ChangeGroup(const std::string& name, std::vector<int> ranks, bool remove);

  // ControlPlane::Handler; pump_mutex_ held.
  Status OnFrame(int from, uint8_t type, std::string_view payload) override;
  void OnLost(int rank, const Status& why) override;
  std::string PingPayload() override;
  Status OnPing(int from, std::string_view payload) override;

  void ProgressLoop();
  void WatchLoop();
  void PumpOnce(Deadline until);
  void SendRequests();
  void FlushCoordinator();
  Status TakeAgreement(const Agreement& agreement);
  void Execute(Task& task);
  void Note(const Task& task, Clock::time_point begin);
  void End(Name& name, Status status, Agreed agreed, std::vector<Ended>* ended);
  static void CallBack(std::vector<Ended>& ended);
  void EndAll(const std::function<Status(const CommRequest&)>& status);

  void Doubt(const Status& status);
  void TransportFailed(const Status& status);
  void FailWorld(const Status& why);  // rank 0: tells all
  void Fail(const Status& why);       // here
  void Wake();

  CommOptions options_;
  const pid_t process_;
  std::unique_ptr<ControlPlane> plane_;  // null with one rank
  std::shared_ptr<StoreService> store_;
  std::unique_ptr<CallService> calls_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Timeline> timeline_;  // null: none is wanted. Used by the progress thread

  std::mutex pump_mutex_;
  std::unique_ptr<Coordinator> coordinator_;  // rank 0; guarded by pump_mutex_
  Clock::time_point next_stall_check_;        // as is this

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status health_;
  Status doubt_;  // a failure of the transport that waits for a better explanation, until doubt_until_
  Clock::time_point doubt_until_;
  std::unordered_map<std::string, std::unique_ptr<Name>> names_;
  std::unordered_map<uint64_t, Name*> by_id_;
  std::map<uint32_t, GroupInfo> groups_;
  std::unordered_map<std::string, uint32_t> group_ids_;
  std::deque<Name*> queue_;
  std::vector<CancelRequest> cancels_;
  std::vector<GroupRequest> group_requests_;
  std::map<std::string, GroupWait> group_waits_;  // "+name", "-name"
  std::deque<Task> tasks_;
  bool closing_ = false;  // Shutdown was called
  bool leave_ = false;    // rank 0 shall be told
  bool goodbye_ = false;  // rank 0 has answered
  bool stop_ = false;     // the threads shall end
  bool transport_ready_ = false;
  CommStats stats_;

  std::atomic<uint64_t> finished_{0};
  std::atomic<int64_t> fuse_below_{0};
  std::atomic<bool> transport_failed_{false};  // nothing is executed any more
  // Odd while the progress thread executes.
  std::atomic<uint64_t> busy_{0};
  std::atomic<bool> watcher_pumps_{false};
  std::thread progress_, watch_;
  std::mutex shutdown_mutex_;
  bool shut_down_ = false;
};

// --------------------------------------------------------------------------------------------------------------- start and end

Status CommunicatorImpl::Start(const TransportMaker& make_transport) {
  MXREC_RETURN_IF_ERROR(CheckOptions(options_));
  if (!options_.timeline_path.empty()) {
    MXREC_ASSIGN_OR_RETURN(timeline_, Timeline::Create(options_.timeline_path, options_.rank));
  }
  std::vector<std::string> who;
  if (options_.size > 1) {
    MXREC_ASSIGN_OR_RETURN(Meeting meeting, Meet(options_));
    options_.fusion_bytes = meeting.world.fusion_bytes;
    options_.deterministic = meeting.world.deterministic;
    options_.algorithm = static_cast<Algorithm>(meeting.world.algorithm);
    MXREC_ASSIGN_OR_RETURN(plane_, ControlPlane::Create(std::move(meeting), options_.rank, options_.heartbeat_timeout));
    store_ = std::make_shared<StoreService>(plane_.get());
    for (int rank = 0; rank < options_.size; ++rank) who.push_back(plane_->Describe(rank));
  }
  calls_ = std::make_unique<CallService>(plane_.get());
  GroupInfo world{.id = kWorldGroup, .name = CommRequest().group, .ranks = {}, .me = options_.rank};
  for (int rank = 0; rank < options_.size; ++rank) world.ranks.push_back(rank);
  group_ids_[world.name] = kWorldGroup;
  if (chief()) {
    CoordinatorOptions options;
    options.size = options_.size;
    options.fusion_bytes = options_.fusion_bytes;
    options.stall_warning = options_.stall_warning;
    options.stall_abort = options_.stall_abort;
    options.world_group = world.name;
    options.who = std::move(who);
    coordinator_ = std::make_unique<Coordinator>(std::move(options));
  }
  groups_[kWorldGroup] = std::move(world);
  progress_ = std::thread([this] { ProgressLoop(); });
  if (plane_ != nullptr) watch_ = std::thread([this] { WatchLoop(); });

  Result<std::unique_ptr<Transport>> transport = make_transport(options_, store_);
  if (!transport.ok()) {
    const Status known = health();
    const Status status =
        known.ok() ? Prefixed("rank " + std::to_string(options_.rank) + " has no transport: ", transport.status()) : known;
    TransportFailed(status);
    return status;
  }
  // Bits that depend on neither timing nor packing: the tree of halving and doubling adds in one order wherever an element lies.
  Algorithm algorithm = options_.algorithm;
  if (options_.deterministic && algorithm == Algorithm::kAuto) algorithm = Algorithm::kHalvingDoubling;
  // What a start costs in bytes of copying: more over sockets, and for every rank of a ring.
  int64_t below = (*transport)->shares_memory() ? 128 << 10 : int64_t{256 << 10} * std::min(options_.size, 64);
  if (options_.deterministic && algorithm != Algorithm::kHalvingDoubling && algorithm != Algorithm::kRecursiveDoubling) below = -1;
  fuse_below_.store(std::min(below, options_.fusion_bytes));
  {
    const std::lock_guard lock(mutex_);
    transport_ = std::move(transport).value();
    executor_ = std::make_unique<Executor>(*transport_, algorithm);
    transport_ready_ = true;
    if (!health_.ok()) transport_->Abort(std::string(health_.message()));
  }
  Wake();
  return OkStatus();
}

Status CommunicatorImpl::Shutdown() {
  const std::lock_guard once(shutdown_mutex_);
  if (shut_down_) return OkStatus();
  shut_down_ = true;
  if (::getpid() != process_) {
    // A child of fork: threads and peers are the parent's.
    progress_.detach();
    if (watch_.joinable()) watch_.detach();
    return OkStatus();
  }
  if (!progress_.joinable()) return OkStatus();  // never started
  {
    const std::lock_guard lock(mutex_);
    closing_ = leave_ = true;
  }
  Wake();
  progress_.join();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  Wake();
  if (watch_.joinable()) watch_.join();
  calls_->Stop();
  if (store_ != nullptr) store_->Fail(FailedPreconditionError("the communicator was shut down"));
  executor_.reset();
  transport_.reset();
  {
    const std::lock_guard lock(pump_mutex_);
    coordinator_.reset();
    if (plane_ != nullptr) plane_->Close();  // the object stays: a late Wake may still touch it
  }
  return OkStatus();
}

// -------------------------------------------------------------------------------------------------------------------- requests

Status CommunicatorImpl::Check(const CommRequest& request, const GroupInfo& group) const {
  const auto members = static_cast<int>(group.ranks.size());
  const auto wrong = [&](const std::string& what) {
    return InvalidArgumentError(std::string(CollectiveName(request.kind)) + " '" + request.name.substr(0, 200) + "' of group " +
                                group.name + ": " + what);
  };
  if (CollectiveName(request.kind) == "unknown") return wrong("no such kind of operation");
  if (request.kind == Collective::kJoin) return OkStatus();
  if (request.name.empty() || request.name.size() > kMaxNameBytes || request.name[0] == '\x1f') {
    return wrong("the name has " + std::to_string(request.name.size()) + " bytes, expected 1 to " + std::to_string(kMaxNameBytes) +
                 ", the first of them no unit separator");
  }
  if (DTypeSize(request.dtype) == 0 || DTypeSize(request.wire) == 0) return wrong("no such element type");
  uint64_t count = 1;
  for (const int64_t dim : request.shape) {
    if (dim < 0) return wrong("a dimension is " + std::to_string(dim) + ", expected 0 or more");
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(dim), &count) || count > uint64_t{1} << 59)
      return wrong("too many elements to count");
  }
  if (request.shape.size() > kMaxDims)
    return wrong(std::to_string(request.shape.size()) + " dimensions, at most " + std::to_string(kMaxDims));
  const bool reduces =
      request.kind == Collective::kAllReduce || request.kind == Collective::kReduce || request.kind == Collective::kReduceScatter;
  if (reduces) {
    if (request.op < ReduceOp::kSum || request.op > ReduceOp::kAdasum) return wrong("no such reduction");
    const bool scaled = request.prescale != 1 || request.postscale != 1 || request.divide_by_size;
    if (scaled && !IsFloating(request.dtype)) {
      return wrong("a mean or a scale of " + std::string(DTypeName(request.dtype)) +
                   " is not defined: reduce with a sum, or convert to a floating type");
    }
    if (request.dtype == DType::kBool &&
        (request.op == ReduceOp::kSum || request.op == ReduceOp::kProduct || request.op == ReduceOp::kAdasum)) {
      return wrong("bool cannot be reduced with " + std::string(ReduceOpName(request.op)) + ": use min (and) or max (or)");
    }
    if (request.op == ReduceOp::kAdasum &&
        (!IsFloating(request.dtype) || (members & (members - 1)) != 0 || request.kind != Collective::kAllReduce)) {
      return wrong("Adasum needs an allreduce of a floating type over a power of two of ranks, found " +
                   std::string(DTypeName(request.dtype)) + " over " + std::to_string(members));
    }
    if (request.wire != DType::kFloat32 && (request.dtype != DType::kFloat32 || request.kind != Collective::kAllReduce ||
                                            (request.wire != DType::kFloat16 && request.wire != DType::kBFloat16))) {
      return wrong("cannot travel as " + std::string(DTypeName(request.wire)) +
                   ": only float32 of an allreduce can, as float16 or bfloat16");
    }
  }
  const bool rows =
      request.kind == Collective::kAllGather || request.kind == Collective::kAllToAll || request.kind == Collective::kReduceScatter;
  if (rows && request.shape.empty()) return wrong("a scalar has no rows: the shape needs a first dimension");
  if ((request.kind == Collective::kBroadcast || request.kind == Collective::kReduce) &&
      (request.root < 0 || request.root >= members)) {
    return wrong("root " + std::to_string(request.root) + ", expected 0 to " + std::to_string(members - 1));
  }
  if (request.kind == Collective::kSend || request.kind == Collective::kReceive) {
    if (request.peer < 0 || request.peer >= members || request.peer == group.me) {
      return wrong("peer " + std::to_string(request.peer) + ", expected another rank of 0 to " + std::to_string(members - 1));
    }
  }
  if (request.kind == Collective::kAllToAll) {
    if (request.splits.size() != group.ranks.size()) {
      return wrong(std::to_string(request.splits.size()) + " splits, expected one for each of " + std::to_string(members) +
                   " ranks");
    }
    int64_t sum = 0;
    for (const int64_t split : request.splits) {
      if (split < 0 || __builtin_add_overflow(sum, split, &sum)) return wrong("a split is " + std::to_string(split));
    }
    if (sum != request.shape[0]) {
      return wrong("the splits add up to " + std::to_string(sum) + ", the first dimension is " + std::to_string(request.shape[0]));
    }
  }
  const bool gives = request.kind != Collective::kSend && request.kind != Collective::kBarrier;
  if (gives && !request.allocate) return wrong("no allocator for the result");
  const bool takes = request.kind != Collective::kBarrier && request.kind != Collective::kReceive &&
                     !(request.kind == Collective::kBroadcast && request.root != group.me);
  if (takes && request.input == nullptr && count > 0) return wrong("no input");
  return OkStatus();
}

// Takes the request, or leaves it as it was and says why not.
Status CommunicatorImpl::Enqueue(CommRequest& request) {
  const std::lock_guard lock(mutex_);
  const auto in_vain = [&](const Status& why) {
    return Prefixed(std::string(CollectiveName(request.kind)) + " '" + request.name.substr(0, 200) + "': ", why);
  };
  if (!health_.ok()) return in_vain(health_);
  if (closing_) return FailedPreconditionError("the communicator was shut down");
  const auto id = group_ids_.find(request.group);
  if (id == group_ids_.end())
    return in_vain(NotFoundError("rank " + std::to_string(options_.rank) + " is in no group '" + request.group + "'"));
  GroupInfo& group = groups_[id->second];
  MXREC_RETURN_IF_ERROR(Check(request, group));
  if (group.joined) {
    return in_vain(FailedPreconditionError("rank " + std::to_string(options_.rank) + " has joined in group " + group.name +
                                           " and can ask for nothing until all ranks have"));
  }
  std::string name;
  if (request.kind == Collective::kSend) {
    name = PointToPointName(group.me, request.peer, request.tag);
  } else if (request.kind == Collective::kReceive) {
    name = PointToPointName(request.peer, group.me, request.tag);
  } else {
    name = request.kind == Collective::kJoin ? std::string(kJoinName) : request.name;
  }
  if (request.origin.size() > kMaxOriginBytes) request.origin.resize(kMaxOriginBytes);
  std::unique_ptr<Name>& at = names_[KeyOf(group.id, name)];
  if (at == nullptr) {
    at = std::make_unique<Name>();
    at->group = group.id;
    at->name = std::move(name);
  } else if (at->state != State::kIdle) {
    return AlreadyExistsError(std::string(CollectiveName(request.kind)) + " '" + request.name + "' of group " + group.name +
                              " on rank " + std::to_string(options_.rank) + ": an operation of this name is still pending" +
                              (at->request.origin.empty() ? "" : " (" + at->request.origin + ")") +
                              "; names must differ among operations of one step" +
                              (request.origin.empty() ? "" : " (" + request.origin + ")"));
  }
  ++group.live;
  if (request.kind == Collective::kJoin) group.joined = true;
  at->state = State::kQueued;
  if (timeline_ != nullptr) at->asked = Clock::now();
  at->request = std::move(request);
  queue_.push_back(at.get());
  return OkStatus();
}

void CommunicatorImpl::Submit(CommRequest request) {
  const Status status = Enqueue(request);
  if (status.ok()) {
    Wake();
  } else if (request.done) {
    request.done(status, {});
  }
}

Status CommunicatorImpl::Run(CommRequest request, Agreed* agreed) {
  struct Waiting {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
    Status status;
    Agreed agreed;
  } waiting;
  request.done = [&](const Status& status, const Agreed& found) {
    const std::lock_guard lock(waiting.mutex);
    waiting.status = status;
    waiting.agreed = found;
    waiting.over = true;
    waiting.changed.notify_one();
  };
  Submit(std::move(request));
  std::unique_lock lock(waiting.mutex);
  waiting.changed.wait(lock, [&] { return waiting.over; });
  if (agreed != nullptr) *agreed = std::move(waiting.agreed);
  return waiting.status;
}

void CommunicatorImpl::Cancel(const std::string& group, const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    const auto id = group_ids_.find(group);
    if (id == group_ids_.end() || closing_) return;
    // Sends and receives are known to rank 0 by another name.
    const Name* found = nullptr;
    if (const auto at = names_.find(KeyOf(id->second, name)); at != names_.end() && at->second->state != State::kIdle) {
      found = at->second.get();
    } else {
      for (const auto& [key, candidate] : names_) {
        if (candidate->group == id->second && candidate->state != State::kIdle && candidate->request.name == name)
          found = candidate.get();
      }
    }
    if (found == nullptr || found->request.kind == Collective::kJoin) return;
    cancels_.push_back({.group = found->group, .name = found->name});
  }
  Wake();
}

Status CommunicatorImpl::AddGroup(const std::string& name, std::vector<int> ranks) {
  const auto wrong = [&](const std::string& what) { return InvalidArgumentError("group '" + name + "': " + what); };
  if (name.empty() || name.size() > kMaxNameBytes)
    return wrong("the name has " + std::to_string(name.size()) + " bytes, expected 1 to " + std::to_string(kMaxNameBytes));
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] < 0 || sorted[i] >= options_.size) {
      return wrong("rank " + std::to_string(sorted[i]) + ", expected 0 to " + std::to_string(options_.size - 1));
    }
    if (i > 0 && sorted[i] == sorted[i - 1]) return wrong("rank " + std::to_string(sorted[i]) + " twice");
  }
  if (!std::binary_search(sorted.begin(), sorted.end(), options_.rank)) {
    return wrong("rank " + std::to_string(options_.rank) + " makes it and is not in it; only members call this");
  }
  return ChangeGroup(name, std::move(ranks), false);
}

Status CommunicatorImpl::RemoveGroup(const std::string& name) { return ChangeGroup(name, {}, true); }

Status CommunicatorImpl::ChangeGroup(const std::string& name, std::vector<int> ranks, bool remove) {
  const std::string key = (remove ? "-" : "+") + name;
  std::unique_lock lock(mutex_);
  if (!health_.ok()) return Prefixed("group '" + name + "': ", health_);
  if (closing_) return FailedPreconditionError("the communicator was shut down");
  if (group_waits_.contains(key))
    return AlreadyExistsError("group '" + name + "' is being " + (remove ? "removed" : "made") + " by another thread");
  const auto known = group_ids_.find(name);
  if (remove) {
    if (known == group_ids_.end()) return NotFoundError("rank " + std::to_string(options_.rank) + " is in no group '" + name + "'");
    if (known->second == kWorldGroup) return InvalidArgumentError("the group of all ranks cannot be removed");
    const GroupInfo& group = groups_[known->second];
    if (group.live > 0)
      return FailedPreconditionError("group '" + name + "' has " + std::to_string(group.live) + " pending operations on rank " +
                                     std::to_string(options_.rank));
  } else if (known != group_ids_.end()) {
    return AlreadyExistsError("group '" + name + "' exists already");
  }
  group_waits_[key] = {};
  group_requests_.push_back({.remove = remove, .name = name, .ranks = std::move(ranks)});
  lock.unlock();
  Wake();
  lock.lock();
  changed_.wait(lock, [&] { return group_waits_[key].status.has_value(); });
  const Status status = *group_waits_[key].status;
  group_waits_.erase(key);
  return status;
}

Result<std::vector<int>> CommunicatorImpl::Group(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto id = group_ids_.find(name);
  if (id == group_ids_.end()) return NotFoundError("rank " + std::to_string(options_.rank) + " is in no group '" + name + "'");
  return groups_.at(id->second).ranks;
}

Status CommunicatorImpl::health() const {
  const std::lock_guard lock(mutex_);
  return health_;
}

CommStats CommunicatorImpl::stats() const {
  const std::lock_guard lock(mutex_);
  CommStats stats = stats_;
  if (plane_ != nullptr) stats.control_bytes_sent = plane_->bytes_sent();
  if (transport_ != nullptr) {
    stats.data_bytes_sent = transport_->bytes_sent();
    stats.data_parts_sent = transport_->parts_sent();
  }
  return stats;
}

void CommunicatorImpl::Serve(const std::string& service, Communicator::Handler handler) {
  calls_->Serve(service, std::move(handler));
}

Result<std::string> CommunicatorImpl::Call(int rank, const std::string& service, std::string_view request, Deadline deadline) {
  return calls_->Call(rank, service, request, deadline);
}

// -------------------------------------------------------------------------------------------------------------------- progress

void CommunicatorImpl::Wake() {
  if (plane_ != nullptr) {
    plane_->Wake();
  } else {
    changed_.notify_all();
  }
}

// With pump_mutex_ held.
void CommunicatorImpl::PumpOnce(Deadline until) {
  const auto now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    if (!doubt_.ok()) until = std::min(until, doubt_until_);
  }
  if (coordinator_ != nullptr && (coordinator_->waiting() > 0)) until = std::min(until, next_stall_check_);
  if (plane_ != nullptr) {
    plane_->Pump(*this, until);
  } else {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, std::min(until, now + std::chrono::seconds(1)),
                        [&] { return !queue_.empty() || !cancels_.empty() || !group_requests_.empty() || leave_ || stop_; });
  }
  SendRequests();
  if (coordinator_ != nullptr) {
    coordinator_->set_fuse_below(fuse_below_.load(std::memory_order_relaxed));
    if (const auto later = Clock::now(); later >= next_stall_check_) {
      next_stall_check_ =
          later + std::clamp(std::min(options_.stall_warning, options_.stall_abort) / 8, milliseconds(2), milliseconds(1000));
      std::vector<std::string> warnings;
      const Status stalled = coordinator_->CheckStalls(later, &warnings);
      for (const std::string& warning : warnings) MXREC_LOG(WARNING) << "stalled: " << warning;
      if (!stalled.ok()) FailWorld(stalled);
    }
    FlushCoordinator();
  }
  Status why;
  {
    const std::lock_guard lock(mutex_);
    if (!doubt_.ok() && Clock::now() >= doubt_until_) why = std::exchange(doubt_, {});
  }
  if (!why.ok()) {
    if (chief()) {
      FailWorld(why);
    } else {
      Fail(why);
    }
  }
}

// Tells rank 0, or the coordinator here, what is new.
void CommunicatorImpl::SendRequests() {
  for (bool more = true; more;) {
    Requests requests;
    {
      const std::lock_guard lock(mutex_);
      if (!health_.ok() || !transport_ready_) return;
      size_t names = 0;
      for (; !queue_.empty() && names < kNamesAMessage; ++names) {
        Name& name = *queue_.front();
        queue_.pop_front();
        name.state = State::kAsked;
        const Difference difference = name.id != 0 ? Compare(name.agreed, name.request) : Difference::kMore;
        name.asked_by_number = difference != Difference::kMore;
        if (difference == Difference::kNone) {
          requests.ids.push_back(name.id);
        } else if (difference == Difference::kRows) {
          requests.rows.push_back({.id = name.id, .rows = name.request.shape[0], .splits = name.request.splits});
        } else {
          const CommRequest& request = name.request;
          requests.full.push_back({.kind = request.kind,
                                   .group = name.group,
                                   .name = name.name,
                                   .origin = request.origin,
                                   .dtype = request.dtype,
                                   .shape = request.shape,
                                   .op = request.op,
                                   .prescale = request.prescale,
                                   .postscale = request.postscale,
                                   .divide_by_size = request.divide_by_size,
                                   .root = request.root,
                                   .peer = request.peer,
                                   .tag = request.tag,
                                   .splits = request.splits,
                                   .wire = request.wire});
        }
      }
      stats_.full_requests += requests.full.size();
      more = !queue_.empty();
      if (!more) {
        requests.cancels = std::exchange(cancels_, {});
        requests.groups = std::exchange(group_requests_, {});
        requests.leaves = std::exchange(leave_, false);
      }
    }
    if (requests.empty()) return;
    requests.finished = finished_.load(std::memory_order_relaxed);
    std::sort(requests.ids.begin(), requests.ids.end());
    if (coordinator_ != nullptr) {
      const Status status = coordinator_->Take(0, requests, Clock::now());
      MXREC_CHECK(status.ok()) << status;
    } else {
      plane_->Send(0, kRequestsFrame, EncodeRequests(requests));
    }
  }
}

void CommunicatorImpl::FlushCoordinator() {
  for (auto& [rank, agreement] : coordinator_->Flush()) {
    if (rank == 0) {
      const Status status = TakeAgreement(agreement);
      MXREC_CHECK(status.ok()) << status;
    } else {
      plane_->Send(rank, kAgreementFrame, EncodeAgreement(agreement));
    }
  }
}

Status CommunicatorImpl::OnFrame(int from, uint8_t type, std::string_view payload) {
  if (type >= CallService::kFirstFrame && type <= CallService::kLastFrame) return calls_->OnFrame(from, type, payload);
  if (type >= StoreService::kFirstFrame && type <= StoreService::kLastFrame) return store_->OnFrame(from, type, payload);
  switch (type) {
    case kRequestsFrame: {
      if (coordinator_ == nullptr) return DataLossError("requests to another rank than 0");
      MXREC_ASSIGN_OR_RETURN(const Requests requests, DecodeRequests(payload));
      return coordinator_->Take(from, requests, Clock::now());
    }
    case kAgreementFrame: {
      if (chief()) return DataLossError("an agreement for rank 0");
      MXREC_ASSIGN_OR_RETURN(const Agreement agreement, DecodeAgreement(payload));
      return TakeAgreement(agreement);
    }
    case kFailFrame: {
      WireReader in(payload);
      const Status why = ReadStatus(in);
      if (!in.done() || why.ok()) return DataLossError("a failure without a reason");
      if (!chief()) {
        Fail(why);
      } else {
        Doubt(why);
      }
      return OkStatus();
    }
    default:
      return DataLossError("a message of type " + std::to_string(type));
  }
}

void CommunicatorImpl::OnLost(int rank, const Status& why) {
  if (chief()) {
    calls_->OnGone(rank, NameOfRank(rank) + " has left");
    if (coordinator_->left(rank)) return;
    FailWorld(FailedPreconditionError(std::string(why.message()) + "; " + coordinator_->LastOperation(rank)));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (goodbye_) return;
  }
  Fail(FailedPreconditionError(std::string(why.message()) + "; rank 0 coordinates the others"));
}

std::string CommunicatorImpl::PingPayload() {
  std::string bytes;
  WireWriter out(&bytes);
  out.Unsigned(finished_.load(std::memory_order_relaxed));
  return bytes;
}

Status CommunicatorImpl::OnPing(int from, std::string_view payload) {
  WireReader in(payload);
  const uint64_t finished = in.Unsigned();
  if (!in.done()) return DataLossError("a sign of life");
  if (coordinator_ != nullptr) coordinator_->Finished(from, finished);
  return OkStatus();
}

// With pump_mutex_ held. DataLoss: rank 0 agreed on something that was not asked for.
Status CommunicatorImpl::TakeAgreement(const Agreement& agreement) {
  const std::lock_guard lock(mutex_);
  ++stats_.agreements;
  for (const GroupAnswer& answer : agreement.groups) {
    if (answer.status.ok()) {
      if (answer.remove) {
        groups_.erase(answer.id);
        group_ids_.erase(answer.name);
        std::erase_if(names_, [&](const auto& entry) {
          if (entry.second->group != answer.id) return false;
          if (entry.second->id != 0) by_id_.erase(entry.second->id);
          return true;
        });
      } else {
        const auto me = std::find(answer.ranks.begin(), answer.ranks.end(), options_.rank);
        if (me == answer.ranks.end()) return DataLossError("a group without this rank");
        groups_[answer.id] = {
            .id = answer.id, .name = answer.name, .ranks = answer.ranks, .me = static_cast<int>(me - answer.ranks.begin())};
        group_ids_[answer.name] = answer.id;
      }
    }
    if (const auto wait = group_waits_.find((answer.remove ? "-" : "+") + answer.name); wait != group_waits_.end()) {
      wait->second.status = answer.status;
      changed_.notify_all();
    }
  }
  for (const uint64_t id : agreement.forget) {
    const auto at = by_id_.find(id);
    if (at == by_id_.end()) continue;
    Name& name = *at->second;
    by_id_.erase(at);
    name.id = 0;
    if (name.state == State::kIdle) {
      names_.erase(KeyOf(name.group, name.name));
    } else if (name.state == State::kAsked && name.asked_by_number) {
      name.state = State::kQueued;  // the question met a number that was taken away
      queue_.push_back(&name);
    }
  }
  for (const auto& execution : agreement.executions) {
    const auto group = groups_.find(execution->group);
    if (group == groups_.end()) return DataLossError("an operation of an unknown group");
    Task task;
    task.counts = true;
    task.job.kind = execution->kind;
    task.job.ranks = group->second.ranks;
    task.job.me = group->second.me;
    task.job.received = execution->received;
    task.job.tensors.reserve(execution->tensors.size());
    task.names.reserve(execution->tensors.size());
    const auto take = [&](Name* name) {
      task.names.push_back(name);
      task.job.tensors.emplace_back().request = &name->request;
      name->state = State::kAgreed;
    };
    if (execution->kind == Collective::kJoin) {
      const auto name = names_.find(KeyOf(execution->group, kJoinName));
      if (name == names_.end() || name->second->state != State::kAsked || execution->received.size() != 1)
        return DataLossError("a join nobody asked for");
      take(name->second.get());
      task.job.tensors[0].agreed.received = execution->received;
      tasks_.push_back(std::move(task));
      continue;
    }
    for (const AgreedTensor& tensor : execution->tensors) {
      if (tensor.joined != nullptr) {
        if (tensor.joined->kind != execution->kind) return DataLossError("an operation of two kinds");
        task.names.push_back(nullptr);
        task.job.tensors.emplace_back().joined = tensor.joined;
        continue;
      }
      Name* name = nullptr;
      if (tensor.name.empty()) {
        const auto at = by_id_.find(tensor.id);
        if (at != by_id_.end()) name = at->second;
      } else if (const auto at = names_.find(KeyOf(execution->group, tensor.name)); at != names_.end()) {
        name = at->second.get();
      }
      if (name == nullptr || name->state != State::kAsked || name->group != execution->group ||
          name->request.kind != execution->kind) {
        return DataLossError("an operation that was not asked for: number " + std::to_string(tensor.id));
      }
      if (name->id != tensor.id) {
        if (name->id != 0) by_id_.erase(name->id);
        name->id = tensor.id;
        by_id_[tensor.id] = name;
        name->agreed = {};
        name->asked_by_number = false;
      }
      const CommRequest& request = name->request;
      if (!name->asked_by_number) {
        RequestFields& agreed = name->agreed;
        agreed.kind = request.kind, agreed.group = name->group, agreed.dtype = request.dtype, agreed.op = request.op;
        agreed.prescale = request.prescale, agreed.postscale = request.postscale, agreed.divide_by_size = request.divide_by_size;
        agreed.root = request.root, agreed.peer = request.peer, agreed.tag = request.tag, agreed.wire = request.wire;
        agreed.shape = request.shape;
        agreed.splits = request.splits;
      } else if (!request.shape.empty()) {
        name->agreed.shape[0] = request.shape[0];
        name->agreed.splits = request.splits;
      }
      take(name);
    }
    const size_t members = task.job.ranks.size();
    const bool per_rank = execution->kind == Collective::kAllGather || execution->kind == Collective::kAllToAll;
    if (task.job.tensors.empty() || (per_rank && task.job.received.size() != members) ||
        (task.job.tensors.size() > 1 && execution->kind != Collective::kAllReduce)) {
      return DataLossError("an operation without its arguments");
    }
    tasks_.push_back(std::move(task));
  }
  for (const NameError& error : agreement.errors) {
    const auto name = names_.find(KeyOf(error.group, error.name));
    if (name == names_.end() || name->second->state != State::kAsked) return DataLossError("an error for what was not asked for");
    Task task;
    task.error = error.status;
    name->second->state = State::kAgreed;
    task.names.push_back(name->second.get());
    tasks_.push_back(std::move(task));
  }
  if (agreement.goodbye) goodbye_ = true;
  return OkStatus();
}

// Takes a request out of its name. With mutex_ held.
void CommunicatorImpl::End(Name& name, Status status, Agreed agreed, std::vector<Ended>* ended) {
  ended->push_back({.done = std::move(name.request.done), .status = std::move(status), .agreed = std::move(agreed)});
  if (const auto group = groups_.find(name.group); group != groups_.end()) {
    --group->second.live;
    if (name.request.kind == Collective::kJoin) group->second.joined = false;
  }
  name.request = {};
  name.state = State::kIdle;
  if (name.id == 0) names_.erase(KeyOf(name.group, name.name));
}

void CommunicatorImpl::CallBack(std::vector<Ended>& ended) {
  for (Ended& one : ended) {
    if (one.done) one.done(one.status, one.agreed);
  }
  ended.clear();
}

// Writes what was done into the timeline.
void CommunicatorImpl::Note(const Task& task, Clock::time_point begin) {
  const Clock::time_point end = Clock::now();
  for (size_t i = 0; i < task.names.size(); ++i) {
    if (task.names[i] == nullptr) continue;
    const CommRequest& request = task.names[i]->request;
    uint64_t bytes = DTypeSize(request.dtype);
    for (const int64_t size : request.shape) bytes *= static_cast<uint64_t>(size);
    const Status& status = task.error.ok() ? task.job.tensors[i].status : task.error;
    timeline_->Add(request.name, CollectiveName(request.kind), bytes, task.names.size(), status.message(), task.names[i]->asked,
                   begin, end);
  }
}

void CommunicatorImpl::Execute(Task& task) {
  Status status = task.error;
  const Clock::time_point begin = timeline_ != nullptr ? Clock::now() : Clock::time_point();
  if (status.ok()) {
    status = executor_->Run(task.job, Clock::now() + options_.stall_abort);
    if (!status.ok()) {
      std::string what(CollectiveName(task.job.kind));
      for (const Name* name : task.names) {
        if (name != nullptr) {
          what += " '" + name->request.name + "'";
          break;
        }
      }
      if (task.names.size() > 1) what += " and " + std::to_string(task.names.size() - 1) + " more";
      TransportFailed(FailedPreconditionError(what + " failed on rank " + std::to_string(options_.rank) + ": " +
                                              std::string(status.message())));
      return;  // its requests end with the world
    }
  }
  if (timeline_ != nullptr) Note(task, begin);
  std::vector<Ended> ended;
  ended.reserve(task.names.size());
  {
    const std::lock_guard lock(mutex_);
    if (task.counts) {
      ++stats_.operations;
      if (task.names.size() > 1) ++stats_.fused_buffers;
    }
    for (size_t i = 0; i < task.names.size(); ++i) {
      if (task.names[i] == nullptr) continue;
      if (task.error.ok()) {
        End(*task.names[i], std::move(task.job.tensors[i].status), std::move(task.job.tensors[i].agreed), &ended);
      } else {
        End(*task.names[i], task.error, {}, &ended);
      }
    }
  }
  if (task.counts) finished_.fetch_add(1, std::memory_order_relaxed);
  CallBack(ended);
}

// Ends every request, whatever its state. On the progress thread, when it executes nothing.
void CommunicatorImpl::EndAll(const std::function<Status(const CommRequest&)>& status) {
  std::vector<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    queue_.clear();
    tasks_.clear();
    cancels_.clear();
    std::vector<Name*> live;
    for (const auto& [key, name] : names_) {
      if (name->state != State::kIdle) live.push_back(name.get());
    }
    for (Name* const name : live) End(*name, status(name->request), {}, &ended);
    for (auto& [key, wait] : group_waits_) {
      if (!wait.status.has_value()) wait.status = health_.ok() ? CancelledError("the communicator was shut down") : health_;
    }
    group_requests_.clear();
    changed_.notify_all();
  }
  CallBack(ended);
}

void CommunicatorImpl::ProgressLoop() {
  std::deque<Task> tasks;
  bool left = false;  // the farewell is over
  std::optional<Clock::time_point> give_up;
  for (;;) {
    {
      const std::lock_guard pump(pump_mutex_);
      bool over = false;
      while (!over) {
        Deadline until = Clock::now() + std::chrono::hours(1);
        bool closing, failed;
        {
          const std::lock_guard lock(mutex_);
          failed = !health_.ok();
          closing = closing_;
          tasks.swap(tasks_);
          if (transport_failed_.load()) tasks.clear();  // their requests end when health_ says why
          if (failed) {
            over =
                std::any_of(names_.begin(), names_.end(), [](const auto& entry) { return entry.second->state != State::kIdle; }) ||
                std::any_of(group_waits_.begin(), group_waits_.end(),
                            [](const auto& wait) { return !wait.second.status.has_value(); });
          }
          if (!tasks.empty() || over) break;
          if (closing && !left && goodbye_) {
            left = true;
            give_up.reset();
            break;
          }
        }
        if (closing) {
          const auto now = Clock::now();
          if (!give_up.has_value()) give_up = now + (failed ? kFailLinger : left ? kLinger : kGoodbyeTimeout);
          bool others_gone = plane_ == nullptr;
          if (plane_ != nullptr && chief() && (left || failed)) {
            others_gone = true;
            for (int rank = 1; rank < options_.size; ++rank)
              others_gone = others_gone && (plane_->lost(rank) || coordinator_->left(rank));
          }
          const bool rank_done = !chief() && (left || failed);
          if (rank_done || (others_gone && (left || failed)) || now >= *give_up) {
            if (chief() && plane_ != nullptr && !failed && !others_gone) {
              FailWorld(FailedPreconditionError(NameOfRank(0) + ", which coordinates the others, has left"));
            }
            return EndAll([](const CommRequest& request) {
              return CancelledError(std::string(CollectiveName(request.kind)) + " '" + request.name +
                                    "': the communicator was shut down");
            });
          }
          until = std::min(until, std::min(*give_up, now + milliseconds(100)));
        }
        PumpOnce(until);
      }
    }
    busy_.fetch_add(1);
    if (const Status failed = health(); !failed.ok()) {
      tasks.clear();
      EndAll([&](const CommRequest& request) {
        return Prefixed(std::string(CollectiveName(request.kind)) + " '" + request.name + "': ", failed);
      });
    } else if (left) {
      EndAll([](const CommRequest& request) {
        return CancelledError(std::string(CollectiveName(request.kind)) + " '" + request.name +
                              "': the communicator was shut down");
      });
    } else {
      while (!tasks.empty() && !transport_failed_.load()) {
        Execute(tasks.front());
        tasks.pop_front();
      }
    }
    busy_.fetch_add(1);
    if (watcher_pumps_.load()) Wake();
  }
}

void CommunicatorImpl::WatchLoop() {
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kWatchInterval, [&] { return stop_; });
      if (stop_) return;
    }
    const uint64_t now = busy_.load();
    if (now == seen && now % 2 == 1) {
      const std::lock_guard pump(pump_mutex_);
      watcher_pumps_.store(true);
      while (busy_.load() == now) PumpOnce(Clock::now() + std::chrono::seconds(1));
      watcher_pumps_.store(false);
    }
    seen = now;
  }
}

// --------------------------------------------------------------------------------------------------------------------- failure

// A rank's transport failed. When the reason is that another rank died, its connection to rank 0 says so in a moment.
void CommunicatorImpl::Doubt(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (!doubt_.ok() || !health_.ok()) return;
  doubt_ = status;
  doubt_until_ = Clock::now() + (plane_ == nullptr ? milliseconds(0) : chief() ? kChiefGrace : kRankGrace);
}

void CommunicatorImpl::TransportFailed(const Status& status) {
  transport_failed_.store(true);
  Doubt(status);
  if (!chief()) {
    std::string bytes;
    WireWriter out(&bytes);
    WriteStatus(status, out);
    plane_->Send(0, kFailFrame, bytes);
  }
  Wake();
}

// With pump_mutex_ held.
void CommunicatorImpl::FailWorld(const Status& why) {
  if (!health().ok()) return;
  if (plane_ != nullptr) {
    std::string bytes;
    WireWriter out(&bytes);
    WriteStatus(why, out);
    for (int rank = 1; rank < options_.size; ++rank) {
      if (!coordinator_->left(rank)) plane_->Send(rank, kFailFrame, bytes);
    }
  }
  Fail(why);
}

void CommunicatorImpl::Fail(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    doubt_ = {};
    if (!health_.ok()) return;
    health_ = why;
    if (transport_ != nullptr) transport_->Abort(std::string(why.message()));
    changed_.notify_all();
  }
  MXREC_LOG(ERROR) << "rank " << options_.rank << ": " << why.message();
  if (store_ != nullptr) store_->Fail(why);
  calls_->Fail(why);
  Wake();
}

}  // namespace

Result<std::unique_ptr<Communicator>> CreateCommunicator(const CommOptions& options, const TransportMaker& make_transport) {
  auto communicator = std::make_unique<CommunicatorImpl>(options);
  MXREC_RETURN_IF_ERROR(communicator->Start(make_transport));
  return Result<std::unique_ptr<Communicator>>(std::move(communicator));
}

}  // namespace mxrec::internal
