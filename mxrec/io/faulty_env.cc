// How it works. Every file under test is also hard-linked into the scratch folder, so that its bytes stay reachable whatever
// happens to its names. Two maps from path to file are kept: `current`, the names as they are, and `durable`, the names as of
// the last SyncDir of each folder. A power cut cuts each file back to its synced part and, if names are to be lost, makes
// the names on disk those of `durable`.
#include "mxrec/io/faulty_env.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "mxrec/base/check.h"

namespace mxrec {
namespace {

constexpr char kGarbage = static_cast<char>(0xDB);

std::string Normal(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

struct File {
  std::string scratch;       // its hard link
  uint64_t size = 0;         // now
  uint64_t synced_size = 0;  // as of the last Sync
  // Overwritten below synced_size since the last Sync: [offset, end).
  std::vector<std::pair<uint64_t, uint64_t>> overwritten;
};
using FilePtr = std::shared_ptr<File>;

}  // namespace

struct FaultyEnv::Impl {
  Impl(Env* base, std::string scratch) : base(base), scratch(std::move(scratch)) {}

  Env* const base;
  const std::string scratch;
  mutable std::mutex mutex;  // guards all below

  std::map<std::string, FilePtr> current, durable;
  std::set<std::string> current_dirs, durable_dirs;  // only folders made or removed here; others count as durable
  std::set<std::string> removed_dirs;                // durable ones removed here and not yet synced away
  uint64_t next_file = 0;

  uint64_t fail_at = 0, crash_at = 0, fail_read_at = 0;  // absolute numbers; 0 = never
  Status failure, read_failure;
  bool crashed = false;
  uint64_t life = 0;  // Restart() starts a new one; files of an older one are dead
  std::optional<uint64_t> quota;
  Counters counters;
  std::vector<std::string> operations;

  static Status CrashError(const std::string& what) { return UnavailableError(what + ": the machine has crashed (FaultyEnv)"); }

  // Counts a mutating operation. *torn is set when it is the one that crashes.
  Status Begin(std::string what, bool* torn = nullptr) {
    if (crashed) return CrashError(what);
    operations.push_back(what);
    const uint64_t number = ++counters.mutations;
    if (number == crash_at) {
      crashed = true;
      if (torn != nullptr) *torn = true;
      return CrashError(what);
    }
    if (number == fail_at) return Status(failure.code(), what + ": " + std::string(failure.message()));
    return OkStatus();
  }

  Status BeginRead(const std::string& what) {
    if (crashed) return CrashError(what);
    if (++counters.reads == fail_read_at) return Status(read_failure.code(), what + ": " + std::string(read_failure.message()));
    return OkStatus();
  }

  // The file of a name; one that exists but is not known here is taken in as synced. Null when there is none.
  FilePtr Find(const std::string& path) {
    if (const auto it = current.find(path); it != current.end()) return it->second;
    Result<uint64_t> size = base->FileSize(path);
    if (!size.ok()) return nullptr;
    FilePtr file = Adopt(path);
    if (file == nullptr) return nullptr;
    file->size = file->synced_size = *size;
    durable[path] = file;
    return file;
  }

  // Gives the file of a path its scratch link and its current name. Null for a folder.
  FilePtr Adopt(const std::string& path) {
    auto file = std::make_shared<File>();
    file->scratch = JoinPath(scratch, "file-" + std::to_string(next_file++));
    if (!base->Link(path, file->scratch).ok()) return nullptr;
    current[path] = file;
    return file;
  }

  uint64_t BytesUsed() const {
    std::set<const File*> seen;
    uint64_t used = 0;
    for (const auto& [path, file] : current) {
      if (seen.insert(file.get()).second) used += file->size;
    }
    return used;
  }

  // Whether every folder above the path would survive.
  bool ParentsDurable(const std::string& path) const {
    for (std::string dir = DirName(path);; dir = DirName(dir)) {
      if (current_dirs.contains(dir) && !durable_dirs.contains(dir)) return false;
      if (dir == "." || dir == "/") return true;
    }
  }

