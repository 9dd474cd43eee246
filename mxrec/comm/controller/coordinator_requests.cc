// What ranks ask for, until it is complete: requests compared, joined, cancelled, ended.
#include <algorithm>
#include <charconv>

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

// The group ranks in the name of a send; empty: it is none.
std::vector<int> PairOf(std::string_view name) {
  int from = 0, to = 0;
  int64_t tag = 0;
  constexpr std::string_view kTag = " tag ";
  const char* const end = name.data() + name.size();
  const char* at = name.data() + 1;
  const auto number = [&](auto& value) { return (at = std::from_chars(at, end, value).ptr) < end; };
  if (name.size() < 2 || !number(from) || *at++ != '>' || !number(to)) return {};
  if (!std::string_view(at, end).starts_with(kTag)) return {};
  std::from_chars(at + kTag.size(), end, tag);
  return name == PointToPointName(from, to, tag) ? std::vector{from, to} : std::vector<int>();
}

// A rank that refuses one name again and again, while others never ask for it, costs no more memory than this.
constexpr size_t kMostDebts = 4096;

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

void Coordinator::Impl::FailOne(Slot& slot, size_t i, const Status& status) {
  Tell(slot, i, status);
  slot.asked[i] = 0;
  slot.fresh[i] = nullptr;
  if (--slot.asked_count == 0) Reset(slot);
}

void Coordinator::Impl::Owe(Slot& slot, size_t i, Status status, bool whole) {
  if (slot.owed.size() >= kMostDebts) return;
  slot.owed.push_back({.participant = i, .status = std::move(status), .whole = whole});
  ++owed;
}

std::optional<Coordinator::Impl::Debt> Coordinator::Impl::TakeDebt(Slot& slot, size_t i) {
  const auto found = std::find_if(slot.owed.begin(), slot.owed.end(), [&](const Debt& debt) { return debt.participant == i; });
  if (found == slot.owed.end()) return std::nullopt;
  Debt debt = std::move(*found);
  slot.owed.erase(found);
  --owed;
  return debt;
}

bool Coordinator::Impl::MayAsk(const Slot& slot, size_t i) const {
  return !ranks[WorldRank(slot, i)].left && !slot.group->joined[slot.point_to_point ? slot.pair[i] : static_cast<int>(i)];
}

void Coordinator::Impl::FailOthers(Group& group, const std::string& name, int part, int parts, size_t i, const Status& status) {
  const std::string first = name.substr(0, name.size() - PartSuffix(part).size());
  for (int other = 0; other < parts; ++other) {
    if (other == part) continue;
    Slot& slot = FindOrMake(group, first + PartSuffix(other), {});
    if (slot.asked[i] == 0) {
      Owe(slot, i, status, /*whole=*/false);
    } else if (slot.active_at != SIZE_MAX) {
      FailOne(slot, i, status);
    }
  }
}

