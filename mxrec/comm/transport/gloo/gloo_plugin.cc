// Gloo over TCP as a transport plug-in: its pairs (one connection to each other rank, served by a thread of Gloo) and unbound
// buffers, none of its algorithms. Connections are made here and not by Gloo's rendezvous, so that a rank that cannot be reached is
// named.
//
// A part is an unbound buffer that is sent or received in pieces. All pieces are handed to Gloo at once, then waited for one after
// the other, receives first: Gloo's thread works on all of them meanwhile. A part with a sink is different: it has memory for
// kWindow pieces, and the next one is asked for when the first has been taken.
//
// send() writes what the connection takes at once, under the lock of the connection, and Gloo's thread, which has something to read
// there, asks for that lock again and again; recv() writes too: the other side is told that there is memory. On a busy machine that
// thread may take the processor from the one that holds the lock, and then asks in vain for the whole of its time slice, some
// milliseconds. So when long parts go both ways between two ranks, all is handed to Gloo's thread: it first asks for what is to
// come, then writes a piece and reads in turns.
//
// Gloo makes a passed deadline the end of all connections, as a transport may. While this rank waits for one peer it does not
// notice another one's end; but what others have sent is there when its turn comes, so it ends up waiting for the one that is gone,
// or for one that waits for that and fails.
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/comm/transport/plugin.h"
#include "mxrec/comm/transport/plugin_util.h"

namespace mxrec::plugin {
namespace {

using gloo::transport::UnboundBuffer;

// Steps of work for Gloo's thread, which does one each time it has looked at its connections.
class LoopWork final : public gloo::transport::tcp::Handler {
 public:
  // Without a device, or without a descriptor, it is not ready.
  explicit LoopWork(std::shared_ptr<gloo::transport::tcp::Device> device) : device_(std::move(device)) {
    if (device_ == nullptr) return;
    event_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (event_ >= 0) device_->registerDescriptor(event_, EPOLLIN, this);
  }
  ~LoopWork() override {
    if (event_ < 0) return;
    device_->unregisterDescriptor(event_, this);  // returns when the thread is not in handleEvents
    close(event_);
  }
  LoopWork(const LoopWork&) = delete;
  LoopWork& operator=(const LoopWork&) = delete;

  bool ready() const { return event_ >= 0; }

  // `step` is called there until it returns false.
  void Start(std::function<bool()> step) {
    std::lock_guard lock(mutex_);
    step_ = std::move(step);
    const uint64_t one = 1;
    (void)!write(event_, &one, sizeof one);
  }
  // No step is running, and none will be.
  void Stop() {
    std::lock_guard lock(mutex_);
    step_ = nullptr;
  }

  void handleEvents(int) override {
    std::lock_guard lock(mutex_);
    if (step_ != nullptr && step_()) return;  // the descriptor stays readable
    step_ = nullptr;
    uint64_t count = 0;
    (void)!read(event_, &count, sizeof count);
  }

 private:
  const std::shared_ptr<gloo::transport::tcp::Device> device_;
  int event_ = -1;
  std::mutex mutex_;
  std::function<bool()> step_;
};

class GlooTransport {
 public:
  GlooTransport(std::shared_ptr<gloo::transport::tcp::Device> device, std::shared_ptr<gloo::transport::Context> context,
                size_t piece_bytes)
      : context_(std::move(context)),
        piece_bytes_(std::max<size_t>(piece_bytes / 8 * 8, 8)),
        loop_(std::move(device)),
        sent_(context_->size),
        received_(context_->size) {}

  ~GlooTransport() {
    for (int rank = 0; rank < context_->size; ++rank) {
      if (rank == context_->rank) continue;
      try {
        context_->getPair(rank)->close();
      } catch (...) {  // a failure has closed it
      }
    }
  }

  void Exchange(const MxrecPluginSend* sends, uint64_t send_count, const MxrecPluginReceive* receives, uint64_t receive_count,
                int64_t deadline, MxrecPluginError* error) {
    std::vector<Transfer> transfers(receive_count + send_count);
    const Handed handed(this);
    const auto hand_over = [&](int peer) {
      const auto is_long = [peer](const auto& part) { return part.peer == peer && part.bytes >= kLong; };
      return loop_.ready() && std::any_of(receives, receives + receive_count, is_long) &&
             std::any_of(sends, sends + send_count, is_long);
    };
    for (uint64_t i = 0; i < receive_count; ++i) {
      if (!StartReceive(receives[i], hand_over(receives[i].peer), &transfers[i], error)) return;
    }
    for (uint64_t i = 0; i < send_count; ++i) {
      if (!StartSend(sends[i], hand_over(sends[i].peer), &transfers[receive_count + i], error)) return;
    }
    if (!handed_.empty()) loop_.Start([this] { return StartNext(); });
    for (size_t i = 0; i < transfers.size(); ++i) {
      Transfer& transfer = transfers[i];
      while (transfer.done < transfer.pieces) {
        std::string why = "the wait was ended";
        bool done = false;
        try {
          done = Wait(transfer, deadline);
          if (done) Took(&transfer);
        } catch (const std::exception& e) {
          why = e.what();
          done = false;
        }
        if (done) continue;
        if (aborted_.load(std::memory_order_acquire)) return Fail(error, kAborted, "aborted");
        if (std::lock_guard lock(waiting_mutex_); failed_peer_ >= 0) return FailGone(error, failed_peer_, failure_);
        if (Now() < deadline) return FailGone(error, transfer.peer, why);
        return FailLate(error, context_->rank, NotHeardOf(transfers, i));
      }
    }
  }

