// RowSource, RowSink: how tables and table files meet. The writer takes rows from a source, the reader gives them to a sink,
// so neither knows where rows live.
#ifndef MXREC_CKPT_ROW_STREAM_H_
#define MXREC_CKPT_ROW_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "mxrec/base/status.h"
#include "mxrec/table/table.h"

namespace mxrec {

// Contents that do not change while they are written, in runs that can be read at the same time by different threads.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual int runs() const = 0;
  virtual uint64_t run_rows(int run) const = 0;
  virtual uint64_t run_candidates(int run) const = 0;
  // As Table::Snapshot's.
  virtual Status ForEachBlock(int run, size_t max_rows, const std::function<Status(const RowBlock&)>& block) const = 0;
  virtual Status ForEachCandidate(int run, const std::function<Status(std::span<const Candidate>)>& block) const = 0;
};

// Called from several threads.
class RowSink {
 public:
  virtual ~RowSink() = default;
  virtual Status AddRows(const RowBlock& block) = 0;
  virtual Status AddCandidates(std::span<const Candidate> candidates) = 0;
};

class SnapshotSource final : public RowSource {
 public:
  explicit SnapshotSource(const Table::Snapshot* snapshot) : snapshot_(snapshot) {}
  int runs() const override { return kShardCount; }
  uint64_t run_rows(int run) const override { return snapshot_->shard_rows(run); }
  uint64_t run_candidates(int run) const override { return snapshot_->shard_candidates(run); }
  Status ForEachBlock(int run, size_t max_rows, const std::function<Status(const RowBlock&)>& block) const override {
    return snapshot_->ForEachBlock(run, max_rows, block);
  }
  Status ForEachCandidate(int run, const std::function<Status(std::span<const Candidate>)>& block) const override {
    return snapshot_->ForEachCandidate(run, block);
  }

 private:
  const Table::Snapshot* snapshot_;
};

}  // namespace mxrec

#endif  // MXREC_CKPT_ROW_STREAM_H_
