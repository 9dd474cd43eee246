#include "mxrec/comm/controller/wire.h"

#include <algorithm>
#include <bit>
#include <climits>

#include "mxrec/comm/control/status_wire.h"
#include "mxrec/comm/control/wire_bytes.h"

namespace mxrec {
namespace {

Status Malformed(std::string_view what) { return DataLossError("malformed " + std::string(what)); }

// Sorted ids: bits from the first one on, where that is shorter than runs.
enum IdForm : uint8_t { kRuns = 0, kBits = 1 };

void WriteRuns(const std::vector<uint64_t>& ids, WireWriter& out) {
  std::vector<std::pair<uint64_t, uint64_t>> runs;  // first, count
  for (const uint64_t id : ids) {
    if (!runs.empty() && runs.back().first + runs.back().second == id) {
      ++runs.back().second;
    } else {
      runs.emplace_back(id, 1);
    }
  }
  out.Unsigned(runs.size());
  uint64_t last = 0;
  for (const auto& [first, count] : runs) {
    out.Signed(static_cast<int64_t>(first - last));
    out.Unsigned(count);
    last = first + count;
  }
}

void WriteIds(const std::vector<uint64_t>& ids, WireWriter& out) {
  const bool sorted = std::adjacent_find(ids.begin(), ids.end(), [](uint64_t a, uint64_t b) { return a >= b; }) == ids.end();
  size_t runs = ids.empty() ? 0 : 1;
  for (size_t i = 1; i < ids.size(); ++i) runs += ids[i] != ids[i - 1] + 1;
  if (sorted && !ids.empty() && ids.back() < UINT64_MAX / 2 && (ids.back() - ids.front()) / 8 + 1 < 2 * runs &&
      (ids.back() - ids.front()) / 8 < kMaxIdsInMessage) {
    out.Byte(kBits);
    out.Unsigned(ids.front());
    std::string bits((ids.back() - ids.front()) / 8 + 1, '\0');
    for (const uint64_t id : ids) bits[(id - ids.front()) / 8] |= static_cast<char>(1 << ((id - ids.front()) % 8));
    out.Bytes(bits);
    return;
  }
  out.Byte(kRuns);
  WriteRuns(ids, out);
}

// `budget`: how many more ids the message may hold.
std::vector<uint64_t> ReadIds(WireReader& in, size_t* budget) {
  std::vector<uint64_t> ids;
  const uint8_t form = in.Byte();
  if (form == kBits) {
    const uint64_t first = in.Unsigned();
    const std::string_view bits = in.Bytes(kMaxIdsInMessage);
    if (first > UINT64_MAX - 8 * kMaxIdsInMessage) in.Fail();
    for (size_t i = 0; i < bits.size() && in.ok(); ++i) {
      for (unsigned byte = static_cast<unsigned char>(bits[i]); byte != 0; byte &= byte - 1) {
        ids.push_back(first + 8 * i + static_cast<unsigned>(std::countr_zero(byte)));
      }
      if (ids.size() > *budget) in.Fail();
    }
  } else if (form == kRuns) {
    uint64_t last = 0;
    for (uint64_t runs = in.Count(2); runs > 0 && in.ok(); --runs) {
      const uint64_t first = last + static_cast<uint64_t>(in.Signed());
      const uint64_t count = in.Unsigned(*budget - ids.size());
      if (!in.ok()) break;
      for (uint64_t i = 0; i < count; ++i) ids.push_back(first + i);
      last = first + count;
    }
  } else {
    in.Fail();
  }
  if (!in.ok()) ids.clear();
  *budget -= ids.size();
  return ids;
}

bool IsCollective(uint8_t number) {
  return number >= static_cast<uint8_t>(Collective::kAllReduce) && number <= static_cast<uint8_t>(Collective::kJoin);
}

Collective ReadCollective(WireReader& in) {
  const uint8_t number = in.Byte();
  if (!IsCollective(number)) in.Fail();
  return in.ok() ? static_cast<Collective>(number) : Collective::kAllReduce;
}

DType ReadDType(WireReader& in) {
  const std::optional<DType> dtype = DTypeFromNumber(in.Byte());
  if (!dtype.has_value()) in.Fail();
  return dtype.value_or(DType::kFloat32);
}

uint32_t ReadGroup(WireReader& in) { return static_cast<uint32_t>(in.Unsigned(UINT32_MAX)); }
int ReadInt(WireReader& in) { return static_cast<int>(in.Unsigned(INT_MAX)); }

void WriteFields(const RequestFields& fields, WireWriter& out) {
  out.Byte(static_cast<uint8_t>(fields.kind));
  out.Unsigned(fields.group);
  out.Bytes(fields.name);
  out.Bytes(fields.origin);
  out.Byte(static_cast<uint8_t>(fields.dtype));
  out.SignedList(fields.shape);
  out.Byte(static_cast<uint8_t>(fields.op));
  out.Double(fields.prescale);
  out.Double(fields.postscale);
  out.Byte(fields.divide_by_size ? 1 : 0);
  out.Unsigned(static_cast<uint64_t>(fields.root));
  out.Unsigned(static_cast<uint64_t>(fields.peer));
  out.Signed(fields.tag);
  out.SignedList(fields.splits);
  out.Byte(static_cast<uint8_t>(fields.wire));
  out.Unsigned(static_cast<uint64_t>(fields.parts));
  out.Unsigned(static_cast<uint64_t>(fields.part));
}

RequestFields ReadFields(WireReader& in) {
  RequestFields fields;
  fields.kind = ReadCollective(in);
  fields.group = ReadGroup(in);
  fields.name = in.Bytes(kMaxNameBytes);
  fields.origin = in.Bytes(kMaxOriginBytes);
  fields.dtype = ReadDType(in);
  fields.shape = in.SignedList();
  const uint8_t op = in.Byte();
  if (op < static_cast<uint8_t>(ReduceOp::kSum) || op > static_cast<uint8_t>(ReduceOp::kAdasum)) in.Fail();
  if (in.ok()) fields.op = static_cast<ReduceOp>(op);
  fields.prescale = in.Double();
  fields.postscale = in.Double();
  const uint8_t divide = in.Byte();
  if (divide > 1) in.Fail();
  fields.divide_by_size = divide == 1;
  fields.root = ReadInt(in);
  fields.peer = ReadInt(in);
  fields.tag = in.Signed();
  fields.splits = in.SignedList();
  fields.wire = ReadDType(in);
  fields.parts = static_cast<int>(in.Unsigned(kMaxParts));
  fields.part = static_cast<int>(in.Unsigned(kMaxParts));
  if (fields.part >= fields.parts) in.Fail();
  // What a sender has checked; a shape's elements must be countable, here too.
  uint64_t elements = 1;
  if (fields.shape.size() > kMaxDims) in.Fail();
  for (const int64_t dim : fields.shape) {
    if (dim < 0 || __builtin_mul_overflow(elements, static_cast<uint64_t>(dim), &elements) || elements > uint64_t{1} << 59)
      in.Fail();
    if (!in.ok()) break;
  }
  for (const int64_t rows : fields.splits) {
    if (rows < 0) in.Fail();
  }
  return fields;
}

void WriteRanks(const std::vector<int>& ranks, WireWriter& out) {
  out.Unsigned(ranks.size());
  for (const int rank : ranks) out.Unsigned(static_cast<uint64_t>(rank));
}

std::vector<int> ReadRanks(WireReader& in) {
  std::vector<int> ranks(in.Count());
  for (int& rank : ranks) rank = ReadInt(in);
  return ranks;
}

enum TensorForm : uint8_t { kKnown = 0, kNamed = 1, kJoined = 2 };

void WriteExecution(const Execution& execution, WireWriter& out) {
  out.Byte(static_cast<uint8_t>(execution.kind));
  out.Unsigned(execution.group);
  out.SignedList(execution.received);
  const bool known = std::all_of(execution.tensors.begin(), execution.tensors.end(),
                                 [](const AgreedTensor& t) { return t.name.empty() && !t.joined; });
  std::vector<uint64_t> ids;
  ids.reserve(execution.tensors.size());
  for (const AgreedTensor& tensor : execution.tensors) ids.push_back(tensor.id);
  out.Byte(known ? 0 : 1);
  WriteIds(ids, out);
  if (known) return;
  for (const AgreedTensor& tensor : execution.tensors) {
    out.Byte(tensor.joined ? kJoined : tensor.name.empty() ? kKnown : kNamed);
    if (tensor.joined) {
      WriteFields(*tensor.joined, out);
    } else if (!tensor.name.empty()) {
      out.Bytes(tensor.name);
    }
  }
}

Execution ReadExecution(WireReader& in, size_t* budget) {
  Execution execution;
  execution.kind = ReadCollective(in);
  execution.group = ReadGroup(in);
  execution.received = in.SignedList();
  const uint8_t described = in.Byte();
  if (described > 1) in.Fail();
  for (const uint64_t id : ReadIds(in, budget)) execution.tensors.push_back({.id = id, .name = {}, .joined = {}});
  if (described == 0) return execution;
  for (AgreedTensor& tensor : execution.tensors) {
    if (!in.ok()) break;
    switch (in.Byte()) {
      case kKnown:
        break;
      case kNamed:
        tensor.name = in.Bytes(kMaxNameBytes);
        if (tensor.name.empty()) in.Fail();
        break;
      case kJoined:
        tensor.joined = std::make_shared<const RequestFields>(ReadFields(in));
        break;
      default:
        in.Fail();
    }
  }
  return execution;
}

}  // namespace

Difference Compare(const RequestFields& a, const RequestFields& b) {
  if (a.kind != b.kind || a.group != b.group || a.dtype != b.dtype || a.op != b.op || a.prescale != b.prescale ||
      a.postscale != b.postscale || a.divide_by_size != b.divide_by_size || a.root != b.root || a.peer != b.peer ||
      a.tag != b.tag || a.wire != b.wire || a.parts != b.parts || a.part != b.part || a.shape.size() != b.shape.size() ||
      a.splits.size() != b.splits.size() || a.name != b.name) {
    return Difference::kMore;
  }
  if (!a.shape.empty() && !std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1)) return Difference::kMore;
  if ((!a.shape.empty() && a.shape[0] != b.shape[0]) || a.splits != b.splits) return Difference::kRows;
  return Difference::kNone;
}

