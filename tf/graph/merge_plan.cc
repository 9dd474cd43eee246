#include "tf/graph/merge_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace mxrec {
namespace {

using Neighbours = std::vector<std::vector<int>>;

// Sets of nodes, each kept once and known by its number; the empty one is 0.
class Sets {
 public:
  explicit Sets(size_t most) : most_(most) { Number({}); }

  // Of the union of the sets, with one node more if `node` is 0 or more.
  int Union(std::vector<int> sets, int node) {
    std::sort(sets.begin(), sets.end());
    sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
    if (!sets.empty() && sets.front() == 0) sets.erase(sets.begin());
    if (node < 0 && sets.size() <= 1) return sets.empty() ? 0 : sets.front();
    if (node < 0) {
      const auto known = unions_.find(sets);
      if (known != unions_.end()) return known->second;
    }
    std::vector<int> all;
    for (const int set : sets) all.insert(all.end(), of_[set]->begin(), of_[set]->end());
    if (node >= 0) all.push_back(node);
    entries_ += all.size();
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    const int number = Number(std::move(all));
    if (node < 0) unions_.emplace(std::move(sets), number);
    return number;
  }

  bool TooMany() const { return entries_ > most_; }

 private:
  int Number(std::vector<int> set) {
    const auto [place, fresh] = numbers_.try_emplace(std::move(set), static_cast<int>(of_.size()));
    if (fresh) of_.push_back(&place->first);
    return place->second;
  }

  size_t most_;
  size_t entries_ = 0;  // that were put together, of sets there were before too
  std::map<std::vector<int>, int> numbers_, unions_;
  std::vector<const std::vector<int>*> of_;
};

bool Meets(const MergeNode& node) { return node.meets || node.kind >= 0; }

// An order in which no node comes before one that leads to it; shorter than the nodes when there is a cycle.
std::vector<int> OrderOf(std::span<const MergeNode> nodes) {
  std::vector<int> waiting(nodes.size(), 0), order;
  for (const MergeNode& node : nodes) {
    for (const int next : node.successors) ++waiting[next];
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (waiting[i] == 0) order.push_back(static_cast<int>(i));
  }
  for (size_t done = 0; done < order.size(); ++done) {
    for (const int next : nodes[order[done]].successors) {
      if (--waiting[next] == 0) order.push_back(next);
    }
  }
  return order;
}

// By node: which meetings it comes after, itself left out. `sources` lead to a node, and come before it in `order`.
template <typename Order>
std::vector<int> MeetingsBehind(std::span<const MergeNode> nodes, const Neighbours& sources, const Order& order, Sets* sets) {
  std::vector<int> behind(nodes.size(), 0), with_itself(nodes.size(), 0);
  for (const int i : order) {
    std::vector<int> before;
    for (const int source : sources[i]) before.push_back(with_itself[source]);
    behind[i] = sets->Union(std::move(before), -1);
    with_itself[i] = Meets(nodes[i]) ? sets->Union({behind[i]}, i) : behind[i];
    if (sets->TooMany()) return {};
  }
  return behind;
}

// Nodes of a class, which may all be one node, cut where they are ready at other times or too large together.
void Cut(std::span<const MergeNode> nodes, const std::vector<int>& depth, const std::vector<int>& all, const MergeLimits& limits,
         std::vector<std::vector<int>>* groups) {
  const int most_deep = (depth[all.back()] - depth[all.front()]) / limits.parts;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    int64_t bytes = 0;
    for (end = begin; end < all.size() && depth[all[end]] - depth[all[begin]] <= most_deep; ++end) bytes += nodes[all[end]].bytes;
    // As many nodes as the limits ask for, of equal size.
    const int64_t by_members = static_cast<int64_t>((end - begin + limits.members - 1) / limits.members);
    const int64_t pieces = std::max({int64_t{1}, (bytes + limits.bytes - 1) / limits.bytes, by_members});
    const int64_t share = (bytes + pieces - 1) / pieces;
    const size_t members = (end - begin + static_cast<size_t>(by_members) - 1) / static_cast<size_t>(by_members);
    std::vector<int> group;
    int64_t sum = 0;
    const auto close = [&] {
      if (group.size() > 1) groups->push_back(group);
      group.clear();
      sum = 0;
    };
    for (size_t i = begin; i < end; ++i) {
      const int64_t more = nodes[all[i]].bytes;
      if (!group.empty() && (sum + more > limits.bytes || sum >= share || group.size() >= members)) close();
      group.push_back(all[i]);
      sum += more;
    }
    close();
  }
}

}  // namespace

std::vector<std::vector<int>> PlanMerge(std::span<const MergeNode> nodes, const MergeLimits& limits) {
  const std::vector<int> order = OrderOf(nodes);
  if (order.size() != nodes.size()) return {};
  Neighbours sources(nodes.size()), successors(nodes.size());
  std::vector<int> depth(nodes.size(), 0);
  for (const int i : order) {
    successors[i] = nodes[i].successors;
    for (const int next : successors[i]) {
      sources[next].push_back(i);
      depth[next] = std::max(depth[next], depth[i] + 1);
    }
  }
  Sets sets(limits.entries);
  const std::vector<int> before = MeetingsBehind(nodes, sources, order, &sets);
  const std::vector<int> backwards(order.rbegin(), order.rend());
  const std::vector<int> after = before.empty() ? before : MeetingsBehind(nodes, successors, backwards, &sets);
  if (after.empty()) return {};

  std::map<std::tuple<int, int, int>, std::vector<int>> classes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].kind >= 0 && nodes[i].bytes <= limits.bytes) {
      classes[{nodes[i].kind, before[i], after[i]}].push_back(static_cast<int>(i));
    }
  }
  std::vector<std::vector<int>> groups;
  const auto sooner = [&](int a, int b) { return std::pair(depth[a], a) < std::pair(depth[b], b); };
  for (auto& [key, all] : classes) {
    std::sort(all.begin(), all.end(), sooner);
    Cut(nodes, depth, all, limits, &groups);
  }
  std::sort(groups.begin(), groups.end(), [&](const auto& a, const auto& b) { return sooner(a.front(), b.front()); });
  return groups;
}

}  // namespace mxrec
