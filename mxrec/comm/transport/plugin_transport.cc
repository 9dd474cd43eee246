#include "mxrec/comm/transport/plugin_transport.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "mxrec/comm/transport/life.h"
#include "mxrec/comm/transport/plugin.h"
#include "mxrec/io/env.h"

namespace mxrec {
namespace {

int64_t Nanoseconds(Deadline deadline) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
}

Status StatusOf(const MxrecPluginError& error) {
  if (error.code == 0) return OkStatus();
  return Status(static_cast<StatusCode>(error.code), std::string(error.message, strnlen(error.message, sizeof(error.message))));
}

void Fill(MxrecPluginError* error, const Status& status) {
  error->code = static_cast<int32_t>(status.code());
  const size_t bytes = std::min(status.message().size(), sizeof(error->message) - 1);
  std::memcpy(error->message, status.message().data(), bytes);
  error->message[bytes] = '\0';
}

void StoreSet(void* context, const char* key, const void* value, uint64_t bytes, MxrecPluginError* error) {
  Fill(error, static_cast<Store*>(context)->Set(key, {static_cast<const char*>(value), bytes}));
}

void StoreGet(void* context, const char* key, int64_t deadline, void (*take)(void*, const void*, uint64_t), void* to,
              MxrecPluginError* error) {
  const Deadline until{std::chrono::duration_cast<Deadline::duration>(std::chrono::nanoseconds(deadline))};
  const Result<std::string> value = static_cast<Store*>(context)->Get(key, until);
  Fill(error, value.status());
  if (value.ok()) take(to, value->data(), value->size());
}

void TakePiece(void* sink, uint64_t offset, const void* piece, uint64_t bytes) {
  static_cast<PieceSink*>(sink)->Take(offset, piece, bytes);
}

class PluginTransport final : public Transport {
 public:
  PluginTransport(const MxrecTransportPlugin* plugin, std::string name, const PluginTransportOptions& options)
      : plugin_(plugin), name_(std::move(name)), rank_(options.rank), size_(options.size) {}

  ~PluginTransport() override {
    if (transport_ != nullptr) plugin_->close(transport_, life_.ended() ? 0 : 1);
  }

  Status Open(const PluginTransportOptions& options, Store& store, Deadline deadline) {
    const MxrecPluginOptions plain{options.rank, options.size, options.bind_host.c_str(), options.piece_bytes};
    const MxrecPluginStore border{&store, StoreSet, StoreGet};
    MxrecPluginError error{};
    transport_ = plugin_->open(&plain, &border, Nanoseconds(deadline), &error);
    if (transport_ != nullptr) return OkStatus();
    if (error.code == 0) return InternalError("transport " + name_ + ": the plug-in opened nothing and said nothing");
    return StatusOf(error);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return name_; }
  bool has_own_thread() const override { return name_.starts_with("gloo"); }

  Status Exchange(std::span<const SendPart> sends, std::span<const ReceivePart> receives, Deadline deadline) override {
    MXREC_RETURN_IF_ERROR(life_.Alive());
    MXREC_RETURN_IF_ERROR(CheckPeers(sends, receives));
    sends_.clear();
    receives_.clear();
    own_.clear();
    uint64_t bytes = 0;
    for (const SendPart& part : sends) {
      if (part.bytes == 0) continue;
      if (part.peer == rank_) {
        own_.push_back(&part);
        continue;
      }
      sends_.push_back({part.peer, part.data, part.bytes});
      bytes += part.bytes;
    }
    size_t own = 0;
    for (const ReceivePart& part : receives) {
      if (part.bytes == 0) continue;
      if (part.peer == rank_) {
        if (own == own_.size() || own_[own]->bytes != part.bytes) {
          return life_.Die(DataLossError("rank " + std::to_string(rank_) + " expects " + std::to_string(part.bytes) +
                                         " bytes of itself that it does not send"));
        }
        if (part.sink != nullptr) {
          part.sink->Take(0, own_[own]->data, part.bytes);
        } else {
          std::memmove(part.data, own_[own]->data, part.bytes);
        }
        ++own;
        continue;
      }
      receives_.push_back({part.peer, part.data, part.bytes, part.sink != nullptr ? TakePiece : nullptr, part.sink});
    }
    if (sends_.empty() && receives_.empty()) return OkStatus();
    bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
    parts_sent_.fetch_add(sends_.size(), std::memory_order_relaxed);
    MxrecPluginError error{};
    plugin_->exchange(transport_, sends_.data(), sends_.size(), receives_.data(), receives_.size(), Nanoseconds(deadline), &error);
    if (error.code == 0) return OkStatus();
    if (life_.aborted()) return life_.Alive();
    return life_.Die(StatusOf(error));
  }

