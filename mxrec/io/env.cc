#include "mxrec/io/env.h"

#include <unistd.h>

#include <algorithm>

namespace mxrec {

Status WriteFileAtomically(Env* env, const std::string& path, std::string_view data) {
  const std::string temporary = path + ".tmp-" + std::to_string(getpid());
  const auto write = [&]() -> Status {
    MXREC_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, env->NewWritableFile(temporary));
    MXREC_RETURN_IF_ERROR(file->Append(data));
    MXREC_RETURN_IF_ERROR(file->Sync());
    MXREC_RETURN_IF_ERROR(file->Close());
    return env->Rename(temporary, path);
  };
  if (Status status = write(); !status.ok()) {
    // The first failure is the one to report; the file may not even exist.
    static_cast<void>(env->RemoveFile(temporary));
    return status;
  }
  return env->SyncDir(DirName(path));
}

Result<std::string> ReadWholeFile(Env* env, const std::string& path, uint64_t max_bytes) {
  MXREC_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, env->NewRandomAccessFile(path));
  const uint64_t size = file->size();
  if (size > max_bytes) {
    return ResourceExhaustedError(path + ": has " + std::to_string(size) + " bytes, expected at most " + std::to_string(max_bytes));
  }
  std::string data(size, '\0');
  MXREC_RETURN_IF_ERROR(file->ReadAt(0, data));
  return data;
}

std::string JoinPath(std::string_view dir, std::string_view name) {
  std::string path(dir);
  if (!path.empty() && path.back() != '/') path.push_back('/');
  path.append(name);
  return path;
}

namespace {

// Without slashes at the end, but "/" stays.
std::string_view StripTrailingSlashes(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}

}  // namespace

std::string DirName(std::string_view path) {
  path = StripTrailingSlashes(path);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  if (slash == 0) return "/";
  return std::string(StripTrailingSlashes(path.substr(0, slash)));
}

std::string BaseName(std::string_view path) {
  path = StripTrailingSlashes(path);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos || path.size() == 1) return std::string(path);
  return std::string(path.substr(slash + 1));
}

}  // namespace mxrec
