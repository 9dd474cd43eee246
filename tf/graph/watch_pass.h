// WatchPass: gives a graph with collectives one MxrecStepWatch (tf/kernels/step_watch.h), which refuses those that a failed step
// has not asked for. Named are those that run in every step: outside of while loops and of the branches of conds. Only where there
// are several ranks; functions are left alone. A second run finds nothing to do.
#ifndef MXREC_TF_GRAPH_WATCH_PASS_H_
#define MXREC_TF_GRAPH_WATCH_PASS_H_

#include "tf/status_adapter.h"

namespace tensorflow {
class Graph;
}

namespace mxrec {

TfStatus AddWatch(tensorflow::Graph* graph);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_WATCH_PASS_H_
