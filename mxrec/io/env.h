// Env: the one door to files, so that crashes, full disks and torn writes can be rehearsed (FaultyEnv, io/faulty_env.h).
//
// Failures name the path and the system's reason: kNotFound, kAlreadyExists, kPermissionDenied (also read-only file systems),
// kFailedPrecondition (a file where a folder is needed, or the reverse; a folder that is not empty), kResourceExhausted (disk full,
// quota), else kUnavailable. Paths are bytes; no encoding is assumed.
// Threads: an Env may be used from any thread; a file object by one thread at a time, except RandomAccessFile (any number)
// and WritableFile::WriteAt on disjoint ranges (any number).
#ifndef MXREC_IO_ENV_H_
#define MXREC_IO_ENV_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/base/status.h"

namespace mxrec {

class WritableFile {
 public:
  virtual ~WritableFile() = default;  // closes; a failure is lost, so call Close()
  virtual Status Append(std::string_view data) = 0;
  // Writes at an offset (may leave holes that later calls fill). Do not mix with Append.
  virtual Status WriteAt(uint64_t offset, std::string_view data) = 0;
  // Data and size reach the disk.
  virtual Status Sync() = 0;
  virtual Status Close() = 0;
};

class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  virtual uint64_t size() const = 0;
  // Reads exactly buffer.size() bytes at offset, or fails: kDataLoss naming path, offset, wanted and got when the file ends early.
  virtual Status ReadAt(uint64_t offset, std::span<char> buffer) const = 0;
};

// Which file a path leads to, and in which state: equal for all hard links of a file, changed by every write to it (as far as
// the clock of the file system can tell two writes apart).
struct FileIdentity {
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t modified_ns = 0;
  bool operator==(const FileIdentity&) const = default;
  bool SameFile(const FileIdentity& other) const { return device == other.device && inode == other.inode; }
};

class Env {
 public:
  virtual ~Env() = default;
  // The POSIX file system; lives for ever.
  static Env* Default();

  virtual Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) = 0;  // truncates
  virtual Result<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(const std::string& path) = 0;
  virtual Status Rename(const std::string& from, const std::string& to) = 0;  // atomic, replaces a file
  virtual Status Link(const std::string& from, const std::string& to) = 0;    // hard link; kAlreadyExists
  virtual Status RemoveFile(const std::string& path) = 0;
  virtual Status CreateDirs(const std::string& path) = 0;                         // with parents; fine when it exists
  virtual Status RemoveDir(const std::string& path) = 0;                          // empty ones only
  virtual Status SyncDir(const std::string& path) = 0;                            // names reach the disk
  virtual Result<std::vector<std::string>> ListDir(const std::string& path) = 0;  // names, sorted, without . and ..
  virtual bool FileExists(const std::string& path) = 0;
  virtual Result<uint64_t> FileSize(const std::string& path) = 0;
  virtual Result<FileIdentity> Identify(const std::string& path) = 0;  // also of folders
};

// Writes data to path + ".tmp-<pid>", syncs it, renames it over path and syncs the directory.
Status WriteFileAtomically(Env* env, const std::string& path, std::string_view data);
// Whole file; kResourceExhausted above max_bytes.
Result<std::string> ReadWholeFile(Env* env, const std::string& path, uint64_t max_bytes);
// "a/b" + "c" -> "a/b/c"; dirname of "a/b" is "a", of "a" is ".".
std::string JoinPath(std::string_view dir, std::string_view name);
std::string DirName(std::string_view path);
std::string BaseName(std::string_view path);

}  // namespace mxrec

#endif  // MXREC_IO_ENV_H_
