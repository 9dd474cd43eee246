// Rendezvous: rank 0 listens, the others connect to it, all learn who the others are.
#ifndef MXREC_COMM_CONTROL_RENDEZVOUS_H_
#define MXREC_COMM_CONTROL_RENDEZVOUS_H_

#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/comm/communicator.h"
#include "mxrec/comm/control/frame.h"
#include "mxrec/comm/control/hello.h"
#include "mxrec/comm/control/socket.h"

namespace mxrec {

struct Connection {
  UniqueFd fd;
  // Holds what came after the last message of the meeting.
  FrameReader reader{kMaxHelloBytes};
};

struct Meeting {
  World world;
  // On rank 0 one a rank (its own is not connected); elsewhere one, to rank 0.
  std::vector<Connection> connections;
};

// Errors as Communicator::Create. Strangers that connect are turned away and do not disturb the meeting.
Result<Meeting> Meet(const CommOptions& options);

// "rank 3 (host, process 12)".
std::string Describe(int rank, const RankInfo& info);

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROL_RENDEZVOUS_H_
