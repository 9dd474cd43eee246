// One piece of memory for the world, in which each field has one writer:
//
//   | RankState of each rank | Lane of each ordered pair of ranks | bytes of each lane | chunks of each rank |
//
// Lane: a ring of bytes from one rank to another. `written` counts the bytes ever put in (by the sender), `read` those ever taken
// out (by the receiver). A part is a header of one cache line that holds its size, then its bytes, filled up to a whole cache line.
// Long parts pass in pieces while the ring is in the caches of both processors.
//
// Chunks: SharedAllReduce cuts the payload into chunks of `chunk_bytes`, a chunk into one slice a rank. Of chunk k a rank
//   1. reads the slices of the others from its payload into its memory (`staged` = k + 1),
//   2. once all have staged it, reduces its own slice, reading the others' memory, and writes the result into its memory and to its
//      payload (`reduced` = k + 1),
//   3. once all have reduced it, writes the other slices from their owners' memory to its payload (`copied` = k + 1).
// A rank stages chunk k + 2, reduces chunk k + 1 and copies chunk k in turns, so that what it waits for is what the others did a
// turn ago; slot k % kSlots is free again when all have copied chunk k - kSlots. The counters go on over all calls.
//
// Waiting: some microseconds of looking, then sleep on the futex `bell` of one's own RankState. Whoever changes a field that
// another rank may wait for looks at that rank's `asleep` and rings. Both sides have a full fence between their write and their
// look, so one of them sees the other's. A sleeper wakes up now and then by itself and looks whether the ranks it waits for are
// alive.
#include "mxrec/comm/transport/shm/shm_transport.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/base/copy_bytes.h"
#include "mxrec/base/pause.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/comm/transport/life.h"
#include "mxrec/comm/transport/shm/meeting.h"

namespace mxrec {
namespace {

using std::chrono::steady_clock;

constexpr size_t kLine = 64;
constexpr size_t kSlots = 4;
// What SharedAllReduce reduces in one go: stays in the first-level cache.
constexpr size_t kBlock = 8 << 10;
// The other side hears of progress at least this often.
constexpr size_t kPieces = 4;
// Looks before a rank sleeps: about 30 microseconds when every rank has a processor, else few.
constexpr int kManyLooks = 2000;
constexpr int kFewLooks = 50;
constexpr auto kLongestSleep = std::chrono::milliseconds(50);

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

struct alignas(kLine) RankState {
  std::atomic<uint32_t> bell;
  std::atomic<uint32_t> asleep;
  // SharedAllReduce: chunks ever, and the bytes of the payload that the next chunks belong to.
  alignas(kLine) std::atomic<uint64_t> staged;
  std::atomic<uint64_t> payload;
  std::atomic<uint64_t> reduced;
  std::atomic<uint64_t> copied;
};

struct Lane {
  alignas(kLine) std::atomic<uint64_t> written;
  alignas(kLine) std::atomic<uint64_t> read;
};

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Where things are; a function of the sizes alone.
struct Layout {
  Layout(int size, size_t lane, size_t chunk)
      : ranks(size),
        lane_bytes(std::max(RoundUp(lane, kLine * kPieces), kLine * kPieces)),
        slice_bytes(std::max(RoundUp(chunk / ranks, kLine), kLine)),
        chunk_bytes(slice_bytes * ranks) {}

  size_t Lanes() const { return ranks * sizeof(RankState); }
  size_t LaneData() const { return RoundUp(Lanes() + ranks * ranks * sizeof(Lane), 4096); }
  size_t Chunks() const { return RoundUp(LaneData() + ranks * ranks * lane_bytes, 4096); }
  size_t Bytes() const { return Chunks() + ranks * kSlots * chunk_bytes; }

