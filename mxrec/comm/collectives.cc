// How the algorithms share out work. A buffer is cut into one chunk for each rank of the group (`borders`); the owner of a chunk is
// the only rank that computes its final value, so all ranks get the same bits. Only recursive doubling computes on all ranks: there
// the operands of an addition stand in the order of ranks on both sides.
//
// Numbers of 16 bits: partial sums of float16 and bfloat16 never travel. Either the whole buffer is widened to float32 first
// (algorithms for short messages), or every rank sends its own numbers to the owner of the chunk, who adds them all in float32 and
// rounds once (ring, shared).
#include "mxrec/comm/collectives.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>

#include "mxrec/base/copy_bytes.h"
#include "mxrec/kernels/combine.h"
#include "mxrec/kernels/float_mode.h"
#include "mxrec/kernels/narrow_floats.h"

namespace mxrec {
namespace {

// Up to here a message's latency counts more than its bytes, so every rank gets everything in log2(ranks) steps.
constexpr size_t kShortBytes = 16 << 10;
// Up to here for each rank, halving and doubling: fewer steps than the ring, the same bytes.
constexpr size_t kMediumBytesPerRank = 128 << 10;
// Broadcast and reduction to a root: a tree up to here, else scattered chunks.
constexpr size_t kTreeBytes = 64 << 10;
// All-to-all and gathering: this many peers at once.
constexpr int kPeersAtOnce = 16;

bool IsNarrow(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

Combine CombineOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return Combine::kMin;
    case ReduceOp::kMax:
      return Combine::kMax;
    case ReduceOp::kProduct:
      return Combine::kProduct;
    default:
      return Combine::kSum;
  }
}

NumberScale ScaleOf(const Finish& finish) { return {finish.multiply, finish.divide}; }

// Memory that nobody has written yet.
class Scratch {
 public:
  Status Allocate(size_t bytes) {
    memory_.reset(new (std::nothrow) char[bytes]);
    if (memory_ != nullptr) return OkStatus();
    return ResourceExhaustedError("a collective operation needs " + std::to_string(bytes) +
                                  " bytes of memory that the system refuses");
  }
  char* data() const { return memory_.get(); }

 private:
  std::unique_ptr<char[]> memory_;
};

// A call: the group and what its steps have in common.
struct Call {
  Transport& transport;
  const GroupView& group;
  Deadline deadline;

  int size() const { return static_cast<int>(group.ranks.size()); }
  int me() const { return group.me; }
  int Around(int rank) const { return ((rank % size()) + size()) % size(); }
  int World(int rank) const { return group.ranks[rank]; }

  Status Exchange(std::span<const SendPart> sends, std::span<const ReceivePart> receives) const {
    return transport.Exchange(sends, receives, deadline);
  }
  Status Send(int to, const void* data, size_t bytes) const {
    const SendPart part{World(to), data, bytes};
    return Exchange({&part, 1}, {});
  }
  Status Receive(int from, void* data, size_t bytes) const {
    const ReceivePart part{World(from), data, bytes};
    return Exchange({}, {&part, 1});
  }
  Status SendAndReceive(int to, const void* out, size_t out_bytes, ReceivePart in, int from) const {
    const SendPart part{World(to), out, out_bytes};
    in.peer = World(from);
    return Exchange({&part, 1}, {&in, 1});
  }

  Status Check() const {
    if (group.ranks.empty()) return InvalidArgumentError("a collective operation needs a group of at least one rank");
    if (me() < 0 || me() >= size() || World(me()) != transport.rank()) {
      return InvalidArgumentError("rank " + std::to_string(transport.rank()) + " is not member " + std::to_string(me()) +
                                  " of the group that it was given");
    }
    return OkStatus();
  }
  Status CheckRoot(int root) const {
    if (root >= 0 && root < size()) return OkStatus();
    return InvalidArgumentError("root " + std::to_string(root) + " is outside a group of " + std::to_string(size()) + " ranks");
  }
};

Status CheckNumbers(size_t count, DType dtype, size_t* bytes) {
  const size_t size = DTypeSize(dtype);
  if (size == 0) return InvalidArgumentError("number " + std::to_string(static_cast<int>(dtype)) + " names no element type");
  if (count > static_cast<size_t>(std::numeric_limits<int64_t>::max()) / size) {
    return InvalidArgumentError(std::to_string(count) + " elements of " + std::string(DTypeName(dtype)) +
                                " do not fit into memory");
  }
  *bytes = count * size;
  return OkStatus();
}

// An array of numbers being reduced.
struct Numbers {
  char* data;
  size_t count;
  DType dtype;
  Combine op;
  NumberScale scale;
  // Where this rank's own numbers stand; null: in `data`. The ring alone knows this: it saves a pass over a large array.
  const char* source = nullptr;

