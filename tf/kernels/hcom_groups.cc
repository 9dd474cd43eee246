#include "tf/kernels/hcom_groups.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "tf/c_api.h"

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

namespace {

thread_local std::string last_error;

const char* TextOf(const mxrec::Status& status) {
  if (status.ok()) return nullptr;
  last_error = status.message();
  return last_error.c_str();
}

}  // namespace

void mxrec_hcom_set_world(int rank, int size) { mxrec::SetHcomWorld({.rank = rank, .size = size}); }

const char* mxrec_hcom_add_group(const char* name, const int* ranks, int count) {
  return TextOf(mxrec::AddHcomGroup(name, std::vector<int>(ranks, ranks + count)));
}

const char* mxrec_hcom_remove_group(const char* name) { return TextOf(mxrec::RemoveHcomGroup(name)); }

const char* mxrec_hcom_find_group(const char* name, int* ranks, int capacity, int* count) {
  const mxrec::Result<std::vector<int>> found = mxrec::FindHcomGroup(name);
  if (!found.ok()) return TextOf(found.status());
  *count = static_cast<int>(found->size());
  for (int i = 0; i < std::min(*count, capacity); ++i) ranks[i] = (*found)[static_cast<size_t>(i)];
  return nullptr;
}