  size_t ranks;
  size_t lane_bytes;
  size_t slice_bytes;
  size_t chunk_bytes;
};

// Parts of one call to or from one peer, as indices: a list through `next`.
constexpr size_t kNone = static_cast<size_t>(-1);
struct Progress {
  size_t part = kNone;  // the one at work
  size_t last = kNone;  // the last of the list
  bool header_done = false;
  size_t offset = 0;
};

class ShmTransport final : public Transport {
 public:
  ShmTransport(int rank, const Layout& layout, shm::Meeting meeting, char* memory)
      : rank_(rank),
        layout_(layout),
        meeting_(std::move(meeting)),
        memory_(memory),
        looks_(ThreadPool::HardwareThreads() >= static_cast<int>(layout.ranks) ? kManyLooks : kFewLooks),
        sending_(layout.ranks),
        receiving_(layout.ranks) {}

  ~ShmTransport() override { munmap(memory_, layout_.Bytes()); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(layout_.ranks); }
  std::string_view name() const override { return "shm"; }
  bool shares_memory() const override { return true; }
  uint64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t parts_sent() const override { return parts_sent_.load(std::memory_order_relaxed); }

  Status Exchange(std::span<const SendPart> sends, std::span<const ReceivePart> receives, Deadline deadline) override {
    MXREC_RETURN_IF_ERROR(life_.Alive());
    MXREC_RETURN_IF_ERROR(CheckPeers(sends, receives));
    std::fill(sending_.begin(), sending_.end(), Progress());
    std::fill(receiving_.begin(), receiving_.end(), Progress());
    next_send_.assign(sends.size(), kNone);
    next_receive_.assign(receives.size(), kNone);
    peers_.clear();
    for (size_t i = 0; i < sends.size(); ++i) {
      if (sends[i].bytes == 0) continue;
      Append(sending_[sends[i].peer], next_send_, i);
      if (sends[i].peer == rank_) continue;
      NotePeer(sends[i].peer);
      Count(sends[i].bytes, 1);
    }
    for (size_t i = 0; i < receives.size(); ++i) {
      if (receives[i].bytes == 0) continue;
      Append(receiving_[receives[i].peer], next_receive_, i);
      if (receives[i].peer != rank_) NotePeer(receives[i].peer);
    }
    MXREC_RETURN_IF_ERROR(CopyToSelf(sends, receives));
    return Until(
        deadline,
        [&](bool* progress) -> Status {
          for (size_t k = 0; k < peers_.size();) {
            const int peer = peers_[k];
            if (sending_[peer].part != kNone) *progress |= Push(peer, sends);
            if (receiving_[peer].part != kNone) MXREC_RETURN_IF_ERROR(Pull(peer, receives, progress));
            if (sending_[peer].part == kNone && receiving_[peer].part == kNone) {
              peers_.erase(peers_.begin() + static_cast<ptrdiff_t>(k));
            } else {
              ++k;
            }
          }
          return OkStatus();
        },
        [&] { return peers_.empty(); }, [&] { return peers_; });
  }

