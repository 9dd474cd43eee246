#include "mxrec/comm/controller/executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "mxrec/base/copy_bytes.h"
#include "mxrec/kernels/narrow_floats.h"

namespace mxrec {
namespace {

// Where the reader of a request's or a joined rank's arguments looks.
struct Arguments {
  DType dtype, wire;
  ReduceOp op;
  double prescale, postscale;
  bool divide_by_size;
  const std::vector<int64_t>* shape;
};

Arguments ArgumentsOf(const Job::Tensor& tensor) {
  const auto of = [](const auto& from) {
    return Arguments{from.dtype, from.wire, from.op, from.prescale, from.postscale, from.divide_by_size, &from.shape};
  };
  return tensor.request != nullptr ? of(*tensor.request) : of(*tensor.joined);
}

size_t CountOf(std::span<const int64_t> shape) {
  size_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<size_t>(dim);
  return count;
}

size_t BytesOf(const CommRequest& request) { return CountOf(request.shape) * DTypeSize(request.dtype); }

// Bytes of one row: all dimensions but the first.
size_t RowBytes(const CommRequest& request) { return CountOf(std::span(request.shape).subspan(1)) * DTypeSize(request.dtype); }

void Copy(void* to, const void* from, size_t bytes) {
  if (to != from) CopyBytes(to, from, bytes);
}

// float32 to the type that travels, and back.
void Narrow(const float* from, size_t count, DType wire, void* to) {
  if (wire == DType::kFloat16) {
    FloatsToHalf(from, count, static_cast<uint16_t*>(to));
  } else {
    FloatsToBFloat16(from, count, static_cast<uint16_t*>(to));
  }
}
void Widen(const void* from, size_t count, DType wire, float* to) {
  if (wire == DType::kFloat16) {
    HalfToFloats(static_cast<const uint16_t*>(from), count, to);
  } else {
    BFloat16ToFloats(static_cast<const uint16_t*>(from), count, to);
  }
}

Finish FinishOf(const Arguments& arguments, const Job& job) {
  return {.multiply = arguments.postscale, .divide = arguments.divide_by_size ? static_cast<double>(job.ranks.size()) : 1.0};
}

// Whether float32 travels as a type of 16 bits.
bool Narrows(const Arguments& arguments) { return arguments.wire != DType::kFloat32 && arguments.dtype == DType::kFloat32; }

// The numbers of a job's tensors one behind the other, as they travel: scaled, and in the type of the wire. Made once `agreed` of
// the tensors is there: asks for the memory of their outputs. One that cannot be had is an error of its tensor alone, whose numbers
// take part nevertheless.
class PackedNumbers final : public Transport::Payload {
 public:
  PackedNumbers(Job& job, const Arguments& arguments)
      : narrow_(Narrows(arguments)),
        dtype_(narrow_ ? arguments.wire : arguments.dtype),
        width_(DTypeSize(dtype_)),
        prescale_(arguments.prescale) {
    pieces_.reserve(job.tensors.size());
    for (Job::Tensor& tensor : job.tensors) {
      Piece piece{.first = count_ * width_};
      count_ += CountOf(*ArgumentsOf(tensor).shape);
      if (tensor.request != nullptr) {
        piece.input = static_cast<const char*>(tensor.request->input);
        Result<void*> out = tensor.request->allocate(tensor.agreed);
        if (out.ok()) {
          piece.output = static_cast<char*>(out.value());
        } else {
          tensor.status = std::move(out).status();
        }
      }
      if (count_ * width_ > piece.first) pieces_.push_back(piece);
    }
  }

  size_t count() const { return count_; }
  DType dtype() const { return dtype_; }

  void Read(size_t offset, size_t bytes, void* to) override {
    auto* place = static_cast<char*>(to);
    ForEach(offset, bytes, [&](const Piece& piece, size_t within, size_t part) {
      ReadPiece(piece, within, part, place);
      place += part;
    });
  }

  const void* Find(size_t offset, size_t bytes, void* place) override {
    const size_t at = PieceOf(offset);
    const Piece& piece = pieces_[at];
    if (!narrow_ && prescale_ == 1 && piece.input != nullptr && offset + bytes <= End(at)) {
      return piece.input + (offset - piece.first);
    }
    Read(offset, bytes, place);
    return place;
  }

  void Write(size_t offset, size_t bytes, const void* from) override {
    const auto* place = static_cast<const char*>(from);
    ForEach(offset, bytes, [&](const Piece& piece, size_t within, size_t part) {
      if (piece.output != nullptr && narrow_) {
        Widen(place, part / width_, dtype_, reinterpret_cast<float*>(piece.output) + within / width_);
      } else if (piece.output != nullptr) {
        CopyBytes(piece.output + within, place, part);
      }
      place += part;
    });
  }

