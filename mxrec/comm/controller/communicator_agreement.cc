// From a request to its end: told to rank 0, agreed on, run.
#include <algorithm>
#include <utility>

#include "mxrec/comm/control/status_wire.h"
#include "mxrec/comm/controller/communicator_state.h"

namespace mxrec::internal {
namespace {

constexpr size_t kNamesAMessage = 4096;

}  // namespace

Difference Compare(const RequestFields& a, const CommRequest& b) {
  if (a.kind != b.kind || a.dtype != b.dtype || a.op != b.op || a.prescale != b.prescale || a.postscale != b.postscale ||
      a.divide_by_size != b.divide_by_size || a.root != b.root || a.peer != b.peer || a.tag != b.tag || a.wire != b.wire ||
      a.parts != b.parts || a.part != b.part || a.origin != b.origin || a.shape.size() != b.shape.size() ||
      a.splits.size() != b.splits.size()) {
    return Difference::kMore;
  }
  if (!a.shape.empty() && !std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1)) return Difference::kMore;
  if ((!a.shape.empty() && a.shape[0] != b.shape[0]) || a.splits != b.splits) return Difference::kRows;
  return Difference::kNone;
}

// Tells rank 0, or the coordinator here, what is new.
void CommunicatorImpl::SendRequests() {
  while (SendQueued()) {
  }
}

bool CommunicatorImpl::SendQueued() {
  const std::lock_guard order(send_mutex_);
  bool more = false;
  Requests requests;
  {
    const std::lock_guard lock(mutex_);
    if (!health_.ok() || !transport_ready_) return false;
    if (chief()) others_wait_ = coordinator_->OthersWaitFor(0);
    requests.refusals = std::exchange(refusals_, {});
    requests.ids.reserve(std::min(queue_.size(), kNamesAMessage));
    size_t names = 0;
    for (; !queue_.empty() && names < kNamesAMessage; ++names) {
      Name& name = *queue_.front();
      queue_.pop_front();
      name.state = State::kAsked;
      const Difference difference = name.id != 0 ? name.difference : Difference::kMore;
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
                                 .wire = request.wire,
                                 .parts = request.parts,
                                 .part = request.part});
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
  if (requests.empty()) return false;
  requests.finished = finished_.load(std::memory_order_relaxed);
  std::sort(requests.ids.begin(), requests.ids.end());
  if (chief()) {
    const Status status = coordinator_->Take(0, requests, Clock::now());
    MXREC_CHECK(status.ok()) << status;
  } else {
    plane_->Send(0, kRequestsFrame, EncodeRequests(requests));
  }
  return more;
}

void CommunicatorImpl::FlushCoordinator() {
  // The others first: what is left to do here they do meanwhile.
  const std::vector<std::pair<int, Agreement>> agreements = coordinator_->Flush();
  for (const auto& [rank, agreement] : agreements) {
    if (rank != 0) plane_->Send(rank, kAgreementFrame, EncodeAgreement(agreement));
  }
  for (const auto& [rank, agreement] : agreements) {
    if (rank != 0) continue;
    const Status status = TakeAgreement(agreement);
    MXREC_CHECK(status.ok()) << status;
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
        ++erased_;
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
      EraseName(name);
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
      const auto name = names_.find(KeyView(execution->group, kJoinName));
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
      } else if (const auto at = names_.find(KeyView(execution->group, tensor.name)); at != names_.end()) {
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
        agreed.parts = request.parts, agreed.part = request.part, agreed.origin = request.origin;
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
    const auto name = names_.find(KeyView(error.group, error.name));
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

void CommunicatorImpl::EraseName(const Name& name) {
  ++erased_;
  names_.erase(names_.find(KeyView(name.group, name.name)));
}

// Takes a request out of its name. With mutex_ held.
void CommunicatorImpl::End(Name& name, Status status, Agreed agreed, std::vector<Ended>* ended) {
  ended->push_back({.done = std::move(name.request.done), .status = std::move(status), .agreed = std::move(agreed)});
  if (const auto group = groups_.find(name.group); group != groups_.end()) {
    --group->second.live;
    if (name.request.kind == Collective::kJoin) group->second.joined = false;
  }
  // The rest stays until the next request: most names come again.
  name.request.input = nullptr;
  name.request.allocate = nullptr;
  name.request.done = nullptr;
  name.state = State::kIdle;
  // What has not been sent yet would cancel the next request of this name.
  std::erase_if(cancels_, [&](const CancelRequest& cancel) { return cancel.group == name.group && cancel.name == name.name; });
  name.alone = name.turn == submitted_;
  --pending_;
  if (name.id == 0) EraseName(name);
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
    refusals_.clear();
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

}  // namespace mxrec::internal
