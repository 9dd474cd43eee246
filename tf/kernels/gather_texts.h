// GatherTexts: a text of every rank, at every rank. How ranks agree on what happened, in kernels that run on a thread of their own.
#ifndef MXREC_TF_KERNELS_GATHER_TEXTS_H_
#define MXREC_TF_KERNELS_GATHER_TEXTS_H_

#include <functional>
#include <string>
#include <vector>

#include "mxrec/base/status.h"

namespace mxrec {

// The texts by rank of the world. Waits for all ranks, so never on a thread of a session's pool. Every rank must call it with the
// same name. `cancelled` is asked every now and then: then Cancelled. Other failures are the communicator's.
Result<std::vector<std::string>> GatherTexts(const std::string& name, const std::string& text,
                                             const std::function<bool()>& cancelled);

// The same for outcomes: OK when all ranks give OK, else, at every rank, the first failure with its rank's number in front.
Status AgreeOnStatus(const std::string& name, const Status& mine, const std::function<bool()>& cancelled);

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_GATHER_TEXTS_H_