  void Abort() {
    aborted_.store(true, std::memory_order_release);
    std::lock_guard lock(waiting_mutex_);
    EndWait();
  }

 private:
  static constexpr uint64_t kWindow = 4;
  static constexpr uint64_t kLong = 256 << 10;

  // What is handed to Gloo's thread is out of its hands when an exchange ends, however it does.
  struct Handed {
    explicit Handed(GlooTransport* transport) : transport(transport) {}
    ~Handed() {
      if (!transport->handed_.empty()) transport->loop_.Stop();
      transport->handed_.clear();
    }
    Handed(const Handed&) = delete;
    Handed& operator=(const Handed&) = delete;
    GlooTransport* const transport;
  };

  // A part under way.
  struct Transfer {
    int peer = 0;
    bool sending = false;
    uint64_t bytes = 0;
    uint64_t pieces = 0;
    uint64_t asked = 0;   // pieces that Gloo knows of, or will by what is handed over
    uint64_t done = 0;    // pieces waited for
    uint32_t number = 0;  // of the first piece, among all between the two ranks in this direction
    const MxrecPluginReceive* sink = nullptr;
    std::unique_ptr<char[]> window;         // memory of a sink
    std::unique_ptr<UnboundBuffer> buffer;  // the whole part, or the window
  };

  struct HandedPart {
    const Transfer* transfer = nullptr;
    uint64_t first = 0;    // pieces to ask for
    uint64_t started = 0;  // pieces; counted by Gloo's thread alone
  };

  // A piece of another length has another slot: it is never taken for the one that is expected, and Gloo never writes beyond a
  // buffer.
  uint64_t Slot(const Transfer& transfer, uint64_t piece) const {
    return (static_cast<uint64_t>(static_cast<uint32_t>(transfer.number + piece)) << 32) ^ Bytes(transfer, piece);
  }
  uint64_t Bytes(const Transfer& transfer, uint64_t piece) const {
    return std::min<uint64_t>(piece_bytes_, transfer.bytes - piece * piece_bytes_);
  }

  void Number(Transfer* transfer, std::vector<uint32_t>* next) {
    transfer->pieces = (transfer->bytes + piece_bytes_ - 1) / piece_bytes_;
    transfer->number = (*next)[transfer->peer];
    (*next)[transfer->peer] += static_cast<uint32_t>(transfer->pieces);
  }

  bool StartSend(const MxrecPluginSend& part, bool hand_over, Transfer* transfer, MxrecPluginError* error) {
    transfer->peer = part.peer;
    transfer->sending = true;
    transfer->bytes = part.bytes;
    Number(transfer, &sent_);
    try {
      // Gloo does not write to what it sends.
      transfer->buffer = context_->createUnboundBuffer(const_cast<void*>(part.data), part.bytes);
      if (hand_over) {
        handed_.push_back({transfer});
      } else {
        while (transfer->asked < transfer->pieces) Send(*transfer, transfer->asked++);
      }
    } catch (const std::exception& e) {
      FailGone(error, part.peer, e.what());
      return false;
    }
    return true;
  }

  void Send(const Transfer& transfer, uint64_t piece) {
    transfer.buffer->send(transfer.peer, Slot(transfer, piece), piece * piece_bytes_, Bytes(transfer, piece));
  }

  // On Gloo's thread: all that is asked for, or a piece of each part to send in turns. False: there is nothing left to do.
  bool StartNext() {
    bool left = false;
    for (HandedPart& part : handed_) {
      const Transfer& transfer = *part.transfer;
      const uint64_t pieces = transfer.sending ? transfer.pieces : part.first;
      try {
        while (part.started < pieces) {
          if (transfer.sending) {
            Send(transfer, part.started++);
            break;
          }
          Ask(transfer, part.started++);
        }
      } catch (const std::exception& e) {
        std::lock_guard lock(waiting_mutex_);
        failed_peer_ = transfer.peer;
        failure_ = e.what();
        EndWait();
        return false;
      }
      left = left || part.started < pieces;
    }
    return left;
  }

