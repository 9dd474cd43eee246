#include "tf/graph/fuse_pass.h"

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
#include "tensorflow/core/common_runtime/process_util.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/public/session_options.h"
#include "tf/graph/branches.h"
#include "tf/graph/fuse_plan.h"
#include "tf/graph/node_groups.h"
#include "tf/graph/npu_optimizer_pass.h"
#include "tf/graph/table_nodes.h"

namespace mxrec {
namespace {

using tensorflow::ControlFlowInfo;
using tensorflow::Edge;
using tensorflow::GetNodeAttr;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeBuilder;

// Up to here fused ops were not slower than single ones, whose rows stay in a core's cache through the step.
constexpr int64_t kFewIds = 128;

bool IsLookup(const Node& node) { return node.type_string() == "MxrecLookup"; }

template <typename T>
void Append(const std::vector<T>& from, std::vector<T>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

// How many ids a lookup has, as far as the graph tells (its placeholders, and with them their shapes, are gone by now).
bool HasFewIds(const Node& lookup, int64_t most) {
  int64_t ids = -1;
  return GetNodeAttr(lookup.attrs(), "static_ids", &ids).ok() && ids >= 0 && ids <= most;
}

// Whether a lookup has at most so many ids, and an update only parts of such lookups.
bool IsSmall(const Node& node, int64_t most) {
  if (IsLookup(node)) return HasFewIds(node, most);
  int64_t hypers = 0, parts = 0;
  if (!GetNodeAttr(node.attrs(), "H", &hypers).ok() || !GetNodeAttr(node.attrs(), "P", &parts).ok()) return false;
  for (int64_t p = 0; p < parts; ++p) {
    const Edge* keys = nullptr;
    if (!node.input_edge(static_cast<int>(1 + hypers + p), &keys).ok()) return false;
    if (!IsLookup(*keys->src()) || !HasFewIds(*keys->src(), most)) return false;
  }
  return true;
}

// The MxrecExpand nodes that spread just what this lookup found, and wait for nothing else.
std::vector<Node*> ExpandsOf(const Node& lookup) {
  std::vector<Node*> found;
  for (const Edge* edge : lookup.out_edges()) {
    Node* node = edge->dst();
    if (edge->IsControlEdge() || edge->dst_input() != 0 || edge->src_output() != 0) continue;
    if (node->type_string() != "MxrecExpand" || node->assigned_device_name() != lookup.assigned_device_name()) continue;
    const bool alone = std::all_of(node->in_edges().begin(), node->in_edges().end(), [&](const Edge* in) {
      return in->src() == &lookup && (in->IsControlEdge() || in->src_output() == in->dst_input());
    });
    if (alone) found.push_back(node);
  }
  return found;
}

TfStatus BuildLookups(const std::vector<Node*>& nodes, NodeBuilder* builder) {
  std::vector<NodeBuilder::NodeOut> handles, ids, default_rows;
  std::vector<int64_t> dims, never_trained, never_trained_counts, expanded_of;
  std::vector<bool> training;
  for (const Node* node : nodes) {
    if (!ExpandsOf(*node).empty()) expanded_of.push_back(static_cast<int64_t>(handles.size()));
    handles.push_back(InputOf(*node, 0));
    ids.push_back(InputOf(*node, 1));
    default_rows.push_back(InputOf(*node, 2));
    int64_t dim = 0;
    bool trained = true;
    std::vector<int64_t> left_out;
    MXREC_TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "dim", &dim));
    MXREC_TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "training", &trained));
    MXREC_TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "never_trained", &left_out));
    dims.push_back(dim);
    training.push_back(trained);
    never_trained_counts.push_back(static_cast<int64_t>(left_out.size()));
    Append(left_out, &never_trained);
  }
  builder->Input(handles).Input(ids).Input(default_rows);
  builder->Attr("dims", dims).Attr("training", training);
  builder->Attr("never_trained", never_trained).Attr("never_trained_counts", never_trained_counts);
  builder->Attr("expanded_of", expanded_of).Attr("E", static_cast<int64_t>(expanded_of.size()));
  return TfStatus();
}

