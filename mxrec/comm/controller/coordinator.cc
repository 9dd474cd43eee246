#include "mxrec/comm/controller/coordinator.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <unordered_map>

#include "mxrec/comm/rank_list.h"

namespace mxrec {
namespace {

using Fields = std::shared_ptr<const RequestFields>;

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

uint64_t CountOf(std::span<const int64_t> shape) {
  uint64_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<uint64_t>(dim);
  return count;
}

}  // namespace

std::string PointToPointName(int from, int to, int64_t tag) {
  return "\x1f" + std::to_string(from) + ">" + std::to_string(to) + " tag " + std::to_string(tag);
}

struct Coordinator::Impl {
  struct Group {
    uint32_t id = 0;
    std::string name;
    std::vector<int> ranks;
    std::vector<int> index;  // by world rank; -1: no member
    std::vector<bool> joined;
    int joined_count = 0;
    int last_joined = 0;
  };

  // One name of a group, for as long as it keeps its number.
  struct Slot {
    uint64_t id = 0;
    Group* group = nullptr;
    std::string name;
    bool point_to_point = false;
    std::vector<int> pair;  // group ranks that take part when point_to_point: from, to
    // By participant. What was agreed on last (its number stands for that), what it asks for now when that is not the same.
    std::vector<Fields> agreed, fresh;
    std::vector<uint8_t> asked, known, owed;
    int asked_count = 0, owed_count = 0;
    bool changed = false;
    bool warned = false;
    Status owed_status;
    Time since;
    size_t active_at = SIZE_MAX;
    uint64_t used = 0;

    size_t participants() const { return asked.size(); }
    const Fields& Request(size_t i) const { return fresh[i] != nullptr ? fresh[i] : agreed[i]; }
  };

  struct PendingGroup {
    bool remove = false;
    std::string name;
    std::vector<int> ranks;
    std::vector<bool> asked;  // by world rank
    int asked_count = 0;
    Time since;
    bool warned = false;
  };

  struct Rank {
    Agreement out;
    size_t tensors_out = 0;
    bool left = false;
    uint64_t given = 0, finished = 0;
    std::deque<uint64_t> unfinished;  // first slot of each execution
    uint64_t last_finished = 0;       // slot; 0: a join
  };

  CoordinatorOptions options;
  std::vector<Rank> ranks;
  int left_count = 0;
  std::map<uint32_t, Group> groups;
  std::unordered_map<std::string, uint32_t> group_ids;
  uint32_t next_group = 0;
  std::map<std::string, PendingGroup> pending_groups;                       // "+name", "-name"
  std::map<std::string, std::pair<Status, std::vector<bool>>> owed_groups;  // same keys: who still has to hear of a failure
  std::unordered_map<uint64_t, std::unique_ptr<Slot>> slots;
  std::unordered_map<std::string, uint64_t> slot_ids;  // by group number and name
  uint64_t next_slot = 1;
  uint64_t tick = 0;
  std::vector<Slot*> active, ready;

  // ------------------------------------------------------------------------------------------------------------ words

  std::string Who(int rank) const {
    return static_cast<size_t>(rank) < options.who.size() ? options.who[rank] : "rank " + std::to_string(rank);
  }

  static std::string Quoted(const Slot& slot) {
    for (size_t i = 0; i < slot.participants(); ++i) {
      if (slot.asked[i] != 0) return Quoted(slot, *slot.Request(i));
    }
    return "'" + slot.name + "'";
  }
  static std::string Quoted(const Slot& slot, const RequestFields& fields) {
    std::string text(CollectiveName(fields.kind));
    text += " '" + (slot.point_to_point ? slot.name.substr(1) : slot.name) + "'";
    return text + " of group " + slot.group->name;
  }

