// Fuse: the lookups of one run become one op, and so do its updates.
//
// A step with many tables runs an MxrecLookup, an MxrecExpand and an MxrecApply per table. The pass replaces those that can run at
// the same time by a few MxrecLookupMany, which expand as well, and MxrecApplyMany, in the order of their tables. The kernels share
// their code with the single ops, so results are the same to the bit. An op takes few tables: so its rows are in the cache when
// the step goes on with them, and the session's threads find other ops to run (FuseOptions).
//
// Fused are nodes of one type that
//   - lie on one device, outside of while loops, and run in the same cases (outside of all conds, or in the same branches);
//   - do not depend on each other, and neither through other groups: no cycle arises (fuse_plan.h). A loop counts as one node;
//   - need not run apart. A fused op waits for the inputs of all: so when something after a lookup or update can release others
//     (queues, stages, accumulators, py_func; collectives), those that wait for such things stay alone; and where a run may be fed
//     in pieces (partial_run, server sessions), only nodes that depend on the same feeds are fused;
//   - are of different tables, if they are updates.
// Feeds and fetches are edges of the graph by the time the pass runs, so both work on lookups by their names as before.
// Function bodies are left alone. The pass changes only the copy of the graph that belongs to one set of feeds and fetches, returns
// at once when there are not two nodes to fuse, and finds nothing more to do when it runs again.
// Without MXREC_FUSE in the environment only small lookups are fused, and updates that have only such lookups: those of which the
// attribute static_ids says that they have at most 128 ids. Larger ones run faster alone, and unknown ones may be large.
// MXREC_FUSE=0 switches the pass off, 1 fuses all sizes, a number of 2 or more does and sets FuseOptions::most. What it costs and
// brings: docs/decisions/0012.
#ifndef MXREC_TF_GRAPH_FUSE_PASS_H_
#define MXREC_TF_GRAPH_FUSE_PASS_H_

#include <cstdint>
#include <optional>

#include "mxrec/base/status.h"
#include "tf/status_adapter.h"

namespace tensorflow {
class Graph;
}

namespace mxrec {

struct FuseOptions {
  int threads = 1;  // that run ops of the session side by side
  // Tables in an op at most. 0: up to 4 (8 where max_ids is set), and as many ops as keep the threads busy; what then stays in an
  // op of its own stays a single op.
  int most = 0;
  // Fuse only lookups that are known to have at most so many ids (attribute static_ids), and updates with no others. -1: all.
  int64_t max_ids = -1;
};

// What MXREC_FUSE says, if anything: 0 (or a word for it: mxrec/base/environment_switch.h), 1 or a number of tables.
// kInvalidArgument when it says something else; every run of a session fails with it.
Result<std::optional<int>> FuseSetting();

// Fuses what can be fused.
TfStatus FuseTableOps(tensorflow::Graph* graph, const FuseOptions& options);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_FUSE_PASS_H_
