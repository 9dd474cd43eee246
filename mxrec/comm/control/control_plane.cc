#include "mxrec/comm/control/control_plane.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <optional>

namespace mxrec {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kReadBytes = 64 << 10;
// One peer's flood does not keep the others waiting.
constexpr int kReadsInARow = 16;
constexpr uint64_t kWakeTag = UINT64_MAX;

}  // namespace

struct ControlPlane::Peer {
  int rank = 0;
  UniqueFd fd;
  FrameReader reader{kMaxFrameBytes};
  // Of the thread in Pump.
  Clock::time_point heard;

  mutable std::mutex mutex;  // what follows
  std::string out;
  size_t out_begin = 0;
  bool waits_for_room = false;
  bool lost = false;
};

ControlPlane::ControlPlane(World world, int rank, milliseconds heartbeat_timeout)
    : world_(std::move(world)),
      rank_(rank),
      heartbeat_timeout_(heartbeat_timeout),
      heartbeat_interval_(std::clamp(heartbeat_timeout / 4, milliseconds(20), milliseconds(5000))) {}

ControlPlane::~ControlPlane() = default;

void ControlPlane::Close() {
  peers_.clear();
  epoll_.Reset();
}

Result<std::unique_ptr<ControlPlane>> ControlPlane::Create(Meeting meeting, int rank, milliseconds heartbeat_timeout) {
  std::unique_ptr<ControlPlane> plane(new ControlPlane(std::move(meeting.world), rank, heartbeat_timeout));
  plane->epoll_.Reset(::epoll_create1(EPOLL_CLOEXEC));
  plane->event_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const auto add = [&](int fd, uint64_t tag) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = tag}};
    return ::epoll_ctl(plane->epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  bool ok = plane->epoll_.valid() && plane->event_.valid() && add(plane->event_.get(), kWakeTag);
  const auto now = Clock::now();
  for (size_t i = 0; i < meeting.connections.size() && ok; ++i) {
    Connection& connection = meeting.connections[i];
    if (!connection.fd.valid()) continue;  // rank 0 itself
    auto peer = std::make_unique<Peer>();
    peer->rank = rank == 0 ? static_cast<int>(i) : 0;
    peer->fd = std::move(connection.fd);
    peer->reader = std::move(connection.reader);
    peer->reader.set_max_payload(kMaxFrameBytes);
    peer->heard = now;
    ok = add(peer->fd.get(), plane->peers_.size());
    plane->peers_.push_back(std::move(peer));
  }
  if (!ok) return UnavailableError("the system gave no epoll: " + SystemError(errno));
  plane->last_pump_ = plane->next_beat_ = now;
  return plane;
}

ControlPlane::Peer* ControlPlane::PeerOf(int rank) const {
  const auto at = static_cast<size_t>(rank_ == 0 ? rank - 1 : rank);
  MXREC_CHECK(at < peers_.size()) << "rank " << rank_ << " has no connection to rank " << rank;
  return peers_[at].get();
}

size_t ControlPlane::unsent(int rank) const {
  const Peer* const peer = PeerOf(rank);
  const std::lock_guard lock(peer->mutex);
  return peer->out.size() - peer->out_begin;
}

bool ControlPlane::lost(int rank) const {
  const Peer* const peer = PeerOf(rank);
  const std::lock_guard lock(peer->mutex);
  return peer->lost;
}

void ControlPlane::Wake() {
  woken_.store(true);
  // Pairs with Pump, which first says that it sleeps and then looks at woken_: one of the two sees the other.
  if (sleeping_.exchange(false)) {
    const uint64_t one = 1;
    static_cast<void>(!::write(event_.get(), &one, sizeof(one)));
  }
}

void ControlPlane::Send(int rank, uint8_t type, std::string_view payload) {
  Peer& peer = *PeerOf(rank);
  const std::lock_guard lock(peer.mutex);
  if (peer.lost) return;
  AppendFrame(type, payload, &peer.out);
  bytes_sent_.fetch_add(kFrameHeaderBytes + payload.size(), std::memory_order_relaxed);
  if (!peer.waits_for_room) Flush(peer);
}

// With the peer's mutex held. A broken connection is noticed by the reading side.
void ControlPlane::Flush(Peer& peer) {
  while (peer.out_begin < peer.out.size()) {
    const ssize_t sent =
        ::send(peer.fd.get(), peer.out.data() + peer.out_begin, peer.out.size() - peer.out_begin, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      peer.out_begin += static_cast<size_t>(sent);
    } else if (sent < 0 && errno == EINTR) {
      continue;
    } else {
      break;
    }
  }
  if (peer.out_begin == peer.out.size()) {
    peer.out.clear();
    peer.out_begin = 0;
  } else if (peer.out_begin > peer.out.size() / 2) {
    peer.out.erase(0, peer.out_begin);
    peer.out_begin = 0;
  }
  const bool waits = !peer.out.empty();
  if (waits == peer.waits_for_room) return;
  peer.waits_for_room = waits;
  epoll_event event{.events = static_cast<uint32_t>(waits ? EPOLLIN | EPOLLOUT : EPOLLIN),
                    .data = {.u64 = static_cast<uint64_t>(rank_ == 0 ? peer.rank - 1 : 0)}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, peer.fd.get(), &event);
}

