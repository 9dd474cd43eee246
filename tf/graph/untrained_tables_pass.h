// UntrainedTables: one warning in the log for a table that a training step forgets.
//
// A TensorFlow optimizer's minimize() does not know tables: it trains the dense variables, and the rows stay as they are without a
// word. The pass sees the pruned graph of a run, so it warns at the first step and never for prediction or evaluation: when a
// variable is updated by one of TensorFlow's optimizer ops (ApplyAdam, ResourceSparseApplyAdagrad, ...) with something computed
// from a lookup with training=True, while neither the run nor a function in its library has an MxrecApply for that table.
//
// A script may train variables and tables in runs of their own. So Python notes each update op it builds (tf/table_notes.h), and a
// table that has one anywhere in its graph is left alone. Tables go by shared name; the newest graph with a table of that name
// counts. The pass changes no graph.
#ifndef MXREC_TF_GRAPH_UNTRAINED_TABLES_PASS_H_
#define MXREC_TF_GRAPH_UNTRAINED_TABLES_PASS_H_

#include <string>
#include <vector>

namespace tensorflow {
class FunctionLibraryDefinition;
class Graph;
}  // namespace tensorflow

namespace mxrec {

// Shared names of the tables that a run of this graph leaves untrained, sorted; what was noted is not looked at. `library` has the
// functions of the whole session: the graph's own has only those that this run calls.
std::vector<std::string> UntrainedTables(const tensorflow::Graph& graph, const tensorflow::FunctionLibraryDefinition& library);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_UNTRAINED_TABLES_PASS_H_
