#include "mxrec/shard/merged_source.h"

#include <optional>
#include <utility>

#include "mxrec/base/hash.h"
#include "mxrec/shard/row_wire.h"

namespace mxrec::internal {
namespace {

uint64_t KeyOf(const OwnedRows& rows, size_t i) { return rows.keys[i]; }
uint64_t KeyOf(const std::vector<Candidate>& candidates, size_t i) { return candidates[i].key; }

// The records of one rank in their order; Blocks is OwnedRows or a vector of candidates.
template <typename Blocks>
class Cursor {
 public:
  using Decode = std::function<Result<Blocks>(std::string_view)>;
  Cursor(const RemoteRows* rows, int run, bool candidates, Decode decode)
      : rows_(rows), run_(run), candidates_(candidates), decode_(std::move(decode)) {}

  // Makes the next record the current one.
  Status Advance() {
    if (++at_ < block_.size()) return OkStatus();
    MXREC_ASSIGN_OR_RETURN(const std::string bytes, rows_->next(run_, candidates_));
    at_ = 0;
    block_ = Blocks();
    if (!bytes.empty()) {
      MXREC_ASSIGN_OR_RETURN(block_, decode_(bytes));
    }
    return OkStatus();
  }
  bool done() const { return at_ >= block_.size(); }
  uint64_t hash() const { return Mix64(KeyOf(block_, at_)); }
  uint64_t key() const { return KeyOf(block_, at_); }
  int rank() const { return rows_->rank; }
  const Blocks& block() const { return block_; }
  size_t at() const { return at_; }

 private:
  const RemoteRows* const rows_;
  const int run_;
  const bool candidates_;
  const Decode decode_;
  Blocks block_;
  size_t at_ = 0;
};

template <typename Blocks>
class Merge {
 public:
  using Take = std::function<Status(const Cursor<Blocks>&)>;
  Merge(std::vector<Cursor<Blocks>> cursors, Take take) : cursors_(std::move(cursors)), take_(std::move(take)) {}

  Status Begin() {
    for (Cursor<Blocks>& cursor : cursors_) MXREC_RETURN_IF_ERROR(cursor.Advance());
    return OkStatus();
  }
  // Takes the others' records that come before this key; all that are left when there is none.
  Status Before(std::optional<uint64_t> key) {
    for (;;) {
      Cursor<Blocks>* first = nullptr;
      for (Cursor<Blocks>& cursor : cursors_) {
        if (cursor.done()) continue;
        if (first != nullptr && cursor.key() == first->key()) return Twice(cursor.key());
        if (first == nullptr || cursor.hash() < first->hash()) first = &cursor;
      }
      if (first == nullptr) return OkStatus();
      if (key.has_value() && first->key() == *key) return Twice(*key);
      if (key.has_value() && first->hash() > Mix64(*key)) return OkStatus();
      MXREC_RETURN_IF_ERROR(take_(*first));
      MXREC_RETURN_IF_ERROR(first->Advance());
    }
  }

 private:
  static Status Twice(uint64_t key) {
    return InternalError("id " + std::to_string(static_cast<int64_t>(key)) + " is at two ranks, each with a row of its own");
  }
  std::vector<Cursor<Blocks>> cursors_;
  const Take take_;
};

template <typename Blocks>
std::vector<Cursor<Blocks>> CursorsOf(const std::vector<RemoteRows>& others, int run, bool candidates,
                                      const typename Cursor<Blocks>::Decode& decode) {
  std::vector<Cursor<Blocks>> cursors;
  for (const RemoteRows& rows : others) {
    const std::vector<uint64_t>& sizes = candidates ? rows.run_candidates : rows.run_rows;
    if (sizes[static_cast<size_t>(run)] > 0) cursors.emplace_back(&rows, run, candidates, decode);
  }
  return cursors;
}

}  // namespace

uint64_t MergedSource::run_rows(int run) const {
  uint64_t rows = own_->snapshot->shard_rows(run);
  for (const RemoteRows& other : *others_) rows += other.run_rows[static_cast<size_t>(run)];
  return rows;
}

uint64_t MergedSource::run_candidates(int run) const {
  uint64_t candidates = own_->snapshot->shard_candidates(run);
  for (const RemoteRows& other : *others_) candidates += other.run_candidates[static_cast<size_t>(run)];
  return candidates;
}

Status MergedSource::ForEachBlock(int run, size_t max_rows, const std::function<Status(const RowBlock&)>& block) const {
  const size_t dim = own_->table->dim(), slot_floats = own_->slots.slot_floats(dim);
  OwnedRows out;
  const auto take = [&](const RowBlock& rows, size_t i) -> Status {
    out.Append(rows, i, dim, slot_floats);
    if (out.size() < max_rows) return OkStatus();
    const Status status = block(out.block());
    out.clear();
    return status;
  };
  Merge<OwnedRows> merge(
      CursorsOf<OwnedRows>(*others_, run, false, [&](std::string_view bytes) { return DecodeRows(bytes, dim, slot_floats); }),
      [&](const Cursor<OwnedRows>& cursor) { return take(cursor.block().block(), cursor.at()); });
  MXREC_RETURN_IF_ERROR(merge.Begin());
  MXREC_RETURN_IF_ERROR(own_->snapshot->ForEachBlock(run, max_rows, [&](const RowBlock& rows) -> Status {
    for (size_t i = 0; i < rows.count; ++i) {
      MXREC_RETURN_IF_ERROR(merge.Before(rows.keys[i]));
      MXREC_RETURN_IF_ERROR(take(rows, i));
    }
    return OkStatus();
  }));
  MXREC_RETURN_IF_ERROR(merge.Before(std::nullopt));
  return out.size() == 0 ? OkStatus() : block(out.block());
}

Status MergedSource::ForEachCandidate(int run, const std::function<Status(std::span<const Candidate>)>& block) const {
  constexpr size_t kMost = 4096;
  std::vector<Candidate> out;
  const auto take = [&](const Candidate& candidate) -> Status {
    out.push_back(candidate);
    if (out.size() < kMost) return OkStatus();
    const Status status = block(out);
    out.clear();
    return status;
  };
  using Blocks = std::vector<Candidate>;
  Merge<Blocks> merge(CursorsOf<Blocks>(*others_, run, true, [](std::string_view bytes) { return DecodeCandidates(bytes); }),
                      [&](const Cursor<Blocks>& cursor) { return take(cursor.block()[cursor.at()]); });
  MXREC_RETURN_IF_ERROR(merge.Begin());
  MXREC_RETURN_IF_ERROR(own_->snapshot->ForEachCandidate(run, [&](std::span<const Candidate> candidates) -> Status {
    for (const Candidate& candidate : candidates) {
      MXREC_RETURN_IF_ERROR(merge.Before(candidate.key));
      MXREC_RETURN_IF_ERROR(take(candidate));
    }
    return OkStatus();
  }));
  MXREC_RETURN_IF_ERROR(merge.Before(std::nullopt));
  return out.empty() ? OkStatus() : block(out);
}

}  // namespace mxrec::internal
