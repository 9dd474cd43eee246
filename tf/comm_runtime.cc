#include "tf/comm_runtime.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mxrec/base/log.h"
#include "tf/comm_calls.h"
#include "tf/session_settings.h"

namespace mxrec {
namespace {

enum class Phase { kNone, kStarting, kReady, kFailed };

// What a name in use is found by.
std::string KeyOf(const std::string& group, const std::string& name) { return group + '\n' + name; }

struct Owned {
  CommRequest request;
  const void* owner = nullptr;
};

struct Running {
  const void* owner = nullptr;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  // Those that wait for their turn.
  std::deque<Owned> next;
};

struct State {
  std::mutex mutex;
  CommOptions options;
  Phase phase = Phase::kNone;
  Status failure;
  std::shared_ptr<Communicator> communicator;
  std::vector<std::function<void(const Status&)>> starters;
  // Not handed on yet: the communicator is being made.
  std::vector<CommRequest> waiting;
  // Likewise; they go first.
  std::vector<std::pair<CommRequest, Status>> refusals;
  std::unordered_map<std::string, Running> running;
  std::map<std::string, Communicator::Handler> services;
};

// Never destroyed: progress threads may outlive static objects. A child of a fork has a state of its own, without a communicator.
State& GetState() {
  static State* state = new State;
  static const int forks = pthread_atfork(nullptr, nullptr, [] {
    State* const fresh = new State;
    fresh->options = state->options;
    state = fresh;
  });
  static_cast<void>(forks);
  return *state;
}

// Of now; null: there is none.
std::shared_ptr<Communicator> Current() {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.communicator;
}

CommOptions WithSessionSettings(CommOptions options) {
  if (const std::optional<int64_t> seconds = CollectiveTimeout(); seconds && *seconds > 0) {
    options.stall_abort = std::chrono::seconds(*seconds);
    options.stall_warning = std::min<std::chrono::milliseconds>(options.stall_warning, options.stall_abort / 2);
  }
  // "level0:NA;level1:ring": the last level named is between servers, where the choice matters.
  const std::string text = CollectiveAlgorithm();
  if (options.algorithm == Algorithm::kAuto) {
    if (text.find("ring") != std::string::npos) options.algorithm = Algorithm::kRing;
    if (text.find("H-D_R") != std::string::npos) options.algorithm = Algorithm::kHalvingDoubling;
  }
  return options;
}

void EndWith(CommRequest& request, const Status& status) { request.done(status, Agreed()); }

void HandOn(const std::shared_ptr<Communicator>& communicator, std::vector<CommRequest> requests, const Status& failure) {
  if (communicator != nullptr) {
    communicator->Submit(std::move(requests));
  } else {
    for (CommRequest& request : requests) EndWith(request, failure);
  }
}

void MakeCommunicator() {
  State& state = GetState();
  CommOptions options;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    options = WithSessionSettings(state.options);
  }
  Result<std::unique_ptr<Communicator>> made = Communicator::Create(options);
  std::shared_ptr<Communicator> communicator;
  if (made.ok()) communicator = std::move(*made);
  std::vector<std::function<void(const Status&)>> starters;
  std::vector<CommRequest> waiting;
  std::vector<std::pair<CommRequest, Status>> refusals;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    if (communicator != nullptr) {
      for (const auto& [service, handler] : state.services) communicator->Serve(service, handler);
    }
    state.communicator = communicator;
    state.failure = made.ok() ? OkStatus() : made.status();
    state.phase = made.ok() ? Phase::kReady : Phase::kFailed;
    starters.swap(state.starters);
    waiting.swap(state.waiting);
    refusals.swap(state.refusals);
  }
  for (const auto& [request, why] : refusals) {
    if (communicator != nullptr) communicator->Refuse(request, why);
  }
  HandOn(communicator, std::move(waiting), made.status());
  for (const auto& starter : starters) starter(made.ok() ? OkStatus() : made.status());
}

// Has the communicator made unless it is there. With the lock held.
void StartLocked(State& state) {
  if (state.phase != Phase::kNone) return;
  state.phase = Phase::kStarting;
  std::thread(MakeCommunicator).detach();
}

void NextTurn(const std::string& key, CommRequest request);

// Adds to a request under a name that is running what its end means for the name. `key` is the name's in `running`, where it stays
// until then. With the lock held.
void EndsTurn(State& state, const std::string& key, CommRequest* request) {
  request->done = [&state, &key, done = std::move(request->done)](const Status& status, const Agreed& agreed) {
    Owned next;
    {
      const std::lock_guard<std::mutex> lock(state.mutex);
      const auto found = state.running.find(key);
      if (found->second.next.empty()) {
        state.running.erase(found);
      } else {
        next = std::move(found->second.next.front());
        found->second.next.pop_front();
        found->second.owner = next.owner;
        found->second.since = std::chrono::steady_clock::now();
      }
    }
    done(status, agreed);
    if (next.owner != nullptr) NextTurn(key, std::move(next.request));
  };
}

