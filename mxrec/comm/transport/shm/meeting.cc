#include "mxrec/comm/transport/shm/meeting.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>

namespace mxrec::shm {
namespace {

constexpr uint64_t kMagic = 0x31306D6873786D21;  // "!mxshm01"
constexpr size_t kTokenBytes = 16;

// What a rank says first. The token, which stands in the store, shows that it belongs to the same world.
struct Hello {
  uint64_t magic;
  uint32_t rank;
  uint32_t size;
  uint64_t bytes;
  char token[kTokenBytes];
};
// The answer. That of rank 0 carries the memory.
struct Welcome {
  uint64_t magic;
  uint64_t bytes;
};

std::string Reason() { return std::strerror(errno); }

int MillisecondsTo(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 1 << 30));
}

// False when the time is over.
bool WaitReadable(int fd, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    const int ready = poll(&entry, 1, MillisecondsTo(deadline));
    if (ready > 0) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

struct Listener {
  Fd socket;
  std::string address;  // the abstract name that the kernel chose
};

Result<Listener> Listen(int backlog) {
  Listener listener{Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)), ""};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t length = sizeof(sa_family_t);
  if (!listener.socket.valid() || bind(listener.socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener.socket.get(), std::max(backlog, 1)) != 0) {
    return UnavailableError("shared memory transport: no Unix socket to meet the other ranks at: " + Reason());
  }
  length = sizeof(address);
  if (getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return UnavailableError("shared memory transport: the Unix socket has no name: " + Reason());
  }
  listener.address.assign(address.sun_path, length - offsetof(sockaddr_un, sun_path));
  return listener;
}

Result<Fd> Connect(int rank, const std::string& name) {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!fd.valid() || name.size() > sizeof(address.sun_path)) {
    return UnavailableError("shared memory transport: no socket to rank " + std::to_string(rank) + ": " + Reason());
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return UnavailableError("shared memory transport: rank " + std::to_string(rank) + " cannot be reached (" + Reason() +
                            "): it has ended, or runs on another host or in another network namespace; there use the gloo or mpi "
                            "transport");
  }
  return fd;
}

bool SameUser(int fd, pid_t* pid) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  *pid = peer.pid;
  return peer.uid == geteuid();
}

Fd OpenProcess(pid_t pid) {
#ifdef SYS_pidfd_open
  if (pid > 0 && pid != getpid()) return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
#endif
  return Fd();
}

bool SendWelcome(int fd, size_t bytes, int memory) {
  Welcome welcome{kMagic, bytes};
  iovec data{&welcome, sizeof(welcome)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (memory >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &memory, sizeof(int));
  }
  return sendmsg(fd, &message, MSG_NOSIGNAL) == sizeof(welcome);
}

