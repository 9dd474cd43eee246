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
  uint64_t file_bytes() const;
  // By shard.
  const std::vector<std::unique_ptr<TableFile>>& files() const { return files_; }

  // Reads and checks everything; touches nothing.
  Status Verify(const CheckpointIo& io, Progress* progress) const;
  // Replaces the table's contents. After a failure the table is empty.
  Result<LoadReport> Run(const CheckpointIo& io, int64_t now_ms, Progress* progress) const;

 private:
  TableLoad() = default;
  std::vector<std::unique_ptr<TableFile>> files_;
  Table* table_ = nullptr;
  LoadOptions options_;
  bool filled_ = false;
};

// Writes a table to a temporary file beside `beside` and renames it; syncs no folder.
Result<TableFileInfo> WriteTable(const CheckpointIo& io, const Table& table, ShardOf shard, const std::string& beside,
                                 const std::function<std::string(uint64_t content_tag)>& path_for_tag, Progress* progress);
// Bytes of the file that WriteTable would write now.
Result<uint64_t> TableBytes(const Table& table, ShardOf shard);

}  // namespace mxrec::internal

#endif  // MXREC_CKPT_TABLE_LOAD_H_
