// CallService: questions of one rank to another and their answers, any number of bytes each way, over the control plane; between
// two ranks other than 0 by way of rank 0.
//
// Bytes travel in chunks, and a sender is at most a window of chunks ahead of its receiver, so that big answers neither fill rank
// 0's memory nor delay agreements for long. Somebody must pump the control plane and hand over the frames of the types below.
// Threads: any; Call waits and must not be called by the thread that pumps. Handlers run on threads of this object; they may call.
#ifndef MXREC_COMM_CONTROL_CALL_SERVICE_H_
#define MXREC_COMM_CONTROL_CALL_SERVICE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "mxrec/comm/communicator.h"
#include "mxrec/comm/control/control_plane.h"

namespace mxrec {

class CallService {
 public:
  static constexpr uint8_t kFirstFrame = 24, kLastFrame = 30;
  static constexpr size_t kChunkBytes = 256 << 10;
  static constexpr int kWindow = 8;  // chunks
  static constexpr size_t kMaxServiceBytes = 1024;
  using Handler = Communicator::Handler;

  // `plane` is null with one rank: only calls to oneself work then.
  explicit CallService(ControlPlane* plane) : plane_(plane) {}
  ~CallService() { Stop(); }

  void Serve(const std::string& service, Handler handler);
  Result<std::string> Call(int rank, const std::string& service, std::string_view request, Deadline deadline);

  Status OnFrame(int from, uint8_t type, std::string_view payload);
  // On rank 0: a rank is gone, so calls to it fail, everywhere.
  void OnGone(int rank, const std::string& why);
  // Ends all calls, now and later.
  void Fail(const Status& why);
  // Fails all and waits for handlers that run. No more frames may come.
  void Stop();

 private:
  enum FrameType : uint8_t { kAsk = kFirstFrame, kAskData, kAnswer, kAnswerData, kMore, kDrop, kGone };
  // Bytes on their way out or in.
  struct Outgoing {
    std::string bytes;
    size_t sent = 0;
    int window = kWindow;
  };
  struct Incoming {
    std::string bytes;
    uint64_t total = 0;
    int unconfirmed = 0;
    bool complete() const { return bytes.size() == total; }
  };
  struct Question {  // asked here
    int to = 0;
    Outgoing request;
    std::optional<Status> status;  // of the answer, once it begins
    Incoming answer;
    Status failed;
  };
  struct Task {  // asked of us
    std::string service;
    Incoming request;
    std::optional<Outgoing> answer;
  };
  using TaskKey = std::pair<int, uint64_t>;  // who asked, its number

  void Send(int to, uint8_t type, uint64_t number, std::string_view rest);
  void Push(int to, uint8_t type, uint64_t number, Outgoing& out);
  void Answer(const TaskKey& key, Result<std::string> answer);
  void Start(const TaskKey& key);
  void Work();

  ControlPlane* const plane_;
  std::mutex mutex_;
  std::condition_variable changed_, work_;
  Status failed_;
  bool stop_ = false;
  std::map<std::string, std::shared_ptr<const Handler>> handlers_;
  std::map<uint64_t, Question> questions_;
  uint64_t next_ = 1;
  std::map<TaskKey, Task> tasks_;
  std::deque<TaskKey> ready_;
  std::vector<std::thread> threads_;
  int idle_ = 0;
};

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROL_CALL_SERVICE_H_