  // waiting_mutex_ is held.
  void EndWait() {
    if (waiting_ == nullptr) return;
    waiting_->abortWaitRecv();
    waiting_->abortWaitSend();
  }

  bool StartReceive(const MxrecPluginReceive& part, bool hand_over, Transfer* transfer, MxrecPluginError* error) {
    transfer->peer = part.peer;
    transfer->bytes = part.bytes;
    Number(transfer, &received_);
    try {
      uint64_t first = transfer->pieces;  // what can be asked for at once
      if (part.take == nullptr) {
        transfer->buffer = context_->createUnboundBuffer(part.data, part.bytes);
      } else {
        const uint64_t window = std::min<uint64_t>(kWindow * piece_bytes_, part.bytes);
        transfer->sink = &part;
        transfer->window.reset(new char[window]);
        transfer->buffer = context_->createUnboundBuffer(transfer->window.get(), window);
        first = std::min(first, kWindow);
      }
      transfer->asked = first;
      if (hand_over) {
        handed_.push_back({transfer, first});
      } else {
        for (uint64_t piece = 0; piece < first; ++piece) Ask(*transfer, piece);
      }
    } catch (const std::exception& e) {
      FailGone(error, part.peer, e.what());
      return false;
    }
    return true;
  }

  void Ask(const Transfer& transfer, uint64_t piece) {
    const uint64_t place = transfer.sink != nullptr ? piece % kWindow : piece;
    transfer.buffer->recv(transfer.peer, Slot(transfer, piece), place * piece_bytes_, Bytes(transfer, piece));
  }

  // A piece has come or gone; those of one part do in order.
  void Took(Transfer* transfer) {
    const uint64_t piece = transfer->done++;
    if (transfer->sink == nullptr) return;
    transfer->sink->take(transfer->sink->sink, piece * piece_bytes_, transfer->window.get() + piece % kWindow * piece_bytes_,
                         Bytes(*transfer, piece));
    if (transfer->asked < transfer->pieces) Ask(*transfer, transfer->asked++);
  }

  // False: aborted. Throws when the connection is gone or the time is over.
  bool Wait(const Transfer& transfer, int64_t deadline) {
    {
      std::lock_guard lock(waiting_mutex_);
      waiting_ = transfer.buffer.get();
      // Abort has seen the buffer, or this sees Abort; so has StartNext.
      if (aborted_.load(std::memory_order_acquire) || failed_peer_ >= 0) {
        waiting_ = nullptr;
        return false;
      }
    }
    struct Leave {
      GlooTransport* transport;
      ~Leave() {
        std::lock_guard lock(transport->waiting_mutex_);
        transport->waiting_ = nullptr;
      }
    } leave{this};
    // Never early: a passed deadline is told from a lost connection by the clock.
    const std::chrono::milliseconds left(std::clamp<int64_t>((deadline - Now()) / 1'000'000 + 1, 1, kLongestWait));
    return transfer.sending ? transfer.buffer->waitSend(left) : transfer.buffer->waitRecv(left);
  }

  // Peers of pieces that have neither come nor gone. The connections are dead by now, so looking costs nothing.
  std::set<int> NotHeardOf(const std::vector<Transfer>& transfers, size_t from) {
    std::set<int> peers;
    for (size_t i = from; i < transfers.size(); ++i) {
      const Transfer& transfer = transfers[i];
      for (uint64_t piece = transfer.done; piece < transfer.pieces; ++piece) {
        bool done = false;
        try {
          done = transfer.sending ? transfer.buffer->waitSend(std::chrono::milliseconds(0))
                                  : transfer.buffer->waitRecv(std::chrono::milliseconds(0));
        } catch (const std::exception&) {
        }
        if (done) continue;
        peers.insert(transfer.peer);
        break;
      }
    }
    return peers;
  }

  static constexpr int64_t kLongestWait = 24 * 3600 * 1000;

