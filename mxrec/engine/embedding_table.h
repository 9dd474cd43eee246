// EmbeddingTable: a sparse table with its optimizer, its admission and eviction rules and its checkpoints. Start here.
//
//   auto table = mxrec::EmbeddingTable::Create({.table = {.name = "user", .dim = 16}}).value();
//   table->Lookup(ids, {}, inverse, expanded, outputs, &generation, executor);  // rows of the ids, and of the distinct ones
//   table->Apply(*optimizer, hyper, {&part, 1}, executor);  // inserts, sums gradients, updates each row once
//
// A whole program: examples/cpp/train.cc. An executor may be null: all work is then done in the calling thread.
// Contracts of lookup and update: table/table.h. Threads: as there.
#ifndef MXREC_ENGINE_EMBEDDING_TABLE_H_
#define MXREC_ENGINE_EMBEDDING_TABLE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/base/executor.h"
#include "mxrec/base/status.h"
#include "mxrec/engine/clock.h"
#include "mxrec/engine/table_config.h"
#include "mxrec/optim/optimizer.h"
#include "mxrec/table/table.h"

namespace mxrec {

class EmbeddingTable {
 public:
  static Result<std::shared_ptr<EmbeddingTable>> Create(EmbeddingTableConfig config);
  ~EmbeddingTable();

  const EmbeddingTableConfig& config() const { return config_; }
  const std::string& name() const { return config_.table.name; }
  uint32_t dim() const { return config_.table.dim; }
  Table& table() { return *table_; }
  const Table& table() const { return *table_; }

  // Table::Lookup plus the check of config().check_lookups: a non-finite row is an error under NonFinitePolicy::kError, else
  // one warning per table, naming table, id and column.
  Status Lookup(std::span<const uint64_t> ids, const LookupOptions& options, int32_t* inverse, float* expanded,
                const std::function<Result<UniqueOutputs>(size_t)>& outputs, uint64_t* generation, Executor* executor);

  // One training step: attaches the optimizer if none is, advances its state once, updates rows. Also with no keys at all
  // (the step counter advances). All or nothing.
  Status Apply(const Optimizer& optimizer, std::span<const float> hyper, std::span<const UpdatePart> parts, Executor* executor,
               UpdateReport* report = nullptr);

  Status Insert(std::span<const uint64_t> keys, const float* values, Executor* executor, uint64_t* inserted = nullptr);
  uint64_t Erase(std::span<const uint64_t> keys);
  uint64_t EvictCold(Executor* executor);
  // Empties the table (get_init_hashtable_op).
  void Reset();

  // {"rows": ..., "bytes_index": ..., ...}: Table::stats as one JSON object, with name and optimizer kind and step.
  std::string StatsJson() const;

 private:
  explicit EmbeddingTable(EmbeddingTableConfig config);
  EmbeddingTableConfig config_;
  std::unique_ptr<Table> table_;
  std::atomic<bool> warned_update_{false}, warned_lookup_{false};
};

}  // namespace mxrec

#endif  // MXREC_ENGINE_EMBEDDING_TABLE_H_
