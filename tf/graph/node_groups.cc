#include "tf/graph/node_groups.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "tensorflow/core/framework/node_def_util.h"

namespace mxrec {

using tensorflow::ControlFlowInfo;
using tensorflow::Edge;
using tensorflow::GetNodeAttr;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeBuilder;

namespace {

bool Contains(const std::string& text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) { return text.find(part) != std::string::npos; });
}

// Ops between which a run has order that its edges do not show: one waits until another one, in this run or elsewhere, has run.
bool IsQueueLike(const Node& node) {
  return Contains(node.type_string(), {"Queue", "Stage", "nstage", "Barrier", "Accumulator", "PyFunc", "ReaderRead", "RemoteCall",
                                       "StatefulPartitionedCall"});
}
bool IsIterator(const Node& node) { return Contains(node.type_string(), {"IteratorGetNext"}); }
bool IsClientFeed(const Node& node) {
  bool by_client = false;
  return node.IsRecv() && GetNodeAttr(node.attrs(), "client_terminated", &by_client).ok() && by_client;
}
bool IsCollective(const Node& node) { return node.op_def().is_distributed_communication() && !node.IsRecv() && !node.IsSend(); }

// Which nodes, by id, depend on one of `from` (themselves included).
std::vector<bool> DependOn(const Graph& graph, std::vector<const Node*> from) {
  std::vector<bool> reached(graph.num_node_ids(), false);
  for (const Node* node : from) reached[node->id()] = true;
  while (!from.empty()) {
    const Node* node = from.back();
    from.pop_back();
    for (const Edge* edge : node->out_edges()) {
      if (reached[edge->dst()->id()]) continue;
      reached[edge->dst()->id()] = true;
      from.push_back(edge->dst());
    }
  }
  return reached;
}

template <typename Predicate>
std::vector<const Node*> NodesThat(const Graph& graph, const Predicate& predicate) {
  std::vector<const Node*> found;
  for (const Node* node : graph.op_nodes()) {
    if (predicate(*node)) found.push_back(node);
  }
  return found;
}

}  // namespace

bool TakesReference(const Node& node) {
  return std::any_of(node.in_edges().begin(), node.in_edges().end(), [](const Edge* edge) {
    return !edge->IsControlEdge() && tensorflow::IsRefType(edge->src()->output_type(edge->src_output()));
  });
}

void DropThoseThatMustRunApart(const Graph& graph, bool collectives, std::vector<Node*>* candidates) {
  const std::vector<bool> after = DependOn(graph, {candidates->begin(), candidates->end()});
  const auto drop = [&](const auto& waits, const auto& releases) {
    if (NodesThat(graph, [&](const Node& node) { return after[node.id()] && releases(node); }).empty()) return;
    const std::vector<bool> waiting = DependOn(graph, NodesThat(graph, waits));
    std::erase_if(*candidates, [&](const Node* node) { return waiting[node->id()]; });
  };
  drop([](const Node& node) { return IsQueueLike(node) || IsIterator(node); }, IsQueueLike);
  if (collectives) drop(IsCollective, IsCollective);
}

bool MayWaitForMore(const Graph& graph, const Node& node) {
  if (node.IsSend() || node.IsRecv() || IsCollective(node) || IsQueueLike(node) || IsIterator(node)) return true;
  if (Contains(node.type_string(), {"Mutex", "SingleElement", "ReduceDataset"})) return true;
  if (graph.flib_def().Find(node.type_string()) != nullptr) return true;
  return std::any_of(node.attrs().begin(), node.attrs().end(),
                     [](const auto& attr) { return attr.second.has_func() || attr.second.list().func_size() != 0; });
}

std::map<const Node*, std::vector<int>> FeedsOf(const Graph& graph, const std::vector<Node*>& candidates) {
  std::map<const Node*, std::vector<int>> feeds;
  for (const Node* feed : NodesThat(graph, IsClientFeed)) {
    const std::vector<bool> fed = DependOn(graph, {feed});
    for (const Node* node : candidates) {
      if (fed[node->id()]) feeds[node].push_back(feed->id());
    }
  }
  return feeds;
}

std::vector<PlanNode> PlanNodes(const Graph& graph, const std::vector<ControlFlowInfo>& frames) {
  std::map<std::string, int> loops;
  int count = graph.num_node_ids();
  std::vector<int> place(count, 0);
  for (const Node* node : graph.nodes()) {
    place[node->id()] = node->id();
    const ControlFlowInfo* info = &frames[node->id()];
    if (info->frame_name.empty()) continue;
    while (!frames[info->parent_frame->id()].frame_name.empty()) info = &frames[info->parent_frame->id()];
    const auto [loop, is_new] = loops.emplace(info->frame_name, count);
    count += is_new ? 1 : 0;
    place[node->id()] = loop->second;
  }
  std::vector<PlanNode> nodes(count);
  for (const Edge* edge : graph.edges()) {
    const int from = place[edge->src()->id()], to = place[edge->dst()->id()];
    if (from != to) nodes[from].successors.push_back(to);
  }
  return nodes;
}

NodeBuilder::NodeOut InputOf(const Node& node, int index) {
  const Edge* edge = nullptr;
  if (!node.input_edge(index, &edge).ok()) return {};  // the builder reports it
  return {edge->src(), edge->src_output()};
}

std::string JoinedName(const std::string& prefix, size_t count, const std::string& what, uint64_t digest) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest));
  return prefix + "/" + std::to_string(count) + "_" + what + "_" + text;
}

void AddControlInputs(Graph* graph, const std::vector<Node*>& nodes, Node* joined) {
  std::set<std::pair<std::string, Node*>> before;  // by name, for an outcome that does not depend on addresses
  for (const Node* node : nodes) {
    for (const Edge* edge : node->in_edges()) {
      if (edge->IsControlEdge()) before.emplace(edge->src()->name(), edge->src());
    }
  }
  for (const auto& [name, source] : before) graph->AddControlEdge(source, joined);
}

}  // namespace mxrec
