// Writes one table file: rows and candidates of a RowSource, in parallel, each block at its place.
#ifndef MXREC_CKPT_TABLE_FILE_WRITER_H_
#define MXREC_CKPT_TABLE_FILE_WRITER_H_

#include <string>

#include "mxrec/base/status.h"
#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/ckpt/format/table_file.h"
#include "mxrec/ckpt/parallel.h"
#include "mxrec/ckpt/row_stream.h"

namespace mxrec::internal {

// The header with rows, candidates, runs and block sizes of the source.
format::TableHeader DescribeSource(format::TableHeader header, const RowSource& source);
// How long the file of that header is.
Result<uint64_t> FileBytes(const format::TableHeader& header);

// Creates `path`, writes, syncs and closes it; removes it on a failure. `header` comes from DescribeSource. The file of the
// returned entry is left empty.
Result<TableFileInfo> WriteTableStream(const CheckpointIo& io, const format::TableHeader& header, const RowSource& source,
                                       const std::string& path, Progress* progress);

// The entry of a file with that header and footer; file and whole-file checksum are not set.
TableFileInfo InfoOf(const format::TableHeader& header, const format::TableFooter& footer, uint64_t bytes);

inline Env* EnvOf(const CheckpointIo& io) { return io.env != nullptr ? io.env : Env::Default(); }

}  // namespace mxrec::internal

#endif  // MXREC_CKPT_TABLE_FILE_WRITER_H_
