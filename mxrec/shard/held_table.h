// HeldTable: one rank's rows of a table as of one update, kept still while they are written, here or at another rank. BlockStream:
// its rows one block after another, for an asker who comes for each.
#ifndef MXREC_SHARD_HELD_TABLE_H_
#define MXREC_SHARD_HELD_TABLE_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "mxrec/base/status.h"
#include "mxrec/engine/embedding_table.h"
#include "mxrec/table/table.h"

namespace mxrec::internal {

// While it lives no writer gets at the table. Threads: any.
struct HeldTable {
  // Waits for the writer that is at work.
  explicit HeldTable(std::shared_ptr<EmbeddingTable> held)
      : table(std::move(held)), snapshot(table->table().TakeSnapshot()), slots(snapshot->slots()), eviction(snapshot->eviction()) {}

  const std::shared_ptr<EmbeddingTable> table;
  const std::unique_ptr<Table::Snapshot> snapshot;
  const SlotRecord slots;  // slots.step: the update
  const EvictionState eviction;
};

class BlockStream {
 public:
  BlockStream(std::shared_ptr<const HeldTable> held, int run, bool candidates);
  ~BlockStream();
  BlockStream(const BlockStream&) = delete;
  BlockStream& operator=(const BlockStream&) = delete;

  // The next block as row_wire.h encodes it; empty after the last one. One thread at a time.
  Result<std::string> Next();

 private:
  void Produce();
  // Waits until the block before was fetched.
  Status Offer(std::string block);

  const std::shared_ptr<const HeldTable> held_;
  const int run_;
  const bool candidates_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string next_;
  bool stop_ = false, ended_ = false;
  Status status_;
  std::thread thread_;
};

}  // namespace mxrec::internal

#endif  // MXREC_SHARD_HELD_TABLE_H_
