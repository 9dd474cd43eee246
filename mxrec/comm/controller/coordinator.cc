#include "mxrec/comm/controller/coordinator.h"

#include <algorithm>

#include "mxrec/comm/controller/coordinator_impl.h"
#include "mxrec/comm/rank_list.h"

namespace mxrec {
namespace {

constexpr size_t kStallsTold = 4;

// Names of sends begin with a separator.
std::string InQuotes(const std::string& name, bool point_to_point) {
  std::string quoted = "'";
  quoted.append(name, point_to_point ? 1 : 0).push_back('\'');
  return quoted;
}

// Appends the agreement, in several messages when it is too long for one.
void Split(int rank, Agreement agreement, std::vector<std::pair<int, Agreement>>* out) {
  constexpr size_t kTensors = kMaxIdsInMessage / 4, kErrors = 1024;
  size_t tensors = agreement.forget.size();
  for (const auto& execution : agreement.executions) tensors += execution->tensors.size();
  if (tensors + agreement.executions.size() <= kTensors && agreement.errors.size() <= kErrors) {
    out->emplace_back(rank, std::move(agreement));
    return;
  }
  Agreement part;
  part.groups = std::move(agreement.groups);
  part.forget = std::move(agreement.forget);
  tensors = part.forget.size();
  for (auto& execution : agreement.executions) {
    const size_t more = execution->tensors.size() + 1;
    if (tensors + more > kTensors) {
      out->emplace_back(rank, std::exchange(part, {}));
      tensors = 0;
    }
    tensors += more;
    part.executions.push_back(std::move(execution));
  }
  for (NameError& error : agreement.errors) {
    if (part.errors.size() == kErrors) out->emplace_back(rank, std::exchange(part, {}));
    part.errors.push_back(std::move(error));
  }
  part.goodbye = agreement.goodbye;
  out->emplace_back(rank, std::move(part));
}

}  // namespace

std::string Coordinator::Impl::Who(int rank) const {
  return static_cast<size_t>(rank) < options.who.size() ? options.who[rank] : "rank " + std::to_string(rank);
}

std::string Coordinator::Impl::Quoted(const Slot& slot) {
  for (size_t i = 0; i < slot.participants(); ++i) {
    if (slot.asked[i] != 0) return Quoted(slot, *slot.Request(i));
  }
  return InQuotes(slot.name, slot.point_to_point);
}

std::string Coordinator::Impl::Quoted(const Slot& slot, const RequestFields& fields) {
  std::string text(CollectiveName(fields.kind));
  return text.append(" ").append(InQuotes(slot.name, slot.point_to_point)).append(" of group ").append(slot.group->name);
}

int Coordinator::Impl::WorldRank(const Slot& slot, size_t i) const {
  return slot.group->ranks[slot.point_to_point ? slot.pair[i] : static_cast<int>(i)];
}

// The place of a world rank in a slot; -1: none.
int Coordinator::Impl::Participant(const Slot& slot, int rank) {
  const int in_group = slot.group->index[rank];
  if (in_group < 0 || !slot.point_to_point) return in_group;
  return in_group == slot.pair[0] ? 0 : in_group == slot.pair[1] ? 1 : -1;
}

std::string Coordinator::Impl::Asked(const Slot& slot) const {
  std::vector<int> asked;
  std::string origin;
  for (size_t i = 0; i < slot.participants(); ++i) {
    if (slot.asked[i] == 0) continue;
    asked.push_back(WorldRank(slot, i));
    if (origin.empty()) origin = slot.Request(i)->origin;
  }
  if (asked.empty()) return "asked for by nobody";
  return "asked for by " + RankList(asked) + (origin.empty() ? "" : " (" + origin + ")");
}

std::string Coordinator::Impl::NameOfSlot(uint64_t id) const {
  if (id == 0) return "a join";
  const auto found = slots.find(id);
  if (found == slots.end()) return "an operation whose name is forgotten";
  return InQuotes(found->second->name, found->second->point_to_point);
}

std::string Coordinator::Impl::LastOperation(int rank) const {
  const Rank& r = ranks[rank];
  if (r.finished == 0) return Who(rank) + " has finished no operation";
  return Who(rank) + " last finished " + NameOfSlot(r.last_finished) + ", operation " + std::to_string(r.finished) + " of its own";
}

std::optional<std::string> Coordinator::Impl::WhoLeft(const std::function<bool(int)>& concerns, bool with_last_operation) const {
  std::vector<int> left;
  std::copy_if(left_in_order.begin(), left_in_order.end(), std::back_inserter(left), concerns);
  if (left.empty()) return std::nullopt;
  std::string text = Who(left[0]) + " has left";
  if (left.size() > 1) {
    std::sort(left.begin() + 1, left.end());
    text += ", after it " + RankList(std::span(left).subspan(1));
  }
  if (with_last_operation) text += "; " + LastOperation(left[0]);
  return text;
}

Coordinator::Coordinator(CoordinatorOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->ranks.resize(impl_->options.size);
  std::vector<int> world(impl_->options.size);
  for (int rank = 0; rank < impl_->options.size; ++rank) world[rank] = rank;
  impl_->AddGroup(impl_->options.world_group, world);
}

Coordinator::~Coordinator() = default;

void Coordinator::set_fuse_below(int64_t bytes) {
  if (impl_->options.fuse_below != bytes) impl_->DissolveAll();  // they would be packed differently
  impl_->options.fuse_below = bytes;
}

Status Coordinator::Take(int rank, const Requests& requests, Time now) {
  Impl& impl = *impl_;
  if (impl.ranks[rank].left) return DataLossError("a request after the rank has left");
  Finished(rank, requests.finished);
  for (const Refusal& refusal : requests.refusals) MXREC_RETURN_IF_ERROR(impl.Refuse(rank, refusal));
  std::vector<uint64_t> rest;
  std::span<const uint64_t> ids = requests.ids;
  if (!impl.batches.empty() && impl.left_in_order.empty() && std::is_sorted(ids.begin(), ids.end())) {
    rest = impl.AskBatches(rank, ids, now);
    ids = rest;
  }
  impl.ranks[rank].last_ids.assign(ids.begin(), ids.end());
  for (const uint64_t id : ids) {
    const auto slot = impl.slots.find(id);
    if (slot == impl.slots.end()) continue;  // forgotten: the rank will ask in full
    MXREC_RETURN_IF_ERROR(impl.Ask(*slot->second, rank, nullptr, now));
  }
  for (const RequestRows& rows : requests.rows) {
    const auto slot = impl.slots.find(rows.id);
    if (slot == impl.slots.end()) continue;
    const int i = Impl::Participant(*slot->second, rank);
    const Impl::Fields agreed = i < 0 ? nullptr : slot->second->agreed[i];
    if (agreed == nullptr || agreed->shape.empty() || agreed->splits.size() != rows.splits.size()) {
      return DataLossError("rows of number " + std::to_string(rows.id));
    }
    auto fields = std::make_shared<RequestFields>(*agreed);
    fields->shape[0] = rows.rows;
    fields->splits = rows.splits;
    MXREC_RETURN_IF_ERROR(impl.Ask(*slot->second, rank, std::move(fields), now));
  }
  for (const RequestFields& fields : requests.full) MXREC_RETURN_IF_ERROR(impl.AskInFull(rank, fields, now));
  for (const CancelRequest& cancel : requests.cancels) impl.Cancel(rank, cancel);
  for (const GroupRequest& group : requests.groups) MXREC_RETURN_IF_ERROR(impl.AskGroup(rank, group, now));
  if (requests.leaves) impl.Leave(rank);
  return OkStatus();
}

void Coordinator::Finished(int rank, uint64_t executions) {
  Impl::Rank& r = impl_->ranks[rank];
  if (executions <= r.finished || executions > r.given) return;
  const uint64_t kept_from = r.given - r.unfinished.size();  // older ones are forgotten
  uint64_t last = 0;
  while (!r.unfinished.empty() && r.given - r.unfinished.size() < executions) {
    last = r.unfinished.front();
    r.unfinished.pop_front();
  }
  if (executions > kept_from) r.last_finished = last;
  r.finished = executions;
}

std::vector<std::pair<int, Agreement>> Coordinator::Flush() {
  impl_->Emit();
  std::vector<std::pair<int, Agreement>> out;
  for (size_t rank = 0; rank < impl_->ranks.size(); ++rank) {
    Agreement& agreement = impl_->ranks[rank].out;
    if (!agreement.empty()) Split(static_cast<int>(rank), std::exchange(agreement, {}), &out);
  }
  return out;
}

Status Coordinator::CheckStalls(Time now, std::vector<std::string>* warnings) {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  const auto text_of = [&](const Impl::Slot& slot) {
    std::vector<int> missing;
    for (size_t i = 0; i < slot.participants(); ++i) {
      if (slot.asked[i] == 0 && !slot.group->joined[slot.point_to_point ? slot.pair[i] : static_cast<int>(i)]) {
        missing.push_back(impl_->WorldRank(slot, i));
      }
    }
    std::string text = Impl::Quoted(slot) + " has waited " + std::to_string(duration_cast<milliseconds>(now - slot.since).count()) +
                       " ms: " + impl_->Asked(slot) + ", not by " + RankList(missing);
    for (size_t n = 0; n < missing.size() && n < 4; ++n) text += "; " + impl_->LastOperation(missing[n]);
    return text;
  };
  // Where ranks wait for each other in different operations, each of these is half of the reason: all are named.
  const auto late = [&](Time since) { return now - since >= std::min(impl_->options.stall_warning, impl_->options.stall_abort); };
  if (std::any_of(impl_->active.begin(), impl_->active.end(), [&](const Impl::Slot* slot) { return late(slot->since); }) ||
      std::any_of(impl_->batches.begin(), impl_->batches.end(),
                  [&](const auto& batch) { return batch->asked_count > 0 && late(batch->since); })) {
    impl_->DissolveAll();  // all that waits is told by name
  }
  std::vector<Impl::Slot*> oldest_first(impl_->active.begin(), impl_->active.end());
  std::ranges::stable_sort(oldest_first, {}, &Impl::Slot::since);
  if (!oldest_first.empty() && now - oldest_first[0]->since >= impl_->options.stall_abort) {
    std::string text = text_of(*oldest_first[0]) + "; the limit is " + std::to_string(impl_->options.stall_abort.count()) + " ms";
    for (size_t i = 1; i < oldest_first.size() && i < kStallsTold; ++i) text += "\nand " + text_of(*oldest_first[i]);
    if (oldest_first.size() > kStallsTold) text += "\nand " + std::to_string(oldest_first.size() - kStallsTold) + " more wait";
    return FailedPreconditionError(std::move(text));
  }
  for (Impl::Slot* const slot : oldest_first) {
    if (now - slot->since >= impl_->options.stall_warning && !slot->warned) {
      slot->warned = true;
      warnings->push_back(text_of(*slot));
    }
  }
  for (auto& [key, pending] : impl_->pending_groups) {
    const auto waited = now - pending.since;
    if (waited < impl_->options.stall_warning || (pending.warned && waited < impl_->options.stall_abort)) continue;
    std::vector<int> missing;
    for (const int rank : pending.ranks) {
      if (!pending.asked[rank]) missing.push_back(rank);
    }
    std::sort(missing.begin(), missing.end());
    const std::string text = "group '" + pending.name + "' has waited " +
                             std::to_string(duration_cast<milliseconds>(waited).count()) + " ms for " + RankList(missing) + " to " +
                             (pending.remove ? "remove it" : "make it");
    if (waited >= impl_->options.stall_abort) return FailedPreconditionError(text);
    pending.warned = true;
    warnings->push_back(text);
  }
  return OkStatus();
}

bool Coordinator::left(int rank) const { return impl_->ranks[rank].left; }
int Coordinator::ranks_left() const { return static_cast<int>(impl_->left_in_order.size()); }
bool Coordinator::OthersWaitFor(int rank) const {
  const Impl& impl = *impl_;
  if (impl.owed > 0 || !impl.left_in_order.empty() || !impl.pending_groups.empty() || !impl.owed_groups.empty()) return true;
  for (const auto& [id, group] : impl.groups) {
    if (group.joined_count > 0) return true;
  }
  return std::any_of(impl.active.begin(), impl.active.end(),
                     [&](const Impl::Slot* slot) {
                       const int me = Impl::Participant(*slot, rank);
                       return slot->asked_count > (me >= 0 && slot->asked[me] != 0 ? 1 : 0);
                     }) ||
         std::any_of(impl.batches.begin(), impl.batches.end(), [&](const auto& batch) {
           const int me = batch->group->index[rank];
           return batch->asked_count > (me >= 0 && batch->asked[me] != 0 ? 1 : 0);
         });
}

size_t Coordinator::waiting() const {
  size_t waiting = impl_->active.size() + impl_->pending_groups.size();
  for (const auto& batch : impl_->batches) {
    if (batch->asked_count > 0) waiting += batch->ids.size();
  }
  return waiting;
}
std::string Coordinator::LastOperation(int rank) const { return impl_->LastOperation(rank); }

}  // namespace mxrec
