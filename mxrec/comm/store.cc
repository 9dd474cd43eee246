#include "mxrec/comm/store.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "mxrec/io/env.h"

namespace mxrec {
namespace {

Status DifferentValue(std::string_view key) {
  return AlreadyExistsError("store key '" + std::string(key) + "' has another value already: is a second job using this store?");
}
Status NotSet(std::string_view key, const std::string& where) {
  return CancelledError("nobody set store key '" + std::string(key) + "'" + where + " in time");
}

class MemoryStore final : public Store {
 public:
  Status Set(std::string_view key, std::string_view value) override {
    std::lock_guard lock(mutex_);
    const auto [it, added] = values_.emplace(key, value);
    if (!added && it->second != value) return DifferentValue(key);
    changed_.notify_all();
    return OkStatus();
  }
  Result<std::string> Get(std::string_view key, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (const auto it = values_.find(key); it != values_.end()) return it->second;
      if (std::chrono::steady_clock::now() >= deadline) return NotSet(key, "");
      changed_.wait_until(lock, deadline);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

class FileStore final : public Store {
 public:
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}

  Status Set(std::string_view key, std::string_view value) override {
    static std::atomic<uint64_t> number{0};
    const std::string path = Path(key);
    const std::string fresh = path + ".new-" + std::to_string(getpid()) + "-" + std::to_string(number++);
    Env* env = Env::Default();
    MXREC_ASSIGN_OR_RETURN(auto file, env->NewWritableFile(fresh));
    Status status = file->Append(value);
    if (Status closed = file->Close(); status.ok()) status = closed;
    // A link, unlike a renaming, does not replace what another rank has set.
    if (status.ok()) status = env->Link(fresh, path);
    if (Status removed = env->RemoveFile(fresh); status.ok()) status = removed;
    if (status.code() != StatusCode::kAlreadyExists) return status;
    MXREC_ASSIGN_OR_RETURN(std::string found, Read(path));
    return found == value ? OkStatus() : DifferentValue(key);
  }

  Result<std::string> Get(std::string_view key, Deadline deadline) override {
    const std::string path = Path(key);
    auto pause = std::chrono::microseconds(200);
    for (;;) {
      Result<std::string> value = Read(path);
      if (value.ok() || value.status().code() != StatusCode::kNotFound) return value;
      if (std::chrono::steady_clock::now() >= deadline) return NotSet(key, " in " + folder_);
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(20'000));
    }
  }

 private:
  // Any key is a file name: what is neither letter nor digit is written as %XX.
  std::string Path(std::string_view key) const {
    std::string path = folder_ + "/";
    for (const unsigned char c : key) {
      if (std::isalnum(c) || c == '-' || c == '_') {
        path += static_cast<char>(c);
      } else {
        static constexpr char kDigits[] = "0123456789ABCDEF";
        path += {'%', kDigits[c >> 4], kDigits[c & 15]};
      }
    }
    return path;
  }
  static Result<std::string> Read(const std::string& path) {
    MXREC_ASSIGN_OR_RETURN(auto file, Env::Default()->NewRandomAccessFile(path));
    std::string value(file->size(), '\0');
    MXREC_RETURN_IF_ERROR(file->ReadAt(0, value));
    return value;
  }

  const std::string folder_;
};

class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, std::string prefix) : store_(std::move(store)), prefix_(std::move(prefix)) {}
  Status Set(std::string_view key, std::string_view value) override { return store_->Set(prefix_ + std::string(key), value); }
  Result<std::string> Get(std::string_view key, Deadline deadline) override {
    return store_->Get(prefix_ + std::string(key), deadline);
  }

 private:
  const std::shared_ptr<Store> store_;
  const std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> MakeMemoryStore() { return std::make_shared<MemoryStore>(); }

Result<std::shared_ptr<Store>> MakeFileStore(std::string folder) {
  MXREC_RETURN_IF_ERROR(Env::Default()->CreateDirs(folder));
  return std::shared_ptr<Store>(std::make_shared<FileStore>(std::move(folder)));
}

std::shared_ptr<Store> MakePrefixStore(std::shared_ptr<Store> store, std::string prefix) {
  return std::make_shared<PrefixStore>(std::move(store), std::move(prefix));
}

}  // namespace mxrec
