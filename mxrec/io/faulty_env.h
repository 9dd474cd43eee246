// FaultyEnv: an Env that fails, fills up and crashes on demand, for tests of everything that writes.
//
//   FaultyEnv env(Env::Default(), scratch);
//   env.CrashAt(n);                        // operation n and everything after it fails
//   SaveSomething(&env);
//   env.DropUnsynced(NameLoss::kUnsynced); // what a power cut may leave; leave it out for a mere kill of the process
//   env.Restart();
//   ... what was saved before must still load ...
//
// Mutating operations (counted from 1): NewWritableFile, Append, WriteAt, Sync, Close, Rename, Link, RemoveFile, CreateDirs,
// RemoveDir, SyncDir. Reading operations (counted apart): NewRandomAccessFile, ReadAt.
//
// What a power cut leaves. Contents: of each file what its last Sync covered; bytes appended later are gone, bytes overwritten
// later are garbage, a file opened again for writing (which empties it) is empty until its next Sync. Names: those of the
// last SyncDir of their folder (NameLoss::kUnsynced), or those of the moment of the crash (NameLoss::kNone): a file system may do
// either, so correct code survives both. Files that the env did not make count as synced.
//
// Threads: any; all operations go through one mutex.
#ifndef MXREC_IO_FAULTY_ENV_H_
#define MXREC_IO_FAULTY_ENV_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/io/env.h"

namespace mxrec {

enum class NameLoss { kUnsynced, kNone };

class FaultyEnv final : public Env {
 public:
  struct Counters {
    uint64_t mutations = 0;  // also those that failed
    uint64_t reads = 0;
    uint64_t bytes_written = 0;
    uint64_t file_syncs = 0;
    uint64_t dir_syncs = 0;
    uint64_t files_created = 0;
    uint64_t open_writers = 0;  // at this moment: a leak when not 0 at the end
  };

  // `scratch_dir` keeps hard links to the files under test: same file system, not within the folders under test. Made when
  // missing; left behind (tests remove their temporary folder). `base` must outlive this and all its files.
  FaultyEnv(Env* base, std::string scratch_dir);
  ~FaultyEnv() override;

  // The n-th mutating operation from now on (1 = the next) fails once with `status` and has no effect.
  void FailAt(uint64_t n, Status status);
  // The n-th reading operation from now on fails once.
  void FailReadAt(uint64_t n, Status status);
  // The n-th mutating operation from now on and everything after it, also reads, fails with kUnavailable. If it is a write, its
  // first half reaches the file.
  void CrashAt(uint64_t n);
  bool crashed() const;
  // At most `bytes` in all files made here; the write that goes beyond is cut off there and fails with kResourceExhausted.
  // nullopt: no limit.
  void SetQuota(std::optional<uint64_t> bytes);

  // Turns the files into what a power cut now would leave.
  void DropUnsynced(NameLoss names);
  // Ends the crash and forgets planned failures. Files opened before stay dead.
  void Restart();

  Counters counters() const;
  // One line per mutating operation since the start, "append /tmp/x/a 100 bytes": names the n of a failing test.
  std::vector<std::string> operations() const;

  Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override;
  Result<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status Link(const std::string& from, const std::string& to) override;
  Status RemoveFile(const std::string& path) override;
  Status CreateDirs(const std::string& path) override;
  Status RemoveDir(const std::string& path) override;
  Status SyncDir(const std::string& path) override;
  Result<std::vector<std::string>> ListDir(const std::string& path) override;
  bool FileExists(const std::string& path) override;  // false after a crash
  Result<uint64_t> FileSize(const std::string& path) override;
  Result<FileIdentity> Identify(const std::string& path) override;

 private:
  struct Impl;
  class Writer;
  class Reader;
  std::shared_ptr<Impl> impl_;
};

}  // namespace mxrec

#endif  // MXREC_IO_FAULTY_ENV_H_
