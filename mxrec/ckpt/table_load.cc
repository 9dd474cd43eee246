#include "mxrec/ckpt/table_load.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "mxrec/ckpt/format/manifest.h"
#include "mxrec/ckpt/format/names.h"
#include "mxrec/ckpt/known_files.h"
#include "mxrec/ckpt/row_stream.h"
#include "mxrec/ckpt/table_file_writer.h"

namespace mxrec {
namespace internal {
namespace {

class LoaderSink final : public RowSink {
 public:
  explicit LoaderSink(Table::Loader* loader) : loader_(loader) {}
  Status AddRows(const RowBlock& block) override {
    rows_.fetch_add(block.count, std::memory_order_relaxed);
    return loader_->AddRows(block);
  }
  Status AddCandidates(std::span<const Candidate> candidates) override {
    candidates_.fetch_add(candidates.size(), std::memory_order_relaxed);
    return loader_->AddCandidates(candidates);
  }
  uint64_t rows() const { return rows_; }
  uint64_t candidates() const { return candidates_; }

 private:
  Table::Loader* const loader_;
  std::atomic<uint64_t> rows_{0}, candidates_{0};
};

format::TableHeader HeaderOf(const TableOptions& options, const SlotRecord& slots, const EvictionState& eviction, ShardOf shard) {
  format::TableHeader header;
  header.table = options.name;
  header.dim = options.dim;
  header.seed = options.seed;
  header.initializer = options.initializer;
  header.slots = slots;
  header.has_counts = options.keep_counts;
  header.has_times = options.max_cold_secs > 0;
  header.eviction = eviction;
  header.shard = shard.shard;
  header.shard_count = shard.shard_count;
  return header;
}

format::TableHeader HeaderOf(const Table& table, const Table::Snapshot& snapshot, ShardOf shard) {
  return HeaderOf(table.options(), snapshot.slots(), snapshot.eviction(), shard);
}

bool SameContents(const TableFileInfo& a, const TableFileInfo& b) {
  return a.content_tag == b.content_tag && a.crc32c == b.crc32c && a.bytes == b.bytes;
}

// A file that was read or checked: enough to skip a load, not to publish another name of it.
void Remember(Env* env, const TableFile& file, uint64_t content_id) {
  const Result<FileIdentity> identity = env->Identify(file.path());
  if (!identity.ok() || file.identity() == nullptr || *identity != *file.identity()) return;
  for (const KnownFile& known : FilesHolding(env, content_id)) {
    if (known.path == file.path()) return;  // perhaps written by this process, which is more
  }
  RememberFile(env, content_id, {file.path(), *identity, /*root=*/{}, /*synced=*/false, file.info()});
}

// Gives a file that is known to hold the contents the name `path`, by way of a temporary name beside `beside`. False when that
// cannot be done: the caller then writes.
bool LinkKnownFile(Env* env, const KnownFile& known, const std::string& beside, const std::string& path) {
  if (const Result<FileIdentity> there = env->Identify(path); there.ok() && *there == known.identity) return true;
  const std::string temporary = format::TemporaryName(beside);
  if (!env->Link(known.path, temporary).ok()) return false;
  const Result<FileIdentity> linked = env->Identify(temporary);
  const bool done = linked.ok() && *linked == known.identity && env->Rename(temporary, path).ok();
  if (!done) static_cast<void>(env->RemoveFile(temporary));
  return done;
}

}  // namespace

Result<TableLoad> TableLoad::Prepare(const CheckpointIo& io, std::span<const std::string> paths, Table* table,
                                     const LoadOptions& options) {
  if (options.rank >= options.rank_count) {
    return InvalidArgumentError("rank " + std::to_string(options.rank) + ": expected less than the rank count " +
                                std::to_string(options.rank_count));
  }
  TableLoad load;
  load.table_ = table;
  load.options_ = options;
  for (const std::string& path : paths) {
    MXREC_ASSIGN_OR_RETURN(std::unique_ptr<TableFile> file, TableFile::Open(EnvOf(io), path));
    if (file->header().dim != table->options().dim) {
      return FailedPreconditionError(path + ": table \"" + table->options().name + "\" has dim " +
                                     std::to_string(table->options().dim) + ", the file (table \"" + file->header().table +
                                     "\") has dim " + std::to_string(file->header().dim));
    }
    load.files_.push_back(std::move(file));
  }
  std::sort(load.files_.begin(), load.files_.end(),
            [](const auto& a, const auto& b) { return a->header().shard < b->header().shard; });
  std::vector<TableFileInfo> infos;
  for (const auto& file : load.files_) {
    infos.push_back(file->info());
    infos.back().file = file->path();
  }
  MXREC_RETURN_IF_ERROR(format::CheckShards(infos));
  const TableOptions& wanted = table->options();
  uint64_t rows = 0;
  for (const auto& file : load.files_) rows += file->header().rows;
  if (wanted.capacity_policy == CapacityPolicy::kError && options.rank_count == 1 && rows > wanted.capacity_rows) {
    return ResourceExhaustedError("table \"" + wanted.name + "\": the checkpoint holds " + std::to_string(rows) +
                                  " rows, the capacity is " + std::to_string(wanted.capacity_rows) + " rows");
  }
  if (load.files_.size() == 1 && options.rank_count == 1 && !options.rows_only) {
    const TableFile& file = *load.files_[0];
    const uint64_t content_id = table->content_id();
    for (const KnownFile& known : FilesHolding(EnvOf(io), content_id)) {
      if (!SameContents(known.info, file.info())) continue;
      load.same_content_ = content_id;
      load.held_ = load.held_ || (file.identity() != nullptr && *file.identity() == known.identity);
    }
  }
  load.filled_ = table->size() != 0 || table->TakeSnapshot()->candidates() != 0 || !table->slots().optimizer_kind.empty();
  return load;
}

uint64_t TableLoad::file_bytes() const {
  if (held_) return 0;
  uint64_t sum = 0;
  for (const auto& file : files_) sum += file->info().bytes;
  return sum;
}

Status TableLoad::Verify(const CheckpointIo& io, Progress* progress) const {
  return held_ ? OkStatus() : ReadBlocks(io, files_, {}, nullptr, progress);
}

Result<LoadReport> TableLoad::Run(const CheckpointIo& io, int64_t now_ms, Progress* progress) const {
  if (same_content_ == 0) return Fill(io, now_ms, progress);
  const TableFile& file = *files_[0];
  if (!table_->ConfirmLoaded(same_content_)) {  // changed meanwhile
    if (held_) {
      progress->AddTotal(2 * file.info().bytes);
      MXREC_RETURN_IF_ERROR(ReadBlocks(io, files_, {}, nullptr, progress));
    }
    return Fill(io, now_ms, progress);
  }
  if (!held_) {
    // Another file with the same contents; it was checked like every file for a filled table.
    if (!filled_) MXREC_RETURN_IF_ERROR(ReadBlocks(io, files_, {}, nullptr, progress));
    if (filled_) MXREC_RETURN_IF_ERROR(progress->Add(file.info().bytes));
    Remember(EnvOf(io), file, same_content_);
  }
  return LoadReport{.rows = file.header().rows,
                    .candidates = file.header().candidates,
                    .file_optimizer_kind = file.header().slots.optimizer_kind,
                    .seed_differs = file.header().seed != table_->options().seed};
}

Result<LoadReport> TableLoad::Fill(const CheckpointIo& io, int64_t now_ms, Progress* progress) const {
  const format::TableHeader& header = files_[0]->header();
  const SlotRecord attached = table_->slots();
  LoadReport report;
  report.file_optimizer_kind = header.slots.optimizer_kind;
  report.seed_differs = header.seed != table_->options().seed;

  // Start values are the running optimizer's; step and scalars are the file's.
  SlotRecord record = options_.rows_only ? SlotRecord() : header.slots;
  if (!attached.optimizer_kind.empty() && !record.optimizer_kind.empty()) {
    if (attached.SameSlots(record, header.dim) && attached.scalar_names == record.scalar_names) {
      record.slot_initial_values = attached.slot_initial_values;
    } else {
      record = SlotRecord();
      report.slots_fresh = true;
    }
  }
  uint64_t expected_rows = 0;
  for (const auto& file : files_) expected_rows += file->header().rows;
  expected_rows = expected_rows / options_.rank_count + (expected_rows % options_.rank_count != 0);

  // The ranks of a job tick together; if they did not, the latest clock keeps every row's order within its file.
  EvictionState eviction = header.eviction;
  for (const auto& file : files_) eviction.time = std::max(eviction.time, file->header().eviction.time);

  MXREC_ASSIGN_OR_RETURN(const std::unique_ptr<Table::Loader> loader, table_->BeginLoad(record, expected_rows, now_ms, eviction));
  LoaderSink sink(loader.get());
  const ReadOptions options{.share = options_, .with_slots = !record.slot_names.empty()};
  if (Status status = ReadBlocks(io, files_, options, &sink, progress); !status.ok()) {
    loader->Abort();
    if (!filled_) return status;
    return Status(status.code(), std::string(status.message()) + " (found only after all files had been checked; table \"" +
                                     table_->options().name + "\" is empty now)");
  }
  const uint64_t content_id = loader->Commit();
  report.rows = sink.rows();
  report.candidates = sink.candidates();
  if (files_.size() == 1 && options_.rank_count == 1) {
    // Whether all that the file holds went in unchanged: then the table would be saved with the same header.
    const std::unique_ptr<Table::Snapshot> snapshot = table_->TakeSnapshot();
    const SnapshotSource source(snapshot.get());
    const ShardOf shard{.shard = header.shard, .shard_count = header.shard_count};
    const Result<std::string> now = EncodeTableHeader(DescribeSource(HeaderOf(*table_, *snapshot, shard), source));
    if (table_->content_id() == content_id && now.ok() && *now == files_[0]->header_bytes()) {
      Remember(EnvOf(io), *files_[0], content_id);
    }
  }
  return report;
}

Result<TableFileInfo> WriteTable(const CheckpointIo& io, const Table& table, ShardOf shard, const std::string& root,
                                 const std::string& beside, const std::function<std::string(uint64_t content_tag)>& path_for_tag,
                                 Progress* progress) {
  if (shard.shard >= shard.shard_count) {
    return InvalidArgumentError("shard " + std::to_string(shard.shard) + ": expected less than the shard count " +
                                std::to_string(shard.shard_count));
  }
  const std::unique_ptr<Table::Snapshot> snapshot = table.TakeSnapshot();
  Env* const env = EnvOf(io);
  const uint64_t content_id = table.content_id();
  const Result<FileIdentity> root_folder = env->Identify(root);
  std::string path;
  for (const KnownFile& known : FilesHolding(env, content_id)) {
    if (!known.synced || known.info.shard != shard.shard || known.info.shard_count != shard.shard_count) continue;
    if (!root_folder.ok() || !root_folder->SameFile(known.root)) continue;
    // Another step is another copy, so that damage to one leaves the other.
    const std::optional<uint64_t> step = format::StepOfPath(beside), other = format::StepOfPath(known.path);
    if (step.has_value() && other.has_value() && *step != *other) continue;
    if (path.empty()) path = path_for_tag(known.info.content_tag);
    MXREC_RETURN_IF_ERROR(progress->Add(known.info.bytes));
    if (!LinkKnownFile(env, known, beside, path)) {
      progress->AddTotal(known.info.bytes);
      continue;
    }
    TableFileInfo info = known.info;
    info.file = BaseName(path);
    RememberFile(env, content_id, {path, known.identity, known.root, /*synced=*/true, info});
    return info;
  }
  const SnapshotSource source(snapshot.get());
  const format::TableHeader header = DescribeSource(HeaderOf(table, *snapshot, shard), source);
  const std::string temporary = format::TemporaryName(beside);
  MXREC_ASSIGN_OR_RETURN(TableFileInfo info, WriteTableStream(io, header, source, temporary, progress));
  if (path.empty()) path = path_for_tag(info.content_tag);
  if (Status status = env->Rename(temporary, path); !status.ok()) {
    static_cast<void>(env->RemoveFile(temporary));
    return status;
  }
  info.file = BaseName(path);
  if (const Result<FileIdentity> identity = env->Identify(path);
      identity.ok() && root_folder.ok() && identity->bytes == info.bytes) {
    RememberFile(env, content_id, {path, *identity, *root_folder, /*synced=*/true, info});
  }
  return info;
}

Result<uint64_t> TableBytes(const Table& table, ShardOf shard) {
  const std::unique_ptr<Table::Snapshot> snapshot = table.TakeSnapshot();
  const SnapshotSource source(snapshot.get());
  return FileBytes(DescribeSource(HeaderOf(table, *snapshot, shard), source));
}

}  // namespace internal

using internal::EnvOf;
using internal::Progress;
using internal::TableFile;
using internal::TableLoad;

namespace {

// What killed processes left behind: no manifest tells of single files. A failure is left for the next call.
void RemoveDeadTemporaries(Env* env, const std::string& dir) {
  const Result<std::vector<std::string>> names = env->ListDir(dir);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (format::IsDeadTemporary(name)) static_cast<void>(env->RemoveFile(JoinPath(dir, name)));
  }
}

}  // namespace

