// TableLoad: the steps of loading files into one table, so that several tables can be checked before the first is touched.
#ifndef MXREC_CKPT_TABLE_LOAD_H_
#define MXREC_CKPT_TABLE_LOAD_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/ckpt/parallel.h"
#include "mxrec/ckpt/table_file_reader.h"

namespace mxrec::internal {

class TableLoad {
 public:
  // Opens the files (every shard of one save, in any order) and checks that they suit the table, which must outlive this.
  static Result<TableLoad> Prepare(const CheckpointIo& io, std::span<const std::string> paths, Table* table,
                                   const LoadOptions& options);

  // Something would be lost by loading: rows, candidates or optimizer state.
  bool filled() const { return filled_; }
  // The table holds what the file does, and the file is as this process wrote or read it: nothing needs to be read.
  bool held() const { return held_; }
  // What there is to read.
  uint64_t file_bytes() const;
  // By shard.
  const std::vector<std::unique_ptr<TableFile>>& files() const { return files_; }

  // Reads and checks everything; touches nothing.
  Status Verify(const CheckpointIo& io, Progress* progress) const;
  // Replaces the table's contents; only confirms them where they are the same already. After a failure the table is empty.
  Result<LoadReport> Run(const CheckpointIo& io, int64_t now_ms, Progress* progress) const;

 private:
  TableLoad() = default;
  std::vector<std::unique_ptr<TableFile>> files_;
  Table* table_ = nullptr;
  LoadOptions options_;
  // Loads into the table, whatever it holds.
  Result<LoadReport> Fill(const CheckpointIo& io, int64_t now_ms, Progress* progress) const;

  bool filled_ = false;
  // The table's contents when they are the file's by content tag, else 0; held_: and the file is known to be whole.
  uint64_t same_content_ = 0;
  bool held_ = false;
};

// Writes a table to a temporary file beside `beside` and renames it; syncs no folder. Where a file below the folder `root`, and not
// of another step, is known to hold the same contents (known_files.h), that file gets a second name instead; it is written when
// linking fails.
Result<TableFileInfo> WriteTable(const CheckpointIo& io, const Table& table, ShardOf shard, const std::string& root,
                                 const std::string& beside, const std::function<std::string(uint64_t content_tag)>& path_for_tag,
                                 Progress* progress);
// Bytes of the file that WriteTable would write now.
Result<uint64_t> TableBytes(const Table& table, ShardOf shard);

}  // namespace mxrec::internal

#endif  // MXREC_CKPT_TABLE_LOAD_H_
