#include "mxrec/comm/transport.h"

namespace mxrec {

Status Transport::SharedAllReduce(Payload& payload, size_t bytes, size_t granule, SliceReducer& reducer, Deadline deadline) {
  return UnimplementedError("transport " + std::string(name()) + ": ranks do not see each other's memory");
}

}  // namespace mxrec