  Status SharedAllReduce(Payload& payload, size_t bytes, size_t granule, SliceReducer& reducer, Deadline deadline) override {
    MXREC_RETURN_IF_ERROR(life_.Alive());
    if (granule == 0 || kLine % granule != 0 || bytes % granule != 0) {
      return InvalidArgumentError("shared allreduce: " + std::to_string(bytes) + " bytes in elements of " +
                                  std::to_string(granule));
    }
    const uint64_t first = chunks_, count = (bytes + layout_.chunk_bytes - 1) / layout_.chunk_bytes;
    chunks_ += count;
    RankState& me = State(rank_);
    Count(0, count > 0 ? 2 * (layout_.ranks - 1) : 0);
    for (uint64_t step = 0; count > 0 && step < count + 2; ++step) {
      if (step < count) {
        const uint64_t chunk = first + step;
        if (chunk >= kSlots) MXREC_RETURN_IF_ERROR(WaitForAll(&RankState::copied, chunk - kSlots + 1, deadline));
        Stage(payload, step * layout_.chunk_bytes, ChunkBytes(bytes, step), chunk);
        if (step == 0) me.payload.store(bytes, std::memory_order_relaxed);
        Publish(me.staged, chunk + 1);
      }
      if (step >= 1 && step <= count) {
        const uint64_t chunk = first + step - 1;
        MXREC_RETURN_IF_ERROR(WaitForAll(&RankState::staged, chunk + 1, deadline));
        if (step == 1) MXREC_RETURN_IF_ERROR(ComparePayloads(bytes));
        ReduceOwnSlice(payload, (step - 1) * layout_.chunk_bytes, ChunkBytes(bytes, step - 1), chunk, reducer);
        Publish(me.reduced, chunk + 1);
      }
      if (step >= 2) {
        const uint64_t chunk = first + step - 2;
        MXREC_RETURN_IF_ERROR(WaitForAll(&RankState::reduced, chunk + 1, deadline));
        CopyOtherSlices(payload, (step - 2) * layout_.chunk_bytes, ChunkBytes(bytes, step - 2), chunk);
        Publish(me.copied, chunk + 1);
      }
    }
    return OkStatus();
  }

  void Abort(std::string why) override {
    if (life_.Abort(std::move(why))) Ring(rank_);
  }

 private:
  RankState& State(size_t rank) const { return reinterpret_cast<RankState*>(memory_)[rank]; }
  Lane& LaneOf(size_t from, size_t to) const {
    return reinterpret_cast<Lane*>(memory_ + layout_.Lanes())[from * layout_.ranks + to];
  }
  char* LaneData(size_t from, size_t to) const {
    return memory_ + layout_.LaneData() + (from * layout_.ranks + to) * layout_.lane_bytes;
  }
  char* Chunk(size_t rank, uint64_t chunk) const {
    return memory_ + layout_.Chunks() + (rank * kSlots + chunk % kSlots) * layout_.chunk_bytes;
  }

