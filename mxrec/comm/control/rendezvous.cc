#include "mxrec/comm/control/rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "mxrec/base/log.h"
#include "mxrec/comm/rank_list.h"
#include "mxrec/io/env.h"
#include "mxrec/io/little_endian.h"

namespace mxrec {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A peer that connects and then says nothing is dropped after this long.
constexpr milliseconds kHelloTimeout{10'000};
// The others wait a little longer than rank 0, so that they hear from it who is missing.
constexpr milliseconds kGrace{3'000};
constexpr milliseconds kFirstRetry{4}, kLastRetry{128};

// An empty secret keeps nobody out: fine where only this machine can connect.
Status CheckSecret(const CommOptions& options, const std::string& host) {
  if (!options.secret.empty()) return OkStatus();
  MXREC_ASSIGN_OR_RETURN(const bool loopback, IsLoopback(host));
  if (loopback) return OkStatus();
  return InvalidArgumentError("ranks that meet at '" + host + "', which is no loopback address, need a shared secret: it is empty");
}

int PollTimeout(Clock::time_point until) {
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1000));
}

std::string Seconds(milliseconds time) {
  const double seconds = static_cast<double>(time.count()) / 1000;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), seconds).ptr;
  return std::string(text, end) + " s";
}

std::string RandomNonce() {
  std::string nonce(kNonceBytes, '\0');
  size_t done = 0;
  while (done < nonce.size()) {
    const ssize_t got = ::getrandom(nonce.data() + done, nonce.size() - done, 0);
    if (got > 0) done += static_cast<size_t>(got);
  }
  return nonce;
}

std::string HostName() {
  char name[256] = "";
  if (::gethostname(name, sizeof(name) - 1) != 0) return "unknown host";
  return name;
}

std::string HostId() {
  const Result<std::string> boot = ReadWholeFile(Env::Default(), "/proc/sys/kernel/random/boot_id", 256);
  return HostName() + "/" + (boot.ok() ? boot->substr(0, boot->find('\n')) : "");
}

// Sends all of it, waiting for room; false when the peer is gone or does not read.
bool SendAll(int fd, std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (Clock::now() >= deadline) return false;
      pollfd wait{.fd = fd, .events = POLLOUT, .revents = 0};
      ::poll(&wait, 1, PollTimeout(deadline));
    } else {
      return false;
    }
  }
  return true;
}

bool SendFrame(int fd, uint8_t type, std::string_view payload, Clock::time_point deadline) {
  std::string bytes;
  AppendFrame(type, payload, &bytes);
  return SendAll(fd, bytes, deadline);
}

enum class ReadOutcome { kAgain, kSome, kGone };
ReadOutcome ReadSome(Connection& connection) {
  char* const at = connection.reader.Reserve(1024);
  const ssize_t got = ::recv(connection.fd.get(), at, connection.reader.room(), 0);
  if (got > 0) {
    connection.reader.Filled(static_cast<size_t>(got));
    return ReadOutcome::kSome;
  }
  return got < 0 && (errno == EAGAIN || errno == EINTR) ? ReadOutcome::kAgain : ReadOutcome::kGone;
}

// ---------------------------------------------------------------------------------------------------------------- rank 0

class Chief {
 public:
  explicit Chief(const CommOptions& options)
      : options_(options), members_(options.size), deadline_(Clock::now() + options.connect_timeout) {}

  Result<Meeting> Run() {
    const std::string& host = options_.bind_host.empty() ? options_.chief_host : options_.bind_host;
    MXREC_RETURN_IF_ERROR(CheckSecret(options_, host));
    Result<Listener> listener = ListenTcp(host, options_.chief_port);
    if (!listener.ok()) {
      return UnavailableError("rank 0: " + std::string(listener.status().message()) +
                              "; check that no other job or earlier process uses the port and that the address is this host's");
    }
    listener_ = std::move(listener).value();
    if (!options_.store_path.empty()) {
      const Status published =
          WriteFileAtomically(Env::Default(), options_.store_path,
                              "mxrec-chief 1\n" + options_.chief_host + "\n" + std::to_string(listener_.port) + "\n");
      if (!published.ok())
        return Status(published.code(), "rank 0 cannot publish its address: " + std::string(published.message()));
    }
    Status status = Wait();
    if (!options_.store_path.empty()) static_cast<void>(Env::Default()->RemoveFile(options_.store_path));
    if (!status.ok()) {
      for (Member& member : members_) {
        if (member.guest != nullptr) Refuse(*member.guest, status);
      }
      for (const auto& guest : strangers_) {
        if (guest->welcome && !guest->gone) Refuse(*guest, status);
      }
      return status;
    }
    return Finish();
  }