 private:
  // A tensor that has numbers.
  struct Piece {
    size_t first = 0;             // of its bytes, as they travel
    const char* input = nullptr;  // null: zeros, this rank has joined
    char* output = nullptr;       // null: nobody wants the result
  };
  // Of floats that are scaled before they are narrowed; stay in the first-level cache.
  static constexpr size_t kBlock = 1024;

  size_t End(size_t piece) const { return piece + 1 < pieces_.size() ? pieces_[piece + 1].first : count_ * width_; }

  // The piece that holds the byte at `offset`.
  size_t PieceOf(size_t offset) const {
    const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                        [](size_t bytes, const Piece& piece) { return bytes < piece.first; });
    return static_cast<size_t>(after - pieces_.begin()) - 1;
  }

  // body(piece, offset in the piece, bytes of it), in order.
  template <typename Body>
  void ForEach(size_t offset, size_t bytes, const Body& body) const {
    if (bytes == 0) return;
    const size_t last = offset + bytes;
    for (size_t at = PieceOf(offset); offset < last; ++at) {
      const size_t end = std::min(End(at), last);
      body(pieces_[at], offset - pieces_[at].first, end - offset);
      offset = end;
    }
  }

  void ReadPiece(const Piece& piece, size_t within, size_t bytes, char* to) const {
    if (piece.input == nullptr) {
      std::memset(to, 0, bytes);
    } else if (!narrow_) {
      CopyBytes(to, piece.input + within, bytes);
      if (prescale_ != 1) Scale(to, bytes / width_, dtype_, prescale_);
    } else {
      const float* const from = reinterpret_cast<const float*>(piece.input) + within / width_;
      const size_t count = bytes / width_;
      if (prescale_ == 1) return Narrow(from, count, dtype_, to);
      alignas(64) float block[kBlock];
      for (size_t i = 0; i < count; i += kBlock) {
        const size_t n = std::min(kBlock, count - i);
        std::memcpy(block, from + i, n * sizeof(float));
        Scale(block, n, DType::kFloat32, prescale_);
        Narrow(block, n, dtype_, to + i * width_);
      }
    }
  }

  const bool narrow_;
  const DType dtype_;
  const size_t width_;
  const double prescale_;
  std::vector<Piece> pieces_;
  size_t count_ = 0;
};

}  // namespace

char* AlignedBuffer::Get(size_t bytes) {
  if (bytes <= bytes_ && data_ != nullptr) return data_.get();
  data_.reset();
  bytes_ = 0;
  bytes = std::max<size_t>(bytes + bytes / 4, 4096);
  data_.reset(static_cast<char*>(::operator new (bytes, std::align_val_t{64}, std::nothrow)));
  if (data_ != nullptr) bytes_ = bytes;
  return data_.get();
}

// The request's output, or when it cannot be had a place of the same size, so that the other ranks do not wait. Null: neither.
void* Executor::Allocate(Job::Tensor& tensor, AlignedBuffer& instead, size_t bytes) {
  if (tensor.request != nullptr && tensor.request->allocate) {
    Result<void*> out = tensor.request->allocate(tensor.agreed);
    if (out.ok()) return out.value();
    tensor.status = std::move(out).status();
  }
  return instead.Get(bytes);
}

namespace {
Status NoMemory(size_t bytes) {
  return ResourceExhaustedError("no memory for " + std::to_string(bytes) + " bytes, which all ranks have agreed to exchange");
}
}  // namespace

Status Executor::Run(Job& job, Deadline deadline) {
  switch (job.kind) {
    case Collective::kAllReduce:
      return job.tensors.size() > 1 || InSharedMemory(job, CountOf(*ArgumentsOf(job.tensors[0]).shape)) ? Packed(job, deadline)
                                                                                                        : Reduction(job, deadline);
    case Collective::kReduce:
      return Reduction(job, deadline);
    case Collective::kReduceScatter:
      return Scatter(job, deadline);
    case Collective::kAllGather:
      return Gather(job, deadline);
    case Collective::kBroadcast:
      return BroadcastOne(job, deadline);
    case Collective::kAllToAll:
      return AllToAllOne(job, deadline);
    case Collective::kSend:
    case Collective::kReceive:
      return PointToPoint(job, deadline);
    case Collective::kBarrier:  // agreement is all there is to them
    case Collective::kJoin:
      return OkStatus();
  }
  return InternalError("a collective of no kind");
}

