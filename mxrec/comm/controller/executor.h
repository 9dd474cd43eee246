// Executor: does what was agreed on: brings requests' tensors into the form that the collectives take, packs small ones together,
// and puts results where the requests want them. Threads: one at a time.
#ifndef MXREC_COMM_CONTROLLER_EXECUTOR_H_
#define MXREC_COMM_CONTROLLER_EXECUTOR_H_

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/comm/collectives.h"
#include "mxrec/comm/communicator.h"
#include "mxrec/comm/controller/wire.h"
#include "mxrec/comm/transport.h"

namespace mxrec {

// One execution, seen from this rank.
struct Job {
  struct Tensor {
    const CommRequest* request = nullptr;         // null: this rank joined
    std::shared_ptr<const RequestFields> joined;  // then what the others asked for
    // Results.
    Status status;
    Agreed agreed;
  };
  Collective kind = Collective::kAllReduce;
  std::vector<int> ranks;  // of the group
  int me = 0;
  std::vector<Tensor> tensors;
  std::vector<int64_t> received;
};

// Bytes that keep their place and grow only.
class AlignedBuffer {
 public:
  // At least `bytes`, aligned to 64; null when the system has no memory. Former contents are lost.
  char* Get(size_t bytes);

 private:
  struct Free {
    void operator()(char* data) const { ::operator delete (data, std::align_val_t{64}); }
  };
  std::unique_ptr<char, Free> data_;
  size_t bytes_ = 0;
};

class Executor {
 public:
  // kAuto, or one algorithm for all reductions.
  Executor(Transport& transport, Algorithm algorithm) : transport_(transport), algorithm_(algorithm) {}

  // An error: the transport failed, and nothing can be run any more. Else each tensor has its own status: one whose memory could
  // not be had fails alone, after it has taken part.
  Status Run(Job& job, Deadline deadline);

 private:
  void* Allocate(Job::Tensor& tensor, AlignedBuffer& instead, size_t bytes);
  bool InSharedMemory(const Job& job, size_t count) const;
  Status Reduction(Job& job, Deadline deadline);
  Status Packed(Job& job, Deadline deadline);
  Status Scatter(Job& job, Deadline deadline);
  Status Gather(Job& job, Deadline deadline);
  Status BroadcastOne(Job& job, Deadline deadline);
  Status AllToAllOne(Job& job, Deadline deadline);
  Status PointToPoint(Job& job, Deadline deadline);

  Transport& transport_;
  const Algorithm algorithm_;
  AlignedBuffer packed_, scratch_;
};

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROLLER_EXECUTOR_H_
