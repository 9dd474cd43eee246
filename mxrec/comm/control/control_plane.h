// ControlPlane: small messages between rank 0 and the others, a star of TCP connections, and who is still there.
//
// One thread at a time is in Pump; everything else may be called from any thread. A connection that ends, or a peer that says
// nothing for the heartbeat timeout, is reported once (OnLost); what the peer had sent before is handed over first.
#ifndef MXREC_COMM_CONTROL_CONTROL_PLANE_H_
#define MXREC_COMM_CONTROL_CONTROL_PLANE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/comm/control/frame.h"
#include "mxrec/comm/control/rendezvous.h"
#include "mxrec/comm/transport.h"

namespace mxrec {

class ControlPlane {
 public:
  // Types 1 to 15 are taken by the hello and by the plane itself.
  static constexpr uint8_t kPingFrame = 15;
  static constexpr uint8_t kFirstFreeFrame = 16;

  class Handler {
   public:
    virtual ~Handler() = default;
    // A Status ends the connection with that peer (OnLost follows): the message was malformed.
    virtual Status OnFrame(int from, uint8_t type, std::string_view payload) = 0;
    virtual void OnLost(int rank, const Status& why) = 0;
    // What the next sign of life carries, and what one carried.
    virtual std::string PingPayload() { return {}; }
    virtual Status OnPing(int from, std::string_view payload) { return OkStatus(); }
  };

  // heartbeat_timeout: see CommOptions.
  static Result<std::unique_ptr<ControlPlane>> Create(Meeting meeting, int rank, std::chrono::milliseconds heartbeat_timeout);
  ~ControlPlane();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_.ranks.size()); }
  const World& world() const { return world_; }
  std::string Describe(int rank) const { return mxrec::Describe(rank, world_.ranks[static_cast<size_t>(rank)]); }

  // Handles all messages that are there, else waits for some, for Wake or for `until`: looks again and again for `look`, which
  // keeps a processor busy but needs nobody to wake this thread, then sleeps. Whether looking found
  // something.
  enum class Looked : uint8_t { kNot, kFound, kInVain };
  Looked Pump(Handler& handler, Deadline until, std::chrono::microseconds look = {});
  // Ends a waiting Pump, or the next one's wait.
  void Wake();
  // Queues a message and sends what the connection takes at once. Rank 0 may name any other rank, the others rank 0 alone. Dropped
  // when the peer is lost.
  void Send(int rank, uint8_t type, std::string_view payload);
  // Bytes that wait to be sent to a rank.
  size_t unsent(int rank) const;
  bool lost(int rank) const;
  // Ends all connections; nothing but Wake and bytes_sent may follow. When no thread is in another function.
  void Close();
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  struct Peer;
  ControlPlane(World world, int rank, std::chrono::milliseconds heartbeat_timeout);
  Peer* PeerOf(int rank) const;
  void Read(Peer& peer, Handler& handler);
  void Lose(Peer& peer, Handler& handler, const Status& why);
  void Flush(Peer& peer);
  void Heartbeat(Handler& handler, Deadline now);

  const World world_;
  const int rank_;
  const std::chrono::milliseconds heartbeat_timeout_, heartbeat_interval_;
  UniqueFd epoll_, event_;
  std::vector<std::unique_ptr<Peer>> peers_;  // rank 0: by rank - 1; else rank 0 alone
  Deadline last_pump_, next_beat_;
  std::atomic<bool> woken_{false}, sleeping_{false};
  std::atomic<uint64_t> bytes_sent_{0};
};

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROL_CONTROL_PLANE_H_
