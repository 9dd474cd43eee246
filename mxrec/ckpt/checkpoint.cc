// Directories of checkpoints. The order of saving: data files, their sync, their folder's sync; the manifest; `latest`; only
// then is anything removed. So at every moment each manifest names complete files.
#include "mxrec/ckpt/checkpoint.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "mxrec/ckpt/format/manifest.h"
#include "mxrec/ckpt/format/names.h"
#include "mxrec/ckpt/parallel.h"
#include "mxrec/ckpt/table_file_writer.h"
#include "mxrec/ckpt/table_load.h"

namespace mxrec {
namespace {

using internal::EnvOf;
using internal::Progress;
using internal::TableLoad;
using internal::WithPath;

// Tables up to this size are written side by side, larger ones one by one with all threads.
constexpr uint64_t kSmallTableBytes = uint64_t{4} << 20;

std::string StepPath(const std::string& dir, uint64_t step) { return JoinPath(dir, format::StepDirName(step)); }

std::string ManifestPath(const std::string& dir, uint64_t step) { return JoinPath(StepPath(dir, step), format::kManifestName); }

Result<format::Manifest> ReadManifest(Env* env, const std::string& dir, uint64_t step) {
  const std::string path = ManifestPath(dir, step);
  MXREC_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(env, path, format::kMaxManifestBytes));
  Result<format::Manifest> manifest = format::DecodeManifest(text);
  if (!manifest.ok()) return WithPath(path, manifest.status());
  if (manifest->step != step) {
    return DataLossError(path + ": step: expected " + std::to_string(step) + " as in the folder's name, found " +
                         std::to_string(manifest->step));
  }
  return manifest;
}

// ReadManifest, and the files it names are there with their lengths.
Result<format::Manifest> ReadCompleteManifest(Env* env, const std::string& dir, uint64_t step) {
  MXREC_ASSIGN_OR_RETURN(format::Manifest manifest, ReadManifest(env, dir, step));
  for (const TableFileInfo& info : manifest.files) {
    const std::string path = JoinPath(StepPath(dir, step), info.file);
    const Result<uint64_t> size = env->FileSize(path);
    if (!size.ok() && size.status().code() == StatusCode::kNotFound) {
      return DataLossError(path + ": expected a file of " + std::to_string(info.bytes) + " bytes as the manifest says, found none");
    }
    if (!size.ok()) return size.status();
    if (*size != info.bytes) {
      return DataLossError(path + ": length of the file: expected " + std::to_string(info.bytes) + " as the manifest says, found " +
                           std::to_string(*size));
    }
  }
  return manifest;
}

// Steps of all folders that are named like checkpoints, ascending.
Result<std::vector<uint64_t>> StepFolders(Env* env, const std::string& dir) {
  std::vector<uint64_t> steps;
  Result<std::vector<std::string>> names = env->ListDir(dir);
  if (!names.ok()) {
    if (names.status().code() == StatusCode::kNotFound) return steps;
    return names.status();
  }
  for (const std::string& name : *names) {
    if (const std::optional<uint64_t> step = format::ParseStepDirName(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string Listed(const std::vector<std::string>& items) {
  if (items.empty()) return "none";
  std::string text;
  // A long list helps nobody; the newest are the last.
  const size_t skipped = items.size() > 20 ? items.size() - 20 : 0;
  if (skipped != 0) text = std::to_string(skipped) + " more, ";
  for (size_t i = skipped; i < items.size(); ++i) text += (i == skipped ? "" : ", ") + items[i];
  return text;
}

std::string ListedSteps(const CheckpointIo& io, const std::string& dir) {
  std::vector<std::string> steps;
  if (const Result<std::vector<uint64_t>> found = ListCheckpoints(io, dir); found.ok()) {
    for (const uint64_t step : *found) steps.push_back(std::to_string(step));
  }
  return Listed(steps);
}

Result<format::Manifest> FindManifest(const CheckpointIo& io, const std::string& dir, uint64_t step) {
  Result<format::Manifest> manifest = ReadManifest(EnvOf(io), dir, step);
  if (!manifest.ok() && manifest.status().code() == StatusCode::kNotFound) {
    return NotFoundError(dir + ": no checkpoint of step " + std::to_string(step) + "; steps there: " + ListedSteps(io, dir));
  }
  return manifest;
}

// What the manifest says of a file against what the file says of itself.
Status CompareWithManifest(const TableFileInfo& expected, const TableFileInfo& found, const std::string& path) {
  const auto differ = [&](const char* what, const std::string& a, const std::string& b) {
    return DataLossError(path + ": " + what + ": expected " + a + " as the manifest says, found " + b);
  };
  if (found.bytes != expected.bytes) return differ("length", std::to_string(expected.bytes), std::to_string(found.bytes));
  if (found.crc32c != expected.crc32c) return differ("CRC32C", format::Hex32(expected.crc32c), format::Hex32(found.crc32c));
  if (found.content_tag != expected.content_tag) {
    return differ("content tag", format::Hex64(expected.content_tag), format::Hex64(found.content_tag));
  }
  if (found.table != expected.table) return differ("table", expected.table, found.table);
  if (found.rows != expected.rows) return differ("rows", std::to_string(expected.rows), std::to_string(found.rows));
  if (found.candidates != expected.candidates) {
    return differ("candidates", std::to_string(expected.candidates), std::to_string(found.candidates));
  }
  if (found.shard != expected.shard || found.shard_count != expected.shard_count) {
    return differ("shard", std::to_string(expected.shard) + " of " + std::to_string(expected.shard_count),
                  std::to_string(found.shard) + " of " + std::to_string(found.shard_count));
  }
  return OkStatus();
}

// --- cleaning up: failures are left for the next save to try again ---

bool IsOurs(const std::string& name) {
  return name == format::kManifestName || format::IsTableFileName(name) || format::IsTemporaryName(name);
}

// Removes files of ours that are not in `keep`. Other people's files stay.
void RemoveOurFiles(Env* env, const std::string& step_dir, const std::set<std::string>& keep) {
  const Result<std::vector<std::string>> names = env->ListDir(step_dir);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (IsOurs(name) && !keep.contains(name)) static_cast<void>(env->RemoveFile(JoinPath(step_dir, name)));
  }
}

// The manifest goes first, so that no manifest ever names a missing file.
void RemoveCheckpoint(Env* env, const std::string& dir, uint64_t step) {
  const std::string step_dir = StepPath(dir, step);
  if (env->FileExists(ManifestPath(dir, step))) {
    if (!env->RemoveFile(ManifestPath(dir, step)).ok() || !env->SyncDir(step_dir).ok()) return;
  }
  RemoveOurFiles(env, step_dir, {});
  static_cast<void>(env->RemoveDir(step_dir));
}

void CleanUp(Env* env, const std::string& dir, uint64_t current_step, int keep) {
  if (const Result<std::vector<std::string>> names = env->ListDir(dir); names.ok()) {
    for (const std::string& name : *names) {
      if (name.starts_with(format::kLatestName) && format::IsTemporaryName(name))
        static_cast<void>(env->RemoveFile(JoinPath(dir, name)));
    }
  }
  const Result<std::vector<uint64_t>> steps = StepFolders(env, dir);
  if (!steps.ok()) return;
  std::vector<uint64_t> others;
  for (const uint64_t step : *steps) {
    const Result<format::Manifest> manifest = ReadManifest(env, dir, step);
    if (manifest.ok()) {
      std::set<std::string> named = {std::string(format::kManifestName)};
      for (const TableFileInfo& info : manifest->files) named.insert(info.file);
      RemoveOurFiles(env, StepPath(dir, step), named);
      if (step != current_step) others.push_back(step);
    } else if (manifest.status().code() == StatusCode::kNotFound && step != current_step) {
      RemoveCheckpoint(env, dir, step);  // a save that never got to its manifest
    }
    // A damaged or newer manifest: somebody may still want what it names.
  }
  if (keep <= 0) return;
  const size_t kept = static_cast<size_t>(keep) - 1;
  for (size_t i = 0; i + kept < others.size(); ++i) RemoveCheckpoint(env, dir, others[i]);
}

// Creates a folder and makes its name, and the names of parents that were missing, durable.
Status CreateDurableDir(Env* env, const std::string& path) {
  std::vector<std::string> to_sync;
  std::string at = path;
  while (!env->FileExists(at)) {
    const std::string parent = DirName(at);
    to_sync.push_back(parent);
    if (parent == at || parent == ".") break;
    at = parent;
  }
  MXREC_RETURN_IF_ERROR(env->CreateDirs(path));
  for (const std::string& dir : to_sync) MXREC_RETURN_IF_ERROR(env->SyncDir(dir));
  return OkStatus();
}

}  // namespace

Result<std::vector<TableFileInfo>> WriteCheckpointFiles(const CheckpointIo& io, const std::string& dir,
                                                        std::span<const Table* const> tables, uint64_t step, ShardOf shard) {
  std::set<std::string> seen;
  for (const Table* table : tables) {
    if (!seen.insert(table->options().name).second) {
      return InvalidArgumentError("two tables have the name \"" + table->options().name + "\"; a checkpoint holds one of a name");
    }
  }
  Env* const env = EnvOf(io);
  const std::string step_dir = StepPath(dir, step);
  MXREC_RETURN_IF_ERROR(CreateDurableDir(env, step_dir));

  std::vector<uint64_t> bytes(tables.size());
  uint64_t total = 0;
  std::vector<size_t> small, large;
  for (size_t i = 0; i < tables.size(); ++i) {
    MXREC_ASSIGN_OR_RETURN(bytes[i], internal::TableBytes(*tables[i], shard));
    total += bytes[i];
    (bytes[i] <= kSmallTableBytes ? small : large).push_back(i);
  }
  Progress progress(io.progress, total);
  std::vector<TableFileInfo> infos(tables.size());
  const auto write = [&](const CheckpointIo& table_io, size_t i) -> Status {
    const auto path_for_tag = [&](uint64_t tag) {
      return JoinPath(step_dir, format::TableFileName(tables[i]->options().name, tag, shard.shard, shard.shard_count));
    };
    MXREC_ASSIGN_OR_RETURN(infos[i],
                           internal::WriteTable(table_io, *tables[i], shard, dir, path_for_tag(0), path_for_tag, &progress));
    progress.AddTotal(infos[i].bytes - bytes[i]);  // the table may have grown since
    return OkStatus();
  };
  const CheckpointIo alone{.env = env, .executor = nullptr, .progress = {}};
  MXREC_RETURN_IF_ERROR(
      internal::ParallelStatus(io.executor, small.size(), [&](size_t, size_t i) { return write(alone, small[i]); }));
  for (const size_t i : large) MXREC_RETURN_IF_ERROR(write(io, i));
  MXREC_RETURN_IF_ERROR(env->SyncDir(step_dir));
  return infos;
}

Status PublishCheckpoint(const CheckpointIo& io, const std::string& dir, std::span<const TableFileInfo> files,
                         const SaveOptions& options) {
  Env* const env = EnvOf(io);
  format::Manifest manifest{.step = options.step, .files = {files.begin(), files.end()}};
  MXREC_ASSIGN_OR_RETURN(const std::string text, EncodeManifest(std::move(manifest)));
  MXREC_RETURN_IF_ERROR(CreateDurableDir(env, StepPath(dir, options.step)));  // a checkpoint of no tables
  MXREC_RETURN_IF_ERROR(WriteFileAtomically(env, ManifestPath(dir, options.step), text));
  MXREC_RETURN_IF_ERROR(WriteFileAtomically(env, JoinPath(dir, format::kLatestName), format::EncodeLatest(options.step)));
  CleanUp(env, dir, options.step, options.keep);
  return OkStatus();
}

Status SaveCheckpoint(const CheckpointIo& io, const std::string& dir, std::span<const Table* const> tables,
                      const SaveOptions& options) {
  if (options.keep < 0) return InvalidArgumentError("keep: expected 0 (all) or more, found " + std::to_string(options.keep));
  MXREC_ASSIGN_OR_RETURN(const std::vector<TableFileInfo> files, WriteCheckpointFiles(io, dir, tables, options.step));
  return PublishCheckpoint(io, dir, files, options);
}

Result<std::vector<LoadReport>> LoadCheckpoint(const CheckpointIo& io, const std::string& dir, uint64_t step,
                                               std::span<Table* const> tables, int64_t now_ms, const LoadOptions& options) {
  const std::vector<LoadOptions> each(tables.size(), options);
  return LoadCheckpoint(io, dir, step, tables, now_ms, each);
}

Result<std::vector<LoadReport>> LoadCheckpoint(const CheckpointIo& io, const std::string& dir, uint64_t step,
                                               std::span<Table* const> tables, int64_t now_ms,
                                               std::span<const LoadOptions> options) {
  MXREC_CHECK(options.size() == tables.size());
  MXREC_ASSIGN_OR_RETURN(const format::Manifest manifest, FindManifest(io, dir, step));
  std::vector<TableLoad> loads;
  uint64_t bytes = 0;
  bool any_filled = false;
  for (size_t t = 0; t < tables.size(); ++t) {
    Table* const table = tables[t];
    std::vector<std::string> paths;
    std::vector<TableFileInfo> entries;
    for (const TableFileInfo& info : manifest.files) {
      if (info.table != table->options().name) continue;
      paths.push_back(JoinPath(StepPath(dir, step), info.file));
      entries.push_back(info);
    }
    if (paths.empty()) {
      std::vector<std::string> names;
      for (const TableFileInfo& info : manifest.files) {
        if (info.shard == 0) names.push_back("\"" + info.table + "\"");
      }
      return NotFoundError(StepPath(dir, step) + ": no table \"" + table->options().name + "\"; tables there: " + Listed(names));
    }
    MXREC_ASSIGN_OR_RETURN(TableLoad load, TableLoad::Prepare(io, paths, table, options[t]));
    for (size_t i = 0; i < entries.size(); ++i) {
      MXREC_RETURN_IF_ERROR(CompareWithManifest(entries[i], load.files()[i]->info(), load.files()[i]->path()));
    }
    bytes += load.file_bytes();
    any_filled = any_filled || (load.filled() && !load.held());
    loads.push_back(std::move(load));
  }
  Progress progress(io.progress, bytes * (any_filled ? 2 : 1));
  if (any_filled) {
    for (const TableLoad& load : loads) MXREC_RETURN_IF_ERROR(load.Verify(io, &progress));
  }
  std::vector<LoadReport> reports;
  for (size_t i = 0; i < loads.size(); ++i) {
    Result<LoadReport> report = loads[i].Run(io, now_ms, &progress);
    if (!report.ok()) {
      // All or nothing: tables that were empty before are empty again.
      for (size_t j = 0; j < i; ++j) {
        if (!loads[j].filled()) tables[j]->Clear();
      }
      return report.status();
    }
    reports.push_back(*std::move(report));
  }
  return reports;
}

Result<std::vector<uint64_t>> ListCheckpoints(const CheckpointIo& io, const std::string& dir) {
  Env* const env = EnvOf(io);
  MXREC_ASSIGN_OR_RETURN(const std::vector<uint64_t> folders, StepFolders(env, dir));
  std::vector<uint64_t> steps;
  for (const uint64_t step : folders) {
    if (ReadCompleteManifest(env, dir, step).ok()) steps.push_back(step);
  }
  return steps;
}

Result<std::optional<uint64_t>> LatestCheckpoint(const CheckpointIo& io, const std::string& dir) {
  Env* const env = EnvOf(io);
  const Result<std::string> text = ReadWholeFile(env, JoinPath(dir, format::kLatestName), 4096);
  if (text.ok()) {
    if (const Result<uint64_t> step = format::DecodeLatest(*text); step.ok()) {
      const Result<format::Manifest> manifest = ReadCompleteManifest(env, dir, *step);
      if (manifest.ok()) return std::optional<uint64_t>(*step);
      if (manifest.status().code() != StatusCode::kNotFound) {
        return Status(manifest.status().code(),
                      std::string(manifest.status().message()) + "; complete steps: " + ListedSteps(io, dir));
      }
    }
  } else if (text.status().code() != StatusCode::kNotFound && text.status().code() != StatusCode::kResourceExhausted) {
    return text.status();
  }
  MXREC_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps, ListCheckpoints(io, dir));
  return steps.empty() ? std::optional<uint64_t>() : std::optional<uint64_t>(steps.back());
}

Result<std::vector<TableFileInfo>> ReadCheckpointInfo(const CheckpointIo& io, const std::string& dir, uint64_t step) {
  MXREC_ASSIGN_OR_RETURN(format::Manifest manifest, FindManifest(io, dir, step));
  return std::move(manifest.files);
}

Result<std::vector<TableFileInfo>> VerifyCheckpoint(const CheckpointIo& io, const std::string& dir, uint64_t step) {
  MXREC_ASSIGN_OR_RETURN(format::Manifest manifest, FindManifest(io, dir, step));
  uint64_t bytes = 0;
  for (const TableFileInfo& info : manifest.files) bytes += info.bytes;
  Progress progress(io.progress, bytes);
  for (const TableFileInfo& info : manifest.files) {
    const std::string path = JoinPath(StepPath(dir, step), info.file);
    std::vector<std::unique_ptr<internal::TableFile>> files(1);
    MXREC_ASSIGN_OR_RETURN(files[0], internal::TableFile::Open(EnvOf(io), path));
    MXREC_RETURN_IF_ERROR(CompareWithManifest(info, files[0]->info(), path));
    MXREC_RETURN_IF_ERROR(ReadBlocks(io, files, {}, nullptr, &progress));
  }
  return std::move(manifest.files);
}

}  // namespace mxrec