  const std::shared_ptr<gloo::transport::Context> context_;
  const uint64_t piece_bytes_;
  LoopWork loop_;
  std::vector<HandedPart> handed_;         // to Gloo's thread, in this exchange
  std::vector<uint32_t> sent_, received_;  // pieces, by peer
  std::atomic<bool> aborted_{false};
  std::mutex waiting_mutex_;
  UnboundBuffer* waiting_ = nullptr;
  int failed_peer_ = -1;  // Gloo's thread could not send to it
  std::string failure_;
};

// Addresses of a rank's end of each connection, as they stand in the store: for each rank a length (4 bytes, little endian) and
// bytes.
void AppendAddress(const std::vector<char>& address, std::string* text) {
  for (int shift = 0; shift < 32; shift += 8) *text += static_cast<char>(address.size() >> shift);
  text->append(address.data(), address.size());
}
bool AddressOf(const std::string& text, int rank, std::vector<char>* address) {
  size_t at = 0;
  for (int r = 0;; ++r) {
    if (text.size() - at < 4) return false;
    size_t bytes = 0;
    for (int i = 0; i < 4; ++i) bytes |= static_cast<size_t>(static_cast<unsigned char>(text[at + i])) << (8 * i);
    at += 4;
    if (text.size() - at < bytes) return false;
    if (r == rank) {
      const char* const first = text.data() + at;
      address->assign(first, first + bytes);
      return true;
    }
    at += bytes;
  }
}

// Null: failed.
GlooTransport* Connect(const MxrecPluginOptions& options, const MxrecPluginStore& store, int64_t deadline,
                       MxrecPluginError* error) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = options.bind_host[0] != '\0' ? options.bind_host : "127.0.0.1";
  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<gloo::transport::Context> context;
  std::string own;
  try {
    device = gloo::transport::tcp::CreateDevice(attributes);
    context = device->createContext(options.rank, options.size);
    // Gloo waits five times as long for a connection.
    context->setTimeout(std::chrono::milliseconds(std::max<int64_t>((deadline - Now()) / 5'000'000, 1)));
    for (int rank = 0; rank < options.size; ++rank) {
      AppendAddress(rank == options.rank ? std::vector<char>() : context->createPair(rank)->address().bytes(), &own);
    }
  } catch (const std::exception& e) {
    Fail(error, kUnavailable,
         "gloo: cannot listen at '" + attributes.hostname + "': is it an address of this host? (" + e.what() + ")");
    return nullptr;
  }
  store.set(store.context, ("gloo/" + std::to_string(options.rank)).c_str(), own.data(), own.size(), error);
  if (error->code != 0) return nullptr;
  for (int rank = 0; rank < options.size; ++rank) {
    if (rank == options.rank) continue;
    std::string theirs;
    const auto take = [](void* to, const void* value, uint64_t bytes) {
      static_cast<std::string*>(to)->assign(static_cast<const char*>(value), bytes);
    };
    store.get(store.context, ("gloo/" + std::to_string(rank)).c_str(), deadline, take, &theirs, error);
    if (error->code == kCancelled) Fail(error, kUnavailable, "gloo: rank " + std::to_string(rank) + " did not come in time");
    if (error->code != 0) return nullptr;
    std::vector<char> address;
    if (!AddressOf(theirs, options.rank, &address)) {
      Fail(error, kDataLoss, "gloo: the store's entry of rank " + std::to_string(rank) + " is no list of addresses");
      return nullptr;
    }
    try {
      context->getPair(rank)->connect(address);
    } catch (const std::exception& e) {
      Fail(error, kUnavailable,
           "gloo: rank " + std::to_string(rank) + " cannot be reached from '" + attributes.hostname +
               "': choose an interface that leads to it (" + e.what() + ")");
      return nullptr;
    }
  }
  return new GlooTransport(std::dynamic_pointer_cast<gloo::transport::tcp::Device>(device), context, options.piece_bytes);
}

void* Open(const MxrecPluginOptions* options, const MxrecPluginStore* store, int64_t deadline, MxrecPluginError* error) {
  try {
    return Connect(*options, *store, deadline, error);
  } catch (const std::exception& e) {
    Fail(error, kUnavailable, std::string("gloo: ") + e.what());
    return nullptr;
  }
}

void Exchange(void* transport, const MxrecPluginSend* sends, uint64_t send_count, const MxrecPluginReceive* receives,
              uint64_t receive_count, int64_t deadline, MxrecPluginError* error) {
  try {
    static_cast<GlooTransport*>(transport)->Exchange(sends, send_count, receives, receive_count, deadline, error);
  } catch (const std::exception& e) {
    Fail(error, kUnavailable, std::string("gloo: ") + e.what());
  }
}

void Abort(void* transport) { static_cast<GlooTransport*>(transport)->Abort(); }

void Close(void* transport, int32_t clean) { delete static_cast<GlooTransport*>(transport); }

constexpr MxrecTransportPlugin kPlugin{MXREC_TRANSPORT_PLUGIN_VERSION, "gloo-tcp", Open, Exchange, Abort, Close};

}  // namespace
}  // namespace mxrec::plugin

extern "C" __attribute__((visibility("default"))) const MxrecTransportPlugin* mxrec_transport_plugin() {
  return &mxrec::plugin::kPlugin;
}
