// Start and end, the threads, and what becomes of failures.
#include "mxrec/comm/controller/communicator_impl.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "mxrec/base/log.h"
#include "mxrec/comm/control/status_wire.h"
#include "mxrec/comm/controller/communicator_state.h"

namespace mxrec::internal {
namespace {

constexpr milliseconds kWatchInterval{25};
// How long one who waits for an answer to all that is pending here looks for it before it sleeps: some times what waking a thread
// costs.
constexpr std::chrono::microseconds kLook{50};
// When a transport fails, the control plane may know better why a moment later.
constexpr milliseconds kChiefGrace{250}, kRankGrace{3'000};
// How long a leaving rank waits for rank 0's farewell, and rank 0 for the others to leave.
constexpr milliseconds kGoodbyeTimeout{5'000}, kLinger{10'000}, kFailLinger{1'000};

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

std::vector<int> NumberMachines(const std::vector<RankInfo>& ranks) {
  std::vector<int> numbers;
  std::map<std::string, int> known;
  for (const RankInfo& rank : ranks)
    numbers.push_back(known.try_emplace(rank.host_id, static_cast<int>(known.size())).first->second);
  return numbers;
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------------- start and end

Status CommunicatorImpl::Start(const TransportMaker& make_transport) {
  MXREC_RETURN_IF_ERROR(CheckOptions(options_));
  if (!options_.timeline_path.empty()) {
    MXREC_ASSIGN_OR_RETURN(timeline_, Timeline::Create(options_.timeline_path, options_.rank));
  }
  std::vector<std::string> who;
  machines_.assign(1, 0);
  if (options_.size > 1) {
    MXREC_ASSIGN_OR_RETURN(Meeting meeting, Meet(options_));
    options_.fusion_bytes = meeting.world.fusion_bytes;
    options_.deterministic = meeting.world.deterministic;
    options_.algorithm = static_cast<Algorithm>(meeting.world.algorithm);
    machines_ = NumberMachines(meeting.world.ranks);
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
    may_look_ = !transport_->has_own_thread();
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
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Transport> transport;
  {
    const std::lock_guard lock(mutex_);
    if (transport_ != nullptr) {
      stats_.data_bytes_sent = transport_->bytes_sent();
      stats_.data_parts_sent = transport_->parts_sent();
    }
    executor = std::move(executor_);
    transport = std::move(transport_);
    timeline_.reset();  // whole from here on: this object may live as long as the process
  }
  executor.reset();
  transport.reset();
  {
    const std::lock_guard lock(pump_mutex_);
    const std::lock_guard sending(send_mutex_);
    coordinator_.reset();
    if (plane_ != nullptr) plane_->Close();  // the object stays: a late Wake may still touch it
  }
  return OkStatus();
}

// ------------------------------------------------------------------------------------------------------------------------- threads

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
  bool look = false;
  {
    const std::lock_guard lock(mutex_);
    if (!doubt_.ok()) until = std::min(until, doubt_until_);
    look = look_ && pending_ > 0;
  }
  if (coordinator_ != nullptr) until = std::min(until, next_stall_check_);
  if (plane_ != nullptr) {
    const ControlPlane::Looked looked = plane_->Pump(*this, until, look ? kLook : std::chrono::microseconds(0));
    if (looked != ControlPlane::Looked::kNot) {
      const std::lock_guard lock(mutex_);
      look_ = look_ && looked == ControlPlane::Looked::kFound;
      look_credit_ = std::clamp(look_credit_ + (look_ ? 1 : -1), 0, kMostLookCredit);
    }
  } else {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, std::min(until, now + std::chrono::seconds(1)), [&] {
      return !queue_.empty() || !cancels_.empty() || !refusals_.empty() || !group_requests_.empty() || leave_ || stop_;
    });
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

// ------------------------------------------------------------------------------------------------------------------------- failure

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

Result<std::unique_ptr<Communicator>> CreateCommunicator(const CommOptions& options, const TransportMaker& make_transport) {
  auto communicator = std::make_unique<CommunicatorImpl>(options);
  MXREC_RETURN_IF_ERROR(communicator->Start(make_transport));
  return Result<std::unique_ptr<Communicator>>(std::move(communicator));
}

}  // namespace mxrec::internal