Result<TableFileInfo> WriteTableFile(const CheckpointIo& io, const Table& table,
                                     const std::function<std::string(uint64_t content_tag)>& path_for_tag, ShardOf shard) {
  Env* const env = EnvOf(io);
  const std::string beside = path_for_tag(0);
  const std::string dir = DirName(beside);
  MXREC_RETURN_IF_ERROR(env->CreateDirs(dir));
  MXREC_ASSIGN_OR_RETURN(const uint64_t bytes, internal::TableBytes(table, shard));
  Progress progress(io.progress, bytes);
  MXREC_ASSIGN_OR_RETURN(TableFileInfo info, internal::WriteTable(io, table, shard, dir, beside, path_for_tag, &progress));
  MXREC_RETURN_IF_ERROR(env->SyncDir(dir));
  RemoveDeadTemporaries(env, dir);
  return info;
}

Result<TableFileInfo> WriteTableFile(const CheckpointIo& io, const TableState& state, const RowSource& rows,
                                     const std::function<std::string(uint64_t content_tag)>& path_for_tag) {
  Env* const env = EnvOf(io);
  const std::string beside = path_for_tag(0);
  const std::string dir = DirName(beside);
  MXREC_RETURN_IF_ERROR(env->CreateDirs(dir));
  const format::TableHeader header =
      internal::DescribeSource(internal::HeaderOf(state.options, state.slots, state.eviction, {}), rows);
  MXREC_ASSIGN_OR_RETURN(const uint64_t bytes, internal::FileBytes(header));
  Progress progress(io.progress, bytes);
  const std::string temporary = format::TemporaryName(beside);
  MXREC_ASSIGN_OR_RETURN(TableFileInfo info, internal::WriteTableStream(io, header, rows, temporary, &progress));
  const std::string path = path_for_tag(info.content_tag);
  if (Status status = env->Rename(temporary, path); !status.ok()) {
    static_cast<void>(env->RemoveFile(temporary));
    return status;
  }
  info.file = BaseName(path);
  MXREC_RETURN_IF_ERROR(env->SyncDir(dir));
  RemoveDeadTemporaries(env, dir);
  return info;
}

