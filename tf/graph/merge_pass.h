// Merge: small allreduces of one run become few ops of several tensors.
//
// A step that sums 200 small gradients runs 200 asynchronous ops, and TensorFlow spends on each what the sum itself costs. The pass
// puts MxrecAllReduce nodes of one tensor, and HcomAllReduce nodes, in MxrecAllReduce nodes of several. Each tensor keeps
// the name that the ranks agree on and the node and line that messages name (attributes _mxrec_merged_...), and is asked for by
// itself, so ranks need not merge alike: one may run other fetches, or without the pass.
//
// Merged are nodes
//   - of the same group, reduction, scales, type on the wire, fusion and fusion_id (other than fusion 0), device, branches of conds
//     and control inputs, outside of while loops;
//   - whose tensor is known to be small (attribute _mxrec_bytes, of Python: at most 128 KiB), up to 1 MiB together, or what
//     the communicator packs if that is less;
//   - that wait for the same collectives, queues and feeds, and for which the same ones wait: no rank waits for another because of
//   the
//     pass (merge_plan.h); and that are ready at about the same time, so that reductions run while the backward pass goes on.
// Functions are left alone, fetches and feeds work by name as before, and a second run finds nothing to do.
// Without MXREC_MERGE in the environment the pass runs where there are several ranks. MXREC_MERGE=0 switches it off, 1 on in one
// process too, a number of 2 or more as well and sets how many tensors an op has at most. A communicator that must not pack
// (fusion_bytes 0) and the session option that switches fusions off (kNoFusionAttr) switch it off too.
#ifndef MXREC_TF_GRAPH_MERGE_PASS_H_
#define MXREC_TF_GRAPH_MERGE_PASS_H_

#include "tf/graph/merge_plan.h"
#include "tf/status_adapter.h"

namespace tensorflow {
class Graph;
}

namespace mxrec {

TfStatus MergeAllReduces(tensorflow::Graph* graph, const MergeLimits& limits);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_MERGE_PASS_H_
