#include "tf/kernels/side_file.h"

#include <mutex>
#include <set>

namespace mxrec {
namespace {

// Names given to writers that have not yet renamed their file into place.
struct Reserved {
  std::mutex mutex;
  std::set<std::string> paths;
};
Reserved& reserved() {
  static Reserved* const all = new Reserved;
  return *all;
}

bool HoldsTag(const CheckpointIo& io, const std::string& path, uint64_t tag) {
  const Result<TableFileInfo> info = ReadTableFileInfo(io, path);
  return info.ok() && info->content_tag == tag;
}

Env* EnvOf(const CheckpointIo& io) { return io.env != nullptr ? io.env : Env::Default(); }

}  // namespace

std::string SideFilePath(const std::string& prefix, uint64_t content_tag, int attempt) {
  constexpr char kDigits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  constexpr uint64_t kTags = uint64_t{36} * 36 * 36 * 36 * 36;
  uint64_t value = (content_tag % kTags + static_cast<uint64_t>(attempt)) % kTags;
  std::string tag(5, '0');
  for (int i = 4; i >= 0; --i, value /= 36) tag[static_cast<size_t>(i)] = kDigits[value % 36];
  return prefix + ".data-" + tag + "-of-mxrec";
}

Result<uint64_t> WriteSideFile(
    const CheckpointIo& io, const std::string& prefix,
    const std::function<Result<TableFileInfo>(const std::function<std::string(uint64_t content_tag)>& path_for_tag)>& write) {
  Env* const env = EnvOf(io);
  std::set<std::string> chosen;
  const auto choose = [&](uint64_t tag) {
    if (tag == 0) return SideFilePath(prefix, 0, 0);  // asked for before the contents are known: names the folder only
    std::string path;
    const std::lock_guard<std::mutex> lock(reserved().mutex);
    for (int attempt = 0; attempt < kSideFileTries; ++attempt) {
      path = SideFilePath(prefix, tag, attempt);
      if (reserved().paths.contains(path) && !chosen.contains(path)) continue;
      if (!env->FileExists(path) || HoldsTag(io, path, tag)) break;
    }
    reserved().paths.insert(path);
    chosen.insert(path);
    return path;
  };
  const Result<TableFileInfo> info = write(choose);
  {
    const std::lock_guard<std::mutex> lock(reserved().mutex);
    for (const std::string& path : chosen) reserved().paths.erase(path);
  }
  MXREC_RETURN_IF_ERROR(info.status());
  return info->content_tag;
}

Result<std::string> FindSideFile(const CheckpointIo& io, const std::string& prefix, uint64_t marker) {
  Env* const env = EnvOf(io);
  Status other = OkStatus();
  for (int attempt = 0; attempt < kSideFileTries; ++attempt) {
    std::string path = SideFilePath(prefix, marker, attempt);
    if (!env->FileExists(path)) continue;
    const Result<TableFileInfo> info = ReadTableFileInfo(io, path);
    if (info.ok() && info->content_tag == marker) return path;
    if (!other.ok()) continue;
    other = !info.ok() ? info.status()
                       : DataLossError(path + ": expected the contents of marker " + std::to_string(static_cast<int64_t>(marker)) +
                                       ", found those of marker " + std::to_string(static_cast<int64_t>(info->content_tag)) +
                                       " (table \"" + info->table + "\")");
  }
  if (!other.ok()) return other;
  return NotFoundError(SideFilePath(prefix, marker, 0) + ": the file of a table saved with this checkpoint is missing");
}

}  // namespace mxrec
