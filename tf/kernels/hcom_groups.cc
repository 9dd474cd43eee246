#include "tf/kernels/hcom_groups.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace mxrec {
namespace {

struct State {
  std::mutex mutex;
  HcomWorld world;
  std::map<std::string, std::vector<int>> groups;
};

State& GetState() {
  static State* state = new State;  // never destroyed: kernels may outlive static objects
  return *state;
}

}  // namespace

void SetHcomWorld(const HcomWorld& world) {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (world.rank != state.world.rank || world.size != state.world.size) state.groups.clear();
  state.world = world;
}

HcomWorld GetHcomWorld() {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.world;
}

Status AddHcomGroup(const std::string& name, const std::vector<int>& ranks) {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (name == kHcomWorldGroup || state.groups.contains(name)) return AlreadyExistsError("group '" + name + "' exists already");
  if (ranks.empty()) return InvalidArgumentError("group '" + name + "' needs at least one rank");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= state.world.size) {
      return InvalidArgumentError("group '" + name + "': rank " + std::to_string(ranks[i]) +
                                  " is outside of the world, expected 0 to " + std::to_string(state.world.size - 1));
    }
    if (std::find(ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(i), ranks[i]) !=
        ranks.begin() + static_cast<ptrdiff_t>(i)) {
      return InvalidArgumentError("group '" + name + "': rank " + std::to_string(ranks[i]) + " is there twice");
    }
  }
  state.groups[name] = ranks;
  return OkStatus();
}

Status RemoveHcomGroup(const std::string& name) {
  if (name == kHcomWorldGroup) return InvalidArgumentError("group '" + name + "' is the world's and cannot be destroyed");
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.groups.erase(name) == 0) return NotFoundError("there is no group '" + name + "'");
  return OkStatus();
}

Result<std::vector<int>> FindHcomGroup(const std::string& name) {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (name == kHcomWorldGroup) {
    std::vector<int> all(static_cast<size_t>(state.world.size));
    for (int rank = 0; rank < state.world.size; ++rank) all[static_cast<size_t>(rank)] = rank;
    return all;
  }
  if (const auto found = state.groups.find(name); found != state.groups.end()) return found->second;
  std::string known = kHcomWorldGroup;
  for (const auto& [other, ranks] : state.groups) known += ", " + other;
  return NotFoundError("there is no group '" + name + "'; groups: " + known);
}

}  // namespace mxrec