 private:
  struct Guest {
    Connection connection;
    std::string from;
    Challenge challenge;
    Hello hello;
    Clock::time_point deadline;
    bool welcome = false;
    bool gone = false;
  };
  struct Member {
    std::unique_ptr<Guest> guest;
    bool was_here = false;  // came and went
  };

  Status Wait() {
    while (came_ + 1 < options_.size) {
      if (Clock::now() >= deadline_) return Missing();
      std::vector<pollfd> fds;
      fds.push_back({.fd = listener_.fd.get(), .events = POLLIN, .revents = 0});
      for (const auto& guest : strangers_) fds.push_back({.fd = guest->connection.fd.get(), .events = POLLIN, .revents = 0});
      for (const Member& member : members_) {
        if (member.guest) fds.push_back({.fd = member.guest->connection.fd.get(), .events = POLLIN, .revents = 0});
      }
      ::poll(fds.data(), fds.size(), PollTimeout(deadline_));
      size_t at = 1;
      for (const auto& guest : strangers_) {
        if (fds[at++].revents != 0) MXREC_RETURN_IF_ERROR(Listen(*guest));
        if (Clock::now() >= guest->deadline) guest->gone = true;
      }
      for (size_t rank = 0; rank < members_.size(); ++rank) {
        Member& member = members_[rank];
        // Members wait in silence: what comes from one is its end.
        if (member.guest == nullptr || fds[at++].revents == 0 || ReadSome(member.guest->connection) == ReadOutcome::kAgain)
          continue;
        MXREC_LOG(WARNING) << Describe(static_cast<int>(rank), InfoOf(member.guest->hello))
                           << " left while rank 0 waited for others";
        member.guest.reset();
        --came_;
      }
      Seat();
      Accept();
    }
    return OkStatus();
  }

  void Accept() {
    for (;;) {
      auto guest = std::make_unique<Guest>();
      guest->connection.fd = AcceptTcp(listener_.fd.get(), &guest->from);
      if (!guest->connection.fd.valid()) return;
      if (strangers_.size() >= 64 + 2 * members_.size()) return;  // closes it
      guest->challenge.nonce = RandomNonce();
      guest->deadline = Clock::now() + kHelloTimeout;
      if (SendFrame(guest->connection.fd.get(), kChallengeFrame, EncodeChallenge(guest->challenge), Clock::now())) {
        strangers_.push_back(std::move(guest));
      }
    }
  }

  void Refuse(Guest& guest, const Status& why) {
    static_cast<void>(SendFrame(guest.connection.fd.get(), kVerdictFrame,
                                EncodeVerdict(why, guest.challenge, guest.hello.nonce, options_.secret), Clock::now()));
    guest.gone = true;
  }