TfStatus BuildApplies(const std::vector<Node*>& nodes, NodeBuilder* builder) {
  constexpr int kLists = 9;  // inputs of which each part has one
  std::vector<NodeBuilder::NodeOut> tables, hyper;
  std::vector<std::vector<NodeBuilder::NodeOut>> lists(kLists);
  std::vector<std::string> optimizers, option_names;
  std::vector<float> option_values;
  std::vector<int64_t> hyper_counts, part_counts, option_counts;
  std::vector<bool> dense, shared;
  for (const Node* node : nodes) {
    int64_t hypers = 0, parts = 0;
    std::string optimizer;
    std::vector<std::string> names;
    std::vector<float> values;
    std::vector<bool> is_dense, is_shared;
    MXREC_TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "H", &hypers));
    MXREC_TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "P", &parts));
    MXREC_TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "optimizer", &optimizer));
    MXREC_TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "option_names", &names));
    MXREC_TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "option_values", &values));
    MXREC_TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "dense", &is_dense));
    MXREC_TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "shared", &is_shared));
    tables.push_back(InputOf(*node, 0));
    int input = 1;
    for (int64_t h = 0; h < hypers; ++h) hyper.push_back(InputOf(*node, input++));
    for (auto& list : lists) {
      for (int64_t p = 0; p < parts; ++p) list.push_back(InputOf(*node, input++));
    }
    optimizers.push_back(optimizer);
    hyper_counts.push_back(hypers);
    part_counts.push_back(parts);
    option_counts.push_back(static_cast<int64_t>(names.size()));
    Append(names, &option_names);
    Append(values, &option_values);
    Append(is_dense, &dense);
    Append(is_shared, &shared);
  }
  builder->Input(tables).Input(hyper);
  for (const auto& list : lists) builder->Input(list);
  builder->Attr("optimizers", optimizers).Attr("hyper_counts", hyper_counts).Attr("part_counts", part_counts);
  builder->Attr("option_names", option_names).Attr("option_values", option_values).Attr("option_counts", option_counts);
  builder->Attr("dense", dense).Attr("shared", shared);
  return TfStatus();
}

// A session keeps the kernels of stateful ops by the names of their nodes, across all graphs that it runs. So another set of nodes,
// or expanding others of them, needs another name, and the same in a later graph of the session is welcome to the same one.
std::string FusedName(const std::vector<Node*>& nodes, const char* what) {
  Hasher64 hasher;
  for (const Node* node : nodes) {
    hasher.Update(node->name());
    hasher.Update(IsLookup(*node) && !ExpandsOf(*node).empty() ? "\nexpanded\n" : "\n");
  }
  return JoinedName("mxrec_fused", nodes.size(), what, hasher.digest());
}

// Puts one node in the place of several, which it treats in parallel if `side_by_side`.
TfStatus Replace(Graph* graph, const std::vector<Node*>& nodes, bool side_by_side) {
  const bool lookups = IsLookup(*nodes.front());
  const int count = static_cast<int>(nodes.size());
  const std::string fused_name = FusedName(nodes, lookups ? "lookups" : "updates");
  for (const Node* node : graph->op_nodes()) {
    if (node->name() == fused_name) return TfStatus();  // the user's own; it stays as it is
  }
  NodeBuilder builder(fused_name, lookups ? "MxrecLookupMany" : "MxrecApplyMany", graph->op_registry());
  MXREC_TF_RETURN_IF_ERROR(lookups ? BuildLookups(nodes, &builder) : BuildApplies(nodes, &builder));
  std::vector<std::string> names;
  for (const Node* node : nodes) names.push_back(node->name());
  builder.Attr("names", names).Attr("side_by_side", side_by_side);
  builder.Device(nodes.front()->requested_device()).AssignedDevice(nodes.front()->assigned_device_name());
  Node* fused = nullptr;
  MXREC_TF_RETURN_IF_ERROR(builder.Finalize(graph, &fused));
  AddControlInputs(graph, nodes, fused);

  constexpr int kLookupOutputs = 6;
  int expanded = kLookupOutputs * count;
  for (int t = 0; t < count; ++t) {
    if (lookups) {
      const std::vector<Node*> expands = ExpandsOf(*nodes[t]);
      for (Node* expand : expands) {
        MoveUsers(graph, expand, fused, [expanded](int) { return expanded; });
        graph->RemoveNode(expand);
      }
      if (!expands.empty()) ++expanded;
    }
    MoveUsers(graph, nodes[t], fused, [count, t](int output) { return output * count + t; });
    graph->RemoveNode(nodes[t]);
  }
  return TfStatus();
}