  void Abort(std::string why) override {
    if (life_.Abort(std::move(why))) plugin_->abort(transport_);
  }

  uint64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t parts_sent() const override { return parts_sent_.load(std::memory_order_relaxed); }

 private:
  Status CheckPeers(std::span<const SendPart> sends, std::span<const ReceivePart> receives) const {
    const auto check = [&](int peer) {
      if (peer >= 0 && peer < size_) return OkStatus();
      return InvalidArgumentError("a part names rank " + std::to_string(peer) + " of a world of " + std::to_string(size_));
    };
    for (const SendPart& part : sends) MXREC_RETURN_IF_ERROR(check(part.peer));
    for (const ReceivePart& part : receives) MXREC_RETURN_IF_ERROR(check(part.peer));
    return OkStatus();
  }

  const MxrecTransportPlugin* const plugin_;
  const std::string name_;
  const int rank_;
  const int size_;
  void* transport_ = nullptr;
  TransportLife life_;
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> parts_sent_{0};  // Of the Exchange that runs; kept for their memory.
  std::vector<MxrecPluginSend> sends_;
  std::vector<MxrecPluginReceive> receives_;
  std::vector<const SendPart*> own_;
};

const char* PackagesOf(const std::string& engine) { return engine == "mpi" ? "libopenmpi3 openmpi-bin" : "libgloo0"; }

// The folder of the program or library that this code is part of.
std::string OwnFolder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&OwnFolder), &info) == 0 || info.dli_fname == nullptr) return ".";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string PluginPath(const std::string& engine, const std::string& folder) {
  return JoinPath(folder.empty() ? OwnFolder() : folder, "libmxrec_" + engine + ".so");
}

Result<const MxrecTransportPlugin*> Load(const std::string& engine, const std::string& folder) {
  const std::string path = PluginPath(engine, folder);
  if (!Env::Default()->FileExists(path)) {
    return NotFoundError("transport " + engine + ": there is no plug-in " + path +
                         "; this build was made without it, or it was moved");
  }
  // Never unloaded: engines have threads and exit handlers.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return FailedPreconditionError("transport " + engine +
                                   ": the plug-in cannot be loaded: " + (reason != nullptr ? reason : "unknown") +
                                   "; on Debian and Ubuntu its libraries are in the packages " + PackagesOf(engine));
  }
  const auto function = reinterpret_cast<MxrecTransportPluginFunction>(dlsym(library, MXREC_TRANSPORT_PLUGIN_SYMBOL));
  const MxrecTransportPlugin* const plugin = function != nullptr ? function() : nullptr;
  if (plugin == nullptr || plugin->version != MXREC_TRANSPORT_PLUGIN_VERSION) {
    return FailedPreconditionError("transport " + engine + ": " + path + " is a plug-in of another version: expected " +
                                   std::to_string(MXREC_TRANSPORT_PLUGIN_VERSION) + ", found " +
                                   (plugin != nullptr ? std::to_string(plugin->version) : "none"));
  }
  return plugin;
}

}  // namespace

bool PluginIsThere(const std::string& engine, const std::string& folder) {
  return Env::Default()->FileExists(PluginPath(engine, folder));
}

Result<std::unique_ptr<Transport>> MakePluginTransport(const std::string& engine, const PluginTransportOptions& options,
                                                       Store& store, Deadline deadline) {
  MXREC_ASSIGN_OR_RETURN(const MxrecTransportPlugin* plugin, Load(engine, options.folder));
  auto transport = std::make_unique<PluginTransport>(plugin, plugin->name, options);
  MXREC_RETURN_IF_ERROR(transport->Open(options, store, deadline));
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace mxrec
