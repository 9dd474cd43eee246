#include "mxrec/comm/communicator.h"

#include "mxrec/comm/controller/communicator_impl.h"
#include "mxrec/comm/transport_factory.h"

namespace mxrec {

std::string_view CollectiveName(Collective kind) {
  switch (kind) {
    case Collective::kAllReduce:
      return "allreduce";
    case Collective::kAllGather:
      return "allgather";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kReduce:
      return "reduce";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kSend:
      return "send";
    case Collective::kReceive:
      return "receive";
    case Collective::kBarrier:
      return "barrier";
    case Collective::kJoin:
      return "join";
  }
  return "unknown";
}

std::string PartSuffix(int part) {
  std::string suffix;
  if (part > 0) suffix.append("/").append(std::to_string(part));
  return suffix;
}

Result<std::unique_ptr<Communicator>> Communicator::Create(const CommOptions& options) {
  return internal::CreateCommunicator(options, [](const CommOptions& agreed, std::shared_ptr<Store> store) {
    if (store == nullptr) store = MakeMemoryStore();  // a world of one rank
    return CreateTransport(agreed, *store, std::chrono::steady_clock::now() + agreed.connect_timeout);
  });
}

}  // namespace mxrec