void ControlPlane::Lose(Peer& peer, Handler& handler, const Status& why) {
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.lost) return;
    peer.lost = true;
    peer.out.clear();
    peer.out_begin = 0;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.fd.get(), nullptr);
    ::shutdown(peer.fd.get(), SHUT_RDWR);
  }
  handler.OnLost(peer.rank, why);
}

void ControlPlane::Read(Peer& peer, Handler& handler) {
  for (int turn = 0; turn < kReadsInARow && !peer.lost; ++turn) {
    char* const at = peer.reader.Reserve(kReadBytes);
    const size_t room = peer.reader.room();
    const ssize_t got = ::recv(peer.fd.get(), at, room, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      const bool ended = got == 0 || errno == ECONNRESET || errno == EPIPE;
      Lose(peer, handler,
           UnavailableError(Describe(peer.rank) + " is gone: its connection was " +
                            (ended ? "closed; it ended or was killed" : "broken: " + SystemError(errno))));
      return;
    }
    peer.reader.Filled(static_cast<size_t>(got));
    peer.heard = Clock::now();
    for (;;) {
      Result<std::optional<Frame>> frame = peer.reader.Next();
      if (frame.ok() && !frame->has_value()) break;
      Status status = frame.ok() ? OkStatus() : frame.status();
      if (status.ok()) {
        const Frame& found = **frame;
        status = found.type == kPingFrame ? handler.OnPing(peer.rank, found.payload)
                                          : handler.OnFrame(peer.rank, found.type, found.payload);
      }
      if (!status.ok()) {
        Lose(peer, handler,
             Status(status.code(), Describe(peer.rank) + " sent a malformed message: " + std::string(status.message())));
        return;
      }
    }
    if (static_cast<size_t>(got) < room) return;
  }
}

void ControlPlane::Heartbeat(Handler& handler, Deadline now) {
  // This process itself stood still: silence of the others proves nothing.
  if (now - last_pump_ > heartbeat_timeout_ / 2) {
    for (auto& peer : peers_) peer->heard = now;
  }
  last_pump_ = now;
  if (now < next_beat_) return;
  next_beat_ = now + heartbeat_interval_;
  const std::string payload = handler.PingPayload();
  for (auto& peer : peers_) {
    Send(peer->rank, kPingFrame, payload);
    if (now - peer->heard > heartbeat_timeout_) {
      const auto silent = std::chrono::duration_cast<milliseconds>(now - peer->heard).count();
      Lose(*peer, handler,
           UnavailableError(Describe(peer->rank) + " has been silent for " + std::to_string(silent) + " ms, at most " +
                            std::to_string(heartbeat_timeout_.count()) + " are allowed: it is stopped, or its host or network is"));
    }
  }
}

ControlPlane::Looked ControlPlane::Pump(Handler& handler, Deadline until, std::chrono::microseconds look) {
  const auto now = Clock::now();
  Heartbeat(handler, now);
  const auto wait = std::chrono::ceil<milliseconds>(std::min(until, next_beat_) - now).count();
  epoll_event events[64];
  int count = 0;
  const auto look_until = std::min(until, now + look);
  for (auto at = now; count == 0 && at < look_until && !woken_.load(std::memory_order_relaxed); at = Clock::now()) {
    count = ::epoll_wait(epoll_.get(), events, std::size(events), 0);
    if (count == 0) ::sched_yield();  // who sends may wait for this processor
  }
  const bool interrupted = count <= 0 && woken_.load(std::memory_order_relaxed);
  const Looked looked = look.count() == 0 || interrupted ? Looked::kNot : count > 0 ? Looked::kFound : Looked::kInVain;
  if (count <= 0) {
    sleeping_.store(true);
    const int timeout = woken_.load() ? 0 : static_cast<int>(std::clamp<int64_t>(wait, 0, 3'600'000));
    count = ::epoll_wait(epoll_.get(), events, std::size(events), timeout);
    sleeping_.store(false);
  }
  woken_.store(false);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWakeTag) {
      uint64_t value;
      static_cast<void>(!::read(event_.get(), &value, sizeof(value)));
      continue;
    }
    Peer& peer = *peers_[events[i].data.u64];
    if ((events[i].events & EPOLLOUT) != 0) {
      const std::lock_guard lock(peer.mutex);
      if (!peer.lost) Flush(peer);
    }
    if ((events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Read(peer, handler);
  }
  return looked;
}

}  // namespace mxrec
