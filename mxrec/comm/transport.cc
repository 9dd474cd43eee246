#include "mxrec/comm/transport.h"

namespace mxrec {

Status Transport::SharedAllReduce(const void* input, void* data, size_t bytes, size_t granule, SliceReducer& reducer,
                                  Deadline deadline) {
  return UnimplementedError("transport " + std::string(name()) + ": ranks do not see each other's memory");
}

}  // namespace mxrec