  size_t size() const { return DTypeSize(dtype); }
  char* at(size_t element) const { return data + element * size(); }
  const char* own_at(size_t element) const { return (source != nullptr ? source : data) + element * size(); }
};

// Combines what arrives with this rank's own numbers. arrived_first: the arriving numbers stand left of the operator.
class CombineSink final : public PieceSink {
 public:
  CombineSink(const Numbers& numbers, size_t first, bool arrived_first)
      : target_(numbers.at(first)),
        own_(numbers.own_at(first)),
        dtype_(numbers.dtype),
        op_(numbers.op),
        arrived_first_(arrived_first) {}
  void Take(size_t offset, const void* piece, size_t bytes) override {
    const char* const own = own_ + offset;
    const size_t n = bytes / DTypeSize(dtype_);
    CombineNumbers(arrived_first_ ? piece : own, arrived_first_ ? own : piece, n, dtype_, op_, target_ + offset);
  }

 private:
  char* const target_;
  const char* const own_;
  const DType dtype_;
  const Combine op_;
  const bool arrived_first_;
};

ReceivePart Into(CombineSink& sink, const Numbers& numbers, size_t count) {
  return {0, nullptr, count * numbers.size(), &sink, numbers.size()};
}

std::vector<size_t> EvenBorders(size_t count, int ranks) {
  std::vector<size_t> borders(ranks + 1);
  for (int r = 0; r <= ranks; ++r) {
    borders[r] = count / ranks * r + std::min<size_t>(r, count % ranks);
  }
  return borders;
}

// Runs `body` on a float32 copy of 16 bit numbers and rounds the result, or on the numbers themselves when they are wide.
template <typename Body>
Status Widened(const Numbers& numbers, const Body& body) {
  if (!IsNarrow(numbers.dtype)) return body(numbers);
  Scratch memory;
  MXREC_RETURN_IF_ERROR(memory.Allocate(numbers.count * sizeof(float)));
  auto* bits = reinterpret_cast<uint16_t*>(numbers.data);
  auto* floats = reinterpret_cast<float*>(memory.data());
  const ScopedIeeeFloat ieee;
  const bool half = numbers.dtype == DType::kFloat16;
  half ? HalfToFloats(bits, numbers.count, floats) : BFloat16ToFloats(bits, numbers.count, floats);
  MXREC_RETURN_IF_ERROR(body({memory.data(), numbers.count, DType::kFloat32, numbers.op, numbers.scale}));
  half ? FloatsToHalf(floats, numbers.count, bits) : FloatsToBFloat16(floats, numbers.count, bits);
  return OkStatus();
}

// ---- chunks

// Afterwards chunk r of rank r is reduced and scaled. Ring: ranks - 1 steps, in each of which a rank passes one chunk to its right
// neighbour and adds its own numbers to the one that comes from the left.
Status RingReduceChunks(const Call& call, const Numbers& numbers, const std::vector<size_t>& borders) {
  const int me = call.me();
  for (int step = 0; step < call.size() - 1; ++step) {
    const int out = call.Around(me - step - 1), in = call.Around(me - step - 2);
    CombineSink sink(numbers, borders[in], true);
    // What is passed on after the first step holds sums.
    const char* const outgoing = step == 0 ? numbers.own_at(borders[out]) : numbers.at(borders[out]);
    MXREC_RETURN_IF_ERROR(call.SendAndReceive(call.Around(me + 1), outgoing, (borders[out + 1] - borders[out]) * numbers.size(),
                                              Into(sink, numbers, borders[in + 1] - borders[in]), call.Around(me - 1)));
  }
  ScaleNumbers(numbers.at(borders[me]), borders[me + 1] - borders[me], numbers.dtype, numbers.scale);
  return OkStatus();
}

// The same for 16 bit numbers: as many parts and bytes, but each rank sends its own numbers straight to their owner.
Status DirectReduceChunks(const Call& call, const Numbers& numbers, const std::vector<size_t>& borders) {
  const int me = call.me();
  const size_t mine = borders[me + 1] - borders[me];
  Scratch memory;
  MXREC_RETURN_IF_ERROR(memory.Allocate(mine * numbers.size() * (call.size() - 1)));
  std::vector<const void*> parts(call.size());
  std::vector<SendPart> sends;
  std::vector<ReceivePart> receives;
  parts[me] = numbers.own_at(borders[me]);
  for (int step = 1; step < call.size(); ++step) {
    const int to = call.Around(me + step), from = call.Around(me - step);
    char* const place = memory.data() + mine * numbers.size() * (step - 1);
    parts[from] = place;
    sends.push_back({call.World(to), numbers.own_at(borders[to]), (borders[to + 1] - borders[to]) * numbers.size()});
    receives.push_back({call.World(from), place, mine * numbers.size()});
  }
  MXREC_RETURN_IF_ERROR(call.Exchange(sends, receives));
  CombineParts(parts, mine, numbers.dtype, numbers.op, numbers.scale, numbers.at(borders[me]));
  return OkStatus();
}

Status ReduceChunks(const Call& call, const Numbers& numbers, const std::vector<size_t>& borders) {
  return IsNarrow(numbers.dtype) ? DirectReduceChunks(call, numbers, borders) : RingReduceChunks(call, numbers, borders);
}

// Chunk r of rank r (bytes) reaches everybody: ranks - 1 steps round the ring.
Status RingGatherChunks(const Call& call, char* data, const std::vector<size_t>& borders) {
  for (int step = 0; step < call.size() - 1; ++step) {
    const int out = call.Around(call.me() - step), in = call.Around(call.me() - step - 1);
    MXREC_RETURN_IF_ERROR(call.SendAndReceive(call.Around(call.me() + 1), data + borders[out], borders[out + 1] - borders[out],
                                              {0, data + borders[in], borders[in + 1] - borders[in]}, call.Around(call.me() - 1)));
  }
  return OkStatus();
}

std::vector<size_t> InBytes(std::vector<size_t> borders, size_t size) {
  for (size_t& border : borders) border *= size;
  return borders;
}

Status RingAllReduce(const Call& call, const Numbers& numbers) {
  const auto borders = EvenBorders(numbers.count, call.size());
  MXREC_RETURN_IF_ERROR(ReduceChunks(call, numbers, borders));
  return RingGatherChunks(call, numbers.data, InBytes(borders, numbers.size()));
}

// ---- powers of two

// Ranks beyond the largest power of two hand their numbers to a neighbour, sit out, and get the result from it: of the first
// 2 * extra ranks the odd ones. place: the number of this rank among those that stay, -1 for one that sits out.
struct Fold {
  explicit Fold(const Call& call)
      : ranks(static_cast<int>(std::bit_floor(static_cast<unsigned>(call.size())))),
        extra(call.size() - ranks),
        folds(call.me() < 2 * extra),
        place(!folds ? call.me() - extra : (call.me() % 2 == 0 ? call.me() / 2 : -1)) {}
  int Rank(int other_place) const { return other_place < extra ? 2 * other_place : other_place + extra; }

