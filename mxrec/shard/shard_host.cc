#include "mxrec/shard/shard_host.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <optional>

#include "mxrec/base/log.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/comm/control/wire_bytes.h"
#include "mxrec/engine/clock.h"
#include "mxrec/io/env.h"
#include "mxrec/shard/held_table.h"
#include "mxrec/shard/merged_source.h"
#include "mxrec/shard/remote_env.h"

namespace mxrec {
namespace {

using internal::BlockStream;
using internal::HeldTable;
using internal::RemoteRows;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

enum Verb : uint8_t { kHold = 1, kRows, kRelease, kLoad, kRead, kClaim, kClaimEnd, kNeeded, kAlive };
enum State : uint8_t { kWaiting = 0, kReady, kNoRows, kAhead };

// How long an answer may take to become another one than "not yet".
constexpr milliseconds kAnswerWithin{50};
constexpr milliseconds kPoll{2};
constexpr uint64_t kMaxText = uint64_t{1} << 20;
constexpr uint64_t kMostReadBytes = uint64_t{16} << 20;

Status Malformed() { return DataLossError("a question about the rows of a table"); }

std::string Seconds(milliseconds time) {
  const int64_t tenths = time.count() / 100;
  return std::to_string(tenths / 10) + (tenths % 10 == 0 ? "" : "." + std::to_string(tenths % 10)) + " s";
}

std::string Updates(uint64_t count) { return std::to_string(count) + (count == 1 ? " update" : " updates"); }

std::string Absolute(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  return absolute.empty() ? path : absolute.string();
}

bool Cancelled(const CheckpointIo& io) { return io.progress && !io.progress(0, 0); }

}  // namespace

// A table of a session here, or one that waits for its session.
struct ShardHost::Instance {
  enum class Life { kPending, kOpen, kClosed };

  uint64_t id = 0;
  std::shared_ptr<EmbeddingTable> table;
  Life life = Life::kOpen;
  // By rank: the instance there that this one was met with.
  std::map<int, uint64_t> met;
  // The update that the last load brought.
  std::atomic<uint64_t> loaded_step{0};

  std::mutex loading;
  struct Loaded {
    uint64_t content_tag = 0, content_id = 0;  // content_id 0: nothing
    uint32_t crc32c = 0;
    bool rows_only = false;
    LoadReport report;
  };
  Loaded loaded;  // guarded by loading

  std::mutex freezing;
  std::weak_ptr<HeldTable> held;

  // content_id() when it was last held for another rank.
  std::atomic<uint64_t> held_content{0};

  bool whole() const { return table->config().distribution == Distribution::kReplicated; }
  uint64_t step() const { return table->table().slots().step; }
  bool trained() const { return step() != loaded_step; }

  // The rows held still, in one holding however many ask: a second one might wait for a writer that waits for the first.
  std::shared_ptr<HeldTable> Hold() {
    const std::lock_guard lock(freezing);
    if (std::shared_ptr<HeldTable> now = held.lock()) return now;
    table->EvictCold(nullptr);
    auto made = std::make_shared<HeldTable>(table);
    held = made;
    return made;
  }
};

// Which table a question of another rank is about.
struct ShardHost::Question {
  int from = 0;
  uint64_t instance = 0;  // there
  bool trained = false;
  std::string name;

  void Write(WireWriter& out) const {
    out.Unsigned(instance);
    out.Byte(trained ? 1 : 0);
    out.Bytes(name);
  }
  static Question Read(int from, WireReader& in) {
    Question question;
    question.from = from;
    question.instance = in.Unsigned();
    question.trained = in.Byte() != 0;
    question.name = in.Bytes(kMaxText);
    return question;
  }
};

// Another rank wants the rows as of an update.
struct ShardHost::HoldJob {
  Question question;
  uint64_t wanted = 0;
  std::mutex mutex;
  std::condition_variable changed;
  State state = kWaiting;
  bool there = false;  // there is such a table
  uint64_t step = 0;   // its update
  bool stop = false;
  steady_clock::time_point last_asked = steady_clock::now();
  std::shared_ptr<HeldTable> held;
  std::map<std::pair<int, bool>, std::shared_ptr<BlockStream>> streams;
  std::thread thread;

