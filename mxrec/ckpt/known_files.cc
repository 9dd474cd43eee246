#include "mxrec/ckpt/known_files.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace mxrec::internal {
namespace {

constexpr size_t kMostContents = 1024;
constexpr size_t kMostFiles = 4;  // of one content

struct Known {
  std::mutex mutex;
  std::map<std::pair<uint64_t, const Env*>, std::vector<KnownFile>> files;  // the oldest contents have the smallest number
};
Known& known() {
  static Known* const all = new Known;
  return *all;
}

}  // namespace

void RememberFile(const Env* env, uint64_t content_id, KnownFile file) {
  Known& all = known();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<KnownFile>& files = all.files[{content_id, env}];
  std::erase_if(files, [&](const KnownFile& other) { return other.path == file.path; });
  files.push_back(std::move(file));
  if (files.size() > kMostFiles) files.erase(files.begin());
  if (all.files.size() > kMostContents) all.files.erase(all.files.begin());
}

std::vector<KnownFile> FilesHolding(Env* env, uint64_t content_id) {
  std::vector<KnownFile> files;
  {
    Known& all = known();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (const auto found = all.files.find({content_id, env}); found != all.files.end()) files = found->second;
  }
  std::erase_if(files, [&](const KnownFile& file) {
    const Result<FileIdentity> now = env->Identify(file.path);
    return !now.ok() || *now != file.identity;
  });
  return files;
}

}  // namespace mxrec::internal
