#include "mxrec/comm/local_transport.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

namespace mxrec {
namespace {

// A part that a rank wants to send. It stands in the sender's Exchange, which does not return while a receiver reads it.
struct Offer {
  const char* data = nullptr;
  size_t bytes = 0;
  enum class State { kWaiting, kTaken, kDone } state = State::kWaiting;
};

struct LocalRank {
  bool gone = false;
  std::string aborted;  // why; empty: not
  bool is_aborted = false;
  std::condition_variable changed;
  // SharedAllReduce: what this rank handed in, in which it puts the slice that it has reduced (others may still read it when this
  // rank has failed), and how many of its phases it has ended, ever.
  std::shared_ptr<char[]> shared;
  size_t shared_bytes = 0;
  uint64_t phase = 0;
};

// One lock for all; it is not held while bytes are copied.
struct LocalWorld {
  explicit LocalWorld(int size) : ranks(size), lanes(static_cast<size_t>(size) * size) {}
  std::mutex mutex;
  std::vector<LocalRank> ranks;
  std::vector<std::deque<Offer*>> lanes;  // [from * size + to], in the order given
  std::deque<Offer*>& Lane(int from, int to) { return lanes[static_cast<size_t>(from) * ranks.size() + to]; }
};

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalWorld> world, int rank, bool shares_memory)
      : world_(std::move(world)), rank_(rank), shares_memory_(shares_memory) {}

