#include "mxrec/shard/remote_env.h"

#include <algorithm>
#include <span>

namespace mxrec::internal {
namespace {

constexpr uint64_t kMostBytes = uint64_t{4} << 20;

class RemoteFile final : public RandomAccessFile {
 public:
  RemoteFile(std::string path, uint64_t size, const RemoteEnv::Read& read) : path_(std::move(path)), size_(size), read_(read) {}
  uint64_t size() const override { return size_; }
  Status ReadAt(uint64_t offset, std::span<char> buffer) const override {
    if (offset > size_ || buffer.size() > size_ - offset) {
      return DataLossError(path_ + ": ends at byte " + std::to_string(size_) + ", wanted " + std::to_string(buffer.size()) +
                           " bytes at " + std::to_string(offset));
    }
    while (!buffer.empty()) {
      const uint64_t wanted = std::min<uint64_t>(buffer.size(), kMostBytes);
      MXREC_ASSIGN_OR_RETURN(const std::string bytes, read_(offset, wanted));
      if (bytes.size() != wanted) {
        return DataLossError(path_ + ": " + std::to_string(bytes.size()) + " bytes came for " + std::to_string(wanted) +
                             " asked for at " + std::to_string(offset));
      }
      std::copy(bytes.begin(), bytes.end(), buffer.begin());
      offset += wanted;
      buffer = buffer.subspan(wanted);
    }
    return OkStatus();
  }

 private:
  const std::string path_;
  const uint64_t size_;
  const RemoteEnv::Read read_;
};

}  // namespace

Result<std::unique_ptr<RandomAccessFile>> RemoteEnv::NewRandomAccessFile(const std::string& path) {
  if (path != path_) return NotFoundError(path + ": not the file that another rank offers");
  return std::unique_ptr<RandomAccessFile>(std::make_unique<RemoteFile>(path_, size_, read_));
}

Result<uint64_t> RemoteEnv::FileSize(const std::string& path) {
  if (path != path_) return NotFoundError(path + ": not the file that another rank offers");
  return size_;
}

Status RemoteEnv::ReadOnly(const std::string& path) {
  return FailedPreconditionError(path + ": a file of another rank is only read");
}

}  // namespace mxrec::internal