// Whether the ranks of an allreduce of `count` numbers in all read each other's where they lie.
bool Executor::InSharedMemory(const Job& job, size_t count) const {
  const Arguments first = ArgumentsOf(job.tensors[0]);
  return ReducesInSharedMemory(transport_, {.ranks = job.ranks, .me = job.me}, count, Narrows(first) ? first.wire : first.dtype,
                               first.op, algorithm_);
}

// One tensor, in its own memory. allreduce and reduce.
Status Executor::Reduction(Job& job, Deadline deadline) {
  Job::Tensor& tensor = job.tensors[0];
  const Arguments arguments = ArgumentsOf(tensor);
  const GroupView group{.ranks = job.ranks, .me = job.me};
  const size_t count = CountOf(*arguments.shape), bytes = count * DTypeSize(arguments.dtype);
  tensor.agreed.shape = *arguments.shape;
  void* const out = Allocate(tensor, packed_, bytes);
  if (out == nullptr && bytes > 0) return NoMemory(bytes);
  if (tensor.request == nullptr) {
    if (bytes > 0) std::memset(out, 0, bytes);
  } else if (job.kind == Collective::kAllReduce && arguments.prescale == 1 &&
             (arguments.wire == DType::kFloat32 || arguments.dtype != DType::kFloat32)) {
    return AllReduce(transport_, group, tensor.request->input, out, count, arguments.dtype, arguments.op, algorithm_, deadline,
                     FinishOf(arguments, job));
  } else {
    Copy(out, tensor.request->input, bytes);
  }
  if (arguments.prescale != 1) Scale(out, count, arguments.dtype, arguments.prescale);
  const Finish finish = FinishOf(arguments, job);
  const auto reduce = [&](void* data, DType dtype) {
    if (job.kind == Collective::kReduce) {
      return mxrec::Reduce(transport_, group, data, count, dtype, arguments.op, tensor.request->root, deadline, finish);
    }
    return AllReduce(transport_, group, data, count, dtype, arguments.op, algorithm_, deadline, finish);
  };
  if (arguments.wire == DType::kFloat32 || arguments.dtype != DType::kFloat32) return reduce(out, arguments.dtype);
  char* const narrow = scratch_.Get(count * DTypeSize(arguments.wire));
  if (narrow == nullptr) return NoMemory(count * DTypeSize(arguments.wire));
  Narrow(static_cast<const float*>(out), count, arguments.wire, narrow);
  MXREC_RETURN_IF_ERROR(reduce(narrow, arguments.wire));
  Widen(narrow, count, arguments.wire, static_cast<float*>(out));
  return OkStatus();
}

// Tensors of equal arguments, one behind the other: straight between their memory and what the ranks share, or through a buffer.
Status Executor::Packed(Job& job, Deadline deadline) {
  const Arguments first = ArgumentsOf(job.tensors[0]);
  for (Job::Tensor& tensor : job.tensors) tensor.agreed.shape = *ArgumentsOf(tensor).shape;
  const GroupView group{.ranks = job.ranks, .me = job.me};
  PackedNumbers numbers(job, first);
  const size_t bytes = numbers.count() * DTypeSize(numbers.dtype());
  if (InSharedMemory(job, numbers.count())) {
    return AllReduceShared(transport_, group, numbers, numbers.count(), numbers.dtype(), first.op, algorithm_, deadline,
                           FinishOf(first, job));
  }
  char* const buffer = packed_.Get(bytes);
  if (buffer == nullptr) return NoMemory(bytes);
  numbers.Read(0, bytes, buffer);
  MXREC_RETURN_IF_ERROR(
      AllReduce(transport_, group, buffer, numbers.count(), numbers.dtype(), first.op, algorithm_, deadline, FinishOf(first, job)));
  numbers.Write(0, bytes, buffer);
  return OkStatus();
}

Status Executor::Scatter(Job& job, Deadline deadline) {
  Job::Tensor& tensor = job.tensors[0];
  const CommRequest& request = *tensor.request;
  const size_t bytes = BytesOf(request), ranks = job.ranks.size();
  // The first ranks get one row more when the rows cannot be dealt out evenly.
  const auto rows = static_cast<size_t>(request.shape[0]);
  const size_t row = CountOf(std::span(request.shape).subspan(1));
  std::vector<size_t> counts(ranks);
  for (size_t i = 0; i < ranks; ++i) counts[i] = (rows / ranks + (i < rows % ranks ? 1 : 0)) * row;
  tensor.agreed.shape = request.shape;
  tensor.agreed.shape[0] = static_cast<int64_t>(rows / ranks + (static_cast<size_t>(job.me) < rows % ranks ? 1 : 0));
  char* const data = scratch_.Get(bytes);
  if (data == nullptr) return NoMemory(bytes);
  Copy(data, request.input, bytes);
  if (request.prescale != 1) Scale(data, CountOf(request.shape), request.dtype, request.prescale);
  void* const out = Allocate(tensor, packed_, counts[job.me] * DTypeSize(request.dtype));
  if (out == nullptr && counts[job.me] > 0) return NoMemory(counts[job.me] * DTypeSize(request.dtype));
  return ReduceScatter(transport_, {.ranks = job.ranks, .me = job.me}, data, counts, request.dtype, request.op, out, deadline,
                       FinishOf(ArgumentsOf(tensor), job));
}

