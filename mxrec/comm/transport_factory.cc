#include "mxrec/comm/transport_factory.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "mxrec/comm/local_transport.h"
#include "mxrec/comm/transport/plugin_transport.h"
#include "mxrec/comm/transport/shm/shm_transport.h"
#include "mxrec/io/env.h"

namespace mxrec {
namespace {

// Equal for processes that can share memory through the meeting of the shm transport. Empty: unknown.
std::string PlaceOfThisProcess() {
  std::string boot(36, '\0');
  const auto file = Env::Default()->NewRandomAccessFile("/proc/sys/kernel/random/boot_id");
  struct stat network {};
  if (!file.ok() || !(*file)->ReadAt(0, boot).ok() || stat("/proc/self/ns/net", &network) != 0) return "";
  return boot + " " + std::to_string(network.st_ino) + " " + std::to_string(geteuid());
}

bool StartedByOpenMpi(const CommOptions& options) {
  const char* const size = std::getenv("OMPI_COMM_WORLD_SIZE");
  return size != nullptr && size == std::to_string(options.size);
}

// What all ranks can use: each says what it has, all read the same.
Result<std::string> AgreeOnTransport(const CommOptions& options, Store& store, Deadline deadline) {
  const std::string mpi = StartedByOpenMpi(options) && PluginIsThere("mpi", options.plugin_folder) ? "mpi" : "gloo";
  const auto key = [](int rank) { return "transport/" + std::to_string(rank); };
  MXREC_RETURN_IF_ERROR(store.Set(key(options.rank), mpi + " " + PlaceOfThisProcess()));
  std::string first_place;
  bool all_mpi = true, one_place = true;
  for (int rank = 0; rank < options.size; ++rank) {
    Result<std::string> entry = store.Get(key(rank), deadline);
    if (!entry.ok()) {
      if (entry.status().code() != StatusCode::kCancelled) return entry.status();
      return UnavailableError("rank " + std::to_string(rank) + " did not come in time to choose a transport");
    }
    const size_t blank = std::min(entry->find(' '), entry->size() - 1);
    const std::string place = entry->substr(blank + 1);
    all_mpi = all_mpi && entry->compare(0, blank, "mpi") == 0;
    if (rank == 0) first_place = place;
    one_place = one_place && !place.empty() && place == first_place;
  }
  return std::string(one_place ? "shm" : all_mpi ? "mpi" : "gloo");
}

// The address of this host from which the chief is reached; what the kernel's routes say, no packet is sent.
std::string AddressTowards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  std::string address;
  for (const addrinfo* entry = found; entry != nullptr && address.empty(); entry = entry->ai_next) {
    const int fd = socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    char text[NI_MAXHOST];
    if (connect(fd, entry->ai_addr, entry->ai_addrlen) == 0 && getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0) {
      address = text;
    }
    close(fd);
  }
  freeaddrinfo(found);
  return address;
}

}  // namespace

Result<std::unique_ptr<Transport>> CreateTransport(const CommOptions& options, Store& store, Deadline deadline) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return InvalidArgumentError("rank " + std::to_string(options.rank) + " of a world of " + std::to_string(options.size));
  }
  std::string kind = options.transport;
  if (kind != "auto" && kind != "shm" && kind != "gloo" && kind != "mpi") {
    return InvalidArgumentError("transport '" + kind + "': expected auto, shm, gloo or mpi");
  }
  if (options.size == 1) return std::move(MakeLocalTransports(1)[0]);
  if (kind == "auto") {
    MXREC_ASSIGN_OR_RETURN(kind, AgreeOnTransport(options, store, deadline));
  }
  if (kind == "shm") return MakeShmTransport({options.rank, options.size}, store, deadline);
  PluginTransportOptions plugin;
  plugin.rank = options.rank;
  plugin.size = options.size;
  plugin.folder = options.plugin_folder;
  plugin.bind_host = options.bind_host.empty() ? AddressTowards(options.chief_host) : options.bind_host;
  return MakePluginTransport(kind, plugin, store, deadline);
}

}  // namespace mxrec