  int ranks;
  int extra;
  bool folds;
  int place;
};

Status FoldIn(const Call& call, const Fold& fold, const Numbers& numbers) {
  if (!fold.folds) return OkStatus();
  if (fold.place < 0) return call.Send(call.me() - 1, numbers.data, numbers.count * numbers.size());
  CombineSink sink(numbers, 0, false);
  ReceivePart part = Into(sink, numbers, numbers.count);
  part.peer = call.World(call.me() + 1);
  return call.Exchange({}, {&part, 1});
}

Status FoldOut(const Call& call, const Fold& fold, const Numbers& numbers) {
  if (!fold.folds) return OkStatus();
  const size_t bytes = numbers.count * numbers.size();
  return fold.place < 0 ? call.Receive(call.me() - 1, numbers.data, bytes) : call.Send(call.me() + 1, numbers.data, bytes);
}

Status RecursiveDoubling(const Call& call, const Numbers& numbers) {
  const Fold fold(call);
  MXREC_RETURN_IF_ERROR(FoldIn(call, fold, numbers));
  if (fold.place >= 0) {
    const size_t bytes = numbers.count * numbers.size();
    Scratch memory;
    MXREC_RETURN_IF_ERROR(memory.Allocate(bytes));
    for (int distance = 1; distance < fold.ranks; distance *= 2) {
      const int partner = fold.Rank(fold.place ^ distance);
      MXREC_RETURN_IF_ERROR(call.SendAndReceive(partner, numbers.data, bytes, {0, memory.data(), bytes}, partner));
      const bool first = (fold.place & distance) == 0;
      CombineNumbers(first ? numbers.data : memory.data(), first ? memory.data() : numbers.data, numbers.count, numbers.dtype,
                     numbers.op, numbers.data);
    }
    ScaleNumbers(numbers.data, numbers.count, numbers.dtype, numbers.scale);
  }
  return FoldOut(call, fold, numbers);
}

Status HalvingDoubling(const Call& call, const Numbers& numbers) {
  const Fold fold(call);
  MXREC_RETURN_IF_ERROR(FoldIn(call, fold, numbers));
  if (fold.place >= 0) {
    // Each step keeps one half of the window and gives the other to the partner; the way back mirrors it.
    struct Window {
      size_t first, last;
    };
    std::vector<Window> windows{{0, numbers.count}};
    for (int distance = fold.ranks / 2; distance >= 1; distance /= 2) {
      const Window window = windows.back();
      const size_t middle = window.first + (window.last - window.first) / 2;
      const bool lower = (fold.place & distance) == 0;
      const Window keep = lower ? Window{window.first, middle} : Window{middle, window.last};
      const Window give = lower ? Window{middle, window.last} : Window{window.first, middle};
      const int partner = fold.Rank(fold.place ^ distance);
      CombineSink sink(numbers, keep.first, !lower);
      MXREC_RETURN_IF_ERROR(call.SendAndReceive(partner, numbers.at(give.first), (give.last - give.first) * numbers.size(),
                                                Into(sink, numbers, keep.last - keep.first), partner));
      windows.push_back(keep);
    }
    ScaleNumbers(numbers.at(windows.back().first), windows.back().last - windows.back().first, numbers.dtype, numbers.scale);
    for (int distance = 1; distance < fold.ranks; distance *= 2) {
      const Window have = windows.back();
      windows.pop_back();
      const Window whole = windows.back();
      const Window want = have.first == whole.first ? Window{have.last, whole.last} : Window{whole.first, have.first};
      const int partner = fold.Rank(fold.place ^ distance);
      MXREC_RETURN_IF_ERROR(call.SendAndReceive(partner, numbers.at(have.first), (have.last - have.first) * numbers.size(),
                                                {0, numbers.at(want.first), (want.last - want.first) * numbers.size()}, partner));
    }
  }
  return FoldOut(call, fold, numbers);
}

// ---- trees

// Binomial: in step k the ranks whose distance from the root has its lowest bit at k hand their sum to the rank without that bit.
Status TreeReduce(const Call& call, const Numbers& numbers, int root) {
  const int place = call.Around(call.me() - root);
  for (int distance = 1; distance < call.size(); distance *= 2) {
    if ((place & distance) != 0) {
      return call.Send(call.Around(root + place - distance), numbers.data, numbers.count * numbers.size());
    }
    if (place + distance >= call.size()) continue;
    CombineSink sink(numbers, 0, false);
    ReceivePart part = Into(sink, numbers, numbers.count);
    part.peer = call.World(call.Around(root + place + distance));
    MXREC_RETURN_IF_ERROR(call.Exchange({}, {&part, 1}));
  }
  ScaleNumbers(numbers.data, numbers.count, numbers.dtype, numbers.scale);
  return OkStatus();
}

Status TreeBroadcast(const Call& call, char* data, size_t bytes, int root) {
  const int place = call.Around(call.me() - root);
  int distance = 1;
  while (distance < call.size() && (place & distance) == 0) distance *= 2;
  if (place != 0) MXREC_RETURN_IF_ERROR(call.Receive(call.Around(root + place - distance), data, bytes));
  // The far ones first: they have more to pass on.
  for (distance /= 2; distance >= 1; distance /= 2) {
    if (place + distance < call.size()) MXREC_RETURN_IF_ERROR(call.Send(call.Around(root + place + distance), data, bytes));
  }
  return OkStatus();
}

Status TreeAllReduce(const Call& call, const Numbers& numbers) {
  MXREC_RETURN_IF_ERROR(TreeReduce(call, numbers, 0));
  return TreeBroadcast(call, numbers.data, numbers.count * numbers.size(), 0);
}

// ---- shared memory

class PartsReducer final : public Transport::SliceReducer {
 public:
  PartsReducer(DType dtype, ReduceOp op, const Finish& finish)
      : dtype_(dtype), width_(DTypeSize(dtype)), op_(CombineOf(op)), scale_(ScaleOf(finish)) {}
  void Reduce(std::span<const void* const> ranks, void* out, size_t bytes) override {
    CombineParts(ranks, bytes / width_, dtype_, op_, scale_, out);
  }

