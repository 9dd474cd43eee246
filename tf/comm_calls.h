// Questions and answers between ranks outside of any collective, on the communicator of comm_runtime.h. Threads: any.
#ifndef MXREC_TF_COMM_CALLS_H_
#define MXREC_TF_COMM_CALLS_H_

#include <chrono>
#include <string>
#include <string_view>

#include "mxrec/base/status.h"
#include "mxrec/comm/communicator.h"

namespace mxrec {

// Answers of this rank to others, from every communicator there will be (Communicator::Serve).
void ServeComm(const std::string& service, Communicator::Handler handler);
// Asks one rank (Communicator::Call); has a communicator made when there is none, and waits for that.
Result<std::string> CallComm(int rank, const std::string& service, std::string_view request, Deadline deadline);
// Whether a communicator is there.
bool CommIsUp();
// Whether an operation was submitted that long ago and has not ended.
bool CommWaits(std::chrono::milliseconds time);

}  // namespace mxrec

#endif  // MXREC_TF_COMM_CALLS_H_
