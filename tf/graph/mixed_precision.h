// Automatic mixed precision for the graph of a session, by TensorFlow's own passes.
//
// On a GPU the pass for float16, on a CPU with bfloat16 arithmetic the one for bfloat16; elsewhere the graph stays float32, with
// one warning. The environment variable MXREC_BFLOAT16 (1 or 0) takes the place of the look at the CPU. Ops built in
// keep_dtype_scope (attribute _keep_dtype) keep their types, and so does what is fetched or fed. Functions of the graph's library
// are left alone.
#ifndef MXREC_TF_GRAPH_MIXED_PRECISION_H_
#define MXREC_TF_GRAPH_MIXED_PRECISION_H_

#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/grappler/clusters/cluster.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tf/graph/npu_options.h"

namespace mxrec {

// Whether bfloat16 is to be used on this CPU.
bool CpuHasBfloat16();

// Rewrites *graph, which is that of the item or what has become of it. Does nothing to a graph that it has rewritten before. A
// failure of TensorFlow's pass is a warning, and the graph stays as it was.
void ApplyMixedPrecision(const NpuOptions& options, tensorflow::grappler::Cluster* cluster,
                         const tensorflow::grappler::GrapplerItem& item, tensorflow::GraphDef* graph);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_MIXED_PRECISION_H_
