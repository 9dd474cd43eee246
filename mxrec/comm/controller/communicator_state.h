// How the pieces run.
//
// The progress thread is nearly always in one of two places: in Pump, waiting for messages and for new requests, or in Execute. Who
// is in Pump holds pump_mutex_ and with it the coordinator and the reading side of the control plane. So a message is acted on by
// the thread that reads it, without a hand-over. While an execution takes long, the watch thread takes over the pumping: death of a
// rank, signs of life, stores and calls do not wait for a big reduction. It looks every few milliseconds whether the progress
// thread is still in the execution it saw before.
//
// mutex_ guards names, queues and health; never held while a callback, a collective or a system call runs. Order: pump_mutex_,
// send_mutex_, mutex_.
//
// A request's life: Submit puts it into its name's record and the name into queue_; SendRequests tells rank 0 (or the coordinator
// here); the answer makes a Task; the progress thread runs it, takes the request out of the record and calls `done`.
//
// Waking a thread costs more than a small reduction, so what is submitted alone, as it was the last time, is not handed to the
// progress thread. Another rank than 0 sends it from the thread that asks. At rank 0 it stays in the queue until another rank waits
// for something (whose message wakes the progress thread), or until the next look at what has stalled. Where the answers to
// such requests come soon, the progress thread looks for them for some microseconds before it sleeps; where they do not, looking
// takes the processor from those who have to work first.
#ifndef MXREC_COMM_CONTROLLER_COMMUNICATOR_STATE_H_
#define MXREC_COMM_CONTROLLER_COMMUNICATOR_STATE_H_

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "mxrec/comm/control/call_service.h"
#include "mxrec/comm/control/control_plane.h"
#include "mxrec/comm/control/store_service.h"
#include "mxrec/comm/controller/communicator_impl.h"
#include "mxrec/comm/controller/coordinator.h"
#include "mxrec/comm/controller/executor.h"
#include "mxrec/comm/controller/timeline.h"
#include "mxrec/comm/controller/wire.h"

namespace mxrec::internal {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

inline constexpr uint8_t kRequestsFrame = 16, kAgreementFrame = 17, kFailFrame = 18;

inline Status Prefixed(std::string_view front, const Status& status) {
  return Status(status.code(), std::string(front) + std::string(status.message()));
}

Difference Compare(const RequestFields& a, const CommRequest& b);

class CommunicatorImpl final : public Communicator, private ControlPlane::Handler {
 public:
  explicit CommunicatorImpl(const CommOptions& options) : options_(options), process_(::getpid()) {}
  ~CommunicatorImpl() override { static_cast<void>(Shutdown()); }

  Status Start(const TransportMaker& make_transport);

  const CommOptions& options() const override { return options_; }
  void Submit(CommRequest request) override;
  void Submit(std::vector<CommRequest> requests) override;
  Status Run(CommRequest request, Agreed* agreed) override;
  void Cancel(const std::string& group, const std::string& name, const std::string& why) override;
  void Refuse(const CommRequest& request, const Status& why) override;
  Status AddGroup(const std::string& name, std::vector<int> world_ranks) override;
  Status RemoveGroup(const std::string& name) override;
  Result<std::vector<int>> Group(const std::string& name) const override;
  void Serve(const std::string& service, Communicator::Handler handler) override;
  Result<std::string> Call(int rank, const std::string& service, std::string_view request, Deadline deadline) override;
  std::vector<int> Machines() const override { return machines_; }
  Status health() const override;
  CommStats stats() const override;
  Status Shutdown() override;

 private:
  struct GroupInfo {
    uint32_t id = 0;
    std::string name;
    std::vector<int> ranks;
    int me = 0;
    int live = 0;         // pending requests
    bool joined = false;  // a join is pending
  };

  static constexpr int kMostLookCredit = 4;
  // One in so many submissions finds out whether it is worth it again.
  static constexpr uint64_t kLookAgain = 32;

  enum class State : uint8_t { kIdle, kQueued, kAsked, kAgreed };
  // What is known of one name of a group.
  struct Name {
    uint32_t group = 0;
    std::string name;                           // as agreed on
    uint64_t id = 0;                            // rank 0's number for it; 0: none
    RequestFields agreed;                       // what the number stands for, when id is not 0
    Difference difference = Difference::kMore;  // of the request from that
    // What was submitted together with it the last time, in order; valid while no name has gone since.
    std::vector<Name*> followers;
    uint64_t followers_of = 0;  // erased_ then
    State state = State::kIdle;
    bool asked_by_number = false;
    // Nothing but its own submission was asked for while it was pending the last time.
    bool alone = false;
    uint64_t turn = 0;        // submitted_ when it was asked for; 0: something of before was pending
    Clock::time_point asked;  // by the caller
    CommRequest request;      // unless kIdle
  };

  struct Task {
    Job job;
    std::vector<Name*> names;  // as job.tensors; null: joined
    // Of a request that fails without running.
    Status error;
    bool counts = false;  // an execution that rank 0 counts
  };

  struct GroupWait {
    std::optional<Status> status;
  };

  struct Ended {
    std::function<void(const Status&, const Agreed&)> done;
    Status status;
    Agreed agreed;
  };

  // A name of a group: looked for without making a string.
  using KeyView = std::pair<uint32_t, std::string_view>;
  struct KeyHash {
    using is_transparent = void;
    size_t operator()(const KeyView& key) const { return std::hash<std::string_view>()(key.second) ^ key.first; }
    size_t operator()(const std::pair<uint32_t, std::string>& key) const { return (*this)(KeyView(key)); }
  };
  struct KeyEqual {
    using is_transparent = void;
    bool operator()(const KeyView& a, const KeyView& b) const { return a == b; }
  };

