// StepOrder: within one run, lookups of a table come before its update.
//
// TensorFlow runs ops as soon as their inputs are there, so a lookup that is fetched beside a training step may see the
// rows before or after the update. The pass adds a control edge from every reader of a table (MxrecLookup, MxrecLookupReceived,
// MxrecTableFind, MxrecTableExport) to every MxrecApply of it in the pruned graph of a run; so a run reads the rows as of its
// start.
//
// No edge is added
//   - where the reader depends on the apply: that reader is meant to see the update;
//   - where either lies inside a while loop: an edge between frames is illegal, and inside a loop each iteration has its own order;
//   - where the reader may be skipped while the apply runs (a branch of a cond that is not taken): the edge would skip the
//     apply too. Such a reader is ordered only by its data.
//   - where the edge would close a cycle through another table's edges.
// Two handle ops are one table if they have the same container and shared_name. The pass runs in every session and function,
// returns at once in graphs without MxrecApply, may run any number of times, and looks at each apply's descendants once.
// MXREC_DISABLE_STEP_ORDER=1 in the environment turns it off.
#ifndef MXREC_TF_GRAPH_STEP_ORDER_PASS_H_
#define MXREC_TF_GRAPH_STEP_ORDER_PASS_H_

#include "tf/status_adapter.h"

namespace tensorflow {
class Graph;
}

namespace mxrec {

// Adds the edges; *added (may be null) receives their number.
TfStatus OrderLookupsBeforeApplies(tensorflow::Graph* graph, int* added);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_STEP_ORDER_PASS_H_