 private:
  const DType dtype_;
  const size_t width_;
  const Combine op_;
  const NumberScale scale_;
};

// Numbers that stand in one piece. `to` is `from`, or shares no byte with it.
class OnePiece final : public Transport::Payload {
 public:
  OnePiece(const void* from, void* to) : from_(static_cast<const char*>(from)), to_(static_cast<char*>(to)) {}
  void Read(size_t offset, size_t bytes, void* to) override { CopyBytes(to, from_ + offset, bytes); }
  const void* Find(size_t offset, size_t, void*) override { return from_ + offset; }
  void Write(size_t offset, size_t bytes, const void* from) override { CopyBytes(to_ + offset, from, bytes); }

 private:
  const char* const from_;
  char* const to_;
};

bool CanShare(const Transport& transport, const GroupView& group) {
  if (!transport.shares_memory() || static_cast<int>(group.ranks.size()) != transport.size()) return false;
  for (size_t r = 0; r < group.ranks.size(); ++r) {
    if (group.ranks[r] != static_cast<int>(r)) return false;
  }
  return true;
}

// ---- Adasum

// a and b become one: each loses half of its projection on the other, so that equal gradients are averaged and orthogonal ones
// added.
template <typename T>
void AdasumPair(const T* a, const T* b, size_t n, T* out) {
  const ScopedIeeeFloat ieee;
  double dot = 0, a_square = 0, b_square = 0;
  for (size_t i = 0; i < n; ++i) {
    const double x = a[i], y = b[i];
    dot += x * y;
    a_square += x * x;
    b_square += y * y;
  }
  const double of_a = a_square > 0 ? 1 - dot / (2 * a_square) : 1, of_b = b_square > 0 ? 1 - dot / (2 * b_square) : 1;
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<T>(of_a * a[i] + of_b * b[i]);
}

Status AdasumAllReduce(const Call& call, const Numbers& numbers) {
  const size_t bytes = numbers.count * numbers.size();
  Scratch memory;
  MXREC_RETURN_IF_ERROR(memory.Allocate(bytes));
  for (int distance = 1; distance < call.size(); distance *= 2) {
    const int partner = call.me() ^ distance;
    MXREC_RETURN_IF_ERROR(call.SendAndReceive(partner, numbers.data, bytes, {0, memory.data(), bytes}, partner));
    const bool first = (call.me() & distance) == 0;
    const char* const a = first ? numbers.data : memory.data();
    const char* const b = first ? memory.data() : numbers.data;
    if (numbers.dtype == DType::kFloat64) {
      AdasumPair(reinterpret_cast<const double*>(a), reinterpret_cast<const double*>(b), numbers.count,
                 reinterpret_cast<double*>(numbers.data));
    } else {
      AdasumPair(reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), numbers.count,
                 reinterpret_cast<float*>(numbers.data));
    }
  }
  ScaleNumbers(numbers.data, numbers.count, numbers.dtype, numbers.scale);
  return OkStatus();
}

