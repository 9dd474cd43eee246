#include "tf/graph/untrained_tables_pass.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "mxrec/base/log.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"
#include "tf/graph/table_nodes.h"
#include "tf/status_adapter.h"
#include "tf/table_notes.h"

namespace mxrec {
namespace {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

constexpr std::string_view kNamePrefix = "mxrec/";  // of a table's shared name

bool SkipPrefix(std::string_view* text, std::string_view prefix) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// (Resource)(Sparse)Apply<Optimizer>.
bool IsVariableUpdate(const Node& node) {
  std::string_view type = node.type_string();
  SkipPrefix(&type, "Resource");
  SkipPrefix(&type, "Sparse");
  return SkipPrefix(&type, "Apply") && !type.empty() && type[0] >= 'A' && type[0] <= 'Z';
}

bool IsTrainingLookup(const Node& node) {
  bool training = false;
  const std::string_view type = node.type_string();
  if (type != "MxrecLookup" && type != "MxrecLookupReceived") return false;
  return tensorflow::GetNodeAttr(node.attrs(), "training", &training).ok() && training;
}

// Whether a function that a run may call updates some table: then it is not known which.
bool AFunctionUpdatesTables(const tensorflow::FunctionLibraryDefinition& library) {
  for (const std::string& name : library.ListFunctionNames()) {
    const tensorflow::FunctionDef* function = library.Find(name);
    if (function == nullptr) continue;
    for (const tensorflow::NodeDef& node : function->node_def()) {
      if (node.op() == "MxrecApply") return true;
    }
  }
  return false;
}

// Marks what `starts` depend on by data.
std::vector<bool> Ancestors(const Graph& graph, const std::vector<const Node*>& starts) {
  std::vector<bool> seen(graph.num_node_ids(), false);
  std::vector<const Node*> open = starts;
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (seen[node->id()]) continue;
    seen[node->id()] = true;
    for (const Edge* edge : node->in_edges()) {
      if (!edge->IsControlEdge()) open.push_back(edge->src());
    }
  }
  return seen;
}

class UntrainedTablesPass : public tensorflow::GraphOptimizationPass {
 public:
  TfStatus Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr) return TfStatus();
    const auto* library = options.flib_def != nullptr ? options.flib_def : &(*options.graph)->flib_def();
    for (const std::string& shared_name : UntrainedTables(**options.graph, *library)) {
      if (!ShallWarnOfUntrained(shared_name)) continue;
      std::string_view name = shared_name;
      SkipPrefix(&name, kNamePrefix);
      MXREC_LOG(WARNING)
          << "table '" << name << "' is not trained: this step updates variables with gradients of a loss that looks "
          << "ids up in it, but no mxrec optimizer updates the table. Use mxrec.minimize(loss, optimizer), or apply "
          << "gradients of mxrec.get_sparse_embedding() with an mxrec optimizer, or say training=False in the lookup";
    }
    return TfStatus();
  }
};
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 101, UntrainedTablesPass);

}  // namespace

std::vector<std::string> UntrainedTables(const Graph& graph, const tensorflow::FunctionLibraryDefinition& library) {
  std::vector<const Node*> lookups, updates;
  std::set<std::string> trained;
  for (const Node* node : graph.op_nodes()) {
    if (IsTrainingLookup(*node)) lookups.push_back(node);
    if (IsVariableUpdate(*node)) updates.push_back(node);
    if (IsApply(*node)) trained.insert(TableOf(node));
  }
  std::erase_if(lookups, [&](const Node* lookup) { return trained.contains(TableOf(lookup)); });
  if (lookups.empty() || updates.empty() || AFunctionUpdatesTables(library)) return {};
  const std::vector<bool> used = Ancestors(graph, updates);
  std::set<std::string> names;
  for (const Node* lookup : lookups) {
    if (!used[lookup->id()]) continue;
    if (const std::optional<std::string> name = SharedNameOf(lookup)) names.insert(*name);
  }
  return {names.begin(), names.end()};
}

}  // namespace mxrec
