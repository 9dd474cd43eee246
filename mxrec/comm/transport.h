// Transport: bytes between the ranks of one world. The abstract class behind which shared memory, Gloo and Open MPI stand.
//
// It moves bytes and knows no tensor: element types, reductions and algorithms are in collectives.h, names and agreement in
// communicator.h. Algorithms are ours, above one primitive, so that the order of a reduction, its precision and the bytes on the
// wire are the same whichever engine carries them.
//
// Threads: one thread at a time calls Exchange; Abort may be called from any thread.
#ifndef MXREC_COMM_TRANSPORT_H_
#define MXREC_COMM_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "mxrec/base/status.h"

namespace mxrec {

using Deadline = std::chrono::steady_clock::time_point;

struct SendPart {
  int peer = 0;
  const void* data = nullptr;
  size_t bytes = 0;
};

// Takes the bytes of a part as they arrive, so that a reduction works on warm memory and needs no copy of the whole.
class PieceSink {
 public:
  virtual ~PieceSink() = default;
  // Bytes [offset, offset + bytes) of the part; pieces come in order. Called on the thread that is in Exchange, never concurrently.
  virtual void Take(size_t offset, const void* piece, size_t bytes) = 0;
};

struct ReceivePart {
  int peer = 0;
  void* data = nullptr;  // not used when there is a sink
  size_t bytes = 0;
  PieceSink* sink = nullptr;
  // With a sink: pieces begin and end at multiples of it (1, 2, 4 or 8; `bytes` is one too), at addresses that are multiples.
  size_t granule = 1;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // "shm", "gloo-tcp", "mpi", ...: for messages and timelines.
  virtual std::string_view name() const = 0;

  // Sends and receives all parts and returns when all are done: data of `sends` may be changed, data of `receives` is complete.
  // It may wait until the peers receive, so ranks that send to each other do it in one Exchange, not in one after the other.
  // Between two ranks parts match in the order given, also over several calls; sizes of matching parts are equal (the caller agreed
  // on them; a transport that sees another size reports DataLoss). A part of 0 bytes is skipped at both ends. Peers may be this
  // rank itself (a copy). Any number of bytes that size_t holds. Unavailable names the peer that is gone; Aborted carries the
  // reason given to Abort; Cancelled: the deadline passed, naming the peers not heard of. After an error the transport is dead:
  // every later call fails with the same error.
  virtual Status Exchange(std::span<const SendPart> sends, std::span<const ReceivePart> receives, Deadline deadline) = 0;

  // Whether ranks see each other's memory through this transport, so that a reduction reads peers in place (see SharedAllReduce).
  virtual bool shares_memory() const { return false; }
  // What a rank brings to a SharedAllReduce, and where the result goes. Its bytes may stand in many places and in another form than
  // they travel in: they are read straight into the shared memory and written straight from it. Each byte is read once and written
  // once, after it was read; ranges begin and end at multiples of the granule. Called on the thread that is in SharedAllReduce.
  class Payload {
   public:
    virtual ~Payload() = default;
    // Puts bytes [offset, offset + bytes) of what this rank brings to `to`.
    virtual void Read(size_t offset, size_t bytes, void* to) = 0;
    // The same bytes where they stand, or at `place` when they must be put there first.
    virtual const void* Find(size_t offset, size_t bytes, void* place) {
      Read(offset, bytes, place);
      return place;
    }
    // Takes bytes [offset, offset + bytes) of the result.
    virtual void Write(size_t offset, size_t bytes, const void* from) = 0;
  };
  class SliceReducer {
   public:
    virtual ~SliceReducer() = default;
    // Reduces `bytes` bytes of every rank to `out`, which may be the memory of one of them.
    virtual void Reduce(std::span<const void* const> ranks, void* out, size_t bytes) = 0;
  };
  // Only with shares_memory(), else Unimplemented: hands the `bytes` bytes of `payload` to all ranks, calls reducer.Reduce with the
  // pointers to every rank's bytes, rank 0 first, for the slices that fall to this rank, and returns when the payload of every rank
  // has taken the reduced whole. `granule` is the size of an element: slices are multiples of it.
  virtual Status SharedAllReduce(Payload& payload, size_t bytes, size_t granule, SliceReducer& reducer, Deadline deadline);

  // Whether a thread of the transport's own moves the bytes: it needs a processor while other threads wait for it.
  virtual bool has_own_thread() const { return false; }

  // Ends a blocked Exchange, here and in all later calls, with Aborted(why). From any thread.
  virtual void Abort(std::string why) = 0;

  // Bytes and parts handed to other ranks since the start: what docs/collectives.md states and tests count.
  virtual uint64_t bytes_sent() const = 0;
  virtual uint64_t parts_sent() const = 0;
};

}  // namespace mxrec

#endif  // MXREC_COMM_TRANSPORT_H_