  void CutToSynced(const File& file) {
    Result<std::string> data = ReadWholeFile(base, file.scratch, UINT64_MAX);
    MXREC_CHECK(data.ok()) << data.status();
    data->resize(std::min<uint64_t>(data->size(), file.synced_size));
    for (const auto& [begin, end] : file.overwritten) {
      for (uint64_t i = begin; i < std::min<uint64_t>(end, data->size()); ++i) (*data)[i] = kGarbage;
    }
    // Opening empties the same inode, so all names of the file see the change.
    Result<std::unique_ptr<WritableFile>> out = base->NewWritableFile(file.scratch);
    MXREC_CHECK(out.ok()) << out.status();
    Status status = (*out)->Append(*data);
    MXREC_CHECK(status.ok()) << status;
    status = (*out)->Close();
    MXREC_CHECK(status.ok()) << status;
  }
};

class FaultyEnv::Writer final : public WritableFile {
 public:
  Writer(std::shared_ptr<Impl> env, std::string path, FilePtr file, std::unique_ptr<WritableFile> base)
      : env_(std::move(env)), path_(std::move(path)), file_(std::move(file)), base_(std::move(base)), life_(env_->life) {}

  ~Writer() override {
    std::lock_guard lock(env_->mutex);
    if (!closed_) --env_->counters.open_writers;
  }

  Status Append(std::string_view data) override {
    std::lock_guard lock(env_->mutex);
    const uint64_t offset = end_;
    MXREC_RETURN_IF_ERROR(Write("append", offset, data));
    end_ = offset + data.size();
    return OkStatus();
  }

  Status WriteAt(uint64_t offset, std::string_view data) override {
    std::lock_guard lock(env_->mutex);
    return Write("write", offset, data);
  }

  Status Sync() override {
    std::lock_guard lock(env_->mutex);
    MXREC_RETURN_IF_ERROR(CheckAlive());
    MXREC_RETURN_IF_ERROR(env_->Begin("sync " + path_));
    // The disk itself is not made to wait: the power cut is a play.
    ++env_->counters.file_syncs;
    file_->synced_size = file_->size;
    file_->overwritten.clear();
    return OkStatus();
  }

  Status Close() override {
    std::lock_guard lock(env_->mutex);
    MXREC_RETURN_IF_ERROR(CheckAlive());
    MXREC_RETURN_IF_ERROR(env_->Begin("close " + path_));
    MXREC_RETURN_IF_ERROR(base_->Close());
    closed_ = true;
    --env_->counters.open_writers;
    return OkStatus();
  }

 private:
  Status CheckAlive() const {
    if (env_->crashed || life_ != env_->life) return Impl::CrashError(path_);
    if (closed_) return FailedPreconditionError(path_ + ": the file is closed");
    return OkStatus();
  }

  Status Write(const char* verb, uint64_t offset, std::string_view data) {
    MXREC_RETURN_IF_ERROR(CheckAlive());
    bool torn = false;
    std::string what = std::string(verb) + " " + path_ + " " + std::to_string(data.size()) + " bytes";
    if (Status status = env_->Begin(what, &torn); !status.ok()) {
      if (torn) static_cast<void>(Put(offset, data.substr(0, data.size() / 2)));
      return status;
    }
    const uint64_t size_after = std::max(file_->size, offset + data.size());
    if (env_->quota.has_value()) {
      const uint64_t used = env_->BytesUsed();
      const uint64_t free = *env_->quota - std::min(*env_->quota, used);
      if (size_after - file_->size > free) {
        const uint64_t wanted = size_after - file_->size;
        const uint64_t limit = file_->size + free;
        if (limit > offset) MXREC_RETURN_IF_ERROR(Put(offset, data.substr(0, limit - offset)));
        return ResourceExhaustedError(what + ": no space left: expected " + std::to_string(wanted) + " free bytes, found " +
                                      std::to_string(free));
      }
    }
    return Put(offset, data);
  }

