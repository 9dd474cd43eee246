// How ranks of one host come to share memory: rank 0 makes a nameless piece of it (memfd) and hands it to the others over Unix
// sockets. Nothing of it has a name in a file system, so nothing stays behind, whenever a process is killed.
//
// The sockets stay open: one that closes tells that its rank is gone.
#ifndef MXREC_COMM_TRANSPORT_SHM_MEETING_H_
#define MXREC_COMM_TRANSPORT_SHM_MEETING_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/comm/store.h"

namespace mxrec::shm {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Peer {
  Fd socket;   // not valid for this rank itself
  Fd process;  // a pidfd, where the system has them
};

struct Meeting {
  Fd memory;                // `bytes` zero bytes, the same for all
  std::vector<Peer> peers;  // one for each rank
};

// Collective. The store's keys "shm/<rank>" are used. Unavailable: names the rank that did not come or cannot be reached, which
// it cannot when it runs on another host, in another network namespace or as another user. ResourceExhausted: no memory.
Result<Meeting> Meet(int rank, int size, size_t bytes, Store& store, Deadline deadline);

// Whether the rank behind `peer` has gone: its socket is closed or its process has ended.
bool IsGone(const Peer& peer);

}  // namespace mxrec::shm

#endif  // MXREC_COMM_TRANSPORT_SHM_MEETING_H_
