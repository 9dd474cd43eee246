// The one Communicator of this process, for all sessions and ops: made on the first use, ended by Shutdown, made again by the next
// use.
//
// Python tells what the world is (python/mxrec/_groups.py); a process that nobody told is a world of its own, and needs no
// communicator. Making one waits for other ranks, so it happens on a thread of its own, and requests wait in a queue meanwhile: no
// caller of Submit is ever blocked. When it fails, all that waits and all that comes later fails with the same error, until
// Shutdown.
// Threads: any.
#ifndef MXREC_TF_COMM_RUNTIME_H_
#define MXREC_TF_COMM_RUNTIME_H_

#include <functional>
#include <string>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/comm/communicator.h"

namespace mxrec {

// Replaces the options of the communicators to come. FailedPrecondition when one is in use and rank or size differ.
Status ConfigureComm(const CommOptions& options);
CommOptions ConfiguredComm();

// Has a communicator made when there is none. `done` gets the outcome, now or later, on any thread.
void StartComm(std::function<void(const Status&)> done);
Status StartCommAndWait();

// Hands requests on, together, when the communicator is there. Of requests with one name and group that come while the first still
// runs, a `repeatable` one waits for its turn (one node that runs in two sessions); another one ends with AlreadyExists. `owner`,
// never null, tells requests of one name apart.
void SubmitComm(std::vector<CommRequest> requests, const void* owner, bool repeatable);
// Tells the other ranks, when the communicator is there, that this one does not take part (Communicator::Refuse). Nothing while the
// name runs here.
void RefuseComm(CommRequest request, Status why);
// The request of this name and owner ends with Cancelled, if it has not ended yet.
// The other ranks learn `why`, if that is known.
void CancelComm(const std::string& group, const std::string& name, const void* owner, const std::string& why = "");

// Groups on the communicator of a world of several ranks; nothing in a world of one.
Status AddCommGroup(const std::string& name, const std::vector<int>& ranks);
Status RemoveCommGroup(const std::string& name);

// Waits for the other ranks to do the same, then ends the communicator; nothing when there is none. `done` on any thread.
void ShutdownComm(std::function<void(const Status&)> done);
// Ends it without waiting for anybody: at the end of the process.
void LeaveComm();

// Of each rank the number of its machine (Communicator::Machines); has a communicator made when there is none.
Result<std::vector<int>> CommMachines();
// OK, or why the communicator could not be made or is broken.
Status CommHealth();
// Of the present communicator; zeros when there is none.
CommStats CommStatistics();

}  // namespace mxrec

#endif  // MXREC_TF_COMM_RUNTIME_H_