  ~HoldJob() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
      changed.notify_all();
    }
    if (thread.joinable()) thread.join();
  }
};

// Another rank wants its file to be loaded here.
struct ShardHost::LoadJob {
  Question question;
  uint64_t offer = 0;
  std::string config, path;
  TableFileInfo info;  // bytes, checksum, content tag
  bool rows_only = false;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> bytes{0};
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Status status;
  steady_clock::time_point last_asked = steady_clock::now();
  std::thread thread;

  ~LoadJob() {
    stop = true;
    if (thread.joinable()) thread.join();
  }
};

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

struct ShardHost::Offer {
  std::unique_ptr<RandomAccessFile> file;
};

ShardHost::ShardHost(ShardHostOptions options) : options_(std::move(options)) {}

ShardHost::~ShardHost() {
  std::map<JobKey, std::shared_ptr<HoldJob>> holds;
  std::map<JobKey, std::shared_ptr<LoadJob>> loads;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    stopped_.notify_all();
    holds.swap(holds_);
    loads.swap(loads_);
  }
  if (sweeper_.joinable()) sweeper_.join();
}

Result<std::string> ShardHost::Answer(int from, std::string_view request) {
  if (request.empty()) return Malformed();
  {
    const std::lock_guard lock(mutex_);
    StartSweeper();
  }
  const std::string_view rest = request.substr(1);
  switch (static_cast<uint8_t>(request[0])) {
    case kHold:
      return AnswerHold(from, rest);
    case kRows:
      return AnswerRows(from, rest);
    case kRelease:
      return AnswerRelease(from, rest);
    case kLoad:
      return AnswerLoad(from, rest);
    case kRead:
      return AnswerRead(from, rest);
    case kClaim:
      return AnswerClaim(from, rest);
    case kClaimEnd:
      return AnswerClaimEnd(from, rest);
    case kNeeded:
      return AnswerNeeded(from, rest);
    case kAlive:
      return AnswerAlive(from, rest);
    default:
      return Malformed();
  }
}

void ShardHost::StartSweeper() {
  if (!sweeper_.joinable() && !stop_) sweeper_ = std::thread([this] { Sweep(); });
}

void ShardHost::Sweep() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    stopped_.wait_for(lock, std::chrono::seconds(1));
    if (stop_) return;
    std::vector<std::shared_ptr<Instance>> closed;
    std::vector<std::shared_ptr<HoldJob>> holds;
    std::vector<std::shared_ptr<LoadJob>> loads;
    const auto lapsed = steady_clock::now() - options_.patience;
    const auto sweep = [&](auto& jobs, auto& gone) {
      for (auto job = jobs.begin(); job != jobs.end();) {
        const std::lock_guard job_lock(job->second->mutex);
        if (job->second->last_asked > lapsed) {
          ++job;
        } else {
          gone.push_back(job->second);
          job = jobs.erase(job);
        }
      }
    };
    sweep(holds_, holds);
    sweep(loads_, loads);
    for (const std::shared_ptr<Instance>& instance : instances_) {
      if (instance->life == Instance::Life::kClosed) closed.push_back(instance);
    }
    lock.unlock();  // their threads may want it before they end
    holds.clear();
    loads.clear();
    for (std::shared_ptr<Instance>& instance : closed) {
      bool needed = false;
      for (int rank = 0; rank < options_.size && !needed && !instance->whole(); ++rank) {
        needed = rank != options_.rank && !NeededAt(rank, {{instance->table->name(), instance->step()}}).empty();
      }
      if (needed) continue;
      lock.lock();
      std::erase(instances_, instance);
      lock.unlock();
      instance.reset();  // the table, perhaps
    }
    closed.clear();
    lock.lock();
  }
}

// --- tables of this rank ---

