// Side files: where a table lies beside a checkpoint of tf.train.Saver.
//
//   <prefix>.data-<tag>-of-mxrec       tag = 5 characters of 0-9a-z
//
// Five characters on each side of "-of-" is what TensorFlow's own retention deletes together with the checkpoint. The tag comes
// from the contents, so saving a step again never overwrites the file that an older index points to.
#ifndef MXREC_TF_KERNELS_SIDE_FILE_H_
#define MXREC_TF_KERNELS_SIDE_FILE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "mxrec/ckpt/checkpoint.h"

namespace mxrec {

// Two contents share a tag once in 60 million pairs. The later one then takes the next free tag; this many are tried.
inline constexpr int kSideFileTries = 16;
std::string SideFilePath(const std::string& prefix, uint64_t content_tag, int attempt);

// Writes a table's side file by `write` (WriteTableFile, given the names of the file by content tag); returns its content tag (the
// marker). The folder is made when missing. Safe for several tables and threads of one process at once.
Result<uint64_t> WriteSideFile(
    const CheckpointIo& io, const std::string& prefix,
    const std::function<Result<TableFileInfo>(const std::function<std::string(uint64_t content_tag)>& path_for_tag)>& write);

// The side file that holds the content of this marker. kNotFound when there is none; kDataLoss when there is one under its
// name with other contents.
Result<std::string> FindSideFile(const CheckpointIo& io, const std::string& prefix, uint64_t marker);

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_SIDE_FILE_H_