Status NoAdasum(ReduceOp op, std::string_view operation) {
  if (op != ReduceOp::kAdasum) return OkStatus();
  return InvalidArgumentError("Adasum is for allreduce, not for " + std::string(operation));
}

}  // namespace

std::string_view ReduceOpName(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kAdasum:
      return "adasum";
  }
  return "unknown";
}

std::string_view AlgorithmName(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto:
      return "auto";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kHalvingDoubling:
      return "halving-doubling";
    case Algorithm::kRecursiveDoubling:
      return "recursive-doubling";
    case Algorithm::kShared:
      return "shared";
    case Algorithm::kTree:
      return "tree";
  }
  return "unknown";
}

Algorithm ChooseAlgorithm(size_t bytes, DType dtype, int ranks, bool shared) {
  if (bytes <= kShortBytes) return Algorithm::kRecursiveDoubling;
  if (shared) return Algorithm::kShared;
  if (IsNarrow(dtype) || bytes > kMediumBytesPerRank * static_cast<size_t>(ranks)) return Algorithm::kRing;
  return Algorithm::kHalvingDoubling;
}

bool ReducesInSharedMemory(const Transport& transport, const GroupView& group, size_t count, DType dtype, ReduceOp op,
                           Algorithm algorithm) {
  if (count == 0 || group.ranks.size() < 2 || op == ReduceOp::kAdasum || !CanShare(transport, group)) return false;
  if (algorithm != Algorithm::kAuto) return algorithm == Algorithm::kShared;
  return ChooseAlgorithm(count * DTypeSize(dtype), dtype, static_cast<int>(group.ranks.size()), true) == Algorithm::kShared;
}

