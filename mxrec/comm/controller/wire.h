// What ranks tell rank 0 about the operations they want, and what rank 0 answers. Pure encoding and decoding; coordinator.h is rank
// 0's part, communicator.cc the others'. docs/collectives.md describes the protocol.
//
// A name is written out the first time. Rank 0 gives it a number with the agreement; later requests with equal arguments travel as
// that number (a bit of a bit vector, when many do), requests that differ in rows alone as the number and the rows.
#ifndef MXREC_COMM_CONTROLLER_WIRE_H_
#define MXREC_COMM_CONTROLLER_WIRE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/comm/communicator.h"

namespace mxrec {

inline constexpr size_t kMaxNameBytes = 1024;
inline constexpr size_t kMaxOriginBytes = 4096;
inline constexpr size_t kMaxReasonBytes = 4096;
inline constexpr size_t kMaxDims = 64;
// Tensors of one operation.
inline constexpr int kMaxParts = 1 << 16;
inline constexpr uint32_t kWorldGroup = 0;
// Numbers in one message, however short their runs are written. A sender with more of them sends several messages.
inline constexpr size_t kMaxIdsInMessage = 1 << 16;

// The part of a CommRequest that ranks agree on.
struct RequestFields {
  Collective kind = Collective::kAllReduce;
  uint32_t group = kWorldGroup;
  // As agreed on: for sends and receives "from>to tag", else the request's.
  std::string name;
  std::string origin;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1;
  double postscale = 1;
  bool divide_by_size = false;
  int root = 0;
  int peer = 0;
  int64_t tag = 0;
  std::vector<int64_t> splits;
  DType wire = DType::kFloat32;
  int parts = 1;
  int part = 0;
};

// Whether a and b differ in nothing, in rows alone (the first dimension, splits), or in more. Origins do not count.
enum class Difference { kNone, kRows, kMore };
Difference Compare(const RequestFields& a, const RequestFields& b);

// Rows of a request whose number the receiver knows.
struct RequestRows {
  uint64_t id = 0;
  int64_t rows = 0;  // the first dimension
  std::vector<int64_t> splits;
};

struct GroupRequest {
  bool remove = false;
  std::string name;
  std::vector<int> ranks;
};

struct CancelRequest {
  uint32_t group = 0;
  std::string name;
  std::string why;  // may be empty
};

// This rank does not take part in an operation that it has not asked for.
struct Refusal {
  uint32_t group = 0;
  std::string name;  // of its first tensor
  int parts = 0;     // how many tensors it would have given, all of which are refused; 0: the one of this name alone
  std::string why;
};

// Rank to rank 0.
struct Requests {
  uint64_t finished = 0;  // executions that this rank has completed
  // They come first: what is asked for under one of these names is a later operation.
  std::vector<Refusal> refusals;
  std::vector<uint64_t> ids;
  std::vector<RequestRows> rows;
  std::vector<RequestFields> full;
  std::vector<CancelRequest> cancels;
  std::vector<GroupRequest> groups;
  bool leaves = false;
  bool empty() const {
    return refusals.empty() && ids.empty() && rows.empty() && full.empty() && cancels.empty() && groups.empty() && !leaves;
  }
};

// One tensor of an execution.
struct AgreedTensor {
  uint64_t id = 0;
  // Given to ranks that do not know the number yet; empty else.
  std::string name;
  // Given to ranks that joined and take part with zeros.
  std::shared_ptr<const RequestFields> joined;
};

// What all ranks of the group run next, with the tensors packed one behind the other in this order.
struct Execution {
  Collective kind = Collective::kAllReduce;
  uint32_t group = 0;
  std::vector<AgreedTensor> tensors;
  // See Agreed::received.
  std::vector<int64_t> received;
};

struct NameError {
  uint32_t group = 0;
  std::string name;
  Status status;
};

struct GroupAnswer {
  bool remove = false;
  std::string name;
  uint32_t id = 0;
  std::vector<int> ranks;
  Status status;
};

// Rank 0 to a rank.
struct Agreement {
  std::vector<GroupAnswer> groups;  // first, since executions may be of new ones
  std::vector<uint64_t> forget;     // numbers that mean nothing any more: what was asked with them is asked again in full
  std::vector<std::shared_ptr<const Execution>> executions;  // shared: most ranks are told the same
  std::vector<NameError> errors;
  bool goodbye = false;  // the answer to `leaves`; nothing comes after it
  bool empty() const { return groups.empty() && forget.empty() && executions.empty() && errors.empty() && !goodbye; }
};

std::string EncodeRequests(const Requests& requests);
Result<Requests> DecodeRequests(std::string_view bytes);
std::string EncodeAgreement(const Agreement& agreement);
Result<Agreement> DecodeAgreement(std::string_view bytes);

// Numbers in any order, kept in order: runs of rising neighbours take two bytes or so. Exposed for tests.
void EncodeIds(const std::vector<uint64_t>& ids, std::string* out);

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROLLER_WIRE_H_
