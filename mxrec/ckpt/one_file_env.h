// For tests and fuzz targets: a file that is only in memory.
#ifndef MXREC_CKPT_ONE_FILE_ENV_H_
#define MXREC_CKPT_ONE_FILE_ENV_H_

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/io/env.h"

namespace mxrec::testing {

// An Env that knows one file, held in memory; everything else is the default Env's.
class OneFileEnv final : public Env {
 public:
  OneFileEnv(std::string path, std::string bytes) : path_(std::move(path)), bytes_(std::move(bytes)) {}
  Result<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(const std::string& path) override {
    if (path != path_) return Env::Default()->NewRandomAccessFile(path);
    return std::unique_ptr<RandomAccessFile>(std::make_unique<File>(path_, bytes_));
  }
  Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override {
    return PermissionDeniedError(path + ": read-only");
  }
  Status Rename(const std::string& from, const std::string& to) override { return Env::Default()->Rename(from, to); }
  Status Link(const std::string& from, const std::string& to) override { return Env::Default()->Link(from, to); }
  Status RemoveFile(const std::string& path) override { return Env::Default()->RemoveFile(path); }
  Status CreateDirs(const std::string& path) override { return Env::Default()->CreateDirs(path); }
  Status RemoveDir(const std::string& path) override { return Env::Default()->RemoveDir(path); }
  Status SyncDir(const std::string& path) override { return Env::Default()->SyncDir(path); }
  Result<std::vector<std::string>> ListDir(const std::string& path) override { return Env::Default()->ListDir(path); }
  bool FileExists(const std::string& path) override { return path == path_ || Env::Default()->FileExists(path); }
  Result<uint64_t> FileSize(const std::string& path) override {
    if (path == path_) return uint64_t{bytes_.size()};
    return Env::Default()->FileSize(path);
  }
  Result<FileIdentity> Identify(const std::string& path) override {
    if (path == path_) return FileIdentity{.inode = 1, .bytes = bytes_.size()};
    return Env::Default()->Identify(path);
  }

 private:
  class File final : public RandomAccessFile {
   public:
    File(const std::string& path, const std::string& bytes) : path_(path), bytes_(bytes) {}
    uint64_t size() const override { return bytes_.size(); }
    Status ReadAt(uint64_t offset, std::span<char> buffer) const override {
      if (offset > bytes_.size() || buffer.size() > bytes_.size() - offset) return DataLossError(path_ + ": ends early");
      bytes_.copy(buffer.data(), buffer.size(), offset);
      return OkStatus();
    }

   private:
    const std::string& path_;
    const std::string& bytes_;
  };
  const std::string path_, bytes_;
};

}  // namespace mxrec::testing

#endif  // MXREC_CKPT_ONE_FILE_ENV_H_