  int WorldRank(const Slot& slot, size_t i) const {
    return slot.group->ranks[slot.point_to_point ? slot.pair[i] : static_cast<int>(i)];
  }
  // The place of a world rank in a slot; -1: none.
  static int Participant(const Slot& slot, int rank) {
    const int in_group = slot.group->index[rank];
    if (in_group < 0 || !slot.point_to_point) return in_group;
    return in_group == slot.pair[0] ? 0 : in_group == slot.pair[1] ? 1 : -1;
  }

  std::string Asked(const Slot& slot) const {
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

  std::string NameOfSlot(uint64_t id) const {
    if (id == 0) return "a join";
    const auto found = slots.find(id);
    if (found == slots.end()) return "an operation whose name is forgotten";
    return "'" + (found->second->point_to_point ? found->second->name.substr(1) : found->second->name) + "'";
  }

  std::string LastOperation(int rank) const {
    const Rank& r = ranks[rank];
    if (r.finished == 0) return Who(rank) + " has finished no operation";
    return Who(rank) + " last finished " + NameOfSlot(r.last_finished) + ", operation " + std::to_string(r.finished) +
           " of its own";
  }

  // ---------------------------------------------------------------------------------------------------------- answers

  void Tell(Slot& slot, size_t i, const Status& status) {
    ranks[WorldRank(slot, i)].out.errors.push_back({.group = slot.group->id, .name = slot.name, .status = status});
  }

  // Takes the slot out of the running; what was agreed before stays.
  void Reset(Slot& slot) {
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
  void Fail(Slot& slot, const Status& status) {
    for (size_t i = 0; i < slot.participants(); ++i) {
      if (slot.asked[i] != 0) Tell(slot, i, status);
    }
    Reset(slot);
  }

  // ------------------------------------------------------------------------------------------------------- comparison

  // OK, or which ranks want what. `value` makes a request's text of the property in question.
  Status Agree(const Slot& slot, std::string_view what, const std::function<std::string(const RequestFields&)>& value) const {
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
      text +=
          (i == 0 ? ": " : "; ") + RankList(camps[i].ranks) + (camps[i].ranks.size() == 1 ? " has " : " have ") + camps[i].value;
      if (!camps[i].origin.empty()) text += " (" + camps[i].origin + ")";
    }
    return InvalidArgumentError(std::move(text));
  }

  Status Validate(const Slot& slot) const {
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
  Status ValidateJoined(const Slot& slot) const {
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

  // --------------------------------------------------------------------------------------------------------- requests

  bool Complete(const Slot& slot) const {
    if (slot.asked_count == static_cast<int>(slot.participants())) return true;
    if (slot.group->joined_count == 0) return false;
    for (size_t i = 0; i < slot.participants(); ++i) {
      if (slot.asked[i] == 0 && !slot.group->joined[slot.point_to_point ? slot.pair[i] : static_cast<int>(i)]) return false;
    }
    return true;
  }

  void FinishIfComplete(Slot& slot) {
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

  Status LeftError(const Slot& slot, int rank) const {
    return FailedPreconditionError(Quoted(slot) + " cannot complete: " + Who(rank) + " has left; " + LastOperation(rank) + "; " +
                                   Asked(slot));
  }

  // `fresh`: null when the rank asks again for what was agreed on last.
  Status Ask(Slot& slot, int rank, Fields fresh, Time now) {
    const int i = Participant(slot, rank);
    if (i < 0) return DataLossError("rank " + std::to_string(rank) + " is no member of group " + slot.group->name);
    if (slot.owed[i] != 0) {
      slot.owed[i] = 0;
      Tell(slot, i, slot.owed_status);
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
    if (left_count > 0) {
      for (size_t other = 0; other < slot.participants(); ++other) {
        if (ranks[WorldRank(slot, other)].left) {
          Fail(slot, LeftError(slot, WorldRank(slot, other)));
          return OkStatus();
        }
      }
    }
    FinishIfComplete(slot);
    return OkStatus();
  }

  static std::string SlotKey(uint32_t group, std::string_view name) {
    std::string key(reinterpret_cast<const char*>(&group), sizeof(group));
    key += name;
    return key;
  }

  Status AskInFull(int rank, const RequestFields& fields, Time now) {
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

  Status Join(Group& group, int member) {
    if (group.joined[member]) return DataLossError("joined twice");
    for (size_t i = 0; i < group.ranks.size() && left_count > 0; ++i) {
      if (!ranks[group.ranks[i]].left) continue;
      ranks[group.ranks[member]].out.errors.push_back(
          {.group = group.id, .name = std::string(kJoinName), .status = JoinLeft(group, group.ranks[i])});
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

  Status JoinLeft(const Group& group, int rank) const {
    return FailedPreconditionError("join of group " + group.name + " cannot complete: " + Who(rank) + " has left; " +
                                   LastOperation(rank));
  }

  void Cancel(int rank, const CancelRequest& cancel) {
    const auto id = slot_ids.find(SlotKey(cancel.group, cancel.name));
    if (id == slot_ids.end()) return;
    Slot& slot = *slots[id->second];
    const int i = Participant(slot, rank);
    if (i < 0 || slot.asked[i] == 0 || slot.active_at == SIZE_MAX) return;  // agreed on already: it runs
    const Status status =
        CancelledError(Quoted(slot) + ": rank " + std::to_string(rank) + " gave up waiting for it; " + Asked(slot));
    for (size_t other = 0; other < slot.participants(); ++other) {
      if (slot.asked[other] != 0 || slot.owed[other] != 0 || ranks[WorldRank(slot, other)].left) continue;
      slot.owed[other] = 1;
      ++slot.owed_count;
    }
    slot.owed_status = status;
    Fail(slot, status);
  }

  void Leave(int rank) {
    Emit();  // what is agreed on still runs
    ranks[rank].left = true;
    ++left_count;
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
      Fail(slot, LeftError(slot, rank));
    }
    for (auto& [id, group] : groups) {
      if (group.index[rank] < 0) continue;
      for (size_t i = 0; i < group.ranks.size(); ++i) {
        if (!group.joined[i] || group.ranks[i] == rank) continue;
        ranks[group.ranks[i]].out.errors.push_back({.group = id, .name = std::string(kJoinName), .status = JoinLeft(group, rank)});
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

  // ----------------------------------------------------------------------------------------------------------- groups

  void FailGroup(const std::string& key, const Status& status) {
    PendingGroup& pending = pending_groups[key];
    std::vector<bool> owed(ranks.size());
    bool some = false;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (pending.asked[rank]) {
        ranks[rank].out.groups.push_back({.remove = pending.remove, .name = pending.name, .id = 0, .ranks = {}, .status = status});
      } else if (std::find(pending.ranks.begin(), pending.ranks.end(), static_cast<int>(rank)) != pending.ranks.end()) {
        owed[rank] = some = true;
      }
    }
    if (some) owed_groups[key] = {status, std::move(owed)};
    pending_groups.erase(key);
  }

  Status AskGroup(int rank, const GroupRequest& request, Time now) {
    const std::string key = (request.remove ? "-" : "+") + request.name;
    const auto answer = [&](Status status) {
      ranks[rank].out.groups.push_back(
          {.remove = request.remove, .name = request.name, .id = 0, .ranks = {}, .status = std::move(status)});
      return OkStatus();
    };
    if (const auto owed = owed_groups.find(key); owed != owed_groups.end() && owed->second.second[rank]) {
      const Status status = owed->second.first;
      owed->second.second[rank] = false;
      if (std::find(owed->second.second.begin(), owed->second.second.end(), true) == owed->second.second.end())
        owed_groups.erase(owed);
      return answer(status);
    }
    const auto existing = group_ids.find(request.name);
    std::vector<int> members = request.ranks;
    if (request.remove) {
      if (existing == group_ids.end() || existing->second == kWorldGroup)
        return answer(NotFoundError("group '" + request.name + "' does not exist"));
      members = groups[existing->second].ranks;
    } else {
      if (existing != group_ids.end()) return answer(AlreadyExistsError("group '" + request.name + "' exists already"));
      std::vector<bool> seen(ranks.size());
      for (const int member : members) {
        if (static_cast<size_t>(member) >= ranks.size() || seen[member])
          return DataLossError("group '" + request.name + "' of impossible ranks");
        seen[member] = true;
      }
    }
    if (std::find(members.begin(), members.end(), rank) == members.end())
      return DataLossError("group '" + request.name + "' without the rank itself");
    PendingGroup& pending = pending_groups[key];
    if (pending.asked_count == 0) {
      pending.remove = request.remove;
      pending.name = request.name;
      pending.ranks = members;
      pending.asked.resize(ranks.size());
      pending.since = now;
    }
    if (pending.asked[rank]) return DataLossError("group '" + request.name + "' asked for twice");
    pending.asked[rank] = true;
    ++pending.asked_count;
    if (pending.ranks != members) {
      const auto list = [](const std::vector<int>& all) {
        std::string text = "[";
        for (size_t i = 0; i < all.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(all[i]);
        return text + "]";
      };
      std::vector<int> others;
      for (size_t other = 0; other < ranks.size(); ++other) {
        if (pending.asked[other] && static_cast<int>(other) != rank) others.push_back(static_cast<int>(other));
      }
      const std::string text = "group '" + request.name + "': the ranks disagree about its members: " + RankList(others) +
                               " said " + list(pending.ranks) + ", rank " + std::to_string(rank) + " said " + list(members);
      for (const int member : members) {  // they too shall hear of it
        if (std::find(pending.ranks.begin(), pending.ranks.end(), member) == pending.ranks.end()) pending.ranks.push_back(member);
      }
      FailGroup(key, InvalidArgumentError(text));
      return OkStatus();
    }
    for (const int member : members) {
      if (!ranks[member].left) continue;
      FailGroup(key, FailedPreconditionError("group '" + request.name + "' cannot be " + (request.remove ? "removed: " : "made: ") +
                                             Who(member) + " has left"));
      return OkStatus();
    }
    if (pending.asked_count < static_cast<int>(members.size())) return OkStatus();
    Emit();  // an operation of the group that is agreed on comes before its end
    GroupAnswer done{.remove = request.remove, .name = request.name, .id = 0, .ranks = members, .status = {}};
    if (request.remove) {
      done.id = existing->second;
      RemoveGroup(done.id);
    } else {
      done.id = AddGroup(request.name, members);
    }
    for (const int member : members) ranks[member].out.groups.push_back(done);
    pending_groups.erase(key);
    return OkStatus();
  }

  uint32_t AddGroup(const std::string& name, const std::vector<int>& members) {
    Group group;
    group.id = next_group++;
    group.name = name;
    group.ranks = members;
    group.index.assign(ranks.size(), -1);
    for (size_t i = 0; i < members.size(); ++i) group.index[members[i]] = static_cast<int>(i);
    group.joined.resize(members.size());
    group_ids[name] = group.id;
    const uint32_t id = group.id;
    groups[id] = std::move(group);
    return id;
  }

  void RemoveGroup(uint32_t id) {
    Group& group = groups[id];
    // All members asked for the removal and have nothing of the group pending: its names go without a word.
    for (auto slot = slots.begin(); slot != slots.end();) {
      if (slot->second->group == &group) {
        Reset(*slot->second);
        slot_ids.erase(SlotKey(id, slot->second->name));
        slot = slots.erase(slot);
      } else {
        ++slot;
      }
    }
    group_ids.erase(group.name);
    groups.erase(id);
  }

  // ------------------------------------------------------------------------------------------------------- executions

  void Give(int rank, std::shared_ptr<const Execution> execution, uint64_t slot) {
    Rank& to = ranks[rank];
    if (to.left) return;
    to.out.executions.push_back(std::move(execution));
    ++to.given;
    to.unfinished.push_back(slot);
    if (to.unfinished.size() > 4096) to.unfinished.pop_front();
  }

  static bool Fusable(const RequestFields& fields) {
    return fields.kind == Collective::kAllReduce && fields.op != ReduceOp::kAdasum;
  }
  static const RequestFields& First(const Slot& slot) {
    size_t i = 0;
    while (slot.asked[i] == 0) ++i;
    return *slot.Request(i);
  }

  // Turns what is ready into executions.
  void Emit() {
    if (ready.empty()) return;
    // By number: the order of the first step, the shortest to write, and the same on every run once the names repeat.
    std::sort(ready.begin(), ready.end(), [](const Slot* a, const Slot* b) { return a->id < b->id; });
    struct Bucket {
      std::vector<Slot*> slots;
      const RequestFields* fields = nullptr;
      uint64_t bytes = 0;
      bool open = false;
    };
    std::vector<Bucket> buckets;
    size_t oldest_open = 0;
    for (Slot* const slot : ready) {
      const RequestFields& fields = First(*slot);
      const DType dtype = fields.wire != DType::kFloat32 ? fields.wire : fields.dtype;
      const uint64_t bytes = CountOf(fields.shape) * DTypeSize(dtype);
      const bool open = Fusable(fields) && bytes <= static_cast<uint64_t>(options.fuse_below);
      Bucket* into = nullptr;
      for (size_t b = buckets.size(); open && b-- > oldest_open && into == nullptr;) {
        Bucket& bucket = buckets[b];
        const RequestFields& with = *bucket.fields;
        if (bucket.open && bucket.slots[0]->group == slot->group && with.dtype == fields.dtype && with.op == fields.op &&
            with.wire == fields.wire && with.prescale == fields.prescale && with.postscale == fields.postscale &&
            with.divide_by_size == fields.divide_by_size && bucket.bytes + bytes <= static_cast<uint64_t>(options.fusion_bytes) &&
            bucket.slots.size() < kMaxIdsInMessage / 8) {
          into = &bucket;
        }
      }
      if (into == nullptr) {
        into = &buckets.emplace_back();
        into->fields = &fields;
        into->open = open;
        // The search for a place stays short.
        if (buckets.size() - oldest_open > 32) ++oldest_open;
      }
      into->slots.push_back(slot);
      into->bytes += bytes;
    }
    for (const Bucket& bucket : buckets) EmitOne(bucket.slots);
    for (Slot* const slot : ready) Commit(*slot);
    ready.clear();
    Forget();
  }

  void EmitOne(const std::vector<Slot*>& packed) {
    const Slot& first = *packed[0];
    const RequestFields& fields = First(first);
    Execution common;
    common.kind = fields.kind;
    common.group = first.group->id;
    common.tensors.reserve(packed.size());
    for (const Slot* slot : packed) common.tensors.push_back({.id = slot->id, .name = {}, .joined = {}});
    if (fields.kind == Collective::kAllGather) {
      for (size_t i = 0; i < first.participants(); ++i) common.received.push_back(first.Request(i)->shape[0]);
    }
    std::shared_ptr<const Execution> shared;
    for (size_t i = 0; i < first.participants(); ++i) {
      bool own = fields.kind == Collective::kAllToAll || first.point_to_point;
      for (const Slot* slot : packed) own = own || slot->asked[i] == 0 || slot->known[i] == 0;
      if (!own) {
        if (shared == nullptr) shared = std::make_shared<const Execution>(common);
        Give(WorldRank(first, i), shared, first.id);
        continue;
      }
      auto execution = std::make_shared<Execution>(common);
      if (first.point_to_point) execution->kind = first.Request(i)->kind;
      if (fields.kind == Collective::kAllToAll) {
        for (size_t from = 0; from < first.participants(); ++from) execution->received.push_back(first.Request(from)->splits[i]);
      }
      for (size_t t = 0; t < packed.size(); ++t) {
        const Slot& slot = *packed[t];
        if (slot.asked[i] == 0) {
          execution->tensors[t].joined = std::make_shared<const RequestFields>(First(slot));
        } else if (slot.known[i] == 0) {
          execution->tensors[t].name = slot.name;
        }
      }
      Give(WorldRank(first, i), std::move(execution), first.id);
    }
  }

  void Commit(Slot& slot) {
    for (size_t i = 0; i < slot.participants(); ++i) {
      if (slot.asked[i] == 0) continue;
      slot.known[i] = 1;
      if (slot.fresh[i] != nullptr) slot.agreed[i] = std::move(slot.fresh[i]);
    }
    Reset(slot);
  }

  // Takes their numbers from the names not used for longest.
  void Forget() {
    if (slots.size() <= options.max_names) return;
    std::vector<Slot*> idle;
    for (const auto& [id, slot] : slots) {
      if (slot->asked_count == 0 && slot->owed_count == 0) idle.push_back(slot.get());
    }
    const size_t count = std::min({idle.size(), slots.size() - options.max_names + options.max_names / 8, kMaxIdsInMessage / 8});
    std::partial_sort(idle.begin(), idle.begin() + static_cast<std::ptrdiff_t>(count), idle.end(),
                      [](const Slot* a, const Slot* b) { return a->used < b->used; });
    for (size_t n = 0; n < count; ++n) {
      Slot& slot = *idle[n];
      for (size_t i = 0; i < slot.participants(); ++i) {
        if (slot.known[i] != 0) ranks[WorldRank(slot, i)].out.forget.push_back(slot.id);
      }
      slot_ids.erase(SlotKey(slot.group->id, slot.name));
      slots.erase(slot.id);
    }
  }
};

Coordinator::Coordinator(CoordinatorOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->ranks.resize(impl_->options.size);
  std::vector<int> world(impl_->options.size);
  for (int rank = 0; rank < impl_->options.size; ++rank) world[rank] = rank;
  impl_->AddGroup(impl_->options.world_group, world);
}

Coordinator::~Coordinator() = default;

void Coordinator::set_fuse_below(int64_t bytes) { impl_->options.fuse_below = bytes; }

Status Coordinator::Take(int rank, const Requests& requests, Time now) {
  Impl& impl = *impl_;
  if (impl.ranks[rank].left) return DataLossError("a request after the rank has left");
  Finished(rank, requests.finished);
  for (const uint64_t id : requests.ids) {
    const auto slot = impl.slots.find(id);
    if (slot == impl.slots.end()) continue;  // forgotten: the rank will ask in full
    MXREC_RETURN_IF_ERROR(impl.Ask(*slot->second, rank, nullptr, now));
  }
  for (const RequestRows& rows : requests.rows) {
    const auto slot = impl.slots.find(rows.id);
    if (slot == impl.slots.end()) continue;
    const int i = Impl::Participant(*slot->second, rank);
    const Fields agreed = i < 0 ? nullptr : slot->second->agreed[i];
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
  for (Impl::Slot* const slot : impl_->active) {
    const auto waited = now - slot->since;
    if (waited >= impl_->options.stall_abort) {
      return FailedPreconditionError(text_of(*slot) + "; the limit is " + std::to_string(impl_->options.stall_abort.count()) +
                                     " ms");
    }
    if (waited >= impl_->options.stall_warning && !slot->warned) {
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
int Coordinator::ranks_left() const { return impl_->left_count; }
size_t Coordinator::waiting() const { return impl_->active.size() + impl_->pending_groups.size(); }
std::string Coordinator::LastOperation(int rank) const { return impl_->LastOperation(rank); }

}  // namespace mxrec