void EncodeIds(const std::vector<uint64_t>& ids, std::string* out) {
  WireWriter writer(out);
  WriteIds(ids, writer);
}

std::string EncodeRequests(const Requests& requests) {
  std::string bytes;
  WireWriter out(&bytes);
  out.Unsigned(requests.finished);
  out.Byte(requests.leaves ? 1 : 0);
  out.Unsigned(requests.refusals.size());
  for (const Refusal& refusal : requests.refusals) {
    out.Unsigned(refusal.group);
    out.Bytes(refusal.name);
    out.Unsigned(static_cast<uint64_t>(refusal.parts));
    out.Bytes(refusal.why);
  }
  WriteIds(requests.ids, out);
  out.Unsigned(requests.rows.size());
  for (const RequestRows& rows : requests.rows) {
    out.Unsigned(rows.id);
    out.Unsigned(static_cast<uint64_t>(rows.rows));
    out.SignedList(rows.splits);
  }
  out.Unsigned(requests.full.size());
  for (const RequestFields& fields : requests.full) WriteFields(fields, out);
  out.Unsigned(requests.cancels.size());
  for (const CancelRequest& cancel : requests.cancels) {
    out.Unsigned(cancel.group);
    out.Bytes(cancel.name);
    out.Bytes(cancel.why);
  }
  out.Unsigned(requests.groups.size());
  for (const GroupRequest& group : requests.groups) {
    out.Byte(group.remove ? 1 : 0);
    out.Bytes(group.name);
    WriteRanks(group.ranks, out);
  }
  return bytes;
}

