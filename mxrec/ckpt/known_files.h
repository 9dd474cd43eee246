// KnownFiles: which table files of this process hold the contents that a table has now.
//
// Two savers of one folder, or one that saves an unchanged table again, need the bytes on disk only once: the writer links a
// file that it knows instead of writing its like, and a load of what the table holds already is skipped. Contents are named
// by Table::content_id(), files by what the file system says of them (Env::Identify), so a file that was replaced, touched or
// removed since is not known any more.
#ifndef MXREC_CKPT_KNOWN_FILES_H_
#define MXREC_CKPT_KNOWN_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/io/env.h"

namespace mxrec::internal {

struct KnownFile {
  std::string path;
  FileIdentity identity;
  FileIdentity root;    // the folder of checkpoints it belongs to; files are linked only within one
  bool synced = false;  // this process brought its bytes to the disk, so another name of it may be published
  TableFileInfo info;
};

// Keeps the newest contents (a bounded number) and a few files of each. Threads: any.
void RememberFile(const Env* env, uint64_t content_id, KnownFile file);
// What was remembered of these contents and is still so, as far as the file system can tell.
std::vector<KnownFile> FilesHolding(Env* env, uint64_t content_id);

}  // namespace mxrec::internal

#endif  // MXREC_CKPT_KNOWN_FILES_H_