  ~LocalTransport() override {
    std::lock_guard lock(world_->mutex);
    world_->ranks[rank_].gone = true;
    NotifyAll();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_->ranks.size()); }
  std::string_view name() const override { return "local"; }
  bool shares_memory() const override { return shares_memory_; }

  Status Exchange(std::span<const SendPart> sends, std::span<const ReceivePart> receives, Deadline deadline) override {
    MXREC_RETURN_IF_ERROR(CheckPeers(sends, receives));
    std::unique_lock lock(world_->mutex);
    if (!dead_.ok()) return dead_;
    std::vector<Offer> offers(sends.size());
    size_t open_sends = 0;
    for (size_t i = 0; i < sends.size(); ++i) {
      if (sends[i].bytes == 0) continue;
      offers[i] = {static_cast<const char*>(sends[i].data), sends[i].bytes, Offer::State::kWaiting};
      world_->Lane(rank_, sends[i].peer).push_back(&offers[i]);
      if (sends[i].peer != rank_) {
        bytes_sent_ += sends[i].bytes;
        ++parts_sent_;
        world_->ranks[sends[i].peer].changed.notify_all();
      }
      ++open_sends;
    }
    std::vector<size_t> open_receives;
    for (size_t i = 0; i < receives.size(); ++i) {
      if (receives[i].bytes > 0) open_receives.push_back(i);
    }
    Status status;
    while (status.ok()) {
      bool progress = false;
      for (size_t k = 0; k < open_receives.size() && status.ok();) {
        const ReceivePart& part = receives[open_receives[k]];
        auto& lane = world_->Lane(part.peer, rank_);
        // A part that stands behind another of the same peer waits for its turn.
        const bool first = std::none_of(open_receives.begin(), open_receives.begin() + k,
                                        [&](size_t earlier) { return receives[earlier].peer == part.peer; });
        if (!first || lane.empty()) {
          ++k;
          continue;
        }
        Offer* offer = lane.front();
        if (offer->bytes != part.bytes) {
          status = DataLossError("rank " + std::to_string(rank_) + " expected " + std::to_string(part.bytes) + " bytes of rank " +
                                 std::to_string(part.peer) + ", which sends " + std::to_string(offer->bytes));
          break;
        }
        lane.pop_front();
        offer->state = Offer::State::kTaken;
        lock.unlock();
        if (part.sink != nullptr) {
          part.sink->Take(0, offer->data, part.bytes);
        } else {
          std::memmove(part.data, offer->data, part.bytes);
        }
        lock.lock();
        offer->state = Offer::State::kDone;
        world_->ranks[part.peer].changed.notify_all();
        open_receives.erase(open_receives.begin() + k);
        progress = true;
      }
      open_sends = std::count_if(offers.begin(), offers.end(),
                                 [](const Offer& offer) { return offer.bytes > 0 && offer.state != Offer::State::kDone; });
      if (!status.ok() || (open_sends == 0 && open_receives.empty())) break;
      if (progress) continue;
      std::vector<int> peers;
      for (size_t i : open_receives) peers.push_back(receives[i].peer);
      for (size_t i = 0; i < sends.size(); ++i) {
        if (offers[i].bytes > 0 && offers[i].state != Offer::State::kDone) peers.push_back(sends[i].peer);
      }
      status = WaitForChange(lock, peers, deadline);
    }
    if (!status.ok()) {
      // Nobody may read this rank's memory once it has returned.
      for (Offer& offer : offers) {
        if (offer.bytes == 0 || offer.state != Offer::State::kWaiting) continue;
        for (auto& lane : world_->lanes) std::erase(lane, &offer);
      }
      const auto taken = [](const Offer& offer) { return offer.state == Offer::State::kTaken; };
      world_->ranks[rank_].changed.wait(lock, [&] { return std::none_of(offers.begin(), offers.end(), taken); });
      dead_ = status;
    }
    return status;
  }

  Status SharedAllReduce(Payload& payload, size_t bytes, size_t granule, SliceReducer& reducer, Deadline deadline) override {
    if (!shares_memory_) return Transport::SharedAllReduce(payload, bytes, granule, reducer, deadline);
    const std::shared_ptr<char[]> memory(new char[bytes]);
    payload.Read(0, bytes, memory.get());
    std::unique_lock lock(world_->mutex);
    if (!dead_.ok()) return dead_;
    LocalRank& me = world_->ranks[rank_];
    me.shared = memory;
    me.shared_bytes = bytes;
    MXREC_RETURN_IF_ERROR(EndPhase(lock, deadline));
    const size_t ranks = world_->ranks.size();
    std::vector<std::shared_ptr<const char[]>> whole(ranks);
    for (size_t r = 0; r < ranks; ++r) {
      whole[r] = world_->ranks[r].shared;
      if (world_->ranks[r].shared_bytes != bytes) {
        dead_ = DataLossError("rank " + std::to_string(rank_) + " reduces " + std::to_string(bytes) + " bytes, rank " +
                              std::to_string(r) + " " + std::to_string(world_->ranks[r].shared_bytes));
        return dead_;
      }
    }
    const auto border = [&](size_t r) { return bytes / granule * r / ranks * granule; };
    lock.unlock();
    // Slice r of everybody's memory is read by rank r alone.
    const size_t first = border(rank_), last = border(rank_ + 1);
    std::vector<const void*> slices(ranks);
    for (size_t r = 0; r < ranks; ++r) slices[r] = whole[r].get() + first;
    if (last > first) reducer.Reduce(slices, memory.get() + first, last - first);
    lock.lock();
    MXREC_RETURN_IF_ERROR(EndPhase(lock, deadline));
    lock.unlock();
    for (size_t r = 0; r < ranks; ++r) {
      const size_t from = border(r), to = border(r + 1);
      if (to > from) payload.Write(from, to - from, whole[r].get() + from);
    }
    lock.lock();
    bytes_sent_ += bytes - (last - first) + (ranks - 1) * (last - first);
    parts_sent_ += 2 * (ranks - 1);
    return EndPhase(lock, deadline);
  }

  void Abort(std::string why) override {
    std::lock_guard lock(world_->mutex);
    LocalRank& me = world_->ranks[rank_];
    if (me.is_aborted) return;
    me.is_aborted = true;
    me.aborted = std::move(why);
    me.changed.notify_all();
  }

  uint64_t bytes_sent() const override {
    std::lock_guard lock(world_->mutex);
    return bytes_sent_;
  }
  uint64_t parts_sent() const override {
    std::lock_guard lock(world_->mutex);
    return parts_sent_;
  }

 private:
  void NotifyAll() {
    for (LocalRank& rank : world_->ranks) rank.changed.notify_all();
  }

  Status CheckPeers(std::span<const SendPart> sends, std::span<const ReceivePart> receives) const {
    const auto check = [&](int peer) {
      if (peer >= 0 && peer < size()) return OkStatus();
      return InvalidArgumentError("a part names rank " + std::to_string(peer) + " of a world of " + std::to_string(size()));
    };
    for (const SendPart& part : sends) MXREC_RETURN_IF_ERROR(check(part.peer));
    for (const ReceivePart& part : receives) MXREC_RETURN_IF_ERROR(check(part.peer));
    return OkStatus();
  }

  // Waits until something happened to this rank; fails when it was aborted, one of `peers` is gone, or the time is over.
  Status WaitForChange(std::unique_lock<std::mutex>& lock, const std::vector<int>& peers, Deadline deadline) {
    LocalRank& me = world_->ranks[rank_];
    if (me.is_aborted) return AbortedError(me.aborted);
    for (int peer : peers) {
      if (world_->ranks[peer].gone) return UnavailableError("rank " + std::to_string(peer) + " is gone");
    }
    if (me.changed.wait_until(lock, deadline) == std::cv_status::no_timeout) return OkStatus();
    if (std::chrono::steady_clock::now() < deadline) return OkStatus();
    std::vector<int> silent = peers;
    std::sort(silent.begin(), silent.end());
    silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
    std::string names;
    for (int peer : silent) names += (names.empty() ? "" : ", ") + std::to_string(peer);
    return CancelledError("rank " + std::to_string(rank_) + " waited in vain for rank " + names);
  }

  // Waits until every rank has ended as many phases as this one.
  Status EndPhase(std::unique_lock<std::mutex>& lock, Deadline deadline) {
    const uint64_t phase = ++world_->ranks[rank_].phase;
    NotifyAll();
    for (;;) {
      std::vector<int> late;
      for (int r = 0; r < size(); ++r) {
        if (world_->ranks[r].phase < phase) late.push_back(r);
      }
      if (late.empty()) return OkStatus();
      if (Status status = WaitForChange(lock, late, deadline); !status.ok()) {
        dead_ = status;
        return status;
      }
    }
  }

  const std::shared_ptr<LocalWorld> world_;
  const int rank_;
  const bool shares_memory_;
  // Under the world's lock.
  Status dead_;
  uint64_t bytes_sent_ = 0;
  uint64_t parts_sent_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeLocalTransports(int size, bool shares_memory) {
  auto world = std::make_shared<LocalWorld>(size);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) transports.push_back(std::make_unique<LocalTransport>(world, rank, shares_memory));
  return transports;
}

}  // namespace mxrec