void Coordinator::Impl::FailWhole(Slot& slot, const Status& status) {
  std::vector<std::pair<size_t, Fields>> given;
  for (size_t i = 0; i < slot.participants(); ++i) {
    if (slot.asked[i] != 0) given.emplace_back(i, slot.Request(i));
  }
  Fail(slot, status);
  for (const auto& [i, fields] : given) FailOthers(*slot.group, slot.name, fields->part, fields->parts, i, status);
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

Status Coordinator::Impl::CheckParts(const Slot& slot) const {
  int parts = 0;
  bool same = true;
  for (size_t i = 0; i < slot.participants(); ++i) {
    if (slot.asked[i] == 0) continue;
    same = same && (parts == 0 || slot.Request(i)->parts == parts);
    parts = slot.Request(i)->parts;
  }
  if (same) return OkStatus();
  return Agree(slot, "number of tensors",
               [](const RequestFields& f) { return std::to_string(f.parts) + (f.parts == 1 ? " tensor" : " tensors"); });
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
    if (const Status unequal = CheckParts(slot); !unequal.ok()) return FailWhole(slot, unequal);
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
  if (slot.batch != nullptr) Dissolve(*slot.batch);
  const int i = Participant(slot, rank);
  if (i < 0) return DataLossError("rank " + std::to_string(rank) + " is no member of group " + slot.group->name);
  if (slot.asked[i] != 0) return DataLossError("'" + slot.name + "' was asked for twice");
  if (fresh == nullptr && slot.agreed[i] == nullptr)
    return DataLossError("number " + std::to_string(slot.id) + " was never agreed on");
  if (!slot.owed.empty()) {
    if (const std::optional<Debt> debt = TakeDebt(slot, static_cast<size_t>(i)); debt.has_value()) {
      Tell(slot, i, debt->status);
      const RequestFields& fields = fresh != nullptr ? *fresh : *slot.agreed[i];
      if (debt->whole) FailOthers(*slot.group, slot.name, fields.part, fields.parts, i, debt->status);
      return OkStatus();
    }
  }
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
  if (!fields.name.ends_with(PartSuffix(fields.part)))
    return DataLossError("'" + fields.name + "' as tensor " + std::to_string(fields.part) + " of an operation");
  std::vector<int> pair;
  if (IsPointToPoint(fields.kind)) {
    pair = fields.kind == Collective::kSend ? std::vector{in_group, fields.peer} : std::vector{fields.peer, in_group};
    if (pair[0] == pair[1] || fields.name != PointToPointName(pair[0], pair[1], fields.tag)) {
      return DataLossError("a send or receive under the name '" + fields.name + "'");
    }
  } else if (fields.name[0] == '\x1f') {
    return DataLossError("a reserved name");
  }
  return Ask(FindOrMake(of, fields.name, std::move(pair)), rank, std::make_shared<const RequestFields>(fields), now);
}

// `pair`: group ranks of sender and receiver; empty for what all members take part in.
Coordinator::Impl::Slot& Coordinator::Impl::FindOrMake(Group& group, const std::string& name, std::vector<int> pair) {
  const auto [id, created] = slot_ids.try_emplace(SlotKey(group.id, name), next_slot);
  if (created) {
    auto slot = std::make_unique<Slot>();
    slot->id = next_slot++;
    slot->group = &group;
    slot->name = name;
    slot->point_to_point = !pair.empty();
    slot->pair = std::move(pair);
    const size_t participants = slot->point_to_point ? 2 : group.ranks.size();
    slot->agreed.resize(participants);
    slot->fresh.resize(participants);
    slot->asked.resize(participants);
    slot->known.resize(participants);
    slots[slot->id] = std::move(slot);
  }
  Slot& slot = *slots[id->second];
  if (slot.batch != nullptr) Dissolve(*slot.batch);
  return slot;
}

Status Coordinator::Impl::Join(Group& group, int member) {
  if (group.joined[member]) return DataLossError("joined twice");
  DissolveAll();
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
  if (slot.batch != nullptr) Dissolve(*slot.batch);
  const int i = Participant(slot, rank);
  if (i < 0 || slot.asked[i] == 0 || slot.active_at == SIZE_MAX) return;  // agreed on already: it runs
  std::string text = Quoted(slot).append(": rank ").append(std::to_string(rank)).append(" gave up waiting for it");
  if (!cancel.why.empty()) text.append(": ").append(cancel.why);
  const Status status = CancelledError(text.append("; ").append(Asked(slot)));
  for (size_t other = 0; other < slot.participants(); ++other) {
    if (slot.asked[other] == 0 && MayAsk(slot, other)) Owe(slot, other, status, /*whole=*/false);
  }
  Fail(slot, status);
}

// DataLoss: the rank broke the protocol.
Status Coordinator::Impl::Refuse(int rank, const Refusal& refusal) {
  const auto found = groups.find(refusal.group);
  if (found == groups.end() || found->second.index[rank] < 0) {
    return DataLossError("a refusal of '" + refusal.name + "' in group number " + std::to_string(refusal.group) + ", which rank " +
                         std::to_string(rank) + " is no member of");
  }
  Group& group = found->second;
  if (refusal.name.empty()) return DataLossError("a refusal of no name");
  std::vector<int> pair;
  if (refusal.name[0] == '\x1f') {
    pair = PairOf(refusal.name);
    const int in_group = group.index[rank];
    if (pair.empty() || pair[0] == pair[1] || std::max(pair[0], pair[1]) >= static_cast<int>(group.ranks.size()) ||
        std::min(pair[0], pair[1]) < 0 || (pair[0] != in_group && pair[1] != in_group) || refusal.parts != 0) {
      return DataLossError("a refusal of a reserved name");
    }
  }
  Slot& slot = FindOrMake(group, refusal.name, std::move(pair));
  const auto me = static_cast<size_t>(Participant(slot, rank));
  if (slot.asked[me] != 0) return DataLossError("'" + slot.name + "' was refused after it was asked for");
  // Another rank has ended this one already: nobody is to hear of it twice.
  bool over = false;
  for (int part = 0; part < std::max(refusal.parts, 1); ++part) {
    const auto id = slot_ids.find(SlotKey(group.id, refusal.name + PartSuffix(part)));
    if (id != slot_ids.end() && TakeDebt(*slots[id->second], me).has_value()) over = true;
  }
  if (over) return OkStatus();
  const bool whole = refusal.parts > 0;
  const Status status = InvalidArgumentError(Quoted(slot) + ": " + Who(rank) + " does not take part: " + refusal.why +
                                             (slot.asked_count > 0 ? "; " + Asked(slot) : ""));
  for (size_t i = 0; i < slot.participants(); ++i) {
    if (i == me || !MayAsk(slot, i)) continue;
    if (slot.asked[i] == 0) {
      Owe(slot, i, status, whole);
      continue;
    }
    const Fields fields = slot.Request(i);
    FailOne(slot, i, status);
    if (whole) FailOthers(group, slot.name, fields->part, fields->parts, i, status);
  }
  return OkStatus();
}

void Coordinator::Impl::Leave(int rank) {
  DissolveAll();
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
