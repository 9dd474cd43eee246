// What ranks ask for, until it is complete: requests compared, joined, cancelled, ended.
#include <algorithm>

#include "mxrec/comm/controller/coordinator_impl.h"
#include "mxrec/comm/rank_list.h"

namespace mxrec {
namespace {

std::string ShapeText(DType dtype, std::span<const int64_t> shape) {
  std::string text(DTypeName(dtype));
  text += " [";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string Number(double value) {
  std::string text = std::to_string(value);
  text.erase(std::min(text.find_last_not_of('0') + 1, text.size()));
  if (text.ends_with('.')) text.pop_back();
  return text;
}

bool IsPointToPoint(Collective kind) { return kind == Collective::kSend || kind == Collective::kReceive; }

}  // namespace

std::string PointToPointName(int from, int to, int64_t tag) {
  std::string name = "\x1f";
  return name.append(std::to_string(from)).append(">").append(std::to_string(to)).append(" tag ").append(std::to_string(tag));
}

// ------------------------------------------------------------------------------------------------------------------------- answers

void Coordinator::Impl::Tell(Slot& slot, size_t i, const Status& status) {
  ranks[WorldRank(slot, i)].out.errors.push_back({.group = slot.group->id, .name = slot.name, .status = status});
}

// Takes the slot out of the running; what was agreed before stays.
void Coordinator::Impl::Reset(Slot& slot) {
  if (slot.active_at != SIZE_MAX) {
    active[slot.active_at] = active.back();
    active[slot.active_at]->active_at = slot.active_at;
    active.pop_back();
    slot.active_at = SIZE_MAX;
  }
  std::fill(slot.asked.begin(), slot.asked.end(), 0);
  if (slot.changed) std::fill(slot.fresh.begin(), slot.fresh.end(), nullptr);
  slot.asked_count = 0;
  slot.changed = slot.warned = false;
}

// Fails it for those who asked.
void Coordinator::Impl::Fail(Slot& slot, const Status& status) {
  for (size_t i = 0; i < slot.participants(); ++i) {
    if (slot.asked[i] != 0) Tell(slot, i, status);
  }
  Reset(slot);
}

// ---------------------------------------------------------------------------------------------------------------------- comparison

// OK, or which ranks want what. `value` makes a request's text of the property in question.
Status Coordinator::Impl::Agree(const Slot& slot, std::string_view what,
                                const std::function<std::string(const RequestFields&)>& value) const {
  struct Camp {
    std::string value, origin;
    std::vector<int> ranks;
  };
  std::vector<Camp> camps;
  for (size_t i = 0; i < slot.participants(); ++i) {
    if (slot.asked[i] == 0) continue;
    const RequestFields& fields = *slot.Request(i);
    std::string text = value(fields);
    auto camp = std::find_if(camps.begin(), camps.end(), [&](const Camp& c) { return c.value == text; });
    if (camp == camps.end()) camp = camps.insert(camps.end(), {.value = std::move(text), .origin = fields.origin, .ranks = {}});
    camp->ranks.push_back(WorldRank(slot, i));
  }
  if (camps.size() <= 1) return OkStatus();
  std::string text = Quoted(slot) + ": the ranks disagree about the " + std::string(what);
  for (size_t i = 0; i < camps.size(); ++i) {
    text += (i == 0 ? ": " : "; ") + RankList(camps[i].ranks) + (camps[i].ranks.size() == 1 ? " has " : " have ") + camps[i].value;
    if (!camps[i].origin.empty()) text += " (" + camps[i].origin + ")";
  }
  return InvalidArgumentError(std::move(text));
}

Status Coordinator::Impl::Validate(const Slot& slot) const {
  if (slot.point_to_point) {
    MXREC_RETURN_IF_ERROR(Agree(slot, "type and shape", [](const RequestFields& f) { return ShapeText(f.dtype, f.shape); }));
    return OkStatus();
  }
  // Compared at once, since it is what nearly always holds.
  const RequestFields* first = nullptr;
  bool same = true;
  for (size_t i = 0; i < slot.participants() && same; ++i) {
    if (slot.asked[i] == 0) continue;
    const RequestFields* const fields = slot.Request(i).get();
    if (first == nullptr) {
      first = fields;
    } else if (fields != first) {
      same = Compare(*first, *fields) == Difference::kNone;
    }
  }
  const auto participants = static_cast<int64_t>(slot.participants());
  if (!same) {
    MXREC_RETURN_IF_ERROR(
        Agree(slot, "kind of operation", [](const RequestFields& f) { return std::string(CollectiveName(f.kind)); }));
    MXREC_RETURN_IF_ERROR(Agree(slot, "element type", [](const RequestFields& f) { return std::string(DTypeName(f.dtype)); }));
    const bool free_rows = first->kind == Collective::kAllGather || first->kind == Collective::kAllToAll;
    MXREC_RETURN_IF_ERROR(
        Agree(slot, free_rows ? "shape behind the first dimension" : "shape", [free_rows](const RequestFields& f) {
          return ShapeText(f.dtype, std::span(f.shape).subspan(free_rows && !f.shape.empty() ? 1 : 0)) +
                 (free_rows && f.shape.empty() ? " (a scalar)" : "");
        }));
    MXREC_RETURN_IF_ERROR(Agree(slot, "reduction", [](const RequestFields& f) { return std::string(ReduceOpName(f.op)); }));
    MXREC_RETURN_IF_ERROR(Agree(slot, "scale", [](const RequestFields& f) {
      return "prescale " + Number(f.prescale) + ", postscale " + Number(f.postscale) + (f.divide_by_size ? ", a mean" : "");
    }));
    MXREC_RETURN_IF_ERROR(Agree(slot, "root", [](const RequestFields& f) { return "root " + std::to_string(f.root); }));
    MXREC_RETURN_IF_ERROR(Agree(slot, "type on the wire", [](const RequestFields& f) { return std::string(DTypeName(f.wire)); }));
  }
  for (size_t i = 0; i < slot.participants(); ++i) {
    if (slot.asked[i] == 0) continue;
    const RequestFields& fields = *slot.Request(i);
    if (fields.kind == Collective::kAllToAll && static_cast<int64_t>(fields.splits.size()) != participants) {
      return InvalidArgumentError(Quoted(slot) + ": rank " + std::to_string(WorldRank(slot, i)) + " gave " +
                                  std::to_string(fields.splits.size()) + " splits, expected one for each of " +
                                  std::to_string(participants) + " ranks");
    }
  }
  return OkStatus();
}

// Ranks that joined take part in what zeros do not falsify.
Status Coordinator::Impl::ValidateJoined(const Slot& slot) const {
  std::vector<int> joined;
  for (size_t i = 0; i < slot.group->ranks.size(); ++i) {
    if (slot.group->joined[i]) joined.push_back(slot.group->ranks[i]);
  }
  const RequestFields* fields = nullptr;
  for (size_t i = 0; i < slot.participants() && fields == nullptr; ++i) {
    if (slot.asked[i] != 0) fields = slot.Request(i).get();
  }
  if (fields->kind == Collective::kBarrier) return OkStatus();
  const bool sum = fields->op == ReduceOp::kSum || fields->op == ReduceOp::kAdasum;
  if (fields->kind == Collective::kAllReduce && sum) return OkStatus();
  return InvalidArgumentError(Quoted(slot) + " cannot run: " + RankList(joined) + (joined.size() == 1 ? " has" : " have") +
                              " joined, and after a join only allreduce with a sum, a mean or Adasum is supported" +
                              (fields->kind == Collective::kAllReduce ? ", not " + std::string(ReduceOpName(fields->op)) : ""));
}

// ------------------------------------------------------------------------------------------------------------------------ requests

bool Coordinator::Impl::Complete(const Slot& slot) const {
  if (slot.asked_count == static_cast<int>(slot.participants())) return true;
  if (slot.group->joined_count == 0) return false;
  for (size_t i = 0; i < slot.participants(); ++i) {
    if (slot.asked[i] == 0 && !slot.group->joined[slot.point_to_point ? slot.pair[i] : static_cast<int>(i)]) return false;
  }
  return true;
}

void Coordinator::Impl::FinishIfComplete(Slot& slot) {
  if (!Complete(slot)) return;
  const bool with_joined = slot.asked_count < static_cast<int>(slot.participants());
  if (slot.changed || with_joined) {
    Status status = Validate(slot);
    if (status.ok() && with_joined) status = ValidateJoined(slot);
    if (!status.ok()) return Fail(slot, status);
  }
  active[slot.active_at] = active.back();
  active[slot.active_at]->active_at = slot.active_at;
  active.pop_back();
  slot.active_at = SIZE_MAX;
  ready.push_back(&slot);
}

Status Coordinator::Impl::CheckLeft(const Slot& slot) const {
  if (left_in_order.empty()) return OkStatus();
  const std::optional<std::string> left = WhoLeft([&](int rank) { return Participant(slot, rank) >= 0; });
  if (!left.has_value()) return OkStatus();
  return FailedPreconditionError(Quoted(slot) + " cannot complete: " + *left + "; " + Asked(slot));
}

// `fresh`: null when the rank asks again for what was agreed on last.
Status Coordinator::Impl::Ask(Slot& slot, int rank, Fields fresh, Time now) {
  const int i = Participant(slot, rank);
  if (i < 0) return DataLossError("rank " + std::to_string(rank) + " is no member of group " + slot.group->name);
  if (slot.owed[i] != 0) {
    slot.owed[i] = 0;
    Tell(slot, i, slot.owed_status);
    --owed;
    if (--slot.owed_count == 0) slot.owed_status = OkStatus();
    return OkStatus();
  }
  if (slot.asked[i] != 0) return DataLossError("'" + slot.name + "' was asked for twice");
  if (fresh == nullptr && slot.agreed[i] == nullptr)
    return DataLossError("number " + std::to_string(slot.id) + " was never agreed on");
  if (slot.asked_count == 0) {
    slot.since = now;
    slot.active_at = active.size();
    active.push_back(&slot);
    slot.used = ++tick;
  }
  slot.asked[i] = 1;
  ++slot.asked_count;
  if (fresh != nullptr) {
    // Equal requests are kept once.
    for (size_t other = 0; other < slot.participants(); ++other) {
      if (slot.asked[other] == 0 || static_cast<int>(other) == i) continue;
      if (Compare(*slot.Request(other), *fresh) == Difference::kNone && slot.Request(other)->origin == fresh->origin) {
        fresh = slot.Request(other);
      }
      break;
    }
    slot.fresh[i] = std::move(fresh);
    slot.changed = true;
  }
  if (const Status left = CheckLeft(slot); !left.ok()) {
    Fail(slot, left);
    return OkStatus();
  }
  FinishIfComplete(slot);
  return OkStatus();
}

std::string Coordinator::Impl::SlotKey(uint32_t group, std::string_view name) {
  std::string key(reinterpret_cast<const char*>(&group), sizeof(group));
  key += name;
  return key;
}

Status Coordinator::Impl::AskInFull(int rank, const RequestFields& fields, Time now) {
  const auto group = groups.find(fields.group);
  if (group == groups.end() || group->second.index[rank] < 0) {
    return DataLossError("'" + fields.name + "' is of group number " + std::to_string(fields.group) + ", which rank " +
                         std::to_string(rank) + " is no member of");
  }
  Group& of = group->second;
  const int in_group = of.index[rank];
  const auto members = static_cast<int>(of.ranks.size());
  if (fields.kind == Collective::kJoin) return Join(of, in_group);
  if (fields.root >= members || fields.peer >= members || fields.name.empty())
    return DataLossError("'" + fields.name + "' names no rank of its group");
  std::vector<int> pair;
  if (IsPointToPoint(fields.kind)) {
    pair = fields.kind == Collective::kSend ? std::vector{in_group, fields.peer} : std::vector{fields.peer, in_group};
    if (pair[0] == pair[1] || fields.name != PointToPointName(pair[0], pair[1], fields.tag)) {
      return DataLossError("a send or receive under the name '" + fields.name + "'");
    }
  } else if (fields.name[0] == '\x1f') {
    return DataLossError("a reserved name");
  }
  const auto [id, created] = slot_ids.try_emplace(SlotKey(fields.group, fields.name), next_slot);
  if (created) {
    auto slot = std::make_unique<Slot>();
    slot->id = next_slot++;
    slot->group = &of;
    slot->name = fields.name;
    slot->point_to_point = !pair.empty();
    slot->pair = std::move(pair);
    const size_t participants = slot->point_to_point ? 2 : of.ranks.size();
    slot->agreed.resize(participants);
    slot->fresh.resize(participants);
    slot->asked.resize(participants);
    slot->known.resize(participants);
    slot->owed.resize(participants);
    slots[slot->id] = std::move(slot);
  }
  return Ask(*slots[id->second], rank, std::make_shared<const RequestFields>(fields), now);
}

Status Coordinator::Impl::Join(Group& group, int member) {
  if (group.joined[member]) return DataLossError("joined twice");
  if (Status left = CheckLeft(group); !left.ok()) {
    ranks[group.ranks[member]].out.errors.push_back({.group = group.id, .name = std::string(kJoinName), .status = std::move(left)});
    return OkStatus();
  }
  group.joined[member] = true;
  ++group.joined_count;
  group.last_joined = member;
  if (group.joined_count == static_cast<int>(group.ranks.size())) {
    auto execution = std::make_shared<Execution>();
    execution->kind = Collective::kJoin;
    execution->group = group.id;
    execution->received = {group.last_joined};
    // What is ready comes before it.
    Emit();
    for (const int rank : group.ranks) Give(rank, execution, 0);
    std::fill(group.joined.begin(), group.joined.end(), false);
    group.joined_count = 0;
  }
  for (size_t i = active.size(); i-- > 0;) {
    if (i < active.size() && active[i]->group == &group) FinishIfComplete(*active[i]);
  }
  return OkStatus();
}

Status Coordinator::Impl::CheckLeft(const Group& group) const {
  const std::optional<std::string> left = WhoLeft([&](int rank) { return group.index[rank] >= 0; });
  if (!left.has_value()) return OkStatus();
  return FailedPreconditionError("join of group " + group.name + " cannot complete: " + *left);
}

void Coordinator::Impl::Cancel(int rank, const CancelRequest& cancel) {
  const auto id = slot_ids.find(SlotKey(cancel.group, cancel.name));
  if (id == slot_ids.end()) return;
  Slot& slot = *slots[id->second];
  const int i = Participant(slot, rank);
  if (i < 0 || slot.asked[i] == 0 || slot.active_at == SIZE_MAX) return;  // agreed on already: it runs
  const Status status = CancelledError(Quoted(slot) + ": rank " + std::to_string(rank) + " gave up waiting for it; " + Asked(slot));
  for (size_t other = 0; other < slot.participants(); ++other) {
    if (slot.asked[other] != 0 || slot.owed[other] != 0 || ranks[WorldRank(slot, other)].left) continue;
    slot.owed[other] = 1;
    ++slot.owed_count;
    ++owed;
  }
  slot.owed_status = status;
  Fail(slot, status);
}

void Coordinator::Impl::Leave(int rank) {
  Emit();  // what is agreed on still runs
  ranks[rank].left = true;
  left_in_order.push_back(rank);
  for (size_t i = active.size(); i-- > 0;) {
    if (i >= active.size()) continue;
    Slot& slot = *active[i];
    const int place = Participant(slot, rank);
    if (place < 0) continue;
    // Its own requests are over without an answer.
    if (slot.asked[place] != 0) {
      slot.asked[place] = 0;
      --slot.asked_count;
    }
    Fail(slot, CheckLeft(slot));
  }
  for (auto& [id, group] : groups) {
    if (group.index[rank] < 0) continue;
    for (size_t i = 0; i < group.ranks.size(); ++i) {
      if (!group.joined[i] || group.ranks[i] == rank) continue;
      ranks[group.ranks[i]].out.errors.push_back({.group = id, .name = std::string(kJoinName), .status = CheckLeft(group)});
    }
    std::fill(group.joined.begin(), group.joined.end(), false);
    group.joined_count = 0;
  }
  std::vector<std::string> keys;
  for (const auto& [key, pending] : pending_groups) {
    if (std::find(pending.ranks.begin(), pending.ranks.end(), rank) != pending.ranks.end()) keys.push_back(key);
  }
  for (const std::string& key : keys) {
    FailGroup(key, FailedPreconditionError("group '" + key.substr(1) + "' cannot be " + (key[0] == '-' ? "removed: " : "made: ") +
                                           Who(rank) + " has left"));
  }
  ranks[rank].out.goodbye = true;
}

}  // namespace mxrec
