// What graph passes know of our nodes: which kind a node is, which table it works on.
#ifndef MXREC_TF_GRAPH_TABLE_NODES_H_
#define MXREC_TF_GRAPH_TABLE_NODES_H_

#include <optional>
#include <string>

namespace tensorflow {
class Node;
}

namespace mxrec {

bool IsApply(const tensorflow::Node& node);
// MxrecLookup, MxrecLookupReceived, MxrecTableFind, MxrecTableExport.
bool IsReader(const tensorflow::Node& node);
// Switch or _SwitchN.
bool IsSwitchLike(const tensorflow::Node& node);

// The table a reader or apply works on, as text: container and shared name of its handle op, or the name of whatever else its
// handle comes from (an argument of a function). Two nodes work on one table if their texts are equal.
std::string TableOf(const tensorflow::Node* node);

// The shared name alone (`mxrec/<table>`); nullopt when the handle op is not in the graph.
std::optional<std::string> SharedNameOf(const tensorflow::Node* node);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_TABLE_NODES_H_
