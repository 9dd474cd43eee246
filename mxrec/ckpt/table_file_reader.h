// Reads table files: header and footer on opening, all blocks in parallel.
#ifndef MXREC_CKPT_TABLE_FILE_READER_H_
#define MXREC_CKPT_TABLE_FILE_READER_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/ckpt/format/table_file.h"
#include "mxrec/ckpt/parallel.h"
#include "mxrec/ckpt/row_stream.h"

namespace mxrec::internal {

// An open table file whose header and footer agree with each other and with its length.
class TableFile {
 public:
  static Result<std::unique_ptr<TableFile>> Open(Env* env, const std::string& path);

  const std::string& path() const { return path_; }
  const format::TableHeader& header() const { return header_; }
  const format::TableLayout& layout() const { return layout_; }
  const format::TableFooter& footer() const { return footer_; }
  const TableFileInfo& info() const { return info_; }
  const std::string& header_bytes() const { return header_bytes_; }
  const RandomAccessFile& file() const { return *file_; }
  // Of the path, taken before it was opened; null when the file system did not tell.
  const FileIdentity* identity() const { return identity_.has_value() ? &*identity_ : nullptr; }

 private:
  TableFile() = default;
  std::string path_;
  std::unique_ptr<RandomAccessFile> file_;
  std::string header_bytes_;
  format::TableHeader header_;
  format::TableLayout layout_;
  format::TableFooter footer_;
  TableFileInfo info_;
  std::optional<FileIdentity> identity_;
};

struct ReadOptions {
  LoadOptions share;
  bool with_slots = true;  // false: rows are handed on without slots
};

// Reads and checks every block of all files, then that each file's blocks are the ones its footer is about. `sink` (null:
// only check) gets what the share owns; it may have got rows when a failure is found.
Status ReadBlocks(const CheckpointIo& io, std::span<const std::unique_ptr<TableFile>> files, const ReadOptions& options,
                  RowSink* sink, Progress* progress);

}  // namespace mxrec::internal

#endif  // MXREC_CKPT_TABLE_FILE_READER_H_