// The memory's descriptor when the message carries one.
Result<Fd> ReceiveWelcome(int rank, int fd, size_t bytes, Deadline deadline) {
  const std::string who = "shared memory transport: rank " + std::to_string(rank);
  if (!WaitReadable(fd, deadline)) return UnavailableError(who + " did not answer in time");
  Welcome welcome{};
  iovec data{&welcome, sizeof(welcome)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  Fd memory;
  if (const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
      header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int received;
    std::memcpy(&received, CMSG_DATA(header), sizeof(int));
    memory = Fd(received);
  }
  if (got != sizeof(welcome) || welcome.magic != kMagic) {
    return UnavailableError(who + " closed the connection: it has ended, or belongs to another job, user or version");
  }
  if (welcome.bytes != bytes) {
    return FailedPreconditionError(who + " shares " + std::to_string(welcome.bytes) + " bytes, this rank expects " +
                                   std::to_string(bytes) + ": are the options of all ranks equal?");
  }
  return memory;
}

Result<Fd> MakeMemory(size_t bytes) {
  Fd memory(memfd_create("mxrec", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid() || ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) {
    return ResourceExhaustedError("shared memory transport: the system refuses " + std::to_string(bytes) + " bytes: " + Reason());
  }
  // Nobody can cut off memory that others have mapped.
  (void)fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return memory;
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

Result<Meeting> Meet(int rank, int size, size_t bytes, Store& store, Deadline deadline) {
  Meeting meeting;
  meeting.peers.resize(size);
  if (rank == 0) {
    MXREC_ASSIGN_OR_RETURN(meeting.memory, MakeMemory(bytes));
  }
  MXREC_ASSIGN_OR_RETURN(Listener listener, Listen(size));
  std::string token(kTokenBytes, '\0');
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return UnavailableError("shared memory transport: no random bytes: " + Reason());
  }
  MXREC_RETURN_IF_ERROR(store.Set("shm/" + std::to_string(rank), token + listener.address));

  // Every rank calls those before it, hears those behind it, then hears the answers of those before it: nobody waits in a circle.
  for (int other = 0; other < rank; ++other) {
    Result<std::string> entry = store.Get("shm/" + std::to_string(other), deadline);
    if (!entry.ok()) {
      if (entry.status().code() != StatusCode::kCancelled) return std::move(entry).status();
      return UnavailableError("shared memory transport: rank " + std::to_string(other) + " did not come in time");
    }
    if (entry->size() < kTokenBytes) return DataLossError("store key shm/" + std::to_string(other) + " is no address");
    MXREC_ASSIGN_OR_RETURN(meeting.peers[other].socket, Connect(other, entry->substr(kTokenBytes)));
    Hello hello{kMagic, static_cast<uint32_t>(rank), static_cast<uint32_t>(size), bytes, {}};
    std::memcpy(hello.token, entry->data(), kTokenBytes);
    // A full queue or a dead peer shows as a missing answer.
    (void)send(meeting.peers[other].socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL);
  }
  for (int missing = size - 1 - rank; missing > 0;) {
    if (!WaitReadable(listener.socket.get(), deadline)) {
      std::string names;
      for (int other = rank + 1; other < size; ++other) {
        if (!meeting.peers[other].socket.valid()) names += (names.empty() ? "" : ", ") + std::to_string(other);
      }
      return UnavailableError("shared memory transport: rank " + names + " did not come in time");
    }
    Fd fd(accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    pid_t pid = 0;
    if (!fd.valid() || !SameUser(fd.get(), &pid)) continue;
    Hello hello{};
    const Deadline soon = std::min(deadline, std::chrono::steady_clock::now() + std::chrono::seconds(5));
    if (!WaitReadable(fd.get(), soon) || recv(fd.get(), &hello, sizeof(hello), 0) != sizeof(hello) || hello.magic != kMagic ||
        std::memcmp(hello.token, token.data(), kTokenBytes) != 0) {
      continue;  // a stranger
    }
    if (hello.rank <= static_cast<uint32_t>(rank) || hello.rank >= static_cast<uint32_t>(size) ||
        hello.size != static_cast<uint32_t>(size) || meeting.peers[hello.rank].socket.valid()) {
      return FailedPreconditionError("shared memory transport: a rank came as " + std::to_string(hello.rank) + " of " +
                                     std::to_string(hello.size) + " to rank " + std::to_string(rank) + " of " +
                                     std::to_string(size) + ": two processes have the same rank, or count the world differently");
    }
    if (!SendWelcome(fd.get(), bytes, meeting.memory.get())) continue;
    meeting.peers[hello.rank] = {std::move(fd), OpenProcess(pid)};
    --missing;
  }
  for (int other = 0; other < rank; ++other) {
    const int fd = meeting.peers[other].socket.get();
    MXREC_ASSIGN_OR_RETURN(Fd memory, ReceiveWelcome(other, fd, bytes, deadline));
    pid_t pid = 0;
    if (!SameUser(fd, &pid)) {
      return UnavailableError("shared memory transport: rank " + std::to_string(other) + " runs as another user");
    }
    meeting.peers[other].process = OpenProcess(pid);
    if (other == 0) meeting.memory = std::move(memory);
  }
  if (!meeting.memory.valid()) return UnavailableError("shared memory transport: rank 0 handed out no memory");
  return meeting;
}

bool IsGone(const Peer& peer) {
  pollfd entries[2] = {{peer.socket.get(), POLLIN | POLLRDHUP, 0}, {peer.process.get(), POLLIN, 0}};
  // A descriptor below zero is passed over. Nobody writes to the socket after the meeting: readable means closed.
  if (poll(entries, 2, 0) <= 0) return false;
  return entries[0].revents != 0 || entries[1].revents != 0;
}

}  // namespace mxrec::shm