// Where requests go now. Null: they wait in state.waiting until the communicator is there, or `failure` says why there is none.
// With the lock held.
std::shared_ptr<Communicator> Destination(State& state, std::vector<CommRequest>* requests, Status* failure) {
  StartLocked(state);
  if (state.phase == Phase::kStarting) {
    std::move(requests->begin(), requests->end(), std::back_inserter(state.waiting));
    requests->clear();
  }
  *failure = state.failure;
  return state.communicator;
}

// A process that ends while the ranks still meet lets the others hear what it has refused, if they meet this soon.
constexpr std::chrono::seconds kTimeToTell{10};

bool HasUntoldRefusals() {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return std::any_of(state.refusals.begin(), state.refusals.end(),
                     [](const auto& refusal) { return refusal.second.code() != StatusCode::kCancelled; });
}

// Has the communicator made unless it is there, and waits until the outcome is known. Unavailable when that takes longer.
Status WaitForComm(std::chrono::seconds most) {
  struct Outcome {
    std::mutex mutex;
    std::condition_variable changed;
    bool known = false;
    Status status = UnavailableError("the communicator is still being made");
  };
  const auto outcome = std::make_shared<Outcome>();
  StartComm([outcome](const Status& status) {
    const std::lock_guard<std::mutex> lock(outcome->mutex);
    outcome->status = status;
    outcome->known = true;
    outcome->changed.notify_all();
  });
  std::unique_lock<std::mutex> lock(outcome->mutex);
  outcome->changed.wait_for(lock, most, [&] { return outcome->known; });
  return outcome->status;
}

void NextTurn(const std::string& key, CommRequest request) {
  State& state = GetState();
  std::vector<CommRequest> requests;
  requests.push_back(std::move(request));
  Status failure;
  std::shared_ptr<Communicator> communicator;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    EndsTurn(state, key, &requests[0]);
    communicator = Destination(state, &requests, &failure);
  }
  HandOn(communicator, std::move(requests), failure);
}

}  // namespace

Status ConfigureComm(const CommOptions& options) {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const bool other = options.rank != state.options.rank || options.size != state.options.size;
  if (other && (state.phase == Phase::kStarting || state.phase == Phase::kReady)) {
    return FailedPreconditionError("the collective runtime is in use as rank " + std::to_string(state.options.rank) + " of " +
                                   std::to_string(state.options.size) + " and cannot become rank " + std::to_string(options.rank) +
                                   " of " + std::to_string(options.size) + ": shut it down first");
  }
  state.options = options;
  return OkStatus();
}

CommOptions ConfiguredComm() {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.options;
}

void StartComm(std::function<void(const Status&)> done) {
  State& state = GetState();
  Status outcome;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    StartLocked(state);
    if (state.phase == Phase::kStarting) {
      state.starters.push_back(std::move(done));
      return;
    }
    outcome = state.failure;
  }
  done(outcome);
}

Status StartCommAndWait() { return WaitForComm(std::chrono::hours(24 * 365)); }

void SubmitComm(std::vector<CommRequest> requests, const void* owner, bool repeatable) {
  State& state = GetState();
  std::vector<CommRequest> goes, taken;
  goes.reserve(requests.size());
  Status failure;
  std::shared_ptr<Communicator> communicator;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    for (CommRequest& request : requests) {
      const auto [place, fresh] = state.running.try_emplace(KeyOf(request.group, request.name));
      if (fresh) {
        place->second.owner = owner;
        EndsTurn(state, place->first, &request);
        goes.push_back(std::move(request));
      } else if (repeatable) {
        place->second.next.push_back({std::move(request), owner});
      } else {
        taken.push_back(std::move(request));
      }
    }
    if (!goes.empty()) communicator = Destination(state, &goes, &failure);
  }
  HandOn(communicator, std::move(goes), failure);
  for (CommRequest& request : taken) {
    EndWith(request, AlreadyExistsError("'" + request.name + "' (" + request.origin +
                                        ") is already running: two operations of a step must not have one name"));
  }
}

void RefuseComm(CommRequest request, Status why) {
  State& state = GetState();
  std::shared_ptr<Communicator> communicator;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    if (state.running.contains(KeyOf(request.group, request.name))) return;
    StartLocked(state);
    if (state.phase == Phase::kStarting) {
      state.refusals.emplace_back(std::move(request), std::move(why));
      return;
    }
    communicator = state.communicator;
  }
  if (communicator != nullptr) communicator->Refuse(request, why);
}