Status Executor::Gather(Job& job, Deadline deadline) {
  Job::Tensor& tensor = job.tensors[0];
  const CommRequest& request = *tensor.request;
  const size_t row = RowBytes(request);
  std::vector<size_t> bytes;
  size_t total = 0;
  int64_t rows = 0;
  for (const int64_t n : job.received) {
    size_t one = 0;
    if (__builtin_mul_overflow(static_cast<size_t>(n), row, &one) || __builtin_add_overflow(total, one, &total)) {
      return ResourceExhaustedError("'" + request.name + "' gathers more bytes than memory can have");
    }
    bytes.push_back(one);
    rows += n;
  }
  tensor.agreed.shape = request.shape;
  tensor.agreed.shape[0] = rows;
  tensor.agreed.received = job.received;
  void* const out = Allocate(tensor, packed_, total);
  if (out == nullptr && total > 0) return NoMemory(total);
  // What the others are to get was to be put into the output: there is nothing to give them instead.
  if (request.input == kInPlace && !tensor.status.ok()) return tensor.status;
  return AllGather(transport_, {.ranks = job.ranks, .me = job.me}, request.input, bytes, out, deadline);
}

Status Executor::BroadcastOne(Job& job, Deadline deadline) {
  Job::Tensor& tensor = job.tensors[0];
  const CommRequest& request = *tensor.request;
  const size_t bytes = BytesOf(request);
  tensor.agreed.shape = request.shape;
  void* const out = Allocate(tensor, packed_, bytes);
  if (out == nullptr && bytes > 0) return NoMemory(bytes);
  if (job.me == request.root) Copy(out, request.input, bytes);
  return Broadcast(transport_, {.ranks = job.ranks, .me = job.me}, out, bytes, request.root, deadline);
}

Status Executor::AllToAllOne(Job& job, Deadline deadline) {
  Job::Tensor& tensor = job.tensors[0];
  const CommRequest& request = *tensor.request;
  const size_t row = RowBytes(request), ranks = job.ranks.size();
  std::vector<Span> send(ranks), receive(ranks);
  size_t sent = 0, received = 0;
  int64_t rows = 0;
  for (size_t i = 0; i < ranks; ++i) {
    send[i] = {.offset = sent, .bytes = static_cast<size_t>(request.splits[i]) * row};
    sent += send[i].bytes;
    receive[i].offset = received;
    if (__builtin_mul_overflow(static_cast<size_t>(job.received[i]), row, &receive[i].bytes) ||
        __builtin_add_overflow(received, receive[i].bytes, &received)) {
      return ResourceExhaustedError("'" + request.name + "' receives more bytes than memory can have");
    }
    rows += job.received[i];
  }
  tensor.agreed.shape = request.shape;
  tensor.agreed.shape[0] = rows;
  tensor.agreed.received = job.received;
  void* const out = Allocate(tensor, packed_, received);
  if (out == nullptr && received > 0) return NoMemory(received);
  return AllToAll(transport_, {.ranks = job.ranks, .me = job.me}, request.input, send, out, receive, deadline);
}

Status Executor::PointToPoint(Job& job, Deadline deadline) {
  Job::Tensor& tensor = job.tensors[0];
  const CommRequest& request = *tensor.request;
  const size_t bytes = BytesOf(request);
  const int peer = job.ranks[request.peer];
  tensor.agreed.shape = request.shape;
  if (job.kind == Collective::kSend) {
    const SendPart part{.peer = peer, .data = request.input, .bytes = bytes};
    return transport_.Exchange({&part, 1}, {}, deadline);
  }
  void* const out = Allocate(tensor, packed_, bytes);
  if (out == nullptr && bytes > 0) return NoMemory(bytes);
  ReceivePart part;
  part.peer = peer;
  part.data = out;
  part.bytes = bytes;
  return transport_.Exchange({}, {&part, 1}, deadline);
}

}  // namespace mxrec
