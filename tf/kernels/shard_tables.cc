#include "tf/kernels/shard_tables.h"

#include <unistd.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "tf/comm_calls.h"
#include "tf/comm_runtime.h"
#include "tf/kernels/hcom_groups.h"

namespace mxrec {
namespace {

struct Here {
  std::mutex mutex;
  pid_t process = 0;
  HcomWorld world;
  // Left where it is when a fork or another world makes a new one: somebody may still use it.
  ShardHost* host = nullptr;
};
Here& here() {
  static Here* const all = new Here;
  return *all;
}

constexpr std::chrono::milliseconds kWaitsAfter{1000};

}  // namespace

bool TrainedByRanks(const EmbeddingTableConfig& config) {
  return config.distribution != Distribution::kNone && GetHcomWorld().size > 1;
}

ShardHost& ShardHostHere() {
  Here& all = here();
  const HcomWorld world = GetHcomWorld();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.host == nullptr || all.process != getpid() || all.world.rank != world.rank || all.world.size != world.size) {
    ShardHostOptions options;
    options.rank = world.rank;
    options.size = world.size;
    options.patience = ConfiguredComm().stall_abort;
    options.call = [](int rank, std::string_view request, Deadline deadline) {
      return CallComm(rank, ShardHost::kService, request, deadline);
    };
    options.waits = [] { return CommWaits(kWaitsAfter); };
    options.reachable = [] { return CommIsUp() && CommHealth().ok(); };
    all.host = new ShardHost(std::move(options));
    all.process = getpid();
    all.world = world;
    ServeComm(ShardHost::kService, [host = all.host](int from, std::string_view request) { return host->Answer(from, request); });
  }
  return *all.host;
}

Result<std::shared_ptr<EmbeddingTable>> OpenWithRanks(const EmbeddingTableConfig& config) {
  ShardHost& host = ShardHostHere();
  MXREC_ASSIGN_OR_RETURN(std::shared_ptr<EmbeddingTable> table, host.Open(config));
  EmbeddingTable* const address = table.get();
  return std::shared_ptr<EmbeddingTable>(address, [&host, table = std::move(table)](EmbeddingTable*) { host.Close(table.get()); });
}

void LeaveShardHost() {
  Here& all = here();
  ShardHost* host = nullptr;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.process == getpid()) host = all.host;
  }
  if (host != nullptr) host->Leave();
}

}  // namespace mxrec