Result<std::shared_ptr<EmbeddingTable>> ShardHost::Open(const EmbeddingTableConfig& config) {
  std::vector<std::shared_ptr<Instance>> gone;  // they go when the lock is gone
  std::unique_lock lock(mutex_);
  const std::vector<std::shared_ptr<Instance>> all = instances_;
  for (const std::shared_ptr<Instance>& instance : all) {
    if (instance->life == Instance::Life::kOpen || instance->table->name() != config.table.name) continue;
    if (instance->life == Instance::Life::kPending) {
      // Rows for a session that the other rank has closed since are for nobody.
      const auto [rank, other] = *instance->met.begin();
      std::string request;
      WireWriter out(&request);
      out.Byte(kAlive);
      out.Unsigned(other);
      lock.unlock();
      const Result<std::string> alive = options_.call(rank, request, steady_clock::now() + options_.patience);
      lock.lock();
      if (!alive.ok() || !alive->empty()) continue;
    }
    gone.push_back(instance);
    std::erase(instances_, instance);
  }
  for (const std::shared_ptr<Instance>& instance : instances_) {
    if (instance->life != Instance::Life::kPending || instance->table->name() != config.table.name) continue;
    if (instance->table->config().ToJson() != config.ToJson()) {
      return FailedPreconditionError("table \"" + config.table.name + "\": rank " + std::to_string(instance->met.begin()->first) +
                                     " has loaded rows for it, with another config than here (rank " +
                                     std::to_string(options_.rank) + "): " + instance->table->config().FirstDifference(config));
    }
    instance->life = Instance::Life::kOpen;
    return instance->table;
  }
  auto instance = std::make_shared<Instance>();
  MXREC_ASSIGN_OR_RETURN(instance->table, EmbeddingTable::Create(config));
  instance->id = next_++;
  instances_.push_back(instance);
  return instance->table;
}

void ShardHost::Close(const EmbeddingTable* table) {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Instance>& instance : instances_) {
    if (instance->table.get() == table) instance->life = Instance::Life::kClosed;
  }
  StartSweeper();
}

void ShardHost::NoteLoaded(const EmbeddingTable& table) {
  if (const std::shared_ptr<Instance> instance = Find(table)) instance->loaded_step = instance->step();
}

std::shared_ptr<ShardHost::Instance> ShardHost::Find(const EmbeddingTable& table) {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Instance>& instance : instances_) {
    if (instance->table.get() == &table) return instance;
  }
  return nullptr;
}

std::shared_ptr<ShardHost::Instance> ShardHost::Choose(const Question& question, bool however_trained) {
  std::shared_ptr<Instance> found;
  for (const std::shared_ptr<Instance>& instance : instances_) {
    if (instance->table->name() != question.name) continue;
    const auto met = instance->met.find(question.from);
    if (met != instance->met.end()) {
      if (met->second == question.instance) return instance;
    } else if (however_trained || instance->trained() == question.trained) {
      found = instance;  // the newest of them
    }
  }
  return found;
}

void ShardHost::Leave() {
  std::vector<std::pair<std::string, uint64_t>> tables;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    for (const std::shared_ptr<Instance>& instance : instances_) {
      if (!instance->whole() && instance->life != Instance::Life::kPending) {
        tables.emplace_back(instance->table->name(), instance->step());
      }
    }
  }
  const auto begin = steady_clock::now();
  bool told = false;
  for (int rank = 0; rank < options_.size && !tables.empty(); ++rank) {
    if (rank == options_.rank) continue;
    while (steady_clock::now() - begin < options_.patience) {
      const std::string needed = NeededAt(rank, tables);
      if (needed.empty()) break;
      if (!told && steady_clock::now() - begin > std::chrono::seconds(5)) {
        told = true;
        MXREC_LOG(INFO) << "rank " << options_.rank << " has come to its end and stays for rank " << rank
                        << ", which has a session with table \"" << needed << "\" and may save it";
      }
      std::this_thread::sleep_for(milliseconds(50));
    }
  }
}

std::string ShardHost::NeededAt(int rank, const std::vector<std::pair<std::string, uint64_t>>& tables) {
  if (options_.reachable && !options_.reachable()) return std::string();
  std::string request;
  WireWriter out(&request);
  out.Byte(kNeeded);
  out.Unsigned(tables.size());
  for (const auto& [name, step] : tables) {
    out.Bytes(name);
    out.Unsigned(step);
  }
  const Result<std::string> answer = options_.call(rank, request, steady_clock::now() + std::chrono::seconds(5));
  return answer.ok() ? *answer : std::string();
}

