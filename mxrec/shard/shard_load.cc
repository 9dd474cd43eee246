// ShardHost: every rank loads its rows of one file.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "mxrec/base/thread_pool.h"
#include "mxrec/engine/clock.h"
#include "mxrec/io/env.h"
#include "mxrec/shard/remote_env.h"
#include "mxrec/shard/shard_host_impl.h"

namespace mxrec {

using internal::Absolute;
using internal::kAnswerWithin;
using internal::kMaxText;
using internal::Malformed;
using internal::Seconds;
using enum internal::Verb;
using std::chrono::steady_clock;

namespace {

constexpr uint64_t kMostReadBytes = uint64_t{16} << 20;

}  // namespace

struct ShardHost::Offer {
  std::unique_ptr<RandomAccessFile> file;
};

Result<LoadReport> ShardHost::ReadTable(const CheckpointIo& io, const EmbeddingTable& table, const std::string& path,
                                        bool rows_only) {
  const std::lock_guard one_at_a_time(reading_);
  MXREC_ASSIGN_OR_RETURN(const std::shared_ptr<Instance> instance, Find(table));
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
