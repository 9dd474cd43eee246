// In which branches of conds the nodes of a graph lie.
#ifndef MXREC_TF_GRAPH_BRANCHES_H_
#define MXREC_TF_GRAPH_BRANCHES_H_

#include <cstdint>
#include <map>
#include <vector>

namespace tensorflow {
class Edge;
class Graph;
class Node;
}  // namespace tensorflow

namespace mxrec {

// Branches: which branches of conds a node lies in, as a sorted list of (predicate, branch). A node runs if and only if all of its
// branches are taken. Where TensorFlow's graph allows no such list (a merge of unrelated branches, which ordinary conds never
// make), the merge itself stands in it: "runs when that merge runs". Lists are interned, because most nodes share few. Holds for
// the graph as it was at construction.
class Branches {
 public:
  explicit Branches(const tensorflow::Graph& graph);

  // Whether `inner` lies in every branch that `outer` lies in: then, whenever inner runs, outer runs.
  bool RunsWhenever(const tensorflow::Node& outer, const tensorflow::Node& inner) const;
  // Equal for nodes that run in the same cases; 0 for nodes that always run.
  int Of(const tensorflow::Node& node) const;

 private:
  using Branch = int64_t;
  using List = std::vector<Branch>;
  int Intern(List list);
  int Along(const tensorflow::Edge& edge);
  int Compute(const tensorflow::Node& node);
  int ComputeMerge(const tensorflow::Node& merge);
  int Unite(int a, int b);

  std::vector<int> of_;
  std::vector<List> lists_;
  std::map<List, int> ids_;
  std::map<Branch, int> choices_;  // how many branches a predicate chooses among
};

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_BRANCHES_H_
