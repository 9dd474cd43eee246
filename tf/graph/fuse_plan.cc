#include "tf/graph/fuse_plan.h"

#include <algorithm>
#include <map>
#include <utility>

namespace mxrec {

std::vector<std::vector<int>> PlanFusion(std::span<const PlanNode> nodes) {
  std::map<int, int> members;
  for (const PlanNode& node : nodes) ++members[node.kind];
  // A node that is the only one of its kind raises no level.
  const auto fusible = [&](int i) { return nodes[i].kind >= 0 && members.at(nodes[i].kind) > 1; };

  std::vector<int> waiting(nodes.size(), 0), level(nodes.size(), 0), ready;
  for (const PlanNode& node : nodes) {
    for (int next : node.successors) ++waiting[next];
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (waiting[i] == 0) ready.push_back(static_cast<int>(i));
  }
  size_t done = 0;
  for (; !ready.empty(); ++done) {
    const int node = ready.back();
    ready.pop_back();
    const int behind = level[node] + (fusible(node) ? 1 : 0);
    for (int next : nodes[node].successors) {
      level[next] = std::max(level[next], behind);
      if (--waiting[next] == 0) ready.push_back(next);
    }
  }
  if (done != nodes.size()) return {};

  std::map<std::pair<int, int>, std::vector<int>> found;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (fusible(static_cast<int>(i))) found[{nodes[i].kind, level[i]}].push_back(static_cast<int>(i));
  }
  std::vector<std::vector<int>> groups;
  for (auto& [key, group] : found) {
    if (group.size() > 1) groups.push_back(std::move(group));
  }
  std::sort(groups.begin(), groups.end());
  return groups;
}

}  // namespace mxrec
