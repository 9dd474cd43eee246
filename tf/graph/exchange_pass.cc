#include "tf/graph/exchange_pass.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "mxrec/base/hash.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tf/graph/branches.h"
#include "tf/graph/fuse_pass.h"
#include "tf/graph/fuse_plan.h"
#include "tf/graph/node_groups.h"
#include "tf/graph/npu_optimizer_pass.h"
#include "tf/node_attrs.h"

namespace mxrec {
namespace {

using tensorflow::ControlFlowInfo;
using tensorflow::GetNodeAttr;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeBuilder;

struct Kind {
  std::string_view type;
  int inputs, outputs;  // lists of them, with one tensor a lookup
};
constexpr Kind kKinds[] = {{"MxrecExchangeKeys", 3, 3}, {"MxrecExchangeRows", 4, 1}, {"MxrecExchangeGradients", 3, 1}};

const Kind* KindOf(const Node& node) {
  const auto* found =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& kind) { return kind.type == node.type_string(); });
  return found == std::end(kKinds) ? nullptr : found;
}

std::string TextAttr(const Node& node, const char* name) {
  std::string text;
  return GetNodeAttr(node.attrs(), name, &text).ok() ? text : std::string();
}

// As in fuse_pass.cc: other nodes, another name; the same ones in a later graph, the same.
std::string NameFor(const std::vector<Node*>& nodes) {
  Hasher64 hasher;
  for (const Node* node : nodes) {
    hasher.Update(node->name());
    hasher.Update("\n");
  }
  return JoinedName("mxrec_joined", nodes.size(), nodes.front()->type_string(), hasher.digest());
}

TfStatus Join(Graph* graph, const std::vector<Node*>& nodes) {
  const Kind& kind = *KindOf(*nodes.front());
  const std::string name = NameFor(nodes);
  for (const Node* node : graph->op_nodes()) {
    if (node->name() == name) return TfStatus();  // the user's own
  }
  std::vector<int64_t> counts;
  int64_t total = 0;
  std::vector<bool> mean;
  bool training = false;
  std::string line;
  for (const Node* node : nodes) {
    int64_t n = 0;
    MXREC_TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "N", &n));
    counts.push_back(n);
    total += n;
    std::vector<bool> own;
    if (GetNodeAttr(node->attrs(), "mean", &own).ok()) mean.insert(mean.end(), own.begin(), own.end());
    bool trained = false;
    training = training || (GetNodeAttr(node->attrs(), "training", &trained).ok() && trained);
    if (line.empty()) line = TextAttr(*node, kLineAttr);
  }
  NodeBuilder builder(name, std::string(kind.type), graph->op_registry());
  for (int list = 0; list < kind.inputs; ++list) {
    std::vector<NodeBuilder::NodeOut> inputs;
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (int64_t t = 0; t < counts[i]; ++t) inputs.push_back(InputOf(*nodes[i], static_cast<int>(list * counts[i] + t)));
    }
    builder.Input(inputs);
  }
  builder.Attr("group", TextAttr(*nodes.front(), "group"));
  if (!mean.empty()) builder.Attr("mean", mean);
  if (kind.type == "MxrecExchangeRows") builder.Attr("training", training);
  if (!line.empty()) builder.Attr(kLineAttr, line);
  builder.Device(nodes.front()->requested_device()).AssignedDevice(nodes.front()->assigned_device_name());
  Node* joined = nullptr;
  MXREC_TF_RETURN_IF_ERROR(builder.Finalize(graph, &joined));
  AddControlInputs(graph, nodes, joined);
  int64_t before = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const int64_t n = counts[i];
    MoveUsers(graph, nodes[i], joined, [=](int output) { return static_cast<int>(output / n * total + before + output % n); });
    graph->RemoveNode(nodes[i]);
    before += n;
  }
  return TfStatus();
}

class ExchangePass : public tensorflow::GraphOptimizationPass {
 public:
  TfStatus Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    const auto setting = FuseSetting();
    if (!setting.ok()) return ToTf(setting.status());
    if (*setting == 0) return TfStatus();
    if (options.is_function_graph || options.graph == nullptr || *options.graph == nullptr) return TfStatus();
    return JoinExchanges(options.graph->get());
  }
};
// After StepOrderPass (100) and UntrainedTablesPass (101), before FusePass (102).
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 101, ExchangePass);

}  // namespace

TfStatus JoinExchanges(Graph* graph) {
  std::vector<Node*> candidates;
  for (Node* node : graph->op_nodes()) {
    if (KindOf(*node) != nullptr && TextAttr(*node, "tensor_name").empty() && node->attrs().Find(kNoFusionAttr) == nullptr) {
      candidates.push_back(node);
    }
  }
  if (candidates.size() < 2) return TfStatus();
  std::sort(candidates.begin(), candidates.end(), [](const Node* a, const Node* b) { return a->name() < b->name(); });

  std::vector<ControlFlowInfo> frames;
  MXREC_TF_RETURN_IF_ERROR(tensorflow::BuildControlFlowInfo(graph, &frames));
  std::erase_if(candidates, [&](const Node* node) { return !frames[node->id()].frame_name.empty() || TakesReference(*node); });
  // Other collectives need not be looked at: every rank joins alike, and none of them blocks a thread.
  DropThoseThatMustRunApart(*graph, /*collectives=*/false, &candidates);
  if (candidates.size() < 2) return TfStatus();

  const Branches branches(*graph);
  std::map<const Node*, std::vector<int>> feeds = FeedsOf(*graph, candidates);
  std::vector<PlanNode> plan = PlanNodes(*graph, frames);
  std::map<std::tuple<std::string, std::string, std::string, int, std::vector<int>>, int> kinds;
  for (const Node* node : candidates) {
    const auto kind = kinds.try_emplace(
        {node->type_string(), TextAttr(*node, "group"), node->assigned_device_name(), branches.Of(*node), feeds[node]},
        kinds.size());
    plan[node->id()].kind = kind.first->second;
  }
  std::vector<std::vector<Node*>> groups;
  for (const std::vector<int>& ids : PlanFusion(plan)) {
    std::vector<Node*> group;
    for (int id : ids) group.push_back(graph->FindNodeId(id));
    std::sort(group.begin(), group.end(), [](const Node* a, const Node* b) { return a->name() < b->name(); });
    groups.push_back(std::move(group));
  }
  for (const std::vector<Node*>& group : groups) MXREC_TF_RETURN_IF_ERROR(Join(graph, group));
  return TfStatus();
}

}  // namespace mxrec