Result<Requests> DecodeRequests(std::string_view bytes) {
  WireReader in(bytes);
  Requests requests;
  requests.finished = in.Unsigned();
  const uint8_t leaves = in.Byte();
  if (leaves > 1) in.Fail();
  requests.leaves = leaves == 1;
  for (uint64_t count = in.Count(4); count > 0 && in.ok(); --count) {
    Refusal& refusal = requests.refusals.emplace_back();
    refusal.group = ReadGroup(in);
    refusal.name = in.Bytes(kMaxNameBytes);
    refusal.parts = static_cast<int>(in.Unsigned(kMaxParts));
    refusal.why = in.Bytes(kMaxReasonBytes);
  }
  size_t budget = kMaxIdsInMessage;
  requests.ids = ReadIds(in, &budget);
  requests.rows.resize(in.Count(3));
  for (RequestRows& rows : requests.rows) {
    rows.id = in.Unsigned();
    rows.rows = static_cast<int64_t>(in.Unsigned(INT64_MAX));
    rows.splits = in.SignedList();
    for (const int64_t split : rows.splits) {
      if (split < 0) in.Fail();
    }
    if (!in.ok()) return Malformed("request");
  }
  for (uint64_t count = in.Count(16); count > 0 && in.ok(); --count) requests.full.push_back(ReadFields(in));
  for (uint64_t count = in.Count(2); count > 0 && in.ok(); --count) {
    CancelRequest& cancel = requests.cancels.emplace_back();
    cancel.group = ReadGroup(in);
    cancel.name = in.Bytes(kMaxNameBytes);
    cancel.why = in.Bytes(kMaxReasonBytes);
  }
  for (uint64_t count = in.Count(3); count > 0 && in.ok(); --count) {
    GroupRequest& group = requests.groups.emplace_back();
    const uint8_t remove = in.Byte();
    if (remove > 1) in.Fail();
    group.remove = remove == 1;
    group.name = in.Bytes(kMaxNameBytes);
    group.ranks = ReadRanks(in);
  }
  if (!in.done()) return Malformed("request");
  return requests;
}

