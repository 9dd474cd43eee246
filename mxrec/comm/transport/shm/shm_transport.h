// Transport between ranks of one host over memory that they share. See shm_transport.cc for how it works.
#ifndef MXREC_COMM_TRANSPORT_SHM_SHM_TRANSPORT_H_
#define MXREC_COMM_TRANSPORT_SHM_SHM_TRANSPORT_H_

#include <cstddef>
#include <memory>

#include "mxrec/base/status.h"
#include "mxrec/comm/store.h"
#include "mxrec/comm/transport.h"

namespace mxrec {

struct ShmOptions {
  int rank = 0;
  int size = 1;
  // Memory between each two ranks, in either direction, and memory of each rank for SharedAllReduce; 0: chosen by the number of
  // ranks. Equal on all ranks. Small values are for tests: payloads then pass in very many pieces.
  size_t lane_bytes = 0;
  size_t chunk_bytes = 0;
};

// Collective: returns when this rank has met all others. Errors: as shm::Meet (transport/shm/meeting.h).
Result<std::unique_ptr<Transport>> MakeShmTransport(const ShmOptions& options, Store& store, Deadline deadline);

}  // namespace mxrec

#endif  // MXREC_COMM_TRANSPORT_SHM_SHM_TRANSPORT_H_
