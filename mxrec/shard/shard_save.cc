// ShardHost: one file with the rows of all ranks.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mxrec/base/log.h"
#include "mxrec/shard/merged_source.h"
#include "mxrec/shard/shard_host_impl.h"

namespace mxrec {

using internal::Absolute;
using internal::BlockStream;
using internal::Cancelled;
using internal::HeldTable;
using internal::kAnswerWithin;
using internal::kMaxText;
using internal::Malformed;
using internal::MergedSource;
using internal::RemoteRows;
using internal::Seconds;
using internal::State;
using enum internal::Verb;
using enum internal::State;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kPoll{2};

std::string Updates(uint64_t count) { return std::to_string(count).append(count == 1 ? " update" : " updates"); }

// Where two ranks stand, in errors.
struct Sides {
  const EmbeddingTable& table;
  int saver;
  milliseconds patience;

  std::string Other(int rank) const { return "table \"" + table.name() + "\": rank " + std::to_string(rank); }
  std::string Saver() const { return std::string("rank ").append(std::to_string(saver)).append(", which saves, "); }
  Status NoAnswer(int rank) const { return DataLossError(Other(rank) + " sent an answer that is none"); }
  // The other one has made `made` updates, nothing when it has no such table, and the saver `step`.
  Status Apart(int rank, std::optional<uint64_t> made, uint64_t step) const {
    return FailedPreconditionError(
        Other(rank) + (made.has_value() ? " has made " + Updates(*made) + " of it, " : " has no such table in a session, ") +
        Saver() + "has made " + Updates(step) + ", still so after " + Seconds(patience) +
        ": a save needs the rows of all ranks as of one update. Do all ranks run every step, with this table?");
  }
};

}  // namespace

// The rows of another rank while this one saves.
struct ShardHost::Held {
  ShardHost* host = nullptr;
  uint64_t number = 0;
  RemoteRows rows;

  ~Held() {
    std::string request;
    WireWriter out(&request);
    out.Byte(kRelease);
    out.Unsigned(number);
    // Best effort: what is not released lapses.
    static_cast<void>(host->options_.call(rows.rank, request, steady_clock::now() + std::chrono::seconds(5)));
  }
};

