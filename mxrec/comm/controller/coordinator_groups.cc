// Groups: made and removed by agreement of their members.
#include <algorithm>

#include "mxrec/comm/controller/coordinator_impl.h"
#include "mxrec/comm/rank_list.h"

namespace mxrec {

void Coordinator::Impl::FailGroup(const std::string& key, const Status& status) {
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

Status Coordinator::Impl::AskGroup(int rank, const GroupRequest& request, Time now) {
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
    const std::string text = "group '" + request.name + "': the ranks disagree about its members: " + RankList(others) + " said " +
                             list(pending.ranks) + ", rank " + std::to_string(rank) + " said " + list(members);
    for (const int member : members) {  // they too shall hear of it
      if (std::find(pending.ranks.begin(), pending.ranks.end(), member) == pending.ranks.end()) pending.ranks.push_back(member);
    }
    FailGroup(key, InvalidArgumentError(text));
    return OkStatus();
  }
  const std::optional<std::string> left =
      WhoLeft([&](int other) { return std::find(members.begin(), members.end(), other) != members.end(); }, false);
  if (left.has_value()) {
    FailGroup(key, FailedPreconditionError("group '" + request.name + "' cannot be " + (request.remove ? "removed: " : "made: ") +
                                           *left));
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

uint32_t Coordinator::Impl::AddGroup(const std::string& name, const std::vector<int>& members) {
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

void Coordinator::Impl::RemoveGroup(uint32_t id) {
  DissolveAll();
  Group& group = groups[id];
  // All members asked for the removal and have nothing of the group pending: its names go without a word.
  for (auto slot = slots.begin(); slot != slots.end();) {
    if (slot->second->group == &group) {
      owed -= slot->second->owed.size();
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

}  // namespace mxrec