Status AllReduceShared(Transport& transport, const GroupView& group, Transport::Payload& payload, size_t count, DType dtype,
                       ReduceOp op, Algorithm algorithm, Deadline deadline, const Finish& finish) {
  MXREC_RETURN_IF_ERROR((Call{transport, group, deadline}.Check()));
  size_t bytes = 0;
  MXREC_RETURN_IF_ERROR(CheckNumbers(count, dtype, &bytes));
  if (!ReducesInSharedMemory(transport, group, count, dtype, op, algorithm)) {
    return FailedPreconditionError("an allreduce of " + std::to_string(bytes) + " bytes in a group of " +
                                   std::to_string(group.ranks.size()) + " ranks over " + std::string(transport.name()) +
                                   " does not go through shared memory");
  }
  PartsReducer reducer(dtype, op, finish);
  return transport.SharedAllReduce(payload, bytes, DTypeSize(dtype), reducer, deadline);
}

Status AllReduce(Transport& transport, const GroupView& group, void* data, size_t count, DType dtype, ReduceOp op,
                 Algorithm algorithm, Deadline deadline, const Finish& finish) {
  return AllReduce(transport, group, data, data, count, dtype, op, algorithm, deadline, finish);
}

Status AllReduce(Transport& transport, const GroupView& group, const void* input, void* data, size_t count, DType dtype,
                 ReduceOp op, Algorithm algorithm, Deadline deadline, const Finish& finish) {
  const Call call{transport, group, deadline};
  MXREC_RETURN_IF_ERROR(call.Check());
  size_t bytes = 0;
  MXREC_RETURN_IF_ERROR(CheckNumbers(count, dtype, &bytes));
  const Numbers numbers{static_cast<char*>(data), count, dtype, CombineOf(op), ScaleOf(finish)};
  if (op == ReduceOp::kAdasum) {
    if (!IsFloating(dtype)) return InvalidArgumentError("Adasum needs a floating type, found " + std::string(DTypeName(dtype)));
    if (!std::has_single_bit(static_cast<unsigned>(call.size()))) {
      return InvalidArgumentError("Adasum needs a group whose size is a power of two, found " + std::to_string(call.size()) +
                                  " ranks");
    }
  }
  if (count == 0) return OkStatus();
  if (ReducesInSharedMemory(transport, group, count, dtype, op, algorithm)) {
    OnePiece payload(input, data);
    return AllReduceShared(transport, group, payload, count, dtype, op, algorithm, deadline, finish);
  }
  if (algorithm == Algorithm::kAuto || algorithm == Algorithm::kShared) {
    algorithm = ChooseAlgorithm(bytes, dtype, call.size(), false);
  }
  if (input != data) {
    const bool ring = algorithm == Algorithm::kRing && op != ReduceOp::kAdasum && call.size() > 1;
    if (ring) return RingAllReduce(call, {numbers.data, count, dtype, numbers.op, numbers.scale, static_cast<const char*>(input)});
    // The others work in place.
    CopyBytes(data, input, bytes);
  }
  if (call.size() == 1) {
    ScaleNumbers(data, count, dtype, numbers.scale);
    return OkStatus();
  }
  if (op == ReduceOp::kAdasum) return Widened(numbers, [&](const Numbers& wide) { return AdasumAllReduce(call, wide); });
  switch (algorithm) {
    case Algorithm::kRecursiveDoubling:
      return Widened(numbers, [&](const Numbers& wide) { return RecursiveDoubling(call, wide); });
    case Algorithm::kHalvingDoubling:
      return Widened(numbers, [&](const Numbers& wide) { return HalvingDoubling(call, wide); });
    case Algorithm::kTree:
      return Widened(numbers, [&](const Numbers& wide) { return TreeAllReduce(call, wide); });
    case Algorithm::kRing:
    case Algorithm::kShared:
    case Algorithm::kAuto:
      break;
  }
  return RingAllReduce(call, numbers);
}

