#include "tf/graph/table_nodes.h"

#include <string_view>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"

namespace mxrec {
namespace {

using tensorflow::Edge;
using tensorflow::Node;

// Where a handle comes from.
struct HandleSource {
  const Node* table = nullptr;  // the MxrecTable node, if there is one
  std::string otherwise;        // a name for what is there instead
};

HandleSource FindHandle(const Node* node) {
  // Handles pass through few ops; the bound only guards against a loop.
  for (int steps = 0; steps < 64; ++steps) {
    const Edge* handle = nullptr;
    if (!node->input_edge(0, &handle).ok()) break;
    const Node* source = handle->src();
    if (source->type_string() == "MxrecTable") return {.table = source, .otherwise = {}};
    const bool passes_on =
        source->IsIdentity() || source->IsEnter() || source->IsExit() || IsSwitchLike(*source) || source->IsMerge();
    if (!passes_on) return {.otherwise = source->name() + ':' + std::to_string(handle->src_output())};
    node = source;
  }
  return {.otherwise = node->name()};
}

std::string SharedName(const Node& table) {
  std::string name;
  if (!tensorflow::GetNodeAttr(table.attrs(), "shared_name", &name).ok() || name.empty()) name = table.name();
  return name;
}

}  // namespace

bool IsApply(const Node& node) { return node.type_string() == "MxrecApply"; }

bool IsReader(const Node& node) {
  const std::string_view type = node.type_string();
  return type == "MxrecLookup" || type == "MxrecLookupReceived" || type == "MxrecTableFind" || type == "MxrecTableExport";
}

bool IsSwitchLike(const Node& node) { return node.IsSwitch() || node.type_string() == "_SwitchN"; }

std::string TableOf(const Node* node) {
  const HandleSource source = FindHandle(node);
  if (source.table == nullptr) return '\n' + source.otherwise;
  std::string container;
  if (!tensorflow::GetNodeAttr(source.table->attrs(), "container", &container).ok()) container.clear();
  return container + '\n' + SharedName(*source.table);
}

std::optional<std::string> SharedNameOf(const Node* node) {
  const HandleSource source = FindHandle(node);
  if (source.table == nullptr) return std::nullopt;
  return SharedName(*source.table);
}

}  // namespace mxrec