void CancelComm(const std::string& group, const std::string& name, const void* owner, const std::string& why) {
  State& state = GetState();
  std::shared_ptr<Communicator> communicator;
  std::vector<CommRequest> dropped;
  const auto cancelled = [&name](const std::string& where) {
    return CancelledError(std::string("'").append(name).append("' was cancelled").append(where));
  };
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    const auto found = state.running.find(KeyOf(group, name));
    if (found == state.running.end()) return;
    std::deque<Owned>& next = found->second.next;
    for (auto entry = next.begin(); entry != next.end(); ++entry) {
      if (entry->owner != owner) continue;
      dropped.push_back(std::move(entry->request));
      next.erase(entry);
      break;
    }
    if (dropped.empty()) {
      if (found->second.owner != owner) return;
      communicator = state.communicator;
      for (auto request = state.waiting.begin(); request != state.waiting.end(); ++request) {
        if (request->group != group || request->name != name) continue;
        // The others are going to wait for it.
        CommRequest asks;
        asks.kind = request->kind;
        asks.name = name;
        asks.group = group;
        asks.peer = request->peer;
        asks.tag = request->tag;
        asks.parts = 0;
        state.refusals.emplace_back(std::move(asks), cancelled((why.empty() ? "" : ": " + why) + " (" + request->origin + ")"));
        dropped.push_back(std::move(*request));
        state.waiting.erase(request);
        break;
      }
    }
  }
  for (CommRequest& request : dropped) EndWith(request, cancelled(""));
  if (dropped.empty() && communicator != nullptr) communicator->Cancel(group, name, why);
}

Status AddCommGroup(const std::string& name, const std::vector<int>& ranks) {
  MXREC_RETURN_IF_ERROR(StartCommAndWait());
  const std::shared_ptr<Communicator> communicator = Current();
  if (communicator == nullptr) return FailedPreconditionError("group '" + name + "': the collective runtime has been shut down");
  return communicator->AddGroup(name, ranks);
}

Status RemoveCommGroup(const std::string& name) {
  const std::shared_ptr<Communicator> communicator = Current();
  return communicator == nullptr ? OkStatus() : communicator->RemoveGroup(name);
}

void ServeComm(const std::string& service, Communicator::Handler handler) {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.communicator != nullptr) state.communicator->Serve(service, handler);
  state.services[service] = std::move(handler);
}

Result<std::string> CallComm(int rank, const std::string& service, std::string_view request, Deadline deadline) {
  MXREC_RETURN_IF_ERROR(StartCommAndWait());
  const std::shared_ptr<Communicator> communicator = Current();
  if (communicator == nullptr) return FailedPreconditionError("the collective runtime has been shut down");
  return communicator->Call(rank, service, request, deadline);
}

bool CommIsUp() { return Current() != nullptr; }

bool CommWaits(std::chrono::milliseconds time) {
  State& state = GetState();
  const auto before = std::chrono::steady_clock::now() - time;
  const std::lock_guard<std::mutex> lock(state.mutex);
  return std::any_of(state.running.begin(), state.running.end(),
                     [&](const auto& running) { return running.second.since <= before; });
}

void ShutdownComm(std::function<void(const Status&)> done) {
  State& state = GetState();
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    if (state.phase == Phase::kStarting) {
      state.starters.push_back([done = std::move(done)](const Status&) mutable { ShutdownComm(std::move(done)); });
      return;
    }
  }
  // On a thread of its own: it waits, and the caller may be the communicator's own.
  std::thread([done = std::move(done)] {
    State& state = GetState();
    std::shared_ptr<Communicator> communicator;
    {
      const std::lock_guard<std::mutex> lock(state.mutex);
      communicator.swap(state.communicator);
      state.phase = Phase::kNone;
      state.failure = OkStatus();
    }
    if (communicator != nullptr) {
      CommRequest request;
      request.kind = Collective::kBarrier;
      request.name = "mxrec/shutdown";
      request.origin = "shutdown_system";
      const Status met = communicator->Run(std::move(request));
      if (!met.ok()) MXREC_LOG(WARNING) << "shutdown of the collective runtime: " << met.message();
      const Status left = communicator->Shutdown();
      if (!left.ok()) MXREC_LOG(WARNING) << "shutdown of the collective runtime: " << left.message();
    }
    done(OkStatus());
  }).detach();
}

void LeaveComm() {
  if (HasUntoldRefusals()) static_cast<void>(WaitForComm(kTimeToTell));
  const std::shared_ptr<Communicator> communicator = Current();
  if (communicator == nullptr) return;
  const Status left = communicator->Shutdown();
  if (!left.ok()) MXREC_LOG(DEBUG) << "end of the collective runtime: " << left.message();
}

Result<std::vector<int>> CommMachines() {
  if (ConfiguredComm().size == 1) return std::vector<int>{0};
  MXREC_RETURN_IF_ERROR(StartCommAndWait());
  const std::shared_ptr<Communicator> communicator = Current();
  if (communicator == nullptr) return FailedPreconditionError("the collective runtime has been shut down");
  return communicator->Machines();
}

Status CommHealth() {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.phase == Phase::kFailed) return state.failure;
  return state.communicator == nullptr ? OkStatus() : state.communicator->health();
}

CommStats CommStatistics() {
  const std::shared_ptr<Communicator> communicator = Current();
  return communicator == nullptr ? CommStats() : communicator->stats();
}

}  // namespace mxrec
