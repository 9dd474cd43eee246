// What passes need that put one node in the place of several: which nodes may be joined, and the joining.
#ifndef MXREC_TF_GRAPH_NODE_GROUPS_H_
#define MXREC_TF_GRAPH_NODE_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tf/graph/fuse_plan.h"

namespace mxrec {

// Whether an input is a reference variable's, which lists of inputs do not take.
bool TakesReference(const tensorflow::Node& node);

// Drops the candidates that could wait for something which only happens after another candidate: what a queue or an iterator hands
// out; with `collectives`, also what another rank sends.
void DropThoseThatMustRunApart(const tensorflow::Graph& graph, bool collectives, std::vector<tensorflow::Node*>* candidates);

// Whether a node may wait for something else than its inputs, or make something else go on than what takes its outputs: another
// rank, another device, the client, a queue, an iterator, a lock, Python, or, in a function, any of these.
bool MayWaitForMore(const tensorflow::Graph& graph, const tensorflow::Node& node);

// By candidate: the client's feeds that it depends on, in graphs whose feeds may come one by one.
std::map<const tensorflow::Node*, std::vector<int>> FeedsOf(const tensorflow::Graph& graph,
                                                            const std::vector<tensorflow::Node*>& candidates);

// The graph for PlanFusion, by node id; a while loop with all that is inside is one more node.
std::vector<PlanNode> PlanNodes(const tensorflow::Graph& graph, const std::vector<tensorflow::ControlFlowInfo>& frames);

// The source of an input, for a builder; empty when there is none, which the builder reports.
tensorflow::NodeBuilder::NodeOut InputOf(const tensorflow::Node& node, int index);

// Name of the node that takes the place of `count` others: "<prefix>/<count>_<what>_<digest of what tells it from others>".
std::string JoinedName(const std::string& prefix, size_t count, const std::string& what, uint64_t digest);

// What the nodes wait for by control edges, the new node waits for too.
void AddControlInputs(tensorflow::Graph* graph, const std::vector<tensorflow::Node*>& nodes, tensorflow::Node* joined);

// Lets an output of `joined` take the place of one of `node`'s; `place` maps outputs.
template <typename Place>
void MoveUsers(tensorflow::Graph* graph, tensorflow::Node* node, tensorflow::Node* joined, const Place& place) {
  // A copy: removing an edge changes the set.
  const std::vector<const tensorflow::Edge*> edges(node->out_edges().begin(), node->out_edges().end());
  for (const tensorflow::Edge* edge : edges) {
    tensorflow::Node* user = edge->dst();
    const int output = edge->src_output(), input = edge->dst_input();
    const bool control = edge->IsControlEdge();
    graph->RemoveEdge(edge);
    if (control) {
      graph->AddControlEdge(joined, user);
    } else {
      graph->AddEdge(joined, place(output), user, input);
    }
  }
}

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_NODE_GROUPS_H_