  // Reads what a stranger says. An error ends the meeting: one of ours was started with other numbers.
  Status Listen(Guest& guest) {
    const ReadOutcome outcome = ReadSome(guest.connection);
    if (outcome == ReadOutcome::kGone) guest.gone = true;
    if (outcome != ReadOutcome::kSome) return OkStatus();
    Result<std::optional<Frame>> frame = guest.connection.reader.Next();
    if (frame.ok() && !frame->has_value()) return OkStatus();
    if (!frame.ok() || (*frame)->type != kHelloFrame) {
      TurnAway(guest, DataLossError("it does not speak the protocol of mxrec"));
      return OkStatus();
    }
    Result<Hello> hello = DecodeHello((*frame)->payload, guest.challenge, options_.secret);
    if (!hello.ok()) {
      TurnAway(guest, hello.status());
      return OkStatus();
    }
    guest.hello = std::move(hello).value();
    const Hello& found = guest.hello;
    if (found.version != kProtocolVersion) {
      TurnAway(guest,
               FailedPreconditionError("it speaks version " + std::to_string(found.version) + " of the protocol, rank 0 version " +
                                       std::to_string(kProtocolVersion) + ": all ranks need the same mxrec"));
      return OkStatus();
    }
    if (found.job != options_.job) {
      TurnAway(guest, FailedPreconditionError("it belongs to job '" + found.job + "', rank 0 to job '" + options_.job + "'"));
      return OkStatus();
    }
    const std::string who = Describe(found.rank, InfoOf(found));
    Status wrong;
    if (found.size != options_.size) {
      wrong = FailedPreconditionError(who + " was started for " + std::to_string(found.size) + " ranks, rank 0 for " +
                                      std::to_string(options_.size));
    } else if (found.rank <= 0 || found.rank >= options_.size) {
      wrong = FailedPreconditionError(who + ": its number must be in 1 to " + std::to_string(options_.size - 1));
    } else if (const Guest* other = Seated(found.rank, guest); other != nullptr) {
      wrong = FailedPreconditionError("two processes say that they are rank " + std::to_string(found.rank) + ": " + who + " and " +
                                      Describe(found.rank, InfoOf(other->hello)));
    }
    if (!wrong.ok()) {
      Refuse(guest, wrong);
      return wrong;
    }
    if (SendFrame(guest.connection.fd.get(), kVerdictFrame,
                  EncodeVerdict(OkStatus(), guest.challenge, found.nonce, options_.secret), Clock::now())) {
      guest.connection.reader.set_max_payload(kMaxFrameBytes);
      guest.welcome = true;
    } else {
      guest.gone = true;
    }
    return OkStatus();
  }

  // Who else was welcomed as `rank`; null when nobody was.
  const Guest* Seated(int rank, const Guest& but) const {
    if (members_[rank].guest != nullptr) return members_[rank].guest.get();
    for (const auto& guest : strangers_) {
      if (guest->welcome && !guest->gone && guest.get() != &but && guest->hello.rank == rank) return guest.get();
    }
    return nullptr;
  }

  void TurnAway(Guest& guest, const Status& why) {
    MXREC_LOG(WARNING) << "rank 0 turned away a connection from " << guest.from << ": " << why.message();
    turned_away_ = "a connection from " + guest.from + " was turned away: " + std::string(why.message());
    Refuse(guest, why);
  }

  // Moves welcomed guests to their seats, drops those that are gone.
  void Seat() {
    for (auto& guest : strangers_) {
      if (guest->gone || !guest->welcome) continue;
      Member& member = members_[guest->hello.rank];
      member.was_here = true;
      member.guest = std::move(guest);
      ++came_;
    }
    std::erase_if(strangers_, [](const auto& guest) { return guest == nullptr || guest->gone; });
  }

  Status Missing() const {
    std::vector<int> never, left;
    for (int rank = 1; rank < options_.size; ++rank) {
      if (members_[rank].guest == nullptr) (members_[rank].was_here ? left : never).push_back(rank);
    }
    std::string text = "after " + Seconds(options_.connect_timeout) + " rank 0, which listens at " +
                       HostPort(options_.chief_host, listener_.port) + ", misses ";
    if (!never.empty()) text += RankList(never) + " of " + std::to_string(options_.size);
    if (!left.empty()) text += (never.empty() ? "" : " and ") + RankList(left) + ", which came and left again";
    text += "; check that they were started, that they reach this address, and that a firewall lets them";
    if (!turned_away_.empty()) text += "; " + turned_away_;
    return UnavailableError(std::move(text));
  }

  static RankInfo InfoOf(const Hello& hello) { return {.host = hello.host, .pid = hello.pid, .host_id = hello.host_id}; }

