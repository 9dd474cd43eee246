#include "tf/graph/watch_pass.h"

#include <algorithm>
#include <string>
#include <vector>

#include "mxrec/base/hash.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tf/comm_runtime.h"
#include "tf/graph/branches.h"
#include "tf/graph/node_groups.h"
#include "tf/node_attrs.h"
#include "tf/turn_key.h"

namespace mxrec {
namespace {

using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeBuilder;

bool IsOurs(const Node& node) { return node.type_string().starts_with("Mxrec") || node.type_string().starts_with("Hcom"); }

// An op with a CollectiveKernel that meets the others under a name of its own.
bool IsCollective(const Node& node) {
  return IsOurs(node) && node.type_string() != "MxrecJoin" && node.op_def().is_distributed_communication();
}

class WatchPass : public tensorflow::GraphOptimizationPass {
 public:
  TfStatus Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (ConfiguredComm().size == 1 || options.is_function_graph || options.graph == nullptr || *options.graph == nullptr) {
      return TfStatus();
    }
    return AddWatch(options.graph->get());
  }
};
// After MergePass (103), which names nodes anew.
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 104, WatchPass);

}  // namespace

TfStatus AddWatch(Graph* graph) {
  std::vector<Node*> nodes;
  for (Node* node : graph->op_nodes()) {
    if (node->type_string() == "MxrecStepWatch") return TfStatus();
    if (IsCollective(*node)) nodes.push_back(node);
  }
  if (nodes.empty()) return TfStatus();
  std::vector<tensorflow::ControlFlowInfo> frames;
  MXREC_TF_RETURN_IF_ERROR(tensorflow::BuildControlFlowInfo(graph, &frames));
  const Branches branches(*graph);
  std::erase_if(nodes, [&](const Node* node) { return !frames[node->id()].frame_name.empty() || branches.Of(*node) != 0; });
  if (nodes.empty()) return TfStatus();
  std::vector<std::string> keys;
  for (const Node* node : nodes) keys.push_back(TurnKey(node->name(), node->attrs()));
  std::sort(keys.begin(), keys.end());
  // Sessions keep stateful kernels by name: other collectives, another name.
  Hasher64 hasher;
  for (const std::string& key : keys) {
    hasher.Update(key);
    hasher.Update("\n\n");
  }
  const std::string name = JoinedName("mxrec_watch", keys.size(), "MxrecStepWatch", hasher.digest());
  for (const Node* node : graph->op_nodes()) {
    if (node->name() == name) return TfStatus();  // the user's own
  }
  const Node& first = *nodes.front();
  NodeBuilder builder(name, "MxrecStepWatch", graph->op_registry());
  builder.Attr(kWatchedAttr, keys).Device(first.requested_device()).AssignedDevice(first.assigned_device_name());
  Node* watch = nullptr;
  MXREC_TF_RETURN_IF_ERROR(builder.Finalize(graph, &watch));
  // Before what may fail: a step that has failed starts no more ops.
  for (Node* node : graph->op_nodes()) {
    if (node != watch && IsOurs(*node) && frames[node->id()].frame_name.empty()) graph->AddControlEdge(watch, node);
  }
  graph->AddControlEdge(graph->source_node(), watch);
  graph->AddControlEdge(watch, graph->sink_node());
  return TfStatus();
}

}  // namespace mxrec