Result<TableFileInfo> ReadTableFileInfo(const CheckpointIo& io, const std::string& path) {
  MXREC_ASSIGN_OR_RETURN(const std::unique_ptr<TableFile> file, TableFile::Open(EnvOf(io), path));
  return file->info();
}

Result<TableFileInfo> VerifyTableFile(const CheckpointIo& io, const std::string& path) {
  std::vector<std::unique_ptr<TableFile>> files(1);
  MXREC_ASSIGN_OR_RETURN(files[0], TableFile::Open(EnvOf(io), path));
  Progress progress(io.progress, files[0]->info().bytes);
  MXREC_RETURN_IF_ERROR(ReadBlocks(io, files, {}, nullptr, &progress));
  return files[0]->info();
}

Result<LoadReport> ReadTableFiles(const CheckpointIo& io, std::span<const std::string> paths, Table* table, int64_t now_ms,
                                  const LoadOptions& options) {
  MXREC_ASSIGN_OR_RETURN(const TableLoad load, TableLoad::Prepare(io, paths, table, options));
  Progress progress(io.progress, load.file_bytes() * (load.filled() ? 2 : 1));
  if (load.filled()) MXREC_RETURN_IF_ERROR(load.Verify(io, &progress));
  return load.Run(io, now_ms, &progress);
}

}  // namespace mxrec
