#include "tf/graph/step_order_pass.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "mxrec/base/environment_switch.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/graph/graph.h"
#include "tf/graph/branches.h"
#include "tf/graph/table_nodes.h"

namespace mxrec {
namespace {

using tensorflow::ControlFlowInfo;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

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
    const auto disabled = ReadSwitch("MXREC_DISABLE_STEP_ORDER");
    if (!disabled.ok()) return ToTf(disabled.status());
    if (*disabled == true) return TfStatus();
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
