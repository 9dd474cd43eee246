// Ranks as threads of one process: the transport of tests, and of programs that want several ranks without processes. Receivers
// copy straight from the senders' memory.
#ifndef MXREC_COMM_LOCAL_TRANSPORT_H_
#define MXREC_COMM_LOCAL_TRANSPORT_H_

#include <memory>
#include <vector>

#include "mxrec/comm/transport.h"

namespace mxrec {

// One transport a rank, each for a thread of its own. A rank whose transport is destroyed is gone: those who wait for it get
// Unavailable. shares_memory: whether SharedAllReduce is there, or only Exchange.
std::vector<std::unique_ptr<Transport>> MakeLocalTransports(int size, bool shares_memory = true);

}  // namespace mxrec

#endif  // MXREC_COMM_LOCAL_TRANSPORT_H_
