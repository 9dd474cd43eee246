// Checkpoints: saving and loading tables. Bytes on disk: docs/formats/checkpoint.md; encoding: ckpt/format/.
//
//   <dir>/mxrec-<step>/MANIFEST.json                        published last, by one atomic rename
//   <dir>/mxrec-<step>/<table>-<tag>-00000-of-00001.mxt     one file per table and rank; tag = content tag
//   <dir>/latest                                            {"step": n}, also by atomic rename
//
// The files a manifest names are complete and on disk before the manifest is. Files that no manifest names are removed after
// the next successful save. A killed save leaves the previous checkpoint as it was. Equal contents give equal bytes.
// Contents that a file of the same folder and step holds already, written by this process and untouched since, are not written
// again: the file gets a second name (hard link). Loading what the table holds already does nothing (docs/decisions/0010).
// Memory beyond the tables: <= 64 MiB, whatever the number of threads, unless a single row is longer than 1 MiB.
// Failures name file, block, expected and found.
// Threads: all functions may run at once, on different tables or directories; one save at a time into one directory.
#ifndef MXREC_CKPT_CHECKPOINT_H_
#define MXREC_CKPT_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mxrec/base/executor.h"
#include "mxrec/base/status.h"
#include "mxrec/io/env.h"
#include "mxrec/table/owner.h"
#include "mxrec/table/table.h"