Status Reduce(Transport& transport, const GroupView& group, void* data, size_t count, DType dtype, ReduceOp op, int root,
              Deadline deadline, const Finish& finish) {
  const Call call{transport, group, deadline};
  MXREC_RETURN_IF_ERROR(call.Check());
  MXREC_RETURN_IF_ERROR(call.CheckRoot(root));
  MXREC_RETURN_IF_ERROR(NoAdasum(op, "reduce"));
  size_t bytes = 0;
  MXREC_RETURN_IF_ERROR(CheckNumbers(count, dtype, &bytes));
  if (count == 0) return OkStatus();
  const Numbers numbers{static_cast<char*>(data), count, dtype, CombineOf(op), ScaleOf(finish)};
  if (call.size() == 1) {
    ScaleNumbers(data, count, dtype, numbers.scale);
    return OkStatus();
  }
  if (bytes <= kTreeBytes) return Widened(numbers, [&](const Numbers& wide) { return TreeReduce(call, wide, root); });
  const auto borders = EvenBorders(count, call.size());
  MXREC_RETURN_IF_ERROR(ReduceChunks(call, numbers, borders));
  const auto bytes_of = [&](int rank) { return (borders[rank + 1] - borders[rank]) * numbers.size(); };
  if (call.me() != root) return call.Send(root, numbers.at(borders[call.me()]), bytes_of(call.me()));
  std::vector<ReceivePart> receives;
  for (int rank = 0; rank < call.size(); ++rank) {
    if (rank != root) receives.push_back({call.World(rank), numbers.at(borders[rank]), bytes_of(rank)});
  }
  return call.Exchange({}, receives);
}

Status ReduceScatter(Transport& transport, const GroupView& group, void* data, std::span<const size_t> counts, DType dtype,
                     ReduceOp op, void* out, Deadline deadline, const Finish& finish) {
  const Call call{transport, group, deadline};
  MXREC_RETURN_IF_ERROR(call.Check());
  MXREC_RETURN_IF_ERROR(NoAdasum(op, "reduce_scatter"));
  if (counts.size() != group.ranks.size()) {
    return InvalidArgumentError("reduce_scatter: " + std::to_string(counts.size()) + " counts for a group of " +
                                std::to_string(call.size()) + " ranks");
  }
  std::vector<size_t> borders{0};
  for (size_t count : counts) {
    if (count > static_cast<size_t>(std::numeric_limits<int64_t>::max()) - borders.back()) {
      return InvalidArgumentError("reduce_scatter: the counts of all ranks together are beyond 64 bits");
    }
    borders.push_back(borders.back() + count);
  }
  size_t bytes = 0;
  MXREC_RETURN_IF_ERROR(CheckNumbers(borders.back(), dtype, &bytes));
  const Numbers numbers{static_cast<char*>(data), borders.back(), dtype, CombineOf(op), ScaleOf(finish)};
  if (call.size() == 1) {
    ScaleNumbers(data, numbers.count, dtype, numbers.scale);
  } else {
    MXREC_RETURN_IF_ERROR(ReduceChunks(call, numbers, borders));
  }
  if (counts[call.me()] > 0) std::memmove(out, numbers.at(borders[call.me()]), counts[call.me()] * numbers.size());
  return OkStatus();
}

Status AllGather(Transport& transport, const GroupView& group, const void* data, std::span<const size_t> bytes, void* out,
                 Deadline deadline) {
  const Call call{transport, group, deadline};
  MXREC_RETURN_IF_ERROR(call.Check());
  if (bytes.size() != group.ranks.size()) {
    return InvalidArgumentError("allgather: " + std::to_string(bytes.size()) + " sizes for a group of " +
                                std::to_string(call.size()) + " ranks");
  }
  std::vector<size_t> borders{0};
  for (size_t one : bytes) {
    if (one > static_cast<size_t>(std::numeric_limits<int64_t>::max()) - borders.back()) {
      return InvalidArgumentError("allgather: the sizes of all ranks together are beyond 64 bits");
    }
    borders.push_back(borders.back() + one);
  }
  const int me = call.me();
  char* const whole = static_cast<char*>(out);
  if (bytes[me] > 0 && data != kInPlace && data != whole + borders[me]) std::memmove(whole + borders[me], data, bytes[me]);
  if (call.size() > kPeersAtOnce) return RingGatherChunks(call, whole, borders);
  std::vector<SendPart> sends;
  std::vector<ReceivePart> receives;
  for (int step = 1; step < call.size(); ++step) {
    const int from = call.Around(me - step);
    sends.push_back({call.World(call.Around(me + step)), whole + borders[me], bytes[me]});
    receives.push_back({call.World(from), whole + borders[from], bytes[from]});
  }
  return call.Exchange(sends, receives);
}