  Result<Meeting> Finish() {
    Meeting meeting;
    const std::string random = RandomNonce();
    meeting.world.epoch = LoadLittleEndian<uint64_t>(random.data());
    meeting.world.fusion_bytes = options_.fusion_bytes;
    meeting.world.deterministic = options_.deterministic;
    meeting.world.algorithm = static_cast<uint8_t>(options_.algorithm);
    meeting.world.ranks.push_back({.host = HostName(), .pid = ::getpid(), .host_id = HostId()});
    for (int rank = 1; rank < options_.size; ++rank) meeting.world.ranks.push_back(InfoOf(members_[rank].guest->hello));
    const std::string bytes = EncodeWorld(meeting.world);
    meeting.connections.resize(options_.size);
    Status failed;
    for (int rank = 1; rank < options_.size; ++rank) {
      Connection& connection = members_[rank].guest->connection;
      if (!SendFrame(connection.fd.get(), kWorldFrame, bytes, Clock::now() + kHelloTimeout)) {
        return UnavailableError(Describe(rank, meeting.world.ranks[rank]) + " left when all ranks had come");
      }
      meeting.connections[rank] = std::move(connection);
    }
    return meeting;
  }

  const CommOptions& options_;
  Listener listener_;
  std::vector<std::unique_ptr<Guest>> strangers_;
  std::vector<Member> members_;  // by rank
  int came_ = 0;
  std::string turned_away_;
  const Clock::time_point deadline_;
};

// ---------------------------------------------------------------------------------------------------------- other ranks

class Guest {
 public:
  explicit Guest(const CommOptions& options) : options_(options), deadline_(Clock::now() + options.connect_timeout) {}