  Status Put(uint64_t offset, std::string_view data) {
    MXREC_RETURN_IF_ERROR(base_->WriteAt(offset, data));
    const uint64_t end = offset + data.size();
    env_->counters.bytes_written += data.size();
    if (offset < file_->synced_size && !data.empty()) file_->overwritten.emplace_back(offset, end);
    file_->size = std::max(file_->size, end);
    return OkStatus();
  }

  const std::shared_ptr<Impl> env_;
  const std::string path_;
  const FilePtr file_;
  const std::unique_ptr<WritableFile> base_;
  const uint64_t life_;
  uint64_t end_ = 0;
  bool closed_ = false;
};

class FaultyEnv::Reader final : public RandomAccessFile {
 public:
  Reader(std::shared_ptr<Impl> env, std::string path, std::unique_ptr<RandomAccessFile> base)
      : env_(std::move(env)), path_(std::move(path)), base_(std::move(base)) {}

  uint64_t size() const override { return base_->size(); }
  Status ReadAt(uint64_t offset, std::span<char> buffer) const override {
    {
      std::lock_guard lock(env_->mutex);
      MXREC_RETURN_IF_ERROR(env_->BeginRead("read " + path_));
    }
    return base_->ReadAt(offset, buffer);
  }

 private:
  const std::shared_ptr<Impl> env_;
  const std::string path_;
  const std::unique_ptr<RandomAccessFile> base_;
};

FaultyEnv::FaultyEnv(Env* base, std::string scratch_dir) {
  const Status status = base->CreateDirs(scratch_dir);
  MXREC_CHECK(status.ok()) << status;
  // A second env over the same scratch folder must not meet the links of the first.
  std::string own;
  for (int i = 0; base->FileExists(own = JoinPath(scratch_dir, "env-" + std::to_string(i))); ++i) {
  }
  const Status made = base->CreateDirs(own);
  MXREC_CHECK(made.ok()) << made;
  impl_ = std::make_shared<Impl>(base, std::move(own));
}

FaultyEnv::~FaultyEnv() = default;

void FaultyEnv::FailAt(uint64_t n, Status status) {
  MXREC_CHECK(n > 0 && !status.ok());
  std::lock_guard lock(impl_->mutex);
  impl_->fail_at = impl_->counters.mutations + n;
  impl_->failure = std::move(status);
}

void FaultyEnv::FailReadAt(uint64_t n, Status status) {
  MXREC_CHECK(n > 0 && !status.ok());
  std::lock_guard lock(impl_->mutex);
  impl_->fail_read_at = impl_->counters.reads + n;
  impl_->read_failure = std::move(status);
}

void FaultyEnv::CrashAt(uint64_t n) {
  MXREC_CHECK(n > 0);
  std::lock_guard lock(impl_->mutex);
  impl_->crash_at = impl_->counters.mutations + n;
}

bool FaultyEnv::crashed() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->crashed;
}

void FaultyEnv::SetQuota(std::optional<uint64_t> bytes) {
  std::lock_guard lock(impl_->mutex);
  impl_->quota = bytes;
}

void FaultyEnv::DropUnsynced(NameLoss names) {
  std::lock_guard lock(impl_->mutex);
  Impl& env = *impl_;
  std::set<FilePtr> files;
  for (const auto* map : {&env.current, &env.durable}) {
    for (const auto& [path, file] : *map) files.insert(file);
  }
  for (const FilePtr& file : files) {
    env.CutToSynced(*file);
    file->size = file->synced_size;
    file->overwritten.clear();
  }
  if (names == NameLoss::kNone) {
    env.durable = env.current;
    env.durable_dirs = env.current_dirs;
    env.removed_dirs.clear();
    return;
  }
  for (const std::string& dir : env.removed_dirs) {
    static_cast<void>(env.base->CreateDirs(dir));
    env.current_dirs.insert(dir);
    env.durable_dirs.insert(dir);
  }
  env.removed_dirs.clear();
  std::erase_if(env.durable, [&](const auto& entry) { return !env.ParentsDurable(entry.first); });
  for (const auto& [path, file] : env.current) {
    const auto it = env.durable.find(path);
    if (it != env.durable.end() && it->second == file) continue;
    const Status status = env.base->RemoveFile(path);
    MXREC_CHECK(status.ok()) << status;
  }
  for (const auto& [path, file] : env.durable) {
    const auto it = env.current.find(path);
    if (it != env.current.end() && it->second == file) continue;
    const Status status = env.base->Link(file->scratch, path);
    MXREC_CHECK(status.ok()) << status;
  }
  env.current = env.durable;
  // Deepest first: a path sorts after its parents.
  for (auto it = env.current_dirs.rbegin(); it != env.current_dirs.rend(); ++it) {
    if (env.durable_dirs.contains(*it) && env.ParentsDurable(*it)) continue;
    const Status status = env.base->RemoveDir(*it);
    MXREC_CHECK(status.ok()) << status;
  }
  std::erase_if(env.durable_dirs, [&](const std::string& dir) { return !env.ParentsDurable(dir); });
  env.current_dirs = env.durable_dirs;
}

void FaultyEnv::Restart() {
  std::lock_guard lock(impl_->mutex);
  impl_->crashed = false;
  impl_->fail_at = impl_->crash_at = impl_->fail_read_at = 0;
  ++impl_->life;
}

FaultyEnv::Counters FaultyEnv::counters() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->counters;
}

