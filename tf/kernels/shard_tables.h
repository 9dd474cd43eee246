// The ShardHost of this process: where the tables of its sessions meet those of other ranks.
#ifndef MXREC_TF_KERNELS_SHARD_TABLES_H_
#define MXREC_TF_KERNELS_SHARD_TABLES_H_

#include <memory>

#include "mxrec/base/status.h"
#include "mxrec/engine/embedding_table.h"
#include "mxrec/shard/shard_host.h"

namespace mxrec {

// Whether several ranks train tables made from this config, now.
bool TrainedByRanks(const EmbeddingTableConfig& config);

// Of this process's rank and world; answers from then on. Never destroyed. Threads: any.
ShardHost& ShardHostHere();

// A table for a session (ShardHost::Open), closed when the session lets go of it.
Result<std::shared_ptr<EmbeddingTable>> OpenWithRanks(const EmbeddingTableConfig& config);

// At the end of the process, before the communicator's.
void LeaveShardHost();

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_SHARD_TABLES_H_
