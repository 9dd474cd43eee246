#include "tf/graph/merge_pass.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mxrec/base/environment_switch.h"
#include "mxrec/base/hash.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tf/comm_runtime.h"
#include "tf/graph/branches.h"
#include "tf/graph/node_groups.h"
#include "tf/graph/npu_optimizer_pass.h"
#include "tf/node_attrs.h"

namespace mxrec {
namespace {

using tensorflow::ControlFlowInfo;
using tensorflow::Edge;
using tensorflow::GetNodeAttr;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeBuilder;

// Larger ones cost more time between the ranks than in the executor, and gain by starting each by itself.
constexpr int64_t kSmallBytes = int64_t{128} << 10;
constexpr char kBytesAttr[] = "_mxrec_bytes";

bool IsHcom(const Node& node) { return node.type_string() == "HcomAllReduce"; }

template <typename T>
T AttrOr(const Node& node, const char* name, T otherwise) {
  T value{};
  return GetNodeAttr(node.attrs(), name, &value).ok() ? value : otherwise;
}

std::string TextAttr(const Node& node, const char* name) { return AttrOr<std::string>(node, name, ""); }

// The kernel refuses scales of integers, and tells the other ranks under the name of the node.
bool IsRefused(const Node& node) {
  const auto scales = [&](const char* attr) {
    const std::string text = TextAttr(node, attr);
    return !text.empty() && text != "1" && text != "1.0";
  };
  return tensorflow::DataTypeIsInteger(node.input_type(0)) && (scales("prescale") || scales("postscale"));
}

bool IsCandidate(const Node& node) {
  if (!IsHcom(node) && node.type_string() != "MxrecAllReduce") return false;
  if (node.num_inputs() != 1 || IsRefused(node)) return false;
  const int64_t bytes = AttrOr<int64_t>(node, kBytesAttr, -1);
  return bytes >= 0 && bytes <= kSmallBytes && AttrOr<int64_t>(node, "fusion", 1) != 0 &&
         node.attrs().Find(kNoFusionAttr) == nullptr && node.attrs().Find(kMergedNamesAttr) == nullptr && !TakesReference(node);
}

// What the ranks call the tensor.
std::string NameOf(const Node& node) {
  std::string name = TextAttr(node, "tensor_name");
  return name.empty() ? node.name() : name;
}

// What nodes that become one have in common; the branches of conds beside it.
using Likeness = std::tuple<std::string, std::string, std::string, std::string, std::string, std::string, std::string, bool, bool,
                            int64_t, int64_t, std::vector<int>>;

Likeness LikenessOf(const Node& node) {
  std::vector<int> controls;
  for (const Edge* edge : node.in_edges()) {
    if (edge->IsControlEdge() && !edge->src()->IsSource()) controls.push_back(edge->src()->id());
  }
  std::sort(controls.begin(), controls.end());
  return {
      node.type_string(),
      node.assigned_device_name(),
      TextAttr(node, "group"),
      TextAttr(node, "reduction"),
      TextAttr(node, "prescale"),
      TextAttr(node, "postscale"),
      TextAttr(node, "wire"),
      AttrOr<bool>(node, "average", false),
      TextAttr(node, "tensor_name").empty(),  // runs of one node may wait for each other, equal names given by hand are a mistake
      AttrOr<int64_t>(node, "fusion", 1),
      AttrOr<int64_t>(node, "fusion_id", -1),
      std::move(controls)};
}

TfStatus Merge(Graph* graph, const std::vector<Node*>& nodes) {
  Hasher64 hasher;
  std::vector<std::string> names, origins, lines;
  std::vector<NodeBuilder::NodeOut> inputs;
  for (const Node* node : nodes) {
    // As in fuse_pass.cc: other nodes, another name; the same ones in a later graph, the same.
    hasher.Update(node->name());
    hasher.Update("\n");
    names.push_back(NameOf(*node));
    origins.push_back(node->name());
    lines.push_back(TextAttr(*node, kLineAttr));
    inputs.push_back(InputOf(*node, 0));
  }
  const Node& first = *nodes.front();
  const std::string merged_name = JoinedName("mxrec_merged", nodes.size(), first.type_string(), hasher.digest());
  for (const Node* node : graph->op_nodes()) {
    if (node->name() == merged_name) return TfStatus();  // the user's own
  }
  NodeBuilder builder(merged_name, "MxrecAllReduce", graph->op_registry());
  builder.Input(inputs);
  for (const char* attr : {"group", "reduction", "prescale", "postscale", "wire", "tensor_name"}) {
    if (const std::string text = TextAttr(first, attr); !text.empty()) builder.Attr(attr, text);
  }
  builder.Attr("average", AttrOr<bool>(first, "average", false));
  builder.Attr(kMergedNamesAttr, names).Attr(kMergedNodesAttr, origins).Attr(kMergedLinesAttr, lines);
  builder.Attr(kMergedHcomAttr, IsHcom(first));
  builder.Device(first.requested_device()).AssignedDevice(first.assigned_device_name());
  Node* merged = nullptr;
  MXREC_TF_RETURN_IF_ERROR(builder.Finalize(graph, &merged));
  AddControlInputs(graph, nodes, merged);
  for (size_t i = 0; i < nodes.size(); ++i) {
    MoveUsers(graph, nodes[i], merged, [i](int) { return static_cast<int>(i); });
    graph->RemoveNode(nodes[i]);
  }
  return TfStatus();
}

class MergePass : public tensorflow::GraphOptimizationPass {
 public:
  TfStatus Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    const auto setting = ReadSwitchOrNumber("MXREC_MERGE", 1'000'000);
    if (!setting.ok()) return ToTf(setting.status());
    if (setting->has_value() ? **setting == 0 : ConfiguredComm().size == 1) return TfStatus();
    if (options.is_function_graph || options.graph == nullptr || *options.graph == nullptr) return TfStatus();
    MergeLimits limits;
    if (setting->value_or(0) >= 2) limits.members = static_cast<size_t>(**setting);
    limits.bytes = std::min(limits.bytes, ConfiguredComm().fusion_bytes);
    return limits.bytes == 0 ? TfStatus() : MergeAllReduces(options.graph->get(), limits);
  }
};
// After the passes that add edges (StepOrderPass, 100) and join exchanges and tables (101, 102).
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 103, MergePass);

}  // namespace

