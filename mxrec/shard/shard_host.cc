#include "mxrec/shard/shard_host.h"

#include <algorithm>
#include <filesystem>

#include "mxrec/base/log.h"
#include "mxrec/shard/shard_host_impl.h"

namespace mxrec {
namespace internal {

Status Malformed() { return DataLossError("a question about the rows of a table"); }

std::string Seconds(std::chrono::milliseconds time) {
  const int64_t tenths = time.count() / 100;
  std::string text = std::to_string(tenths / 10);
  if (tenths % 10 != 0) text.append(".").append(std::to_string(tenths % 10));
  return text + " s";
}

std::string Absolute(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  return absolute.empty() ? path : absolute.string();
}

bool Cancelled(const CheckpointIo& io) { return io.progress && !io.progress(0, 0); }

}  // namespace internal

using internal::Absolute;
using internal::Cancelled;
using internal::kMaxText;
using internal::Malformed;
using enum internal::Verb;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

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
  if (const auto found = Find(table); found.ok()) (*found)->loaded_step = (*found)->step();
}

Result<std::shared_ptr<ShardHost::Instance>> ShardHost::Find(const EmbeddingTable& table) {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Instance>& instance : instances_) {
    if (instance->table.get() == &table) return instance;
  }
  return InternalError("table \"" + table.name() + "\" is not known to the host of this rank's tables");
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

}  // namespace mxrec
