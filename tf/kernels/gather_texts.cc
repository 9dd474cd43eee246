#include "tf/kernels/gather_texts.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "mxrec/comm/control/status_wire.h"
#include "tf/comm_runtime.h"
#include "tf/kernels/hcom_groups.h"

namespace mxrec {
namespace {

// What the call and the request's callbacks share: the call may give up first.
struct Gathering {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Status status;
  std::string mine, all;
  std::vector<int64_t> sizes;
};

}  // namespace

Result<std::vector<std::string>> GatherTexts(const std::string& name, const std::string& text,
                                             const std::function<bool()>& cancelled) {
  const int ranks = GetHcomWorld().size;
  if (ranks == 1) return std::vector<std::string>{text};
  const auto gathering = std::make_shared<Gathering>();
  gathering->mine = text;
  CommRequest request;
  request.kind = Collective::kAllGather;
  request.name = name;
  request.origin = "node " + name;
  request.group = kHcomWorldGroup;
  request.dtype = DType::kUInt8;
  request.shape = {std::ssize(text)};
  request.input = gathering->mine.data();
  request.allocate = [gathering](const Agreed& agreed) -> Result<void*> {
    gathering->sizes = agreed.received;
    size_t total = 0;
    for (const int64_t size : agreed.received) total += static_cast<size_t>(size);
    gathering->all.resize(total);
    return static_cast<void*>(gathering->all.data());
  };
  request.done = [gathering](const Status& status, const Agreed&) {
    const std::lock_guard<std::mutex> lock(gathering->mutex);
    gathering->status = status;
    gathering->done = true;
    gathering->changed.notify_all();
  };
  std::vector<CommRequest> requests;
  requests.push_back(std::move(request));
  SubmitComm(std::move(requests), gathering.get(), /*repeatable=*/true);
  std::unique_lock<std::mutex> lock(gathering->mutex);
  while (!gathering->changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return gathering->done; })) {
    if (!cancelled || !cancelled()) continue;
    lock.unlock();
    CancelComm(kHcomWorldGroup, name, gathering.get());
    lock.lock();
    gathering->changed.wait(lock, [&] { return gathering->done; });
  }
  if (!gathering->status.ok()) return gathering->status;
  std::vector<std::string> texts;
  size_t at = 0;
  for (const int64_t size : gathering->sizes) {
    texts.push_back(gathering->all.substr(at, static_cast<size_t>(size)));
    at += static_cast<size_t>(size);
  }
  return texts;
}

Status AgreeOnStatus(const std::string& name, const Status& mine, const std::function<bool()>& cancelled) {
  std::string text;
  WireWriter out(&text);
  WriteStatus(mine, out);
  MXREC_ASSIGN_OR_RETURN(const std::vector<std::string> texts, GatherTexts(name, text, cancelled));
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    WireReader in(texts[rank]);
    const Status status = ReadStatus(in);
    if (!in.done()) return InternalError(name + ": what rank " + std::to_string(rank) + " sent is not a status");
    if (status.ok()) continue;
    if (texts.size() == 1) return status;
    return Status(status.code(), "rank " + std::to_string(rank) + ": " + std::string(status.message()));
  }
  return OkStatus();
}

}  // namespace mxrec