namespace mxrec {

class RowSource;  // row_stream.h

// Told about bytes done so far of a known total; may be called from several threads. Returning false cancels (kCancelled,
// nothing published).
using ProgressFn = std::function<bool(uint64_t done_bytes, uint64_t total_bytes)>;

struct CheckpointIo {
  Env* env = nullptr;             // null = Env::Default()
  Executor* executor = nullptr;   // null = the caller's thread
  ProgressFn progress = nullptr;  // may be empty
};

// What one table file holds; also the manifest's entry of it.
struct TableFileInfo {
  std::string file;  // base name
  std::string table;
  uint32_t dim = 0;
  uint64_t seed = 0;
  InitializerSpec initializer;
  SlotRecord slots;  // kind, names, step, scalars
  bool has_counts = false, has_times = false;
  uint64_t rows = 0, candidates = 0, bytes = 0;
  uint32_t crc32c = 0;       // of the whole file
  uint64_t content_tag = 0;  // 64-bit hash of the file's contents; equal contents, equal tag
  uint32_t shard = 0, shard_count = 1;
};

// --- one table, one file (what tf.train.Saver's side files are) ---

// Which part of a table that is spread over ranks a file holds.
struct ShardOf {
  uint32_t shard = 0, shard_count = 1;
};

// Streams the table to a temporary file beside it, syncs, then renames it to path_for_tag(content_tag) and syncs the folder,
// which is created when it is missing. A file of that name is replaced (it has the same contents, or is damaged), unless it is
// known to be whole. path_for_tag is called twice: with 0, for the folder and the name that the temporary one is made of; with the
// tag. Temporary files that killed processes of this machine left in the folder are removed.
Result<TableFileInfo> WriteTableFile(const CheckpointIo& io, const Table& table,
                                     const std::function<std::string(uint64_t content_tag)>& path_for_tag, ShardOf shard = {});
// What a table file says of a table beside its rows.
struct TableState {
  TableOptions options;
  SlotRecord slots;
  EvictionState eviction;
};
// The same for rows that come from elsewhere, as those of a table do that is spread over ranks. `rows` gives each run in the order
// of a snapshot: then the bytes are those that one table with all the rows would give.
Result<TableFileInfo> WriteTableFile(const CheckpointIo& io, const TableState& state, const RowSource& rows,
                                     const std::function<std::string(uint64_t content_tag)>& path_for_tag);
// Reads header and footer only.
Result<TableFileInfo> ReadTableFileInfo(const CheckpointIo& io, const std::string& path);
// Reads every block and checks it against every checksum; touches no table.
Result<TableFileInfo> VerifyTableFile(const CheckpointIo& io, const std::string& path);

// What a load did besides loading.
struct LoadReport {
  uint64_t rows = 0, candidates = 0;
  // The file's optimizer differs from the attached one: rows loaded; nothing is attached now, so the next update starts with
  // fresh slots. The caller warns.
  bool slots_fresh = false;
  std::string file_optimizer_kind;
  bool seed_differs = false;  // ids that are not in the file get other first rows than in the run that saved it
};
struct LoadOptions {
  // This rank's share: keys with OwnerOf(key, rank_count, owner_rule) == rank (table/owner.h).
  uint32_t rank = 0, rank_count = 1;
  OwnerRule owner_rule = OwnerRule::kMod;
  // Optimizer slots and step of the files are left out (warm starts): none is attached afterwards, so the next update starts with
  // fresh ones. LoadReport::slots_fresh stays false.
  bool rows_only = false;
};
// Loads the rows this rank owns of all `paths` (the files of every shard) into the table. A filled table is touched only after
// all files were verified; an empty one is streamed into and cleared again on an error. kFailedPrecondition when dim
// differs. now_ms stamps rows without times.
Result<LoadReport> ReadTableFiles(const CheckpointIo& io, std::span<const std::string> paths, Table* table, int64_t now_ms,
                                  const LoadOptions& options = {});

// --- a directory of steps ---

struct SaveOptions {
  uint64_t step = 0;
  int keep = 0;  // newest checkpoints to keep, this one included; 0 = all
};
// REQUIRES: no two tables of one name. The one-rank form of the two calls below.
Status SaveCheckpoint(const CheckpointIo& io, const std::string& dir, std::span<const Table* const> tables,
                      const SaveOptions& options);
// On N ranks: each rank writes its part of each table; then one of them, when all have finished, publishes what all wrote.
Result<std::vector<TableFileInfo>> WriteCheckpointFiles(const CheckpointIo& io, const std::string& dir,
                                                        std::span<const Table* const> tables, uint64_t step, ShardOf shard = {});
Status PublishCheckpoint(const CheckpointIo& io, const std::string& dir, std::span<const TableFileInfo> files,
                         const SaveOptions& options);
// Loads the named tables of step; kNotFound lists the steps or tables there are. All files are verified before any filled
// table is touched.
Result<std::vector<LoadReport>> LoadCheckpoint(const CheckpointIo& io, const std::string& dir, uint64_t step,
                                               std::span<Table* const> tables, int64_t now_ms, const LoadOptions& options = {});
// The same with options for each table, as many as tables.
Result<std::vector<LoadReport>> LoadCheckpoint(const CheckpointIo& io, const std::string& dir, uint64_t step,
                                               std::span<Table* const> tables, int64_t now_ms,
                                               std::span<const LoadOptions> options);
// Complete steps (those with a readable manifest whose files are there with their lengths), ascending. An absent dir has none.
Result<std::vector<uint64_t>> ListCheckpoints(const CheckpointIo& io, const std::string& dir);
// The step `latest` names if complete, else the newest complete one; nullopt when there is none. When the step that `latest`
// names has a manifest that is damaged or newer, or lacks files, that failure: going on from an older step is for the caller
// to decide.
Result<std::optional<uint64_t>> LatestCheckpoint(const CheckpointIo& io, const std::string& dir);
// The manifest's entries, checked as far as the manifest goes. kNotFound lists the steps there are.
Result<std::vector<TableFileInfo>> ReadCheckpointInfo(const CheckpointIo& io, const std::string& dir, uint64_t step);
// Every file named by the step's manifest verified; returns the entries.
Result<std::vector<TableFileInfo>> VerifyCheckpoint(const CheckpointIo& io, const std::string& dir, uint64_t step);

}  // namespace mxrec

#endif  // MXREC_CKPT_CHECKPOINT_H_
