// CreateTransport: the transport that the options ask for.
#ifndef MXREC_COMM_TRANSPORT_FACTORY_H_
#define MXREC_COMM_TRANSPORT_FACTORY_H_

#include <memory>

#include "mxrec/base/status.h"
#include "mxrec/comm/communicator.h"
#include "mxrec/comm/store.h"
#include "mxrec/comm/transport.h"

namespace mxrec {

// Collective: all ranks call it with the same `options.transport` and one store, in which they find each other.
//   "shm"   memory shared by the ranks of one host
//   "gloo"  Gloo over TCP, listening at options.bind_host (empty: the address that leads to the chief)
//   "mpi"   Open MPI; the program was started by mpirun
//   "auto"  "shm" when all ranks say in the store that they share a host, a network namespace and a user; else "mpi" when all were
//   started
//           by Open MPI and its plug-in is there; else "gloo". All ranks choose the same.
// A world of one rank needs none of them. InvalidArgument: another name; else the errors of the transports, which say what to do.
Result<std::unique_ptr<Transport>> CreateTransport(const CommOptions& options, Store& store, Deadline deadline);

}  // namespace mxrec

#endif  // MXREC_COMM_TRANSPORT_FACTORY_H_