TfStatus MergeAllReduces(Graph* graph, const MergeLimits& limits) {
  std::vector<Node*> candidates;
  for (Node* node : graph->op_nodes()) {
    if (IsCandidate(*node)) candidates.push_back(node);
  }
  if (candidates.size() < 2) return TfStatus();
  std::vector<ControlFlowInfo> frames;
  MXREC_TF_RETURN_IF_ERROR(tensorflow::BuildControlFlowInfo(graph, &frames));
  std::erase_if(candidates, [&](const Node* node) { return !frames[node->id()].frame_name.empty(); });
  if (candidates.size() < 2) return TfStatus();

  std::vector<PlanNode> plan = PlanNodes(*graph, frames);
  std::vector<MergeNode> nodes(plan.size());
  for (size_t i = 0; i < plan.size(); ++i) {
    nodes[i].successors = std::move(plan[i].successors);
    nodes[i].meets = i >= static_cast<size_t>(graph->num_node_ids());  // a loop, in which there may be anything
  }
  for (const Node* node : graph->op_nodes()) nodes[node->id()].meets = MayWaitForMore(*graph, *node);
  const Branches branches(*graph);
  std::map<std::pair<Likeness, int>, int> kinds;
  for (const Node* node : candidates) {
    nodes[node->id()].kind = kinds.try_emplace({LikenessOf(*node), branches.Of(*node)}, kinds.size()).first->second;
    nodes[node->id()].bytes = AttrOr<int64_t>(*node, kBytesAttr, 0);
  }
  std::vector<std::vector<Node*>> groups;
  for (const std::vector<int>& ids : PlanMerge(nodes, limits)) {
    std::vector<Node*>& group = groups.emplace_back();
    for (const int id : ids) group.push_back(graph->FindNodeId(id));
  }
  for (const std::vector<Node*>& group : groups) MXREC_TF_RETURN_IF_ERROR(Merge(graph, group));
  return TfStatus();
}

}  // namespace mxrec
