#include "mxrec/shard/held_table.h"

#include <utility>

#include "mxrec/ckpt/format/table_file.h"
#include "mxrec/shard/row_wire.h"

namespace mxrec::internal {

BlockStream::BlockStream(std::shared_ptr<const HeldTable> held, int run, bool candidates)
    : held_(std::move(held)), run_(run), candidates_(candidates), thread_([this] { Produce(); }) {}

BlockStream::~BlockStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Result<std::string> BlockStream::Next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || !next_.empty(); });
  if (next_.empty() && !status_.ok()) return status_;
  changed_.notify_all();
  return std::exchange(next_, std::string());
}

Status BlockStream::Offer(std::string block) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stop_ || next_.empty(); });
  if (stop_) return CancelledError("nobody wants the rest");
  next_ = std::move(block);
  changed_.notify_all();
  return OkStatus();
}

void BlockStream::Produce() {
  Status status;
  if (candidates_) {
    status = held_->snapshot->ForEachCandidate(
        run_, [&](std::span<const Candidate> candidates) { return Offer(EncodeCandidates(candidates)); });
  } else {
    const size_t dim = held_->table->dim(), slot_floats = held_->slots.slot_floats(dim);
    const size_t rows = format::RowsPerBlock(sizeof(uint64_t) + (dim + slot_floats) * sizeof(float));
    status = held_->snapshot->ForEachBlock(run_, rows,
                                           [&](const RowBlock& block) { return Offer(EncodeRows(block, dim, slot_floats)); });
  }
  const std::lock_guard lock(mutex_);
  status_ = status;
  ended_ = true;
  changed_.notify_all();
}

}  // namespace mxrec::internal