  void Count(uint64_t bytes, uint64_t parts) {
    bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
    parts_sent_.fetch_add(parts, std::memory_order_relaxed);
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

  static void Append(Progress& progress, std::vector<size_t>& next, size_t part) {
    if (progress.part == kNone) {
      progress.part = part;
    } else {
      next[progress.last] = part;
    }
    progress.last = part;
  }

  void NotePeer(int peer) {
    if (std::find(peers_.begin(), peers_.end(), peer) == peers_.end()) peers_.push_back(peer);
  }

  Status SizeMismatch(int peer, size_t expected, size_t found) {
    return life_.Die(DataLossError("rank " + std::to_string(rank_) + " expected " + std::to_string(expected) + " bytes of rank " +
                                   std::to_string(peer) + ", which sends " + std::to_string(found)));
  }

  Status CopyToSelf(std::span<const SendPart> sends, std::span<const ReceivePart> receives) {
    size_t from = sending_[rank_].part, to = receiving_[rank_].part;
    for (; from != kNone && to != kNone; from = next_send_[from], to = next_receive_[to]) {
      if (sends[from].bytes != receives[to].bytes) return SizeMismatch(rank_, receives[to].bytes, sends[from].bytes);
      if (receives[to].sink != nullptr) {
        receives[to].sink->Take(0, sends[from].data, sends[from].bytes);
      } else {
        std::memmove(receives[to].data, sends[from].data, sends[from].bytes);
      }
    }
    if (from == to) return OkStatus();
    return life_.Die(
        InvalidArgumentError("rank " + std::to_string(rank_) + " sends itself parts that it does not receive, or the reverse"));
  }

  // Puts as much as there is room for into the lane to `peer`.
  bool Push(int peer, std::span<const SendPart> sends) {
    Progress& at = sending_[peer];
    Lane& lane = LaneOf(rank_, peer);
    char* const ring = LaneData(rank_, peer);
    const size_t capacity = layout_.lane_bytes;
    uint64_t written = lane.written.load(std::memory_order_relaxed);
    bool progress = false;
    while (at.part != kNone) {
      const size_t room = capacity - (written - lane.read.load(std::memory_order_acquire));
      if (room == 0) break;
      const SendPart& part = sends[at.part];
      if (!at.header_done) {
        const uint64_t bytes = part.bytes;
        std::memcpy(ring + written % capacity, &bytes, sizeof(bytes));
        written += kLine;
        at.header_done = true;
        at.offset = 0;
        // The header goes out with the first bytes, if there is room for any.
        if (room > kLine) continue;
      } else {
        const size_t place = written % capacity;
        const size_t bytes = std::min({part.bytes - at.offset, room, capacity - place, capacity / kPieces});
        CopyBytes(ring + place, static_cast<const char*>(part.data) + at.offset, bytes);
        at.offset += bytes;
        written += RoundUp(bytes, kLine);
        if (at.offset == part.bytes) {
          at.part = next_send_[at.part];
          at.header_done = false;
        }
      }
      Publish(lane.written, written, peer);
      progress = true;
    }
    return progress;
  }

  Status Pull(int peer, std::span<const ReceivePart> receives, bool* progress) {
    Progress& at = receiving_[peer];
    Lane& lane = LaneOf(peer, rank_);
    const char* const ring = LaneData(peer, rank_);
    const size_t capacity = layout_.lane_bytes;
    uint64_t read = lane.read.load(std::memory_order_relaxed);
    while (at.part != kNone) {
      const size_t there = lane.written.load(std::memory_order_acquire) - read;
      if (there == 0) break;
      *progress = true;
      const ReceivePart& part = receives[at.part];
      if (!at.header_done) {
        uint64_t bytes;
        std::memcpy(&bytes, ring + read % capacity, sizeof(bytes));
        if (bytes != part.bytes) return SizeMismatch(peer, part.bytes, bytes);
        read += kLine;
        at.header_done = true;
        at.offset = 0;
        if (there > kLine) continue;
      } else {
        // Whole cache lines, but for the end of a part: so pieces hold whole elements.
        const size_t place = read % capacity;
        const size_t bytes = std::min({part.bytes - at.offset, there, capacity - place, capacity / kPieces});
        if (part.sink != nullptr) {
          part.sink->Take(at.offset, ring + place, bytes);
        } else {
          CopyBytes(static_cast<char*>(part.data) + at.offset, ring + place, bytes);
        }
        at.offset += bytes;
        read += RoundUp(bytes, kLine);
        if (at.offset == part.bytes) {
          at.part = next_receive_[at.part];
          at.header_done = false;
        }
      }
      Publish(lane.read, read, peer);
    }
    return OkStatus();
  }

  // ---- SharedAllReduce

  size_t ChunkBytes(size_t bytes, uint64_t step) const {
    return std::min<size_t>(layout_.chunk_bytes, bytes - step * layout_.chunk_bytes);
  }
  // Slices of a short chunk are shorter, so that no rank is idle; whole cache lines.
  std::pair<size_t, size_t> Slice(size_t rank, size_t chunk_bytes) const {
    const size_t slice = RoundUp((chunk_bytes + layout_.ranks - 1) / layout_.ranks, kLine);
    return {std::min(rank * slice, chunk_bytes), std::min((rank + 1) * slice, chunk_bytes)};
  }

  // `offset`, `bytes`: the chunk's place in the payload.
  void Stage(Payload& payload, size_t offset, size_t bytes, uint64_t chunk) {
    char* const mine = Chunk(rank_, chunk);
    const auto [first, last] = Slice(rank_, bytes);
    if (first > 0) payload.Read(offset, first, mine);
    if (bytes > last) payload.Read(offset + last, bytes - last, mine + last);
    Count(bytes - (last - first), 0);
  }

  void ReduceOwnSlice(Payload& payload, size_t offset, size_t bytes, uint64_t chunk, SliceReducer& reducer) {
    const auto [first, last] = Slice(rank_, bytes);
    slices_.resize(layout_.ranks);
    // The own slice of the own memory has not been staged: it is free for the result.
    char* const result = Chunk(rank_, chunk);
    // By blocks, so that the second place of a result is written while it is in the nearest cache.
    for (size_t at = first; at < last; at += kBlock) {
      const size_t block = std::min(kBlock, last - at);
      for (size_t r = 0; r < layout_.ranks; ++r) {
        slices_[r] = static_cast<int>(r) == rank_ ? payload.Find(offset + at, block, block_) : Chunk(r, chunk) + at;
      }
      reducer.Reduce(slices_, result + at, block);
      payload.Write(offset + at, block, result + at);
    }
    Count((layout_.ranks - 1) * (last - first), 0);
  }

  void CopyOtherSlices(Payload& payload, size_t offset, size_t bytes, uint64_t chunk) {
    for (size_t r = 0; r < layout_.ranks; ++r) {
      if (static_cast<int>(r) == rank_) continue;
      const auto [first, last] = Slice(r, bytes);
      if (last > first) payload.Write(offset + first, last - first, Chunk(r, chunk) + first);
    }
  }

  Status ComparePayloads(size_t bytes) {
    for (size_t r = 0; r < layout_.ranks; ++r) {
      // A rank that is ahead can have gone on to the next payload only after this one was reduced by all.
      const uint64_t other = State(r).payload.load(std::memory_order_relaxed);
      if (other != bytes) {
        return life_.Die(DataLossError("rank " + std::to_string(rank_) + " reduces " + std::to_string(bytes) + " bytes, rank " +
                                       std::to_string(r) + " " + std::to_string(other)));
      }
    }
    return OkStatus();
  }

  Status WaitForAll(std::atomic<uint64_t> RankState::*counter, uint64_t value, Deadline deadline) {
    const auto late = [&](size_t r) { return (State(r).*counter).load(std::memory_order_acquire) < value; };
    size_t waiting = 0;  // ranks before it have come
    return Until(
        deadline, [&](bool*) { return OkStatus(); },
        [&] {
          while (waiting < layout_.ranks && !late(waiting)) ++waiting;
          return waiting == layout_.ranks;
        },
        [&] {
          std::vector<int> ranks;
          for (size_t r = waiting; r < layout_.ranks; ++r) {
            if (late(r)) ranks.push_back(static_cast<int>(r));
          }
          return ranks;
        });
  }

  // ---- waiting

  // Makes `work` go on until `done`. `waited_for` names the ranks that are still needed.
  template <typename Work, typename Done, typename WaitedFor>
  Status Until(Deadline deadline, const Work& work, const Done& done, const WaitedFor& waited_for) {
    int idle = 0;
    for (;;) {
      bool progress = false;
      if (Status status = work(&progress); !status.ok()) return life_.Die(std::move(status));
      if (done()) return OkStatus();
      if (progress) {
        idle = 0;
        continue;
      }
      if (++idle < looks_) {
        Pause();
        continue;
      }
      idle = 0;
      MXREC_RETURN_IF_ERROR(Sleep(deadline, work, done, waited_for));
    }
  }

  template <typename Work, typename Done, typename WaitedFor>
  Status Sleep(Deadline deadline, const Work& work, const Done& done, const WaitedFor& waited_for) {
    RankState& me = State(rank_);
    const uint32_t bell = me.bell.load(std::memory_order_relaxed);
    me.asleep.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    // What happened before anybody could see that this rank sleeps.
    bool progress = false;
    Status status = work(&progress);
    bool timed_out = false;
    if (status.ok() && !progress && !done() && !life_.aborted()) {
      const auto left = std::min<steady_clock::duration>(deadline - steady_clock::now(), kLongestSleep);
      if (left > steady_clock::duration::zero()) {
        const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
        const timespec time{0, static_cast<long>(ns)};
        timed_out = syscall(SYS_futex, &me.bell, FUTEX_WAIT, bell, &time, nullptr, 0) != 0 && errno == ETIMEDOUT;
      } else {
        timed_out = true;
      }
    }
    me.asleep.store(0, std::memory_order_relaxed);
    if (!status.ok()) return life_.Die(std::move(status));
    if (life_.aborted()) return life_.Alive();
    if (!timed_out) return OkStatus();
    // A rank that died may have left what is waited for: look again after its death is certain.
    const std::vector<int> ranks = waited_for();
    for (int rank : ranks) {
      if (rank == rank_ || !shm::IsGone(meeting_.peers[rank])) continue;
      progress = false;
      if (status = work(&progress); !status.ok()) return life_.Die(std::move(status));
      if (progress || done()) return OkStatus();
      return life_.Die(UnavailableError("rank " + std::to_string(rank) + " is gone: its process has ended"));
    }
    if (steady_clock::now() < deadline) return OkStatus();
    std::string names;
    for (int rank : ranks) names += (names.empty() ? "" : ", ") + std::to_string(rank);
    return life_.Die(CancelledError("rank " + std::to_string(rank_) + " waited in vain for rank " + names));
  }

  void Ring(size_t rank) {
    State(rank).bell.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, &State(rank).bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  void RingIfAsleep(size_t rank) {
    if (State(rank).asleep.load(std::memory_order_relaxed) != 0) Ring(rank);
  }
  // Writes a field that `peer` alone reads.
  void Publish(std::atomic<uint64_t>& field, uint64_t value, int peer) {
    field.store(value, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    RingIfAsleep(peer);
  }
  // Writes a field that all read.
  void Publish(std::atomic<uint64_t>& field, uint64_t value) {
    field.store(value, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (size_t r = 0; r < layout_.ranks; ++r) {
      if (static_cast<int>(r) != rank_) RingIfAsleep(r);
    }
  }

  const int rank_;
  const Layout layout_;
  const shm::Meeting meeting_;
  char* const memory_;
  const int looks_;
  uint64_t chunks_ = 0;
  TransportLife life_;
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> parts_sent_{0};

  // Of the Exchange that runs; kept for their memory.
  std::vector<Progress> sending_, receiving_;
  std::vector<size_t> next_send_, next_receive_;
  std::vector<int> peers_;  // with parts left
  std::vector<const void*> slices_;
  alignas(kLine) char block_[kBlock];  // of the own slice, where it does not stand in one piece
};

}  // namespace

Result<std::unique_ptr<Transport>> MakeShmTransport(const ShmOptions& options, Store& store, Deadline deadline) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return InvalidArgumentError("rank " + std::to_string(options.rank) + " of a world of " + std::to_string(options.size));
  }
  // Few ranks: rings that fit into the second-level caches. Many: all rings together stay moderate, since a rank writes to each.
  const size_t lane =
      options.lane_bytes != 0 ? options.lane_bytes : std::clamp<size_t>((size_t{1} << 20) / options.size, 32 << 10, 256 << 10);
  const size_t chunk = options.chunk_bytes != 0 ? options.chunk_bytes : 128 << 10;
  const Layout layout(options.size, lane, chunk);
  MXREC_ASSIGN_OR_RETURN(shm::Meeting meeting, shm::Meet(options.rank, options.size, layout.Bytes(), store, deadline));
  void* const memory = mmap(nullptr, layout.Bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, meeting.memory.get(), 0);
  if (memory == MAP_FAILED) {
    return ResourceExhaustedError("shared memory transport: " + std::to_string(layout.Bytes()) +
                                  " bytes cannot be mapped: " + std::strerror(errno));
  }
  meeting.memory = shm::Fd();
  return std::unique_ptr<Transport>(
      std::make_unique<ShmTransport>(options.rank, layout, std::move(meeting), static_cast<char*>(memory)));
}

}  // namespace mxrec
