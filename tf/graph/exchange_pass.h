// ExchangePass: one exchange of ids, one of rows and one of gradients a step, however many tables are spread over the ranks.
//
// A lookup in a table that is spread over ranks has an MxrecExchangeKeys and an MxrecExchangeRows, its update an
// MxrecExchangeGradients: three times the latency of a message to every rank. The pass joins those of one kind that can run at the
// same time into one op, which carries the parts of all. In the pruned graph of a run, so it sees what runs together.
//
// Never joined: what lies in a while loop or in different branches of a cond, on different devices, what depends on one another, or
// waits for a queue or a feed that the client may give later. Functions are left alone. Results are the same to the bit; the name
// that the ranks agree on is made from the names of the joined ops, so ranks that run different sets of them learn it by name. May
// run any number of times. MXREC_FUSE=0 in the environment turns it off; it has to be set alike on all ranks.
#ifndef MXREC_TF_GRAPH_EXCHANGE_PASS_H_
#define MXREC_TF_GRAPH_EXCHANGE_PASS_H_

#include "tf/status_adapter.h"

namespace tensorflow {
class Graph;
}

namespace mxrec {

TfStatus JoinExchanges(tensorflow::Graph* graph);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_EXCHANGE_PASS_H_
