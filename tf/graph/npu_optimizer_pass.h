// The graph pass behind the custom optimizer "NpuOptimizer" of a session's rewrite options.
//
// TensorFlow calls it for each new set of feeds and fetches, once per iteration of its meta optimizer (twice by default; again in
// the worker of a server session), after its own rewrites. It must therefore do nothing to a graph that it has done before. Graphs
// of fewer than four nodes reach it only with rewrite_options.min_graph_nodes = -1 (npu_bridge sets that in the configuration it
// hands to TensorFlow). Functions, loops and branches are left as they are.
//
// TensorFlow drops an optimizer that fails and runs the graph without it, in silence. So options that do not pass the check are
// reported by the graph itself: everything fetched or run then waits for an op MxrecFail, which fails with the message.
#ifndef MXREC_TF_GRAPH_NPU_OPTIMIZER_PASS_H_
#define MXREC_TF_GRAPH_NPU_OPTIMIZER_PASS_H_

#include <string>

#include "mxrec/base/status.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tf/graph/npu_options.h"

namespace mxrec {

// The attribute of table ops and allreduces that must not be fused with others (tf/graph/fuse_pass.h, merge_pass.h).
inline constexpr char kNoFusionAttr[] = "_mxrec_no_fusion";

// Makes every run of the graph fail with `error`.
void MakeGraphFail(const Status& error, const tensorflow::grappler::GrapplerItem& item, tensorflow::GraphDef* graph);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_NPU_OPTIMIZER_PASS_H_
