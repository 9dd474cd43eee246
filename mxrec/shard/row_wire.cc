#include "mxrec/shard/row_wire.h"

#include <cstring>

#include "mxrec/comm/control/wire_bytes.h"

namespace mxrec::internal {
namespace {

enum Column : uint8_t { kCounts = 1, kTimes = 2, kStamps = 4 };

template <typename T>
void Put(const T* column, size_t count, std::string* out) {
  out->append(reinterpret_cast<const char*>(column), count * sizeof(T));
}

template <typename T>
void Take(size_t count, std::string_view* bytes, std::vector<T>* column) {
  column->resize(count);
  if (count > 0) std::memcpy(column->data(), bytes->data(), count * sizeof(T));
  bytes->remove_prefix(count * sizeof(T));
}

Status NotRows() { return DataLossError("what an owner sent are no rows of this table"); }

}  // namespace

void OwnedRows::Append(const RowBlock& from, size_t i, size_t dim, size_t slot_floats) {
  keys.push_back(from.keys[i]);
  values.insert(values.end(), from.values + i * dim, from.values + (i + 1) * dim);
  if (slot_floats > 0) slots.insert(slots.end(), from.slots + i * slot_floats, from.slots + (i + 1) * slot_floats);
  if (from.last_seen_ms != nullptr) last_seen_ms.push_back(from.last_seen_ms[i]);
  if (from.use_counts != nullptr) use_counts.push_back(from.use_counts[i]);
  if (from.use_stamps != nullptr) use_stamps.push_back(from.use_stamps[i]);
}

RowBlock OwnedRows::block() const {
  RowBlock rows;
  rows.count = keys.size();
  rows.keys = keys.data();
  rows.values = values.data();
  rows.slots = slots.data();
  rows.use_counts = use_counts.empty() ? nullptr : use_counts.data();
  rows.last_seen_ms = last_seen_ms.empty() ? nullptr : last_seen_ms.data();
  rows.use_stamps = use_stamps.empty() ? nullptr : use_stamps.data();
  return rows;
}

void OwnedRows::clear() {
  keys.clear();
  last_seen_ms.clear();
  values.clear();
  slots.clear();
  use_counts.clear();
  use_stamps.clear();
}

std::string EncodeRows(const RowBlock& rows, size_t dim, size_t slot_floats) {
  std::string bytes;
  bytes.reserve(16 + rows.count * (24 + (dim + slot_floats) * sizeof(float)));
  WireWriter out(&bytes);
  out.Byte(static_cast<uint8_t>((rows.use_counts != nullptr ? kCounts : 0) | (rows.last_seen_ms != nullptr ? kTimes : 0) |
                                (rows.use_stamps != nullptr ? kStamps : 0)));
  out.Unsigned(rows.count);
  Put(rows.keys, rows.count, &bytes);
  Put(rows.values, rows.count * dim, &bytes);
  if (slot_floats > 0) Put(rows.slots, rows.count * slot_floats, &bytes);
  if (rows.use_counts != nullptr) Put(rows.use_counts, rows.count, &bytes);
  if (rows.last_seen_ms != nullptr) Put(rows.last_seen_ms, rows.count, &bytes);
  if (rows.use_stamps != nullptr) Put(rows.use_stamps, rows.count, &bytes);
  return bytes;
}

Result<OwnedRows> DecodeRows(std::string_view bytes, size_t dim, size_t slot_floats) {
  WireReader in(bytes);
  const uint8_t columns = in.Byte();
  const uint64_t count = in.Unsigned();
  std::string_view rest = in.Rest();
  const size_t row_bytes = sizeof(uint64_t) + (dim + slot_floats) * sizeof(float) + (columns & kCounts ? sizeof(uint32_t) : 0) +
                           (columns & kTimes ? sizeof(uint64_t) : 0) + (columns & kStamps ? sizeof(uint32_t) : 0);
  if (!in.ok() || columns > (kCounts | kTimes | kStamps) || count > rest.size() / row_bytes || rest.size() != count * row_bytes) {
    return NotRows();
  }
  OwnedRows rows;
  Take(count, &rest, &rows.keys);
  Take(count * dim, &rest, &rows.values);
  Take(count * slot_floats, &rest, &rows.slots);
  if (columns & kCounts) Take(count, &rest, &rows.use_counts);
  if (columns & kTimes) Take(count, &rest, &rows.last_seen_ms);
  if (columns & kStamps) Take(count, &rest, &rows.use_stamps);
  return rows;
}

std::string EncodeCandidates(std::span<const Candidate> candidates) {
  std::string bytes;
  WireWriter out(&bytes);
  out.Unsigned(candidates.size());
  for (const Candidate& candidate : candidates) {
    Put(&candidate.key, 1, &bytes);
    Put(&candidate.last_seen_ms, 1, &bytes);
    Put(&candidate.count, 1, &bytes);
  }
  return bytes;
}

Result<std::vector<Candidate>> DecodeCandidates(std::string_view bytes) {
  constexpr size_t kBytes = 2 * sizeof(uint64_t) + sizeof(uint32_t);
  WireReader in(bytes);
  const uint64_t count = in.Unsigned();
  const std::string_view rest = in.Rest();
  if (!in.ok() || count > rest.size() / kBytes || rest.size() != count * kBytes) return NotRows();
  std::vector<Candidate> candidates(count);
  const char* from = rest.data();
  for (Candidate& candidate : candidates) {
    std::memcpy(&candidate.key, from, sizeof(uint64_t));
    std::memcpy(&candidate.last_seen_ms, from + sizeof(uint64_t), sizeof(uint64_t));
    std::memcpy(&candidate.count, from + 2 * sizeof(uint64_t), sizeof(uint32_t));
    from += kBytes;
  }
  return candidates;
}

}  // namespace mxrec::internal
