#include "tf/graph/branches.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tensorflow/core/graph/graph.h"
#include "tf/graph/table_nodes.h"

namespace mxrec {
namespace {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

// A branch is a number: what decides (the predicate's node and output, or a merge), then which way.
constexpr int64_t kWays = int64_t{1} << 16;
int64_t ChoiceOf(const Edge& predicate) {
  return (static_cast<int64_t>(predicate.src()->id()) << 8 | static_cast<int64_t>(predicate.src_output() & 0xff)) * kWays;
}
int64_t RunOf(const Node& merge) { return (static_cast<int64_t>(merge.id()) << 8) * kWays + (kWays - 1); }

}  // namespace

Branches::Branches(const Graph& graph) : of_(graph.num_node_ids(), 0) {
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
    of_[node->id()] = node->IsMerge() ? ComputeMerge(*node) : Compute(*node);
    if (node->IsNextIteration()) continue;
    for (const Edge* edge : node->out_edges()) {
      if (--waiting[edge->dst()->id()] == 0) ready.push_back(edge->dst());
    }
  }
}

bool Branches::RunsWhenever(const Node& outer, const Node& inner) const {
  const List &a = lists_[of_[inner.id()]], &b = lists_[of_[outer.id()]];
  return std::includes(a.begin(), a.end(), b.begin(), b.end());
}

int Branches::Of(const Node& node) const { return of_[node.id()]; }

int Branches::Intern(List list) {
  const auto [place, is_new] = ids_.emplace(std::move(list), static_cast<int>(lists_.size()));
  if (is_new) lists_.push_back(place->first);
  return place->second;
}

// The branches of what flows along an edge.
int Branches::Along(const Edge& edge) {
  const Node& source = *edge.src();
  const int base = of_[source.id()];
  if (edge.IsControlEdge() || !IsSwitchLike(source)) return base;
  const Edge* predicate = nullptr;
  if (!source.input_edge(1, &predicate).ok()) return base;
  // The switch of a while loop ends the loop; what leaves the loop always runs.
  if (predicate->src()->IsLoopCond()) return base;
  List list = lists_[base];
  const Branch choice = ChoiceOf(*predicate), branch = choice + edge.src_output();
  choices_[choice] = std::max(choices_[choice], source.num_outputs());
  const auto place = std::lower_bound(list.begin(), list.end(), branch);
  if (place == list.end() || *place != branch) list.insert(place, branch);
  return Intern(std::move(list));
}

// A node runs when all of its inputs do, those of control edges too.
int Branches::Compute(const Node& node) {
  int result = 0;
  for (const Edge* edge : node.in_edges()) {
    if (!edge->src()->IsNextIteration()) result = Unite(result, Along(*edge));
  }
  return result;
}

// A merge runs when any of its inputs does; control edges it only waits for.
int Branches::ComputeMerge(const Node& merge) {
  std::vector<int> inputs;
  bool loop = false;
  for (const Edge* edge : merge.in_edges()) {
    if (edge->IsControlEdge()) continue;
    if (edge->src()->IsNextIteration()) {
      loop = true;
    } else {
      inputs.push_back(Along(*edge));
    }
  }
  if (inputs.empty()) return 0;
  List common = lists_[inputs.front()];
  for (int input : inputs) {
    const List& list = lists_[input];
    List both;
    std::set_intersection(common.begin(), common.end(), list.begin(), list.end(), std::back_inserter(both));
    common = std::move(both);
  }
  // The end of a cond: what is not common to the inputs is each way of one choice, once.
  List ways;
  bool whole = true;
  for (int input : inputs) {
    const List& list = lists_[input];
    List own;
    std::set_difference(list.begin(), list.end(), common.begin(), common.end(), std::back_inserter(own));
    whole = whole && own.size() == 1;
    if (own.size() == 1) ways.push_back(own.front());
  }
  std::sort(ways.begin(), ways.end());
  ways.erase(std::unique(ways.begin(), ways.end()), ways.end());
  if (whole) {
    const Branch choice = ways.front() - ways.front() % kWays;
    const auto count = choices_.find(choice);
    whole = ways.back() < choice + kWays && count != choices_.end() && static_cast<int>(ways.size()) == count->second;
  }
  // One input that always runs is enough; so is the one with which a loop begins.
  const bool always = std::any_of(inputs.begin(), inputs.end(), [&](int input) { return lists_[input].size() == common.size(); });
  if (!whole && !always && !loop) common.insert(std::upper_bound(common.begin(), common.end(), RunOf(merge)), RunOf(merge));
  return Intern(std::move(common));
}

int Branches::Unite(int a, int b) {
  if (a == b || b == 0) return a;
  if (a == 0) return b;
  List list;
  std::set_union(lists_[a].begin(), lists_[a].end(), lists_[b].begin(), lists_[b].end(), std::back_inserter(list));
  return Intern(std::move(list));
}

}  // namespace mxrec
