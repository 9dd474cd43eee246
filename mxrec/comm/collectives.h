// The algorithms of collective operations over a Transport, for a group of its ranks. Buffers in, buffers out; every rank of the
// group calls the same function with agreeing arguments (the Communicator sees to that).
//
// Determinism: the order in which ranks are added depends on the group's size, the algorithm and the number of elements alone,
// never on arrival, and all ranks get the same bits (a NaN is some NaN). float16 and bfloat16 are added in float32 and rounded once
// per rank's partial that travels (compression) or once at the end. Threads: as Transport (one at a time).
#ifndef MXREC_COMM_COLLECTIVES_H_
#define MXREC_COMM_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/comm/transport.h"
#include "mxrec/numeric/dtype.h"

namespace mxrec {

enum class ReduceOp : uint8_t { kSum = 1, kMin = 2, kMax = 3, kProduct = 4, kAdasum = 5 };
std::string_view ReduceOpName(ReduceOp op);

// kAuto: ChooseAlgorithm. kShared needs a transport that shares memory and the whole world as group, else it is as kAuto without
// it.
enum class Algorithm : uint8_t { kAuto = 0, kRing = 1, kHalvingDoubling = 2, kRecursiveDoubling = 3, kShared = 4, kTree = 5 };
std::string_view AlgorithmName(Algorithm algorithm);
// What kAuto takes for `bytes` bytes of `dtype` (docs/collectives.md has the borders and the reasons). shared: kShared is possible.
// For bits that do not depend on the transport, give AllReduce the answer for shared = false.
Algorithm ChooseAlgorithm(size_t bytes, DType dtype, int ranks, bool shared);

// A group of world ranks as one rank of it sees it.
struct GroupView {
  std::span<const int> ranks;  // world ranks in group order
  int me = 0;                  // index of this rank in it
};

// What becomes of each reduced element before it is rounded to its type: x * multiply / divide (each left out when it is 1). So the
// mean of float16 numbers whose sum float16 cannot hold is right.
struct Finish {
  double multiply = 1;
  double divide = 1;
};

// Reduces `count` elements of `input` to `data` on all ranks; they are the same memory, or share no byte. Adasum: a group of a
// power of two, floating types only, else InvalidArgument.
Status AllReduce(Transport& transport, const GroupView& group, const void* input, void* data, size_t count, DType dtype,
                 ReduceOp op, Algorithm algorithm, Deadline deadline, const Finish& finish = {});
// In place.
Status AllReduce(Transport& transport, const GroupView& group, void* data, size_t count, DType dtype, ReduceOp op,
                 Algorithm algorithm, Deadline deadline, const Finish& finish = {});
// Whether AllReduce of such numbers goes through memory that the ranks share. Then AllReduceShared does the same (and gives the
// same bits) for numbers that stand in many places or in another type, without a copy before or after; elsewhere it is
// FailedPrecondition.
bool ReducesInSharedMemory(const Transport& transport, const GroupView& group, size_t count, DType dtype, ReduceOp op,
                           Algorithm algorithm);
Status AllReduceShared(Transport& transport, const GroupView& group, Transport::Payload& payload, size_t count, DType dtype,
                       ReduceOp op, Algorithm algorithm, Deadline deadline, const Finish& finish = {});
// To `root` (group rank); the other ranks' data keep no promised value.
Status Reduce(Transport& transport, const GroupView& group, void* data, size_t count, DType dtype, ReduceOp op, int root,
              Deadline deadline, const Finish& finish = {});
// counts[i] elements end at rank i, reduced, in `out`; `data` (sum of counts) is scratch afterwards.
Status ReduceScatter(Transport& transport, const GroupView& group, void* data, std::span<const size_t> counts, DType dtype,
                     ReduceOp op, void* out, Deadline deadline, const Finish& finish = {});
// Rank i gives bytes[i]; `out` holds all in rank order. `data` may lie in its place in `out`: then nothing is copied. kInPlace says
// that it does, also where `out` is not known yet (CommRequest::input).
inline constexpr char kInPlaceMark = 0;
inline constexpr const void* kInPlace = &kInPlaceMark;
Status AllGather(Transport& transport, const GroupView& group, const void* data, std::span<const size_t> bytes, void* out,
                 Deadline deadline);
Status Broadcast(Transport& transport, const GroupView& group, void* data, size_t bytes, int root, Deadline deadline);
// send[i], receive[i]: offset and bytes for and from rank i, zero allowed anywhere.
struct Span {
  size_t offset = 0;
  size_t bytes = 0;
};
Status AllToAll(Transport& transport, const GroupView& group, const void* data, std::span<const Span> send, void* out,
                std::span<const Span> receive, Deadline deadline);
Status Barrier(Transport& transport, const GroupView& group, Deadline deadline);

// Elementwise pieces used above and by the Communicator's fusion buffers.
// into = into (op) from, `count` elements.
void ReduceInto(void* into, const void* from, size_t count, DType dtype, ReduceOp op);
// data *= factor, in float64, rounded once; integers to the nearest, kept inside their type.
void Scale(void* data, size_t count, DType dtype, double factor);

}  // namespace mxrec

#endif  // MXREC_COMM_COLLECTIVES_H_