  Result<Meeting> Run() {
    for (milliseconds pause = kFirstRetry;; pause = std::min(2 * pause, kLastRetry)) {
      Result<Meeting> meeting = Try();
      if (meeting.ok() || final_) return meeting;
      last_ = std::string(meeting.status().message());
      if (Clock::now() + pause >= deadline_) {
        return UnavailableError("rank " + std::to_string(options_.rank) + " did not meet rank 0 at " + where_ + " within " +
                                Seconds(options_.connect_timeout) + ": " + last_ +
                                "; check that rank 0 was started and that this host reaches the address");
      }
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  Status FindChief() {
    host_ = options_.chief_host;
    port_ = options_.chief_port;
    where_ = HostPort(host_, port_);
    if (options_.store_path.empty()) return OkStatus();
    where_ = "the address in '" + options_.store_path + "'";
    MXREC_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(Env::Default(), options_.store_path, 4096));
    const size_t first = text.find('\n');
    const size_t second = first == std::string::npos ? first : text.find('\n', first + 1);
    if (second == std::string::npos || text.substr(0, first) != "mxrec-chief 1") {
      return DataLossError("'" + options_.store_path + "' holds no address of a rank 0");
    }
    host_ = text.substr(first + 1, second - first - 1);
    port_ = 0;
    std::from_chars(text.data() + second + 1, text.data() + text.size(), port_);
    where_ = HostPort(host_, port_) + " (from '" + options_.store_path + "')";
    return OkStatus();
  }

  Result<Meeting> Try() {
    final_ = false;
    MXREC_RETURN_IF_ERROR(FindChief());
    if (Status secret = CheckSecret(options_, host_); secret.code() == StatusCode::kInvalidArgument) {
      final_ = true;
      return secret;
    }
    Connection connection;
    MXREC_ASSIGN_OR_RETURN(connection.fd, StartConnectTcp(host_, port_));
    pollfd wait{.fd = connection.fd.get(), .events = POLLOUT, .revents = 0};
    while (::poll(&wait, 1, PollTimeout(deadline_)) <= 0) {
      if (Clock::now() >= deadline_) return UnavailableError("no answer to the attempt to connect");
    }
    if (const int error = ConnectError(connection.fd.get()); error != 0) return UnavailableError(SystemError(error));

    const auto hello_deadline = std::min(deadline_, Clock::now() + kHelloTimeout);
    MXREC_ASSIGN_OR_RETURN(const Frame first, Receive(connection, kChallengeFrame, hello_deadline));
    MXREC_ASSIGN_OR_RETURN(const Challenge challenge, DecodeChallenge(first.payload));
    Hello hello;
    hello.nonce = RandomNonce();
    hello.job = options_.job;
    hello.rank = options_.rank;
    hello.size = options_.size;
    hello.host = HostName();
    hello.pid = ::getpid();
    hello.host_id = HostId();
    if (challenge.version != kProtocolVersion) {
      final_ = true;
      return FailedPreconditionError("rank 0 speaks version " + std::to_string(challenge.version) + " of the protocol, rank " +
                                     std::to_string(options_.rank) + " version " + std::to_string(kProtocolVersion) +
                                     ": all ranks need the same mxrec");
    }
    if (!SendFrame(connection.fd.get(), kHelloFrame, EncodeHello(hello, challenge, options_.secret), hello_deadline)) {
      return UnavailableError("rank 0 closed the connection");
    }
    Result<Frame> second = Receive(connection, kVerdictFrame, hello_deadline);
    if (!second.ok()) return second.status();
    MXREC_RETURN_IF_ERROR(Judge(DecodeVerdict(second->payload, challenge, hello.nonce, options_.secret)));

    // Welcome. Now the others.
    connection.reader.set_max_payload(kMaxFrameBytes);
    Result<Frame> third = Receive(connection, kWorldFrame, deadline_ + kGrace, kVerdictFrame);
    final_ = true;
    if (!third.ok()) {
      return UnavailableError("rank " + std::to_string(options_.rank) + " met rank 0 at " + where_ +
                              " and waited for the other ranks: " + std::string(third.status().message()));
    }
    if (third->type == kVerdictFrame) {
      const Status verdict = DecodeVerdict(third->payload, challenge, hello.nonce, options_.secret);
      return verdict.ok() ? DataLossError("rank 0 sent a second welcome") : verdict;
    }
    Meeting meeting;
    MXREC_ASSIGN_OR_RETURN(meeting.world, DecodeWorld(third->payload));
    if (meeting.world.ranks.size() != static_cast<size_t>(options_.size)) {
      return DataLossError("rank 0 listed " + std::to_string(meeting.world.ranks.size()) + " ranks, expected " +
                           std::to_string(options_.size));
    }
    meeting.connections.push_back(std::move(connection));
    return meeting;
  }

  // A refusal that waiting cannot change is final.
  Status Judge(Status verdict) {
    const bool other_job = verdict.code() == StatusCode::kFailedPrecondition && !options_.store_path.empty() &&
                           verdict.message().find("belongs to job") != std::string_view::npos;
    // An address left behind by an earlier job: rank 0 of ours will publish its own.
    final_ = (verdict.code() == StatusCode::kPermissionDenied || verdict.code() == StatusCode::kFailedPrecondition) && !other_job;
    if (verdict.ok() || !final_) return verdict;
    return Status(verdict.code(), "rank 0 at " + where_ + " turned rank " + std::to_string(options_.rank) +
                                      " away: " + std::string(verdict.message()));
  }

  Result<Frame> Receive(Connection& connection, uint8_t type, Clock::time_point deadline, uint8_t other = 0) {
    for (;;) {
      MXREC_ASSIGN_OR_RETURN(const std::optional<Frame> frame, connection.reader.Next());
      if (frame.has_value()) {
        if (frame->type != type && (other == 0 || frame->type != other)) {
          return DataLossError("what answers there does not speak the protocol of mxrec");
        }
        return *frame;
      }
      if (Clock::now() >= deadline) return UnavailableError("no answer in time");
      pollfd wait{.fd = connection.fd.get(), .events = POLLIN, .revents = 0};
      if (::poll(&wait, 1, PollTimeout(deadline)) <= 0) continue;
      if (ReadSome(connection) == ReadOutcome::kGone) return UnavailableError("rank 0 closed the connection");
    }
  }

  const CommOptions& options_;
  const Clock::time_point deadline_;
  std::string host_, where_, last_;
  int port_ = 0;
  bool final_ = false;
};

}  // namespace

std::string Describe(int rank, const RankInfo& info) {
  return "rank " + std::to_string(rank) + " (" + info.host + ", process " + std::to_string(info.pid) + ")";
}

Result<Meeting> Meet(const CommOptions& options) { return options.rank == 0 ? Chief(options).Run() : Guest(options).Run(); }

}  // namespace mxrec