Result<std::string> ShardHost::AnswerAlive(int, std::string_view request) {
  WireReader in(request);
  const uint64_t id = in.Unsigned();
  if (!in.done()) return Malformed();
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Instance>& instance : instances_) {
    if (instance->id == id && instance->life == Instance::Life::kOpen) return std::string("yes");
  }
  return std::string();
}

Result<std::string> ShardHost::AnswerNeeded(int, std::string_view request) {
  WireReader in(request);
  std::vector<std::pair<std::string, uint64_t>> tables;
  for (uint64_t left = in.Count(2); in.ok() && left > 0; --left) {
    std::string name(in.Bytes(kMaxText));
    tables.emplace_back(std::move(name), in.Unsigned());
  }
  if (!in.done()) return Malformed();
  if (options_.waits && options_.waits()) return std::string();
  const std::lock_guard lock(mutex_);
  if (leaving_) return std::string();
  for (const auto& [name, step] : tables) {
    for (const std::shared_ptr<Instance>& instance : instances_) {
      if (instance->life == Instance::Life::kOpen && instance->table->name() == name && instance->step() == step) return name;
    }
  }
  return std::string();
}

// --- saving ---

Result<TableFileInfo> ShardHost::WriteTable(const CheckpointIo& io, const EmbeddingTable& table,
                                            const std::function<std::string(uint64_t content_tag)>& path_for_tag) {
  const std::lock_guard one_at_a_time(saving_);
  const std::shared_ptr<Instance> instance = Find(table);
  if (instance == nullptr) return InternalError("table \"" + table.name() + "\" is not known to the host of this rank's tables");
  const std::string place = Absolute(path_for_tag(0));
  const auto ask_first = [&](const std::string& request) { return options_.rank == 0 ? Answer(0, request) : Ask(0, request, io); };
  std::string claim;
  WireWriter out(&claim);
  out.Byte(kClaim);
  out.Bytes(table.name());
  out.Bytes(place);
  out.Unsigned(instance->step());
  for (;;) {
    MXREC_ASSIGN_OR_RETURN(const std::string answer, ask_first(claim));
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
  const Result<std::string> ended = options_.rank == 0 ? Answer(0, end) : Ask(0, end, {});
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

Result<TableFileInfo> ShardHost::WriteAll(const CheckpointIo& io, Instance& held_instance,
                                          const std::function<std::string(uint64_t content_tag)>& path_for_tag) {
  Instance* const instance = &held_instance;
  EmbeddingTable& table = *instance->table;
  if (instance->whole()) {
    table.EvictCold(io.executor);
    return WriteTableFile(io, table.table(), path_for_tag);
  }
  const Deadline deadline = steady_clock::now() + options_.patience;
  const std::string which = "table \"" + table.name() + "\": rank ";
  const std::string saver = "rank " + std::to_string(options_.rank) + ", which saves, ";
  for (;;) {
    std::shared_ptr<HeldTable> own = instance->Hold();
    const uint64_t step = own->slots.step;
    std::vector<std::unique_ptr<Held>> held;
    std::optional<std::pair<int, uint64_t>> ahead;
    for (int rank = 0; rank < options_.size && !ahead.has_value(); ++rank) {
      if (rank == options_.rank) continue;
      auto rows = std::make_unique<Held>();
      rows->host = this;
      rows->rows.rank = rank;
      std::string request;
      WireWriter out(&request);
      {
        const std::lock_guard lock(mutex_);
        rows->number = next_++;
      }
      out.Byte(kHold);
      out.Unsigned(rows->number);
      Question{.instance = instance->id, .trained = instance->trained(), .name = table.name()}.Write(out);
      out.Unsigned(step);
      for (State state = kWaiting; state == kWaiting;) {
        MXREC_ASSIGN_OR_RETURN(const std::string answer, Ask(rank, request, io));
        WireReader in(answer);
        state = static_cast<State>(in.Byte());
        const bool there = in.Byte() != 0;
        const uint64_t other = in.Unsigned();
        if (state == kReady) {
          const std::string kind(in.Bytes(kMaxText));
          const uint64_t floats = in.Unsigned();
          for (int run = 0; run < kShardCount; ++run) rows->rows.run_rows.push_back(in.Unsigned());
          for (int run = 0; run < kShardCount; ++run) rows->rows.run_candidates.push_back(in.Unsigned());
          if (!in.done()) return DataLossError(which + std::to_string(rank) + " sent an answer that is none");
          if (kind != own->slots.optimizer_kind || floats != own->slots.slot_floats(table.dim())) {
            return FailedPreconditionError(which + std::to_string(rank) + " trains it with optimizer '" + kind + "', " + saver +
                                           "with '" + own->slots.optimizer_kind + "'");
          }
        } else if (!in.done() || state > kAhead) {
          return DataLossError(which + std::to_string(rank) + " sent an answer that is none");
        } else if (state == kAhead) {
          ahead.emplace(rank, other);
        } else if (state == kWaiting && steady_clock::now() > deadline) {
          return FailedPreconditionError(
              which + std::to_string(rank) +
              (there ? " has made " + Updates(other) + " of it, " : " has no such table in a session, ") + saver + "has made " +
              Updates(step) + ", still so after " + Seconds(options_.patience) +
              ": a save needs the rows of all ranks as of one update. Do all ranks run every step, with this table?");
        }
      }
      if (!rows->rows.run_rows.empty()) {
        rows->rows.next = [this, rank, number = rows->number](int run, bool candidates) {
          std::string request;
          WireWriter out(&request);
          out.Byte(kRows);
          out.Unsigned(number);
          out.Unsigned(static_cast<uint64_t>(run));
          out.Byte(candidates ? 1 : 0);
          return Ask(rank, request, {});
        };
        held.push_back(std::move(rows));
      }
    }
    if (!ahead.has_value()) {
      std::vector<RemoteRows> others;
      TableState state{.options = table.table().options(), .slots = own->slots, .eviction = own->eviction};
      for (const std::unique_ptr<Held>& rows : held) others.push_back(rows->rows);
      const internal::MergedSource source(own.get(), &others);
      return WriteTableFile(io, state, source, path_for_tag);
    }
    // Somebody trains while we save. Our next update is on its way.
    held.clear();
    own.reset();
    while (instance->step() == step) {
      if (Cancelled(io)) return CancelledError("saving table \"" + table.name() + "\" was cancelled");
      if (steady_clock::now() > deadline) {
        return FailedPreconditionError(which + std::to_string(ahead->first) + " has made " + Updates(ahead->second) + " of it, " +
                                       saver + "has made " + Updates(step) + ", still so after " + Seconds(options_.patience) +
                                       ": a save needs the rows of all ranks as of one update. Do all ranks run every step, with "
                                       "this table?");
      }
      std::this_thread::sleep_for(kPoll);
    }
  }
}

Result<std::string> ShardHost::Ask(int rank, const std::string& request, const CheckpointIo& io) {
  const Deadline deadline = steady_clock::now() + options_.patience;
  for (;;) {
    if (Cancelled(io)) return CancelledError("the question to rank " + std::to_string(rank) + " was cancelled");
    Result<std::string> answer = options_.call(rank, request, deadline);
    if (answer.ok()) return answer;
    if (answer.status().code() != StatusCode::kNotFound || steady_clock::now() > deadline) {
      return Status(answer.status().code(), "rank " + std::to_string(rank) + ": " + std::string(answer.status().message()));
    }
    std::this_thread::sleep_for(milliseconds(20));
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

// --- loading ---

Result<LoadReport> ShardHost::ReadTable(const CheckpointIo& io, const EmbeddingTable& table, const std::string& path,
                                        bool rows_only) {
  const std::lock_guard one_at_a_time(reading_);
  const std::shared_ptr<Instance> instance = Find(table);
  if (instance == nullptr) return InternalError("table \"" + table.name() + "\" is not known to the host of this rank's tables");
  Question question{.instance = instance->id, .trained = instance->trained(), .name = table.name()};
  MXREC_ASSIGN_OR_RETURN(const TableFileInfo info, ReadTableFileInfo(io, path));
  MXREC_ASSIGN_OR_RETURN(const LoadReport report, LoadShare(*instance, io, path, info, rows_only));
  if (options_.size == 1) return report;

  const auto offer = std::make_shared<Offer>();
  MXREC_ASSIGN_OR_RETURN(offer->file, (io.env != nullptr ? io.env : Env::Default())->NewRandomAccessFile(path));
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = next_++;
    offers_[number] = offer;
  }
  std::string request;
  WireWriter out(&request);
  out.Byte(kLoad);
  out.Unsigned(number);
  question.Write(out);
  out.Bytes(table.config().ToJson());
  out.Bytes(Absolute(path));
  out.Unsigned(info.bytes);
  out.Unsigned(info.crc32c);
  out.Unsigned(info.content_tag);
  out.Byte(rows_only ? 1 : 0);

  // All at once, then asked in turn how far they are.
  struct Other {
    int rank;
    uint64_t bytes = 0;
    steady_clock::time_point since = steady_clock::now();
  };
  std::vector<Other> others;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank != options_.rank) others.push_back({rank});
  }
  Status status;
  while (status.ok() && !others.empty()) {
    for (auto other = others.begin(); status.ok() && other != others.end();) {
      const Result<std::string> answer = Ask(other->rank, request, io);
      if (!answer.ok()) {
        status = answer.status();
        break;
      }
      WireReader in(*answer);
      const bool done = in.Byte() != 0;
      const uint64_t bytes = in.Unsigned();
      if (!in.done()) status = DataLossError("rank " + std::to_string(other->rank) + " sent an answer that is none");
      if (done) {
        other = others.erase(other);
        continue;
      }
      if (bytes != other->bytes) {
        other->bytes = bytes;
        other->since = steady_clock::now();
      } else if (steady_clock::now() - other->since > options_.patience) {
        status = FailedPreconditionError("rank " + std::to_string(other->rank) + " has loaded " + std::to_string(bytes) +
                                         " bytes of " + path + " and none more for " + Seconds(options_.patience));
      }
      ++other;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    offers_.erase(number);
  }
  if (status.ok()) return report;
  return Status(status.code(), "table \"" + table.name() + "\": " + std::string(status.message()) + " (rank " +
                                   std::to_string(options_.rank) + " has its rows of " + path + ", other ranks may not)");
}

Result<LoadReport> ShardHost::LoadShare(Instance& instance, const CheckpointIo& io, const std::string& path,
                                        const TableFileInfo& info, bool rows_only) {
  const std::lock_guard lock(instance.loading);
  Table* const table = &instance.table->table();
  Instance::Loaded& loaded = instance.loaded;
  if (loaded.content_id != 0 && loaded.content_id == table->content_id() && loaded.content_tag == info.content_tag &&
      loaded.crc32c == info.crc32c && loaded.rows_only == rows_only) {
    return loaded.report;
  }
  loaded.content_id = 0;
  LoadOptions options{.owner_rule = instance.table->config().owner, .rows_only = rows_only};
  if (!instance.whole()) {
    options.rank = static_cast<uint32_t>(options_.rank);
    options.rank_count = static_cast<uint32_t>(options_.size);
  }
  MXREC_ASSIGN_OR_RETURN(LoadReport report, ReadTableFiles(io, {&path, 1}, table, NowMs(), options));
  loaded = {.content_tag = info.content_tag,
            .content_id = table->content_id(),
            .crc32c = info.crc32c,
            .rows_only = rows_only,
            .report = report};
  instance.loaded_step = instance.step();
  return report;
}

Result<std::string> ShardHost::AnswerLoad(int from, std::string_view request) {
  WireReader in(request);
  const auto wanted = std::make_shared<LoadJob>();
  wanted->offer = in.Unsigned();
  wanted->question = Question::Read(from, in);
  wanted->config = in.Bytes(kMaxText);
  wanted->path = in.Bytes(kMaxText);
  wanted->info.bytes = in.Unsigned();
  wanted->info.crc32c = static_cast<uint32_t>(in.Unsigned(UINT32_MAX));
  wanted->info.content_tag = in.Unsigned();
  wanted->rows_only = in.Byte() != 0;
  if (!in.done()) return Malformed();
  const JobKey key(from, wanted->offer);
  std::shared_ptr<LoadJob> job;
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return CancelledError("rank " + std::to_string(options_.rank) + " ends");
    std::shared_ptr<LoadJob>& place = loads_[key];
    if (place == nullptr) {
      place = wanted;
      place->thread = std::thread([this, job = place.get()] { RunLoad(job); });
    }
    job = place;
  }
  std::string answer;
  WireWriter out(&answer);
  std::unique_lock lock(job->mutex);
  job->last_asked = steady_clock::now();
  if (!job->changed.wait_for(lock, kAnswerWithin, [&] { return job->done; })) {
    out.Byte(0);
    out.Unsigned(job->bytes);
    return answer;
  }
  const Status status = job->status;
  lock.unlock();
  {
    const std::lock_guard all(mutex_);
    loads_.erase(key);
  }
  MXREC_RETURN_IF_ERROR(status);
  out.Byte(1);
  out.Unsigned(job->bytes);
  return answer;
}

void ShardHost::RunLoad(LoadJob* job) {
  const auto load = [&]() -> Status {
    MXREC_ASSIGN_OR_RETURN(const EmbeddingTableConfig config, EmbeddingTableConfig::FromJson(job->config));
    std::shared_ptr<Instance> instance;
    {
      const std::lock_guard lock(mutex_);
      instance = Choose(job->question, false);
      if (instance != nullptr && instance->life == Instance::Life::kClosed) instance = nullptr;
      if (instance == nullptr) {
        instance = std::make_shared<Instance>();
        MXREC_ASSIGN_OR_RETURN(instance->table, EmbeddingTable::Create(config));
        instance->id = next_++;
        instance->life = Instance::Life::kPending;
        instances_.push_back(instance);
      }
      instance->met[job->question.from] = job->question.instance;
    }
    if (instance->table->config().ToJson() != job->config) {
      return FailedPreconditionError("its table \"" + config.table.name +
                                     "\" has another config: " + instance->table->config().FirstDifference(config));
    }
    // The file itself where it can be seen: by what it says of itself, it is the one that is meant.
    const Result<TableFileInfo> seen = ReadTableFileInfo({}, job->path);
    const bool same = seen.ok() && seen->bytes == job->info.bytes && seen->crc32c == job->info.crc32c &&
                      seen->content_tag == job->info.content_tag;
    internal::RemoteEnv remote(job->path, job->info.bytes, [&](uint64_t offset, uint64_t bytes) {
      std::string request;
      WireWriter out(&request);
      out.Byte(kRead);
      out.Unsigned(job->offer);
      out.Unsigned(offset);
      out.Unsigned(bytes);
      return Ask(job->question.from, request, {});
    });
    ThreadPool pool(std::min(4, ThreadPool::HardwareThreads()));
    CheckpointIo io{.env = same ? nullptr : &remote, .executor = &pool, .progress = [&](uint64_t done, uint64_t) {
                      uint64_t before = job->bytes;
                      while (done > before && !job->bytes.compare_exchange_weak(before, done)) {
                      }
                      return !job->stop;
                    }};
    return LoadShare(*instance, io, job->path, job->info, job->rows_only).status();
  };
  const Status status = load();
  const std::lock_guard lock(job->mutex);
  job->status = status;
  job->done = true;
  job->changed.notify_all();
}

Result<std::string> ShardHost::AnswerRead(int from, std::string_view request) {
  WireReader in(request);
  const uint64_t number = in.Unsigned(), offset = in.Unsigned(), bytes = in.Unsigned(kMostReadBytes);
  if (!in.done()) return Malformed();
  std::shared_ptr<Offer> offer;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = offers_.find(number); found != offers_.end()) offer = found->second;
  }
  if (offer == nullptr) {
    return FailedPreconditionError("rank " + std::to_string(options_.rank) + " offers no such file to rank " +
                                   std::to_string(from));
  }
  std::string data(bytes, '\0');
  MXREC_RETURN_IF_ERROR(offer->file->ReadAt(offset, data));
  return data;
}

}  // namespace mxrec