  bool chief() const { return options_.rank == 0; }
  std::string NameOfRank(int rank) const { return plane_ ? plane_->Describe(rank) : "rank " + std::to_string(rank); }

  Status Check(const CommRequest& request, const GroupInfo& group) const;
  static std::string NameOfPair(const CommRequest& request, const GroupInfo& group);
  // Whether it has the memory that it needs. Part of Check.
  Status CheckMemory(const CommRequest& request, const GroupInfo& group) const;
  // Adds to refusals_, unless the name is pending or no one can wait for it. With mutex_ held.
  void AddRefusal(const CommRequest& request, const GroupInfo& group, int parts, const Status& why);
  // What has to be done so that a new request goes on.
  enum class Next : uint8_t { kNothing, kWake, kSendHere };
  // What one call of Submit has found out so far.
  struct Submission {
    bool nothing_pending = false;  // before it
    GroupInfo* group = nullptr;    // of the last request
    Next next = Next::kNothing;
    bool lone = true;  // all its names came alone the last time too, and do so now
  };
  // With mutex_ held. `guess`: where the name may be, or null. Returns where it is.
  Result<Name*> Enqueue(CommRequest& request, Name* guess, Submission* submission);
  void SubmitAll(std::span<CommRequest> requests);
  void EraseName(const Name& name);
  Status ChangeGroup(const std::string& name, std::vector<int> ranks, bool remove);

  // ControlPlane::Handler; pump_mutex_ held.
  Status OnFrame(int from, uint8_t type, std::string_view payload) override;
  void OnLost(int rank, const Status& why) override;
  std::string PingPayload() override;
  Status OnPing(int from, std::string_view payload) override;

  void ProgressLoop();
  void WatchLoop();
  void PumpOnce(Deadline until);
  void SendRequests();
  // One message. True: there is more to tell. On rank 0 with pump_mutex_ held.
  bool SendQueued();
  void FlushCoordinator();
  Status TakeAgreement(const Agreement& agreement);
  void Execute(Task& task);
  void Note(const Task& task, Clock::time_point begin);
  void End(Name& name, Status status, Agreed agreed, std::vector<Ended>* ended);
  static void CallBack(std::vector<Ended>& ended);
  void EndAll(const std::function<Status(const CommRequest&)>& status);

  void Doubt(const Status& status);
  void TransportFailed(const Status& status);
  void FailWorld(const Status& why);  // rank 0: tells all
  void Fail(const Status& why);       // here
  void Wake();

  CommOptions options_;
  const pid_t process_;
  std::vector<int> machines_;            // set by Start
  std::unique_ptr<ControlPlane> plane_;  // null with one rank
  std::shared_ptr<StoreService> store_;
  std::unique_ptr<CallService> calls_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Timeline> timeline_;  // null: none is wanted. Used by the progress thread

  std::mutex pump_mutex_;
  std::unique_ptr<Coordinator> coordinator_;  // rank 0; guarded by pump_mutex_
  Clock::time_point next_stall_check_;        // as is this

  // Requests leave in the order in which they were taken from the queues.
  std::mutex send_mutex_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status health_;
  Status doubt_;  // a failure of the transport that waits for a better explanation, until doubt_until_
  Clock::time_point doubt_until_;
  std::unordered_map<std::pair<uint32_t, std::string>, std::unique_ptr<Name>, KeyHash, KeyEqual> names_;
  std::unordered_map<uint64_t, Name*> by_id_;
  std::map<uint32_t, GroupInfo> groups_;
  std::unordered_map<std::string, uint32_t> group_ids_;
  std::deque<Name*> queue_;
  uint64_t submitted_ = 0;             // calls of Submit ever
  uint64_t erased_ = 0;                // names ever
  size_t pending_ = 0;                 // names that are not kIdle
  bool look_ = false;                  // they are of a lone submission, for whose answer the progress thread looks before it sleeps
  int look_credit_ = kMostLookCredit;  // how often that was worth it of late
  uint64_t looks_left_out_ = 0;
  bool may_look_ = false;     // no thread of the transport needs the processor meanwhile
  bool others_wait_ = false;  // rank 0: for something that a request here may complete
  std::vector<CancelRequest> cancels_;
  std::vector<Refusal> refusals_;
  std::vector<GroupRequest> group_requests_;
  std::map<std::string, GroupWait> group_waits_;  // "+name", "-name"
  std::deque<Task> tasks_;
  bool closing_ = false;  // Shutdown was called
  bool leave_ = false;    // rank 0 shall be told
  bool goodbye_ = false;  // rank 0 has answered
  bool stop_ = false;     // the threads shall end
  bool transport_ready_ = false;
  CommStats stats_;

  std::atomic<uint64_t> finished_{0};
  std::atomic<int64_t> fuse_below_{0};
  std::atomic<bool> transport_failed_{false};  // nothing is executed any more
  // Odd while the progress thread executes.
  std::atomic<uint64_t> busy_{0};
  std::atomic<bool> watcher_pumps_{false};
  std::thread progress_, watch_;
  std::mutex shutdown_mutex_;
  bool shut_down_ = false;
};

}  // namespace mxrec::internal

#endif  // MXREC_COMM_CONTROLLER_COMMUNICATOR_STATE_H_
