// Env over POSIX calls. errno becomes a Status in one place (ErrnoError); EINTR is retried, short reads and writes go on.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "mxrec/io/env.h"

namespace mxrec {
namespace {

// Linux moves at most 0x7ffff000 bytes a call; a smaller piece keeps a call interruptible.
constexpr size_t kMaxPiece = size_t{1} << 30;

// For ENOTDIR: which part of the path is no folder.
std::string FileInTheWay(const std::string& path) {
  for (size_t end = 0; end < path.size();) {
    end = std::min(path.find('/', end + 1), path.size());
    const std::string part = path.substr(0, end);
    struct stat info;
    if (::stat(part.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) return ": expected a folder at " + part + ", found a file";
  }
  return "";
}

Status ErrnoError(std::string_view action, const std::string& path, int error) {
  std::string text = path + ": cannot " + std::string(action) + ": " + std::generic_category().message(error);
  switch (error) {
    case ENOENT:
      return NotFoundError(std::move(text));
    case EEXIST:
      return AlreadyExistsError(std::move(text));
    case ENOTDIR:
      return FailedPreconditionError(text + FileInTheWay(path));
    case ENOTEMPTY:
    case EISDIR:
      return FailedPreconditionError(std::move(text));
    case EACCES:
    case EPERM:
    case EROFS:
      return PermissionDeniedError(std::move(text));
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return ResourceExhaustedError(std::move(text));
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP:
      return InvalidArgumentError(std::move(text));
    default:
      return UnavailableError(std::move(text));
  }
}

template <typename Call>
auto RetryOnInterrupt(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

Status CheckPath(const std::string& path) {
  if (path.empty()) return InvalidArgumentError("the path is empty");
  if (path.find('\0') != std::string::npos) return InvalidArgumentError("the path holds a zero byte: " + path);
  return OkStatus();
}

// Closes on destruction. close is not retried: on Linux the descriptor is gone whatever it returns.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  // 0 or -1 with errno.
  int Close() {
    const int fd = fd_;
    fd_ = -1;
    const int result = ::close(fd);
    return result < 0 && errno == EINTR ? 0 : result;
  }

 private:
  int fd_;
};

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  Status Append(std::string_view data) override {
    MXREC_RETURN_IF_ERROR(WriteAt(end_, data));
    end_ += data.size();
    return OkStatus();
  }

  Status WriteAt(uint64_t offset, std::string_view data) override {
    MXREC_RETURN_IF_ERROR(CheckOpen());
    while (!data.empty()) {
      const ssize_t written = RetryOnInterrupt(
          [&] { return ::pwrite(fd_.get(), data.data(), std::min(data.size(), kMaxPiece), static_cast<off_t>(offset)); });
      if (written < 0) return ErrnoError("write at offset " + std::to_string(offset), path_, errno);
      if (written == 0) return UnavailableError(path_ + ": cannot write at offset " + std::to_string(offset) + ": no progress");
      data.remove_prefix(static_cast<size_t>(written));
      offset += static_cast<uint64_t>(written);
    }
    return OkStatus();
  }

  Status Sync() override {
    MXREC_RETURN_IF_ERROR(CheckOpen());
    // fdatasync also writes the size, which is all of the metadata that matters.
    if (RetryOnInterrupt([&] { return ::fdatasync(fd_.get()); }) < 0) return ErrnoError("sync", path_, errno);
    return OkStatus();
  }

  Status Close() override {
    MXREC_RETURN_IF_ERROR(CheckOpen());
    if (fd_.Close() < 0) return ErrnoError("close", path_, errno);
    return OkStatus();
  }

 private:
  Status CheckOpen() const {
    if (fd_.get() < 0) return FailedPreconditionError(path_ + ": the file is closed");
    return OkStatus();
  }

  const std::string path_;
  Descriptor fd_;
  uint64_t end_ = 0;  // of what Append wrote
};

class PosixRandomAccessFile final : public RandomAccessFile {
 public:
  PosixRandomAccessFile(std::string path, int fd, uint64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}

  uint64_t size() const override { return size_; }

  Status ReadAt(uint64_t offset, std::span<char> buffer) const override {
    size_t done = 0;
    while (done < buffer.size()) {
      const ssize_t got = RetryOnInterrupt([&] {
        return ::pread(fd_.get(), buffer.data() + done, std::min(buffer.size() - done, kMaxPiece),
                       static_cast<off_t>(offset + done));
      });
      if (got < 0) return ErrnoError("read at offset " + std::to_string(offset + done), path_, errno);
      if (got == 0) {
        return DataLossError(path_ + ": the file ends early: expected " + std::to_string(buffer.size()) + " bytes at offset " +
                             std::to_string(offset) + ", found " + std::to_string(done));
      }
      done += static_cast<size_t>(got);
    }
    return OkStatus();
  }

 private:
  const std::string path_;
  Descriptor fd_;
  const uint64_t size_;
};

class PosixEnv final : public Env {
 public:
  Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override {
    MXREC_RETURN_IF_ERROR(CheckPath(path));
    const int fd = RetryOnInterrupt([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); });
    if (fd < 0) return ErrnoError("create", path, errno);
    return std::unique_ptr<WritableFile>(std::make_unique<PosixWritableFile>(path, fd));
  }

