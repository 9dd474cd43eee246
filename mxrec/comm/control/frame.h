// Frames: how messages between ranks are cut out of a byte stream. 4 bytes length of the payload (little-endian), 1 byte type,
// payload.
#ifndef MXREC_COMM_CONTROL_FRAME_H_
#define MXREC_COMM_CONTROL_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "mxrec/base/status.h"

namespace mxrec {

inline constexpr size_t kFrameHeaderBytes = 5;
// Before a peer has proved that it belongs to us, and after.
inline constexpr size_t kMaxHelloBytes = 8 << 10;
inline constexpr size_t kMaxFrameBytes = 64 << 20;

struct Frame {
  uint8_t type = 0;
  std::string_view payload;
};

void AppendFrame(uint8_t type, std::string_view payload, std::string* out);

// Takes bytes as they come, gives frames. Memory grows with the bytes that have come, not with what a header promises.
class FrameReader {
 public:
  explicit FrameReader(size_t max_payload) : max_payload_(max_payload) {}
  void set_max_payload(size_t bytes) { max_payload_ = bytes; }
  // Room for at least `bytes` more; Filled() says how many were put there.
  char* Reserve(size_t bytes);
  size_t room() const { return buffer_.size() - end_; }
  void Filled(size_t bytes) { end_ += bytes; }
  void Append(std::string_view bytes);
  // The next whole frame, valid until the next call of any function; nullopt: more bytes are needed. DataLoss: longer than allowed;
  // the stream cannot be read on.
  Result<std::optional<Frame>> Next();

 private:
  size_t max_payload_;
  std::string buffer_;
  size_t begin_ = 0, end_ = 0;
};

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROL_FRAME_H_
