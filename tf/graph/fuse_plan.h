// Which nodes of a graph can be replaced by one node together. Knows nothing of TensorFlow.
#ifndef MXREC_TF_GRAPH_FUSE_PLAN_H_
#define MXREC_TF_GRAPH_FUSE_PLAN_H_

#include <span>
#include <vector>

namespace mxrec {

struct PlanNode {
  std::vector<int> successors;  // duplicates allowed
  int kind = -1;                // nodes of one kind >= 0 may become one node; below 0: stays alone
};

// Groups of two or more nodes of one kind such that, when each group becomes one node, the graph still has no cycle. In
// particular no node of a group depends on another one of it. Groups come in the order of their first node, nodes in rising order.
// The result is empty when the graph has a cycle to begin with.
//
// A node's level is the largest number of nodes that could be fused on a path to it; nodes of equal kind and level become a
// group. Along any path from one group to another the level rises, so no path leads back. Cost: O(nodes + edges).
std::vector<std::vector<int>> PlanFusion(std::span<const PlanNode> nodes);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_FUSE_PLAN_H_