Status Broadcast(Transport& transport, const GroupView& group, void* data, size_t bytes, int root, Deadline deadline) {
  const Call call{transport, group, deadline};
  MXREC_RETURN_IF_ERROR(call.Check());
  MXREC_RETURN_IF_ERROR(call.CheckRoot(root));
  if (bytes == 0 || call.size() == 1) return OkStatus();
  char* const whole = static_cast<char*>(data);
  if (bytes <= kTreeBytes || call.size() == 2) return TreeBroadcast(call, whole, bytes, root);
  // A chunk to each rank, then round the ring: a rank sends and receives little more than the bytes once, however many ranks there
  // are.
  const auto borders = EvenBorders(bytes, call.size());
  if (call.me() == root) {
    std::vector<SendPart> sends;
    for (int rank = 0; rank < call.size(); ++rank) {
      if (rank != root) sends.push_back({call.World(rank), whole + borders[rank], borders[rank + 1] - borders[rank]});
    }
    MXREC_RETURN_IF_ERROR(call.Exchange(sends, {}));
  } else {
    MXREC_RETURN_IF_ERROR(call.Receive(root, whole + borders[call.me()], borders[call.me() + 1] - borders[call.me()]));
  }
  return RingGatherChunks(call, whole, borders);
}

Status AllToAll(Transport& transport, const GroupView& group, const void* data, std::span<const Span> send, void* out,
                std::span<const Span> receive, Deadline deadline) {
  const Call call{transport, group, deadline};
  MXREC_RETURN_IF_ERROR(call.Check());
  if (send.size() != group.ranks.size() || receive.size() != group.ranks.size()) {
    return InvalidArgumentError("alltoall: " + std::to_string(send.size()) + " parts to send and " +
                                std::to_string(receive.size()) + " to receive in a group of " + std::to_string(call.size()) +
                                " ranks");
  }
  const auto* const from_memory = static_cast<const char*>(data);
  auto* const to_memory = static_cast<char*>(out);
  const int me = call.me();
  if (send[me].bytes != receive[me].bytes) {
    return InvalidArgumentError("alltoall: rank " + std::to_string(transport.rank()) + " sends itself " +
                                std::to_string(send[me].bytes) + " bytes and expects " + std::to_string(receive[me].bytes));
  }
  if (send[me].bytes > 0) std::memmove(to_memory + receive[me].offset, from_memory + send[me].offset, send[me].bytes);
  for (int first = 1; first < call.size(); first += kPeersAtOnce) {
    std::vector<SendPart> sends;
    std::vector<ReceivePart> receives;
    for (int step = first; step < std::min(call.size(), first + kPeersAtOnce); ++step) {
      const int to = call.Around(me + step), from = call.Around(me - step);
      if (send[to].bytes > 0) sends.push_back({call.World(to), from_memory + send[to].offset, send[to].bytes});
      if (receive[from].bytes > 0) receives.push_back({call.World(from), to_memory + receive[from].offset, receive[from].bytes});
    }
    MXREC_RETURN_IF_ERROR(call.Exchange(sends, receives));
  }
  return OkStatus();
}

Status Barrier(Transport& transport, const GroupView& group, Deadline deadline) {
  const Call call{transport, group, deadline};
  MXREC_RETURN_IF_ERROR(call.Check());
  const char here = 1;
  char there = 0;
  // After step k a rank has heard, through others, of the 2^(k+1) - 1 ranks before it.
  for (int distance = 1; distance < call.size(); distance *= 2) {
    MXREC_RETURN_IF_ERROR(
        call.SendAndReceive(call.Around(call.me() + distance), &here, 1, {0, &there, 1}, call.Around(call.me() - distance)));
  }
  return OkStatus();
}

void ReduceInto(void* into, const void* from, size_t count, DType dtype, ReduceOp op) {
  CombineNumbers(into, from, count, dtype, CombineOf(op), into);
}

void Scale(void* data, size_t count, DType dtype, double factor) { ScaleNumbers(data, count, dtype, {factor, 1}); }

}  // namespace mxrec
