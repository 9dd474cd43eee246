// The Communicator behind Communicator::Create. Exposed for tests that bring a transport of their own.
#ifndef MXREC_COMM_CONTROLLER_COMMUNICATOR_IMPL_H_
#define MXREC_COMM_CONTROLLER_COMMUNICATOR_IMPL_H_

#include <functional>
#include <memory>

#include "mxrec/comm/communicator.h"
#include "mxrec/comm/store.h"
#include "mxrec/comm/transport.h"

namespace mxrec::internal {

// Makes the transport of one rank; called once, when the ranks have met. `options` are rank 0's where they must agree.
using TransportMaker = std::function<Result<std::unique_ptr<Transport>>(const CommOptions& options, std::shared_ptr<Store> store)>;

Result<std::unique_ptr<Communicator>> CreateCommunicator(const CommOptions& options, const TransportMaker& make_transport);

}  // namespace mxrec::internal

#endif  // MXREC_COMM_CONTROLLER_COMMUNICATOR_IMPL_H_