Result<TableFileInfo> ShardHost::WriteTable(const CheckpointIo& io, const EmbeddingTable& table,
                                            const std::function<std::string(uint64_t content_tag)>& path_for_tag) {
  const std::lock_guard one_at_a_time(saving_);
  MXREC_ASSIGN_OR_RETURN(const std::shared_ptr<Instance> instance, Find(table));
  const std::string place = Absolute(path_for_tag(0));
  const auto ask_first = [&](const std::string& request, const CheckpointIo& how) {
    return options_.rank == 0 ? Answer(0, request) : Ask(0, request, how);
  };
  std::string claim;
  WireWriter out(&claim);
  out.Byte(kClaim);
  out.Bytes(table.name());
  out.Bytes(place);
  out.Unsigned(instance->step());
  for (;;) {
    MXREC_ASSIGN_OR_RETURN(const std::string answer, ask_first(claim, io));
    WireReader in(answer);
    const uint8_t state = in.Byte();
    const uint64_t tag = in.Unsigned();
    if (!in.done()) return DataLossError("rank 0 sent an answer that is none");
    if (state == kReady) break;
    if (state == kNoRows) {
      // Somebody wrote it. It is ours too if it holds our rows and lies where we look.
      const std::string path = Absolute(path_for_tag(tag));
      const Result<TableFileInfo> info = ReadTableFileInfo(io, path);
      const bool ours = instance->whole() || instance->held_content == instance->table->table().content_id();
      if (ours && info.ok() && info->content_tag == tag) return info;
      return WriteAll(io, *instance, path_for_tag);
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
  const Result<TableFileInfo> info = WriteAll(io, *instance, path_for_tag);
  std::string end;
  WireWriter end_out(&end);
  end_out.Byte(kClaimEnd);
  end_out.Bytes(table.name());
  end_out.Bytes(place);
  end_out.Byte(info.ok() ? 1 : 0);
  end_out.Unsigned(info.ok() ? info->content_tag : 0);
  const Result<std::string> ended = ask_first(end, {});
  if (info.ok()) MXREC_RETURN_IF_ERROR(ended.status());
  return info;
}

Result<std::string> ShardHost::AnswerClaim(int from, std::string_view request) {
  WireReader in(request);
  std::string name(in.Bytes(kMaxText));
  std::string place(in.Bytes(kMaxText));
  const uint64_t step = in.Unsigned();
  if (!in.done()) return Malformed();
  std::string answer;
  WireWriter out(&answer);
  const std::lock_guard lock(mutex_);
  // Older ones are of no use.
  std::erase_if(claims_,
                [&](const auto& claim) { return claim.first.first == name && claim.second.done && claim.second.step != step; });
  const auto [claim, fresh] = claims_.try_emplace({name, place}, Claim{.rank = from, .step = step});
  if (!fresh && claim->second.done && claim->second.rank == from) claim->second = Claim{.rank = from, .step = step};
  const bool granted = claim->second.rank == from && !claim->second.done;
  if (!granted && !warned_) {
    warned_ = true;
    MXREC_LOG(WARNING) << "rank " << from << " and rank " << claim->second.rank << " both save table \"" << name << "\" under "
                       << place << ": one is enough, and the other one waits for it (said once)";
  }
  out.Byte(granted ? kReady : claim->second.done ? kNoRows : kWaiting);
  out.Unsigned(claim->second.content_tag);
  return answer;
}

Result<std::string> ShardHost::AnswerClaimEnd(int from, std::string_view request) {
  WireReader in(request);
  std::string name(in.Bytes(kMaxText));
  std::string place(in.Bytes(kMaxText));
  const bool written = in.Byte() != 0;
  const uint64_t tag = in.Unsigned();
  if (!in.done()) return Malformed();
  const std::lock_guard lock(mutex_);
  const auto claim = claims_.find({std::move(name), std::move(place)});
  if (claim == claims_.end() || claim->second.rank != from) return std::string();
  if (!written) {
    claims_.erase(claim);
  } else {
    claim->second.done = true;
    claim->second.content_tag = tag;
  }
  return std::string();
}

Result<std::optional<uint64_t>> ShardHost::AskToHold(int rank, const Instance& instance, const internal::HeldTable& own,
                                                     const CheckpointIo& io, Deadline deadline, Held* rows) {
  const Sides sides{*instance.table, options_.rank, options_.patience};
  const uint64_t step = own.slots.step;
  std::string request;
  WireWriter out(&request);
  out.Byte(kHold);
  out.Unsigned(rows->number);
  Question{.instance = instance.id, .trained = instance.trained(), .name = instance.table->name()}.Write(out);
  out.Unsigned(step);
  for (;;) {
    MXREC_ASSIGN_OR_RETURN(const std::string answer, Ask(rank, request, io));
    WireReader in(answer);
    const auto state = static_cast<State>(in.Byte());
    const bool there = in.Byte() != 0;
    const uint64_t update = in.Unsigned();
    std::string kind;
    uint64_t floats = 0;
    if (state == kReady) {
      kind = in.Bytes(kMaxText);
      floats = in.Unsigned();
      for (int run = 0; run < kShardCount; ++run) rows->rows.run_rows.push_back(in.Unsigned());
      for (int run = 0; run < kShardCount; ++run) rows->rows.run_candidates.push_back(in.Unsigned());
    }
    if (!in.done() || state > kAhead) return sides.NoAnswer(rank);
    if (state == kReady && (kind != own.slots.optimizer_kind || floats != own.slots.slot_floats(instance.table->dim()))) {
      return FailedPreconditionError(sides.Other(rank) + " trains it with optimizer '" + kind + "', " + sides.Saver() + "with '" +
                                     own.slots.optimizer_kind + "'");
    }
    if (state == kAhead) return std::optional<uint64_t>(update);
    if (state == kReady) {
      rows->rows.next = [this, rank, number = rows->number](int run, bool candidates) {
        std::string request;
        WireWriter out(&request);
        out.Byte(kRows);
        out.Unsigned(number);
        out.Unsigned(static_cast<uint64_t>(run));
        out.Byte(candidates ? 1 : 0);
        return Ask(rank, request, {});
      };
    }
    if (state != kWaiting) return std::optional<uint64_t>();
    if (steady_clock::now() > deadline) return sides.Apart(rank, there ? std::optional<uint64_t>(update) : std::nullopt, step);
  }
}

Result<TableFileInfo> ShardHost::WriteAll(const CheckpointIo& io, Instance& instance,
                                          const std::function<std::string(uint64_t content_tag)>& path_for_tag) {
  EmbeddingTable& table = *instance.table;
  if (instance.whole()) {
    table.EvictCold(io.executor);
    return WriteTableFile(io, table.table(), path_for_tag);
  }
  const Sides sides{table, options_.rank, options_.patience};
  const Deadline deadline = steady_clock::now() + options_.patience;
  for (;;) {
    std::shared_ptr<HeldTable> own = instance.Hold();
    const uint64_t step = own->slots.step;
    std::vector<std::unique_ptr<Held>> held;
    std::optional<std::pair<int, uint64_t>> ahead;
    for (int rank = 0; rank < options_.size && !ahead.has_value(); ++rank) {
      if (rank == options_.rank) continue;
      auto rows = std::make_unique<Held>();
      rows->host = this;
      rows->rows.rank = rank;
      {
        const std::lock_guard lock(mutex_);
        rows->number = next_++;
      }
      MXREC_ASSIGN_OR_RETURN(const std::optional<uint64_t> update, AskToHold(rank, instance, *own, io, deadline, rows.get()));
      if (update.has_value()) ahead.emplace(rank, *update);
      if (!rows->rows.run_rows.empty()) held.push_back(std::move(rows));
    }
    if (!ahead.has_value()) {
      std::vector<RemoteRows> others;
      TableState state{.options = table.table().options(), .slots = own->slots, .eviction = own->eviction};
      for (const std::unique_ptr<Held>& rows : held) others.push_back(rows->rows);
      const MergedSource source(own.get(), &others);
      return WriteTableFile(io, state, source, path_for_tag);
    }
    // Somebody trains while we save. Our next update is on its way.
    held.clear();
    own.reset();
    while (instance.step() == step) {
      if (Cancelled(io)) return CancelledError("saving table \"" + table.name() + "\" was cancelled");
      if (steady_clock::now() > deadline) return sides.Apart(ahead->first, ahead->second, step);
      std::this_thread::sleep_for(kPoll);
    }
  }
}

Result<std::string> ShardHost::AnswerHold(int from, std::string_view request) {
  WireReader in(request);
  const uint64_t number = in.Unsigned();
  Question question = Question::Read(from, in);
  const uint64_t wanted = in.Unsigned();
  if (!in.done()) return Malformed();
  std::shared_ptr<HoldJob> job;
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return CancelledError("rank " + std::to_string(options_.rank) + " ends");
    std::shared_ptr<HoldJob>& place = holds_[{from, number}];
    if (place == nullptr) {
      place = std::make_shared<HoldJob>();
      place->question = std::move(question);
      place->wanted = wanted;
      place->thread = std::thread([this, job = place.get()] { RunHold(job); });
    }
    job = place;
  }
  std::string answer;
  WireWriter out(&answer);
  std::unique_lock lock(job->mutex);
  job->last_asked = steady_clock::now();
  job->changed.wait_for(lock, kAnswerWithin, [&] { return job->state != kWaiting || job->stop; });
  out.Byte(job->state);
  out.Byte(job->there ? 1 : 0);
  out.Unsigned(job->step);
  if (job->state == kReady) {
    out.Bytes(job->held->slots.optimizer_kind);
    out.Unsigned(job->held->slots.slot_floats(job->held->table->dim()));
    for (int run = 0; run < kShardCount; ++run) out.Unsigned(job->held->snapshot->shard_rows(run));
    for (int run = 0; run < kShardCount; ++run) out.Unsigned(job->held->snapshot->shard_candidates(run));
  }
  return answer;
}

void ShardHost::RunHold(HoldJob* job) {
  for (;;) {
    std::shared_ptr<Instance> instance;
    {
      const std::lock_guard lock(mutex_);
      instance = Choose(job->question, false);
      // The first update may be made at one rank and not yet at the other.
      if (instance == nullptr && (job->question.trained || job->wanted == 0)) instance = Choose(job->question, true);
    }
    const uint64_t step = instance == nullptr ? 0 : instance->step();
    std::shared_ptr<HeldTable> held;
    if (instance != nullptr && step == job->wanted) held = instance->Hold();
    if (held != nullptr && held->slots.step == job->wanted) {
      const std::lock_guard lock(mutex_);
      instance->met[job->question.from] = job->question.instance;
      instance->held_content = instance->table->table().content_id();
    } else {
      held.reset();
    }
    std::unique_lock lock(job->mutex);
    job->there = instance != nullptr;
    job->step = step;
    if (held != nullptr) job->state = kReady;
    if (instance == nullptr && job->wanted == 0) job->state = kNoRows;
    if (instance != nullptr && step > job->wanted) job->state = kAhead;
    job->held = std::move(held);
    job->changed.notify_all();
    if (job->state != kWaiting || job->changed.wait_for(lock, kPoll, [&] { return job->stop; })) return;
  }
}

Result<std::string> ShardHost::AnswerRows(int from, std::string_view request) {
  WireReader in(request);
  const uint64_t number = in.Unsigned();
  const auto run = static_cast<int>(in.Unsigned(kShardCount - 1));
  const bool candidates = in.Byte() != 0;
  if (!in.done()) return Malformed();
  std::shared_ptr<HoldJob> job;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = holds_.find({from, number}); found != holds_.end()) job = found->second;
  }
  std::shared_ptr<BlockStream> stream;
  if (job != nullptr) {
    const std::lock_guard lock(job->mutex);
    job->last_asked = steady_clock::now();
    if (job->held != nullptr) {
      std::shared_ptr<BlockStream>& place = job->streams[{run, candidates}];
      if (place == nullptr) place = std::make_shared<BlockStream>(job->held, run, candidates);
      stream = place;
    }
  }
  if (stream == nullptr) {
    return FailedPreconditionError("rank " + std::to_string(from) + " did not fetch the rows that it asked for within " +
                                   Seconds(options_.patience));
  }
  Result<std::string> block = stream->Next();
  if (block.ok() && block->empty()) {
    const std::lock_guard lock(job->mutex);
    job->streams[{run, candidates}].reset();
  }
  return block;
}

Result<std::string> ShardHost::AnswerRelease(int from, std::string_view request) {
  WireReader in(request);
  const uint64_t number = in.Unsigned();
  if (!in.done()) return Malformed();
  std::shared_ptr<HoldJob> job;  // ends when the lock is gone
  const std::lock_guard lock(mutex_);
  if (const auto found = holds_.find({from, number}); found != holds_.end()) {
    job = std::move(found->second);
    holds_.erase(found);
  }
  return std::string();
}

}  // namespace mxrec