std::string EncodeAgreement(const Agreement& agreement) {
  std::string bytes;
  WireWriter out(&bytes);
  out.Byte(agreement.goodbye ? 1 : 0);
  out.Unsigned(agreement.groups.size());
  for (const GroupAnswer& group : agreement.groups) {
    out.Byte(group.remove ? 1 : 0);
    out.Bytes(group.name);
    out.Unsigned(group.id);
    WriteRanks(group.ranks, out);
    WriteStatus(group.status, out);
  }
  WriteIds(agreement.forget, out);
  out.Unsigned(agreement.executions.size());
  for (const auto& execution : agreement.executions) WriteExecution(*execution, out);
  out.Unsigned(agreement.errors.size());
  for (const NameError& error : agreement.errors) {
    out.Unsigned(error.group);
    out.Bytes(error.name);
    WriteStatus(error.status, out);
  }
  return bytes;
}

Result<Agreement> DecodeAgreement(std::string_view bytes) {
  WireReader in(bytes);
  Agreement agreement;
  const uint8_t goodbye = in.Byte();
  if (goodbye > 1) in.Fail();
  agreement.goodbye = goodbye == 1;
  for (uint64_t count = in.Count(5); count > 0 && in.ok(); --count) {
    GroupAnswer& group = agreement.groups.emplace_back();
    const uint8_t remove = in.Byte();
    if (remove > 1) in.Fail();
    group.remove = remove == 1;
    group.name = in.Bytes(kMaxNameBytes);
    group.id = ReadGroup(in);
    group.ranks = ReadRanks(in);
    group.status = ReadStatus(in);
  }
  size_t budget = kMaxIdsInMessage;
  agreement.forget = ReadIds(in, &budget);
  for (uint64_t count = in.Count(4); count > 0 && in.ok(); --count)
    agreement.executions.push_back(std::make_shared<const Execution>(ReadExecution(in, &budget)));
  for (uint64_t count = in.Count(4); count > 0 && in.ok(); --count) {
    NameError& error = agreement.errors.emplace_back();
    error.group = ReadGroup(in);
    error.name = in.Bytes(kMaxNameBytes);
    error.status = ReadStatus(in);
    if (error.status.ok()) in.Fail();
  }
  if (!in.done()) return Malformed("agreement");
  return agreement;
}

}  // namespace mxrec
