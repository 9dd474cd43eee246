// ByteWriter, ByteReader: little-endian numbers in the fixed parts of a table file.
//
// The columns of a block are read and written in place, as the CPU holds them; a big-endian port would swap them there.
#ifndef MXREC_CKPT_FORMAT_BYTES_H_
#define MXREC_CKPT_FORMAT_BYTES_H_

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "mxrec/io/little_endian.h"

namespace mxrec::format {

static_assert(std::endian::native == std::endian::little, "columns are stored little-endian and used in place");

class ByteWriter {
 public:
  template <typename T>
  void Number(T value) {
    AppendLittleEndian(value, &bytes_);
  }
  void Raw(std::string_view bytes) { bytes_.append(bytes); }
  // Length (u32), then the bytes.
  void Text(std::string_view text) {
    Number(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  const std::string& bytes() const { return bytes_; }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads past the end set failed() and give zeros; the caller checks once at the end.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  T Number() {
    const std::string_view raw = Raw(sizeof(T));
    return raw.size() == sizeof(T) ? LoadLittleEndian<T>(raw.data()) : T{};
  }
  std::string_view Raw(uint64_t count) {
    if (failed_ || count > bytes_.size() - position_) {
      failed_ = true;
      return {};
    }
    const std::string_view raw = bytes_.substr(position_, count);
    position_ += count;
    return raw;
  }
  std::string_view Text() { return Raw(Number<uint32_t>()); }
  bool failed() const { return failed_; }
  uint64_t left() const { return bytes_.size() - position_; }

 private:
  std::string_view bytes_;
  uint64_t position_ = 0;
  bool failed_ = false;
};

}  // namespace mxrec::format

#endif  // MXREC_CKPT_FORMAT_BYTES_H_
