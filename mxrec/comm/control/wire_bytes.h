// Numbers and strings of the messages between ranks: varints, length-prefixed bytes. A reader never fails by throwing or by reading
// past the end: once something is wrong, ok() is false and every later value is zero or empty.
#ifndef MXREC_COMM_CONTROL_WIRE_BYTES_H_
#define MXREC_COMM_CONTROL_WIRE_BYTES_H_

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/io/little_endian.h"
#include "mxrec/io/varint.h"

namespace mxrec {

class WireWriter {
 public:
  explicit WireWriter(std::string* out) : out_(out) {}
  void Byte(uint8_t value) { out_->push_back(static_cast<char>(value)); }
  void Unsigned(uint64_t value) { AppendVarint(value, out_); }
  // Small numbers of either sign are short.
  void Signed(int64_t value) { AppendVarint(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63), out_); }
  void Double(double value) { AppendLittleEndian(value, out_); }
  void Bytes(std::string_view bytes) {
    AppendVarint(bytes.size(), out_);
    out_->append(bytes);
  }
  void SignedList(const std::vector<int64_t>& values) {
    Unsigned(values.size());
    for (const int64_t value : values) Signed(value);
  }

 private:
  std::string* out_;
};

class WireReader {
 public:
  explicit WireReader(std::string_view in) : in_(in) {}
  // Everything so far was there and in range.
  bool ok() const { return ok_; }
  // ok() and nothing is left.
  bool done() const { return ok_ && in_.empty(); }
  void Fail() { ok_ = false; }

  uint8_t Byte() {
    if (!ok_ || in_.empty()) return Failed();
    const auto value = static_cast<uint8_t>(in_.front());
    in_.remove_prefix(1);
    return value;
  }
  // At most `max`.
  uint64_t Unsigned(uint64_t max = UINT64_MAX) {
    uint64_t value = 0;
    if (!ok_ || !ConsumeVarint(&in_, &value) || value > max) return Failed();
    return value;
  }
  int64_t Signed() {
    const uint64_t value = Unsigned();
    return static_cast<int64_t>(value >> 1 ^ (~(value & 1) + 1));
  }
  double Double() {
    if (!ok_ || in_.size() < sizeof(double)) return Failed();
    const double value = LoadLittleEndian<double>(in_.data());
    in_.remove_prefix(sizeof(double));
    return value;
  }
  std::string_view Bytes(uint64_t max_bytes) {
    const uint64_t bytes = Unsigned(max_bytes);
    if (!ok_ || bytes > in_.size()) return Failed(), std::string_view();
    const std::string_view value = in_.substr(0, bytes);
    in_.remove_prefix(bytes);
    return value;
  }
  // A count of things that take at least `bytes_each` bytes: more than can follow are refused before anything is allocated.
  uint64_t Count(uint64_t bytes_each = 1) {
    const uint64_t count = Unsigned();
    if (!ok_ || count > in_.size() / bytes_each) return Failed();
    return count;
  }
  std::vector<int64_t> SignedList() {
    std::vector<int64_t> values(Count());
    for (int64_t& value : values) value = Signed();
    return ok_ ? std::move(values) : std::vector<int64_t>();
  }
  std::string_view Rest() {
    const std::string_view rest = ok_ ? in_ : std::string_view();
    in_ = {};
    return rest;
  }

 private:
  uint8_t Failed() {
    ok_ = false;
    return 0;
  }

  std::string_view in_;
  bool ok_ = true;
};

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROL_WIRE_BYTES_H_
