// StoreService: a Store whose keys rank 0 keeps and the others reach through the control plane.
//
// Somebody must pump the control plane and hand over the frames of the types below. Threads: any; Set and Get wait and must not be
// called by the thread that pumps.
#ifndef MXREC_COMM_CONTROL_STORE_SERVICE_H_
#define MXREC_COMM_CONTROL_STORE_SERVICE_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/comm/control/control_plane.h"
#include "mxrec/comm/store.h"

namespace mxrec {

class StoreService final : public Store {
 public:
  static constexpr uint8_t kFirstFrame = 20, kLastFrame = 23;
  static constexpr size_t kMaxKeyBytes = 4096, kMaxValueBytes = 16 << 20;

  explicit StoreService(ControlPlane* plane) : plane_(*plane) {}

  Status Set(std::string_view key, std::string_view value) override;
  Result<std::string> Get(std::string_view key, Deadline deadline) override;

  Status OnFrame(int from, uint8_t type, std::string_view payload);
  // Ends all waiting, now and later.
  void Fail(const Status& why);

 private:
  enum FrameType : uint8_t { kSet = kFirstFrame, kSetReply, kGet, kGetReply };
  struct Waiting {
    std::optional<Status> status;
    std::string value;
  };

  Status SetHere(std::string_view key, std::string_view value);
  uint64_t Ask(uint8_t type, std::string_view key, std::string_view value);

  ControlPlane& plane_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Status failed_;
  // Rank 0.
  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, std::vector<std::pair<int, uint64_t>>, std::less<>> asked_;  // rank and number of its question
  // Other ranks: by number.
  std::map<uint64_t, Waiting> waiting_;
  uint64_t next_ = 1;
};

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROL_STORE_SERVICE_H_
