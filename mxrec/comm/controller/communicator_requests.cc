// What callers ask for: checked, put into the queue, withdrawn; groups.
#include <algorithm>

#include "mxrec/comm/controller/communicator_state.h"

namespace mxrec::internal {

namespace {

Status Wrong(const CommRequest& request, const std::string& group, std::string_view what) {
  std::string text(CollectiveName(request.kind));
  text.append(" '").append(request.name, 0, 200).append("' of group ").append(group).append(": ").append(what);
  return InvalidArgumentError(std::move(text));
}

}  // namespace

Status CommunicatorImpl::Check(const CommRequest& request, const GroupInfo& group) const {
  const auto members = static_cast<int>(group.ranks.size());
  const auto wrong = [&](std::string_view what) { return Wrong(request, group.name, what); };
  if (CollectiveName(request.kind) == "unknown") return wrong("no such kind of operation");
  if (request.kind == Collective::kJoin) return OkStatus();
  if (request.name.empty() || request.name.size() > kMaxNameBytes || request.name[0] == '\x1f') {
    return wrong("the name has " + std::to_string(request.name.size()) + " bytes, expected 1 to " + std::to_string(kMaxNameBytes) +
                 ", the first of them no unit separator");
  }
  if (DTypeSize(request.dtype) == 0 || DTypeSize(request.wire) == 0) return wrong("no such element type");
  if (request.parts < 1 || request.parts > kMaxParts || request.part < 0 || request.part >= request.parts) {
    return wrong("tensor " + std::to_string(request.part) + " of " + std::to_string(request.parts) + ", expected at most " +
                 std::to_string(kMaxParts) + " tensors and one of them");
  }
  if (!request.name.ends_with(PartSuffix(request.part))) {
    return wrong("tensor " + std::to_string(request.part) + " of an operation, expected its number at the end of its name");
  }
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
  return CheckMemory(request, group);
}

Status CommunicatorImpl::CheckMemory(const CommRequest& request, const GroupInfo& group) const {
  const auto wrong = [&](std::string_view what) { return Wrong(request, group.name, what); };
  const bool gives = request.kind != Collective::kSend && request.kind != Collective::kBarrier;
  if (gives && !request.allocate) return wrong("no allocator for the result");
  const bool takes = request.kind != Collective::kBarrier && request.kind != Collective::kReceive &&
                     !(request.kind == Collective::kBroadcast && request.root != group.me);
  const bool empty = std::find(request.shape.begin(), request.shape.end(), 0) != request.shape.end();
  if (takes && request.input == nullptr && !empty) return wrong("no input");
  return OkStatus();
}

// What rank 0 knows a send or a receive by.
std::string CommunicatorImpl::NameOfPair(const CommRequest& request, const GroupInfo& group) {
  const bool sends = request.kind == Collective::kSend;
  return PointToPointName(sends ? group.me : request.peer, sends ? request.peer : group.me, request.tag);
}

// Takes the request, or leaves it as it was and says why not.
Result<CommunicatorImpl::Name*> CommunicatorImpl::Enqueue(CommRequest& request, Name* guess, Submission* submission) {
  const auto in_vain = [&](const Status& why) {
    return Prefixed(std::string(CollectiveName(request.kind)) + " '" + request.name.substr(0, 200) + "': ", why);
  };
  if (!health_.ok()) return in_vain(health_);
  if (closing_) return FailedPreconditionError("the communicator was shut down");
  if (submission->group == nullptr || submission->group->name != request.group) {
    const auto id = group_ids_.find(request.group);
    if (id == group_ids_.end())
      return in_vain(NotFoundError("rank " + std::to_string(options_.rank) + " is in no group '" + request.group + "'"));
    submission->group = &groups_[id->second];
  }
  GroupInfo& group = *submission->group;
  std::string pair;
  std::string_view name = request.kind == Collective::kJoin ? kJoinName : request.name;
  if (request.kind == Collective::kSend || request.kind == Collective::kReceive) {
    name = pair = NameOfPair(request, group);
  }
  if (request.origin.size() > kMaxOriginBytes) request.origin.resize(kMaxOriginBytes);
  Name* at = guess;
  if (at == nullptr || at->group != group.id || at->name != name) {
    const auto known = names_.find(KeyView(group.id, name));
    at = known != names_.end() ? known->second.get() : nullptr;
  }
  const Difference difference = at != nullptr && at->id != 0 ? Compare(at->agreed, request) : Difference::kMore;
  // What the ranks have agreed on was checked before.
  if (Status wrong = difference == Difference::kNone ? CheckMemory(request, group) : Check(request, group); !wrong.ok()) {
    AddRefusal(request, group, /*parts=*/0, wrong);
    submission->next = Next::kWake;
    return wrong;
  }
  if (group.joined) {
    return in_vain(FailedPreconditionError("rank " + std::to_string(options_.rank) + " has joined in group " + group.name +
                                           " and can ask for nothing until all ranks have"));
  }
  if (at == nullptr) {
    auto fresh = std::make_unique<Name>();
    at = fresh.get();
    at->group = group.id;
    at->name = name;
    names_.emplace(std::pair(group.id, std::string(name)), std::move(fresh));
  }
  if (at->state != State::kIdle) {
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
  at->difference = difference;
  at->turn = submission->nothing_pending ? submitted_ : 0;
  const bool lone = at->alone && at->id != 0 && submission->nothing_pending && plane_ != nullptr && group.ranks.size() > 1;
  submission->lone = submission->lone && lone;
  if (!lone || (chief() && others_wait_)) {
    submission->next = Next::kWake;
  } else if (submission->next != Next::kWake) {
    submission->next = chief() ? Next::kNothing : Next::kSendHere;
  }
  ++pending_;
  queue_.push_back(at);
  return at;
}

void CommunicatorImpl::Submit(CommRequest request) { SubmitAll({&request, 1}); }

void CommunicatorImpl::Submit(std::vector<CommRequest> requests) { SubmitAll(requests); }

void CommunicatorImpl::SubmitAll(std::span<CommRequest> requests) {
  Submission submission;
  bool look = false;
  std::vector<std::pair<size_t, Status>> refused;
  {
    const std::lock_guard lock(mutex_);
    ++submitted_;
    submission.nothing_pending = pending_ == 0;
    std::vector<Name*> names;
    names.reserve(requests.size());
    // Steps repeat: most names come after those after which they came the last time, and need not be looked for.
    std::span<Name* const> guesses;
    bool guessed = true;
    for (size_t i = 0; i < requests.size(); ++i) {
      Name* const guess = i > 0 && i <= guesses.size() ? guesses[i - 1] : nullptr;
      Result<Name*> name = Enqueue(requests[i], guess, &submission);
      if (!name.ok()) {
        refused.emplace_back(i, std::move(name).status());
        continue;
      }
      names.push_back(*name);
      if (i == 0 && (*name)->followers_of == erased_) guesses = (*name)->followers;
      guessed = guessed && (i == 0 || *name == guess);
    }
    look = look_ = submission.lone && !names.empty() && may_look_ && refused.empty() &&
                   (look_credit_ > 0 || ++looks_left_out_ % kLookAgain == 0);
    if (refused.empty() && !guessed) {
      names[0]->followers.assign(names.begin() + 1, names.end());
      names[0]->followers_of = erased_;
    }
  }
  // With a look the progress thread wakes up while rank 0 answers.
  if (submission.next == Next::kWake || (submission.next == Next::kSendHere && (SendQueued() || look))) Wake();
  for (const auto& [i, status] : refused) {
    if (requests[i].done) requests[i].done(status, {});
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

void CommunicatorImpl::Cancel(const std::string& group, const std::string& name, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    const auto id = group_ids_.find(group);
    if (id == group_ids_.end() || closing_) return;
    // Sends and receives are known to rank 0 by another name.
    const Name* found = nullptr;
    if (const auto at = names_.find(KeyView(id->second, name)); at != names_.end() && at->second->state != State::kIdle) {
      found = at->second.get();
    } else {
      for (const auto& [key, candidate] : names_) {
        if (candidate->group == id->second && candidate->state != State::kIdle && candidate->request.name == name)
          found = candidate.get();
      }
    }
    if (found == nullptr || found->request.kind == Collective::kJoin) return;
    cancels_.push_back({.group = found->group, .name = found->name, .why = why.substr(0, kMaxReasonBytes)});
  }
  Wake();
}

void CommunicatorImpl::AddRefusal(const CommRequest& request, const GroupInfo& group, int parts, const Status& why) {
  if (request.kind == Collective::kJoin || group.joined || group.ranks.size() == 1 || parts > kMaxParts) return;
  std::string name = request.name;
  if (request.kind == Collective::kSend || request.kind == Collective::kReceive) {
    if (request.peer < 0 || request.peer >= static_cast<int>(group.ranks.size()) || request.peer == group.me) return;
    name = NameOfPair(request, group);
    parts = 0;
  } else if (name.empty() || name[0] == '\x1f' || name.size() > kMaxNameBytes) {
    return;
  }
  const auto at = names_.find(KeyView(group.id, name));
  if (at != names_.end() && at->second->state != State::kIdle) return;
  std::string text(why.message().substr(0, kMaxReasonBytes));
  refusals_.push_back({.group = group.id, .name = std::move(name), .parts = parts, .why = std::move(text)});
}

void CommunicatorImpl::Refuse(const CommRequest& request, const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    const auto id = group_ids_.find(request.group);
    if (id == group_ids_.end() || closing_ || !health_.ok()) return;
    AddRefusal(request, groups_[id->second], std::max(request.parts, 0), why);
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

}  // namespace mxrec::internal
