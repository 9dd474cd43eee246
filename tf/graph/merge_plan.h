// Which collective operations of a graph may become one operation of several tensors. Knows nothing of TensorFlow.
//
// What ranks wait for in each other must not change, whatever graphs the other ranks run. So nodes are merged only if the same
// meetings come before them, and the same come after them. A meeting is a node that may wait for more than its inputs: for another
// rank, the client, a queue. Then a meeting waits for the end of just those meetings for which it waited before, so no rank can
// wait for another one in a circle that was not there; and the graph still has no cycle, since what leads from one merged node to
// another leads from each of its members to each of the other's.
//
// Members of a node are ready at about the same time, as far as the graph tells: by the longest path that leads to them.
#ifndef MXREC_TF_GRAPH_MERGE_PLAN_H_
#define MXREC_TF_GRAPH_MERGE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mxrec {

struct MergeNode {
  std::vector<int> successors;  // duplicates allowed
  bool meets = false;           // implied for candidates
  int kind = -1;                // candidates of one kind >= 0 may become one node; below 0: no candidate
  int64_t bytes = 0;            // that a candidate carries
};

struct MergeLimits {
  // Of one node together. A candidate of more bytes stays alone.
  int64_t bytes = int64_t{4} << 20;
  size_t members = 256;
  // A node covers at most this part of the way from the first of the candidates it was chosen from to the last.
  int parts = 8;
  // Above so many entries in the sets of meetings (some bytes each) nothing is merged.
  size_t entries = size_t{4} << 20;
};

// Groups of two or more candidates, in the order in which they become ready, as are the members of each. Empty when the graph has a
// cycle to begin with.
std::vector<std::vector<int>> PlanMerge(std::span<const MergeNode> nodes, const MergeLimits& limits);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_MERGE_PLAN_H_