std::vector<std::string> FaultyEnv::operations() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->operations;
}

Result<std::unique_ptr<WritableFile>> FaultyEnv::NewWritableFile(const std::string& path) {
  std::lock_guard lock(impl_->mutex);
  const std::string name = Normal(path);
  MXREC_RETURN_IF_ERROR(impl_->Begin("create " + name));
  FilePtr file = impl_->Find(name);
  MXREC_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> base, impl_->base->NewWritableFile(path));
  if (file == nullptr) {
    file = impl_->Adopt(name);
    if (file == nullptr) return InternalError(path + ": FaultyEnv cannot link the new file into " + impl_->scratch);
  }
  // The old contents are gone at once; a crash does not bring them back.
  file->size = file->synced_size = 0;
  file->overwritten.clear();
  ++impl_->counters.files_created;
  ++impl_->counters.open_writers;
  return std::unique_ptr<WritableFile>(std::make_unique<Writer>(impl_, name, std::move(file), std::move(base)));
}

Result<std::unique_ptr<RandomAccessFile>> FaultyEnv::NewRandomAccessFile(const std::string& path) {
  {
    std::lock_guard lock(impl_->mutex);
    MXREC_RETURN_IF_ERROR(impl_->BeginRead("open " + path));
  }
  MXREC_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> base, impl_->base->NewRandomAccessFile(path));
  return std::unique_ptr<RandomAccessFile>(std::make_unique<Reader>(impl_, path, std::move(base)));
}

Status FaultyEnv::Rename(const std::string& from, const std::string& to) {
  std::lock_guard lock(impl_->mutex);
  const std::string source = Normal(from), target = Normal(to);
  MXREC_RETURN_IF_ERROR(impl_->Begin("rename " + source + " to " + target));
  const FilePtr file = impl_->Find(source);
  if (file == nullptr && impl_->base->FileExists(from)) {
    return UnimplementedError(from + ": FaultyEnv renames files only, not folders");
  }
  static_cast<void>(impl_->Find(target));  // takes in what is replaced
  MXREC_RETURN_IF_ERROR(impl_->base->Rename(from, to));
  // POSIX: two names of one file: nothing happens, both stay.
  if (const auto it = impl_->current.find(target); it != impl_->current.end() && it->second == file) return OkStatus();
  impl_->current.erase(source);
  impl_->current[target] = file;
  return OkStatus();
}