class FusePass : public tensorflow::GraphOptimizationPass {
 public:
  TfStatus Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    const auto setting = FuseSetting();
    if (!setting.ok()) return ToTf(setting.status());
    const bool by_size = !setting->has_value();
    const int most = setting->value_or(0);
    if (!by_size && most < 1) return TfStatus();
    if (options.is_function_graph || options.graph == nullptr || *options.graph == nullptr) return TfStatus();
    FuseOptions fuse;
    fuse.threads = options.session_options == nullptr ? tensorflow::port::MaxParallelism()
                                                      : tensorflow::NumInterOpThreadsFromSessionOptions(*options.session_options);
    fuse.most = most >= 2 ? most : 0;
    fuse.max_ids = by_size ? kFewIds : -1;
    return FuseTableOps(options.graph->get(), fuse);
  }
};
// After StepOrderPass (100), whose edges decide what depends on what, and UntrainedTablesPass (101), which looks for the single
// ops.
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 102, FusePass);

// How many ops n nodes become.
size_t OpsFor(size_t n, const FuseOptions& options) {
  constexpr size_t kMost = 4, kMostSmall = 8;
  const size_t usual = options.max_ids >= 0 ? kMostSmall : kMost;
  const size_t most = options.most > 0 ? static_cast<size_t>(options.most) : usual;
  const size_t ops = (n + most - 1) / most;
  if (options.most > 0 || options.threads <= 1) return ops;
  // Two for each thread: tables differ in size.
  return std::max(ops, std::min(n, 2 * static_cast<size_t>(options.threads)));
}

}  // namespace

Result<std::optional<int>> FuseSetting() { return ReadSwitchOrNumber("MXREC_FUSE", 1'000'000); }

TfStatus FuseTableOps(Graph* graph, const FuseOptions& options) {
  std::vector<Node*> candidates;
  for (Node* node : graph->op_nodes()) {
    if ((IsLookup(*node) || IsApply(*node)) && node->attrs().Find(kNoFusionAttr) == nullptr) candidates.push_back(node);
  }
  if (options.max_ids >= 0) std::erase_if(candidates, [&](const Node* node) { return !IsSmall(*node, options.max_ids); });
  if (candidates.size() < 2) return TfStatus();
  std::sort(candidates.begin(), candidates.end(), [](const Node* a, const Node* b) { return a->name() < b->name(); });

  std::vector<ControlFlowInfo> frames;
  MXREC_TF_RETURN_IF_ERROR(tensorflow::BuildControlFlowInfo(graph, &frames));
  std::erase_if(candidates, [&](const Node* node) { return !frames[node->id()].frame_name.empty() || TakesReference(*node); });
  DropThoseThatMustRunApart(*graph, /*collectives=*/true, &candidates);
  if (candidates.size() < 2) return TfStatus();

  const Branches branches(*graph);
  std::map<const Node*, std::vector<int>> feeds = FeedsOf(*graph, candidates);
  std::vector<PlanNode> plan = PlanNodes(*graph, frames);
  std::map<std::string, int> updates;  // of each table, so far
  std::map<std::tuple<bool, std::string, int, std::vector<int>, int>, int> kinds;
  for (const Node* node : candidates) {
    const bool lookup = IsLookup(*node);
    const int turn = lookup ? 0 : updates[TableOf(node)]++;
    const auto kind =
        kinds.try_emplace({lookup, node->assigned_device_name(), branches.Of(*node), feeds[node], turn}, kinds.size());
    plan[node->id()].kind = kind.first->second;
  }
  std::vector<std::vector<Node*>> groups;
  for (const std::vector<int>& ids : PlanFusion(plan)) {
    std::vector<Node*> group;
    for (int id : ids) group.push_back(graph->FindNodeId(id));
    // By table, so that an update takes the tables of few lookups.
    std::sort(group.begin(), group.end(),
              [](const Node* a, const Node* b) { return std::pair(TableOf(a), a->name()) < std::pair(TableOf(b), b->name()); });
    groups.push_back(std::move(group));
  }
  for (const std::vector<Node*>& group : groups) {
    const size_t n = group.size(), ops = OpsFor(n, options);
    // Where ops run one by one, or are fewer than the threads, parallel work can only come from inside.
    const bool side_by_side = options.threads <= 1 || ops < static_cast<size_t>(options.threads);
    for (size_t i = 0; i < ops; ++i) {
      const std::vector<Node*> some(group.begin() + n * i / ops, group.begin() + n * (i + 1) / ops);
      if (some.size() > 1) MXREC_TF_RETURN_IF_ERROR(Replace(graph, some, side_by_side));
    }
  }
  return TfStatus();
}

}  // namespace mxrec
