#include "tf/graph/step_order_pass.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/graph/graph.h"
#include "tf/graph/table_nodes.h"

namespace mxrec {
namespace {

using tensorflow::ControlFlowInfo;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

// Branches: which branches of conds a node lies in, as a sorted list of (predicate, branch). A node is skipped only if one of its
// branches is. Interned, because most nodes share few lists.
using BranchId = int64_t;
class Branches {
 public:
  explicit Branches(const Graph& graph) : of_(graph.num_node_ids(), 0) {
    Intern({});
    // Kahn's order over all edges but those from NextIteration, the only ones that close a cycle.
    std::vector<int> waiting(graph.num_node_ids(), 0);
    std::vector<const Node*> ready;
    for (const Node* node : graph.nodes()) {
      for (const Edge* edge : node->in_edges()) waiting[node->id()] += edge->src()->IsNextIteration() ? 0 : 1;
      if (waiting[node->id()] == 0) ready.push_back(node);
    }
    while (!ready.empty()) {
      const Node* node = ready.back();
      ready.pop_back();
      of_[node->id()] = Compute(*node);
      if (node->IsNextIteration()) continue;
      for (const Edge* edge : node->out_edges()) {
        if (--waiting[edge->dst()->id()] == 0) ready.push_back(edge->dst());
      }
    }
  }

  // Whether `inner` lies in every branch that `outer` lies in: then, whenever inner runs, outer runs.
  bool RunsWhenever(const Node& outer, const Node& inner) const {
    const std::vector<BranchId>& a = lists_[of_[inner.id()]];
    const std::vector<BranchId>& b = lists_[of_[outer.id()]];
    return std::includes(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  int Intern(std::vector<BranchId> list) {
    const auto [place, is_new] = ids_.emplace(std::move(list), static_cast<int>(lists_.size()));
    if (is_new) lists_.push_back(place->first);
    return place->second;
  }

  // The branches of what flows along an edge.
  int Along(const Edge& edge) {
    const Node& source = *edge.src();
    const int base = of_[source.id()];
    if (edge.IsControlEdge() || !IsSwitchLike(source)) return base;
    const Edge* predicate = nullptr;
    if (!source.input_edge(1, &predicate).ok()) return base;
    // The switch of a while loop ends the loop; what leaves the loop always runs.
    if (predicate->src()->IsLoopCond()) return base;
    std::vector<BranchId> list = lists_[base];
    const BranchId branch = (static_cast<BranchId>(predicate->src()->id()) << 24) |
                            (static_cast<BranchId>(predicate->src_output()) << 16) | static_cast<BranchId>(edge.src_output());
    const auto place = std::lower_bound(list.begin(), list.end(), branch);
    if (place == list.end() || *place != branch) list.insert(place, branch);
    return Intern(std::move(list));
  }

  int Compute(const Node& node) {
    int result = -1;
    int control = 0;
    for (const Edge* edge : node.in_edges()) {
      if (edge->src()->IsNextIteration()) continue;
      const int along = Along(*edge);
      // A merge runs when any of its inputs does, every other node when all of them do.
      if (!node.IsMerge() || edge->IsControlEdge()) {
        control = Unite(control, along);
      } else {
        result = result < 0 ? along : Intersect(result, along);
      }
    }
    return result < 0 ? control : Unite(result, control);
  }

  int Unite(int a, int b) {
    if (a == b || b == 0) return a;
    if (a == 0) return b;
    std::vector<BranchId> list;
    std::set_union(lists_[a].begin(), lists_[a].end(), lists_[b].begin(), lists_[b].end(), std::back_inserter(list));
    return Intern(std::move(list));
  }
  int Intersect(int a, int b) {
    if (a == b) return a;
    std::vector<BranchId> list;
    std::set_intersection(lists_[a].begin(), lists_[a].end(), lists_[b].begin(), lists_[b].end(), std::back_inserter(list));
    return Intern(std::move(list));
  }

  std::vector<int> of_;
  std::vector<std::vector<BranchId>> lists_;
  std::map<std::vector<BranchId>, int> ids_;
};

// Marks everything that depends on `start` in `mark` with `stamp`.
void MarkDescendants(const Node* start, int stamp, std::vector<int>* mark) {
  std::vector<const Node*> open = {start};
  (*mark)[start->id()] = stamp;
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const Edge* edge : node->out_edges()) {
      int& seen = (*mark)[edge->dst()->id()];
      if (seen == stamp) continue;
      seen = stamp;
      open.push_back(edge->dst());
    }
  }
}

class StepOrderPass : public tensorflow::GraphOptimizationPass {
 public:
  TfStatus Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    const char* disabled = std::getenv("MXREC_DISABLE_STEP_ORDER");
    if (disabled != nullptr && std::string_view(disabled) == "1") return TfStatus();
    if (options.graph != nullptr && *options.graph != nullptr) {
      MXREC_TF_RETURN_IF_ERROR(OrderLookupsBeforeApplies(options.graph->get(), nullptr));
    }
    if (options.partition_graphs != nullptr) {
      for (auto& [device, graph] : *options.partition_graphs) {
        MXREC_TF_RETURN_IF_ERROR(OrderLookupsBeforeApplies(graph.get(), nullptr));
      }
    }
    return TfStatus();
  }
};
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 100, StepOrderPass);

}  // namespace

TfStatus OrderLookupsBeforeApplies(Graph* graph, int* added) {
  if (added != nullptr) *added = 0;
  std::vector<Node*> applies, readers;
  for (Node* node : graph->op_nodes()) {
    if (IsApply(*node)) applies.push_back(node);
    if (IsReader(*node)) readers.push_back(node);
  }
  if (applies.empty() || readers.empty()) return TfStatus();

  std::vector<ControlFlowInfo> frames;
  MXREC_TF_RETURN_IF_ERROR(tensorflow::BuildControlFlowInfo(graph, &frames));
  const auto in_loop = [&](const Node* node) { return !frames[node->id()].frame_name.empty(); };
  std::erase_if(applies, in_loop);
  std::erase_if(readers, in_loop);
  std::map<std::string, std::vector<Node*>> readers_of;
  for (Node* reader : readers) readers_of[TableOf(reader)].push_back(reader);
  // By name, so that the outcome does not depend on the order of the graph.
  std::sort(applies.begin(), applies.end(), [](const Node* a, const Node* b) { return a->name() < b->name(); });

  const Branches branches(*graph);
  std::vector<int> mark(graph->num_node_ids(), 0);
  int stamp = 0;
  for (Node* apply : applies) {
    const auto found = readers_of.find(TableOf(apply));
    if (found == readers_of.end()) continue;
    // Edges into the apply do not change what depends on it, so one walk serves all its readers; later applies walk a graph
    // that has the new edges, so edges of several tables cannot close a cycle together.
    MarkDescendants(apply, ++stamp, &mark);
    for (Node* reader : found->second) {
      if (mark[reader->id()] == stamp || !branches.RunsWhenever(*reader, *apply)) continue;
      if (graph->AddControlEdge(reader, apply) != nullptr && added != nullptr) ++*added;
    }
  }
  return TfStatus();
}

}  // namespace mxrec