Status FaultyEnv::Link(const std::string& from, const std::string& to) {
  std::lock_guard lock(impl_->mutex);
  const std::string source = Normal(from), target = Normal(to);
  MXREC_RETURN_IF_ERROR(impl_->Begin("link " + source + " as " + target));
  const FilePtr file = impl_->Find(source);
  MXREC_RETURN_IF_ERROR(impl_->base->Link(from, to));
  if (file != nullptr) impl_->current[target] = file;
  return OkStatus();
}

Status FaultyEnv::RemoveFile(const std::string& path) {
  std::lock_guard lock(impl_->mutex);
  const std::string name = Normal(path);
  MXREC_RETURN_IF_ERROR(impl_->Begin("remove " + name));
  static_cast<void>(impl_->Find(name));
  MXREC_RETURN_IF_ERROR(impl_->base->RemoveFile(path));
  impl_->current.erase(name);
  return OkStatus();
}

Status FaultyEnv::CreateDirs(const std::string& path) {
  std::lock_guard lock(impl_->mutex);
  const std::string name = Normal(path);
  MXREC_RETURN_IF_ERROR(impl_->Begin("create folder " + name));
  std::vector<std::string> missing;
  for (std::string dir = name; dir != "." && dir != "/" && !impl_->base->FileExists(dir); dir = DirName(dir))
    missing.push_back(dir);
  MXREC_RETURN_IF_ERROR(impl_->base->CreateDirs(path));
  for (const std::string& dir : missing) {
    impl_->current_dirs.insert(dir);
    // Removed and made again within one sync: the name was there all the time as far as the disk knows.
    if (impl_->removed_dirs.erase(dir) > 0) impl_->durable_dirs.insert(dir);
  }
  return OkStatus();
}

Status FaultyEnv::RemoveDir(const std::string& path) {
  std::lock_guard lock(impl_->mutex);
  const std::string name = Normal(path);
  MXREC_RETURN_IF_ERROR(impl_->Begin("remove folder " + name));
  MXREC_RETURN_IF_ERROR(impl_->base->RemoveDir(path));
  const bool made_here = impl_->current_dirs.erase(name) > 0;
  if (!made_here || impl_->durable_dirs.erase(name) > 0) impl_->removed_dirs.insert(name);
  return OkStatus();
}

Status FaultyEnv::SyncDir(const std::string& path) {
  std::lock_guard lock(impl_->mutex);
  const std::string name = Normal(path);
  MXREC_RETURN_IF_ERROR(impl_->Begin("sync folder " + name));
  if (!impl_->base->FileExists(name)) return NotFoundError(path + ": cannot sync the folder: it does not exist");
  ++impl_->counters.dir_syncs;
  const auto inside = [&](const std::string& child) { return DirName(child) == name; };
  std::erase_if(impl_->durable, [&](const auto& entry) { return inside(entry.first) && !impl_->current.contains(entry.first); });
  for (const auto& [child, file] : impl_->current) {
    if (inside(child)) impl_->durable[child] = file;
  }
  std::erase_if(impl_->removed_dirs, inside);
  for (const std::string& dir : impl_->current_dirs) {
    if (inside(dir)) impl_->durable_dirs.insert(dir);
  }
  return OkStatus();
}

Result<std::vector<std::string>> FaultyEnv::ListDir(const std::string& path) {
  std::lock_guard lock(impl_->mutex);
  if (impl_->crashed) return Impl::CrashError("list " + path);
  return impl_->base->ListDir(path);
}

bool FaultyEnv::FileExists(const std::string& path) {
  std::lock_guard lock(impl_->mutex);
  return !impl_->crashed && impl_->base->FileExists(path);
}

Result<uint64_t> FaultyEnv::FileSize(const std::string& path) {
  std::lock_guard lock(impl_->mutex);
  if (impl_->crashed) return Impl::CrashError("read the size of " + path);
  return impl_->base->FileSize(path);
}

Result<FileIdentity> FaultyEnv::Identify(const std::string& path) {
  std::lock_guard lock(impl_->mutex);
  if (impl_->crashed) return Impl::CrashError("read the state of " + path);
  return impl_->base->Identify(path);
}

}  // namespace mxrec
