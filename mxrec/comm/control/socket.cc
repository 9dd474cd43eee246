#include "mxrec/comm/control/socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <system_error>

namespace mxrec {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> Resolve(const std::string& host, int port, bool listen) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (listen ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    return UnavailableError("host '" + host +
                            "' has no address: " + (error == EAI_SYSTEM ? SystemError(errno) : ::gai_strerror(error)));
  }
  return Addresses(list);
}

void SetUp(int fd) {
  const int on = 1;
  static_cast<void>(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
}

}  // namespace

void UniqueFd::Reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

std::string HostPort(std::string_view host, int port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  std::string text(v6 ? "[" : "");
  return text.append(host).append(v6 ? "]:" : ":").append(std::to_string(port));
}

std::string SystemError(int number) { return std::generic_category().message(number); }

Result<bool> IsLoopback(const std::string& host) {
  MXREC_ASSIGN_OR_RETURN(const Addresses list, Resolve(host, 0, false));
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    if (at->ai_family == AF_INET) {
      if (ntohl(reinterpret_cast<const sockaddr_in*>(at->ai_addr)->sin_addr.s_addr) >> 24 != 127) return false;
    } else if (at->ai_family != AF_INET6 || !IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(at->ai_addr)->sin6_addr)) {
      return false;
    }
  }
  return true;
}

Result<Listener> ListenTcp(const std::string& host, int port) {
  MXREC_ASSIGN_OR_RETURN(const Addresses list, Resolve(host, port, true));
  std::string why;
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    UniqueFd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    // Connections of an earlier world that the system still remembers do not keep the port.
    if (!fd.valid() || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        ::bind(fd.get(), at->ai_addr, at->ai_addrlen) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
      why = SystemError(errno);
      continue;
    }
    sockaddr_storage bound{};
    socklen_t bytes = sizeof(bound);
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &bytes) != 0) {
      why = SystemError(errno);
      continue;
    }
    const uint16_t bound_port = bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                            : reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
    return Listener{.fd = std::move(fd), .port = ntohs(bound_port)};
  }
  return UnavailableError("cannot listen at " + HostPort(host, port) + ": " + why);
}

UniqueFd AcceptTcp(int listener, std::string* from) {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof(peer);
  UniqueFd fd(::accept4(listener, reinterpret_cast<sockaddr*>(&peer), &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return fd;
  SetUp(fd.get());
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&peer), bytes, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
    *from = HostPort(host, std::stoi(port));
  }
  return fd;
}

Result<UniqueFd> StartConnectTcp(const std::string& host, int port) {
  MXREC_ASSIGN_OR_RETURN(const Addresses list, Resolve(host, port, false));
  std::string why;
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    UniqueFd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid() || (::connect(fd.get(), at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS)) {
      why = SystemError(errno);
      continue;
    }
    SetUp(fd.get());
    return fd;
  }
  return UnavailableError("cannot connect to " + HostPort(host, port) + ": " + why);
}

int ConnectError(int fd) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return errno;
  return error;
}

}  // namespace mxrec
