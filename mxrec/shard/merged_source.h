// MergedSource: the rows of all ranks as those of one table: run by run in the order of the hashes, whoever owns them.
#ifndef MXREC_SHARD_MERGED_SOURCE_H_
#define MXREC_SHARD_MERGED_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mxrec/ckpt/row_stream.h"
#include "mxrec/shard/held_table.h"

namespace mxrec::internal {

// The rows of another rank, which holds them still.
struct RemoteRows {
  int rank = 0;
  std::vector<uint64_t> run_rows, run_candidates;  // by run
  // The next block of a run as row_wire.h encodes it; empty after the last one. Called from several threads, for one run by one.
  std::function<Result<std::string>(int run, bool candidates)> next;
};

class MergedSource final : public RowSource {
 public:
  MergedSource(const HeldTable* own, const std::vector<RemoteRows>* others) : own_(own), others_(others) {}

  int runs() const override { return kShardCount; }
  uint64_t run_rows(int run) const override;
  uint64_t run_candidates(int run) const override;
  // InternalError names an id that two ranks have. Other failures are those of the ranks.
  Status ForEachBlock(int run, size_t max_rows, const std::function<Status(const RowBlock&)>& block) const override;
  Status ForEachCandidate(int run, const std::function<Status(std::span<const Candidate>)>& block) const override;

 private:
  const HeldTable* const own_;
  const std::vector<RemoteRows>* const others_;
};

}  // namespace mxrec::internal

#endif  // MXREC_SHARD_MERGED_SOURCE_H_
