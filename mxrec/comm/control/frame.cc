#include "mxrec/comm/control/frame.h"

#include <cstring>

#include "mxrec/io/little_endian.h"

namespace mxrec {

void AppendFrame(uint8_t type, std::string_view payload, std::string* out) {
  MXREC_CHECK(payload.size() <= kMaxFrameBytes) << payload.size();
  AppendLittleEndian(static_cast<uint32_t>(payload.size()), out);
  out->push_back(static_cast<char>(type));
  out->append(payload);
}

char* FrameReader::Reserve(size_t bytes) {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0 && buffer_.size() - end_ < bytes) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() - end_ < bytes) buffer_.resize(std::max(end_ + bytes, 2 * buffer_.size()));
  return buffer_.data() + end_;
}

void FrameReader::Append(std::string_view bytes) {
  if (bytes.empty()) return;
  std::memcpy(Reserve(bytes.size()), bytes.data(), bytes.size());
  Filled(bytes.size());
}

Result<std::optional<Frame>> FrameReader::Next() {
  if (end_ - begin_ < kFrameHeaderBytes) return std::optional<Frame>();
  const char* const at = buffer_.data() + begin_;
  const size_t payload = LoadLittleEndian<uint32_t>(at);
  if (payload > max_payload_) {
    return DataLossError("a message of " + std::to_string(payload) + " bytes is announced, at most " +
                         std::to_string(max_payload_) + " are allowed here");
  }
  if (end_ - begin_ - kFrameHeaderBytes < payload) return std::optional<Frame>();
  begin_ += kFrameHeaderBytes + payload;
  return std::optional<Frame>({.type = static_cast<uint8_t>(at[4]), .payload = std::string_view(at + kFrameHeaderBytes, payload)});
}

}  // namespace mxrec
