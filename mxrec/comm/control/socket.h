// TCP sockets as the control plane needs them: never blocking, closed on exec, no signal on a broken connection.
#ifndef MXREC_COMM_CONTROL_SOCKET_H_
#define MXREC_COMM_CONTROL_SOCKET_H_

#include <string>
#include <string_view>
#include <utility>

#include "mxrec/base/status.h"

struct sockaddr_storage;

namespace mxrec {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { Reset(); }
  void Reset(int fd = -1);
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// "host:port", IPv6 hosts in brackets.
std::string HostPort(std::string_view host, int port);
// The system's words for an errno.
std::string SystemError(int number);
// Whether every address of the host is of this machine alone (127.0.0.0/8, ::1).
Result<bool> IsLoopback(const std::string& host);

struct Listener {
  UniqueFd fd;
  int port = 0;
};
// Unavailable: the port is in use, or the address is not of this host; names both.
Result<Listener> ListenTcp(const std::string& host, int port);
// The next waiting connection; an invalid one when there is none. `from`: its address.
UniqueFd AcceptTcp(int listener, std::string* from);

// Begins to connect. Done when the socket turns writable: then ConnectError tells.
Result<UniqueFd> StartConnectTcp(const std::string& host, int port);
// 0, or the errno that the attempt ended with.
int ConnectError(int fd);

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROL_SOCKET_H_
