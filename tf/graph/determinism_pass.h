// The option `deterministic`: TensorFlow's op determinism while a session that asks for it runs.
//
// TensorFlow has one switch for the process, refuses random ops without a seed while it is on (in Python already when they are
// built), and a graph without seeds could not run at all. So the switch is on only from EnterDeterministicRun to
// LeaveDeterministicRun, which the session's run is put between, and a pass that sees each graph before its kernels are made looks
// for random ops without a seed. Where it finds one, the switch goes off for good, with one warning that names the op: what remains
// is what is repeatable anyway (docs/guide/determinism.md).
//
// A script that has switched op determinism on by itself keeps it. Threads: runs may overlap; the switch is on while one lasts.
#ifndef MXREC_TF_GRAPH_DETERMINISM_PASS_H_
#define MXREC_TF_GRAPH_DETERMINISM_PASS_H_

#include <string>

namespace tensorflow {
class FunctionLibraryDefinition;
class Graph;
}  // namespace tensorflow

namespace mxrec {

void EnterDeterministicRun();
void LeaveDeterministicRun();

// The name of a random op, or of a data set that shuffles, without a seed in the graph or a function of the library; empty when
// there is none.
std::string UnseededRandomOp(const tensorflow::Graph& graph, const tensorflow::FunctionLibraryDefinition& library);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_DETERMINISM_PASS_H_
