// What the plug-ins have in common: an exchange of parts as an exchange of pieces, of which few are in the engine's hands at a
// time.
//
// Every part is cut into pieces of the same length at both ends. Between two ranks pieces match in order. Of each peer and
// direction at most kWindow pieces are under way, so a sink needs memory for that many and takes them while the next ones arrive.
#ifndef MXREC_COMM_TRANSPORT_MPI_PIECE_EXCHANGE_H_
#define MXREC_COMM_TRANSPORT_MPI_PIECE_EXCHANGE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/comm/transport/plugin.h"
#include "mxrec/comm/transport/plugin_util.h"

namespace mxrec::plugin {

enum class PieceState { kPending, kDone, kFailed };

// Engine has:
//   using Piece = ...;                                                 movable; one message under way
//   Piece StartSend(int peer, const void* data, size_t bytes);
//   Piece StartReceive(int peer, void* data, size_t bytes);
//   PieceState Test(Piece&, MxrecPluginError*);                        fills in the error when it failed, without the rank
//   void Idle();                                                       nothing is done: spins or sleeps a little
//   void GiveUp(Piece&);                                               of a piece that is not done: its memory is about to go
// It may throw; the caller of Run catches.
template <class Engine>
class PieceExchange {
 public:
  PieceExchange(Engine& engine, int rank, int size, size_t piece_bytes, const std::atomic<bool>& aborted)
      : engine_(engine), rank_(rank), piece_bytes_(std::max<size_t>(piece_bytes / 8 * 8, 8)), aborted_(aborted), lines_(2 * size) {}

  void Run(const MxrecPluginSend* sends, uint64_t send_count, const MxrecPluginReceive* receives, uint64_t receive_count,
           int64_t deadline, MxrecPluginError* error) {
    sends_ = sends;
    receives_ = receives;
    active_.clear();
    for (uint64_t i = 0; i < receive_count; ++i) Add(2 * receives[i].peer, i);
    for (uint64_t i = 0; i < send_count; ++i) Add(2 * sends[i].peer + 1, i);
    bool ok = true;
    try {
      ok = Loop(deadline, error);
    } catch (...) {
      CleanUp();
      throw;
    }
    if (!ok) CleanUp();
  }

 private:
  // Receives enough to keep the engine busy while a sink works.
  static constexpr size_t kWindow = 4;
  struct Flight {
    typename Engine::Piece piece;
    uint64_t part;
    uint64_t offset;
    uint64_t bytes;
    char* scratch;
  };
  // What goes to or comes from one peer.
  struct Line {
    std::deque<uint64_t> parts;  // not wholly started
    uint64_t offset = 0;         // of the first of them
    std::deque<Flight> flights;
    bool active = false;
  };

  void Add(size_t line, uint64_t part) {
    lines_[line].parts.push_back(part);
    if (!std::exchange(lines_[line].active, true)) active_.push_back(line);
  }

  uint64_t PartBytes(size_t line, uint64_t part) const { return line % 2 == 1 ? sends_[part].bytes : receives_[part].bytes; }

  void Start(size_t number) {
    Line& line = lines_[number];
    const int peer = static_cast<int>(number / 2);
    while (!line.parts.empty() && line.flights.size() < kWindow) {
      const uint64_t part = line.parts.front(), offset = line.offset;
      const uint64_t bytes = std::min<uint64_t>(piece_bytes_, PartBytes(number, part) - offset);
      char* scratch = nullptr;
      if (number % 2 == 1) {
        const char* const data = static_cast<const char*>(sends_[part].data) + offset;
        line.flights.push_back({engine_.StartSend(peer, data, bytes), part, offset, bytes, nullptr});
      } else {
        if (receives_[part].take != nullptr) scratch = TakeScratch();
        char* const data = scratch != nullptr ? scratch : static_cast<char*>(receives_[part].data) + offset;
        line.flights.push_back({engine_.StartReceive(peer, data, bytes), part, offset, bytes, scratch});
      }
      line.offset += bytes;
      if (line.offset == PartBytes(number, part)) {
        line.parts.pop_front();
        line.offset = 0;
      }
    }
  }

  // False: failed.
  bool Finish(size_t number, bool* progress, MxrecPluginError* error) {
    Line& line = lines_[number];
    while (!line.flights.empty()) {
      Flight& flight = line.flights.front();
      const PieceState state = engine_.Test(flight.piece, error);
      if (state == PieceState::kFailed) {
        const std::string why = "rank " + std::to_string(number / 2) + ": " + error->message;
        Fail(error, error->code, why);
        return false;
      }
      if (state == PieceState::kPending) return true;
      *progress = true;
      if (flight.scratch != nullptr) {
        const MxrecPluginReceive& part = receives_[flight.part];
        part.take(part.sink, flight.offset, flight.scratch, flight.bytes);
        free_scratch_.push_back(flight.scratch);
      }
      line.flights.pop_front();
      Start(number);
    }
    return true;
  }

  bool Loop(int64_t deadline, MxrecPluginError* error) {
    for (size_t line : active_) Start(line);
    while (!active_.empty()) {
      bool progress = false;
      for (size_t k = 0; k < active_.size();) {
        if (!Finish(active_[k], &progress, error)) return false;
        if (lines_[active_[k]].flights.empty()) {
          lines_[active_[k]].active = false;
          active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(k));
        } else {
          ++k;
        }
      }
      if (progress || active_.empty()) continue;
      if (aborted_.load(std::memory_order_acquire)) {
        Fail(error, kAborted, "aborted");
        return false;
      }
      if (Now() >= deadline) {
        std::set<int> peers;
        for (size_t line : active_) peers.insert(static_cast<int>(line / 2));
        FailLate(error, rank_, peers);
        return false;
      }
      engine_.Idle();
    }
    return true;
  }

  void CleanUp() {
    for (Line& line : lines_) {
      for (Flight& flight : line.flights) engine_.GiveUp(flight.piece);
      line = Line();
    }
    active_.clear();
  }

  char* TakeScratch() {
    if (free_scratch_.empty()) {
      scratch_.push_back(std::make_unique<char[]>(piece_bytes_));
      free_scratch_.push_back(scratch_.back().get());
    }
    char* const memory = free_scratch_.back();
    free_scratch_.pop_back();
    return memory;
  }

  Engine& engine_;
  const int rank_;
  const size_t piece_bytes_;
  const std::atomic<bool>& aborted_;
  const MxrecPluginSend* sends_ = nullptr;
  const MxrecPluginReceive* receives_ = nullptr;
  std::vector<Line> lines_;     // [2 * peer]: from it, [2 * peer + 1]: to it
  std::vector<size_t> active_;  // lines with pieces under way; those that receive first
  std::vector<std::unique_ptr<char[]>> scratch_;
  std::vector<char*> free_scratch_;
};

}  // namespace mxrec::plugin

#endif  // MXREC_COMM_TRANSPORT_MPI_PIECE_EXCHANGE_H_