  Result<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(const std::string& path) override {
    MXREC_RETURN_IF_ERROR(CheckPath(path));
    const int fd = RetryOnInterrupt([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
    if (fd < 0) return ErrnoError("open", path, errno);
    Descriptor guard(fd);
    struct stat info;
    if (::fstat(fd, &info) < 0) return ErrnoError("read the size", path, errno);
    if (S_ISDIR(info.st_mode)) return ErrnoError("open", path, EISDIR);
    return std::unique_ptr<RandomAccessFile>(
        std::make_unique<PosixRandomAccessFile>(path, guard.Release(), static_cast<uint64_t>(info.st_size)));
  }

  Status Rename(const std::string& from, const std::string& to) override {
    MXREC_RETURN_IF_ERROR(CheckPath(from));
    MXREC_RETURN_IF_ERROR(CheckPath(to));
    if (::rename(from.c_str(), to.c_str()) < 0) return ErrnoError("rename to " + to, from, errno);
    return OkStatus();
  }

  Status Link(const std::string& from, const std::string& to) override {
    MXREC_RETURN_IF_ERROR(CheckPath(from));
    MXREC_RETURN_IF_ERROR(CheckPath(to));
    if (::link(from.c_str(), to.c_str()) < 0) return ErrnoError("link as " + to, from, errno);
    return OkStatus();
  }

  Status RemoveFile(const std::string& path) override {
    MXREC_RETURN_IF_ERROR(CheckPath(path));
    if (::unlink(path.c_str()) < 0) return ErrnoError("remove", path, errno);
    return OkStatus();
  }

  Status CreateDirs(const std::string& path) override {
    MXREC_RETURN_IF_ERROR(CheckPath(path));
    if (::mkdir(path.c_str(), 0777) == 0) return OkStatus();
    const int error = errno;
    // EEXIST also stands for a file in the way; and mkdir of an existing folder on a read-only or foreign file system may
    // give EROFS or EACCES.
    struct stat info;
    const bool there = ::stat(path.c_str(), &info) == 0;
    if (there && S_ISDIR(info.st_mode)) return OkStatus();
    if (there) return ErrnoError("create the folder", path, ENOTDIR);
    if (error != ENOENT) return ErrnoError("create the folder", path, error);
    const std::string parent = DirName(path);
    if (parent == path || parent == ".") return ErrnoError("create the folder", path, error);
    MXREC_RETURN_IF_ERROR(CreateDirs(parent));
    // Another process may have made it meanwhile.
    if (::mkdir(path.c_str(), 0777) < 0 && errno != EEXIST) return ErrnoError("create the folder", path, errno);
    return OkStatus();
  }

  Status RemoveDir(const std::string& path) override {
    MXREC_RETURN_IF_ERROR(CheckPath(path));
    if (::rmdir(path.c_str()) < 0) return ErrnoError("remove the folder", path, errno == EEXIST ? ENOTEMPTY : errno);
    return OkStatus();
  }

  Status SyncDir(const std::string& path) override {
    MXREC_RETURN_IF_ERROR(CheckPath(path));
    const int fd = RetryOnInterrupt([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd < 0) return ErrnoError("open the folder", path, errno);
    Descriptor guard(fd);
    // Some file systems (network, FUSE) know no sync of folders and say EINVAL; names are then durable by their own rules.
    if (RetryOnInterrupt([&] { return ::fsync(fd); }) < 0 && errno != EINVAL) return ErrnoError("sync the folder", path, errno);
    return OkStatus();
  }

  Result<std::vector<std::string>> ListDir(const std::string& path) override {
    MXREC_RETURN_IF_ERROR(CheckPath(path));
    DIR* dir = ::opendir(path.c_str());
    if (dir == nullptr) return ErrnoError("list the folder", path, errno);
    std::unique_ptr<DIR, int (*)(DIR*)> guard(dir, &::closedir);
    std::vector<std::string> names;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(dir);
      if (entry == nullptr) break;
      std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(std::move(name));
    }
    if (errno != 0) return ErrnoError("list the folder", path, errno);
    std::sort(names.begin(), names.end());
    return names;
  }

  bool FileExists(const std::string& path) override {
    struct stat info;
    return CheckPath(path).ok() && ::stat(path.c_str(), &info) == 0;
  }

  Result<uint64_t> FileSize(const std::string& path) override {
    MXREC_RETURN_IF_ERROR(CheckPath(path));
    struct stat info;
    if (::stat(path.c_str(), &info) < 0) return ErrnoError("read the size", path, errno);
    return static_cast<uint64_t>(info.st_size);
  }

  Result<FileIdentity> Identify(const std::string& path) override {
    MXREC_RETURN_IF_ERROR(CheckPath(path));
    struct stat info;
    if (::stat(path.c_str(), &info) < 0) return ErrnoError("read the state", path, errno);
    return FileIdentity{.device = static_cast<uint64_t>(info.st_dev),
                        .inode = static_cast<uint64_t>(info.st_ino),
                        .bytes = static_cast<uint64_t>(info.st_size),
                        .modified_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
  }
};

}  // namespace

Env* Env::Default() {
  static PosixEnv* env = new PosixEnv;  // never destroyed: threads may outlive main
  return env;
}

}  // namespace mxrec
