// Status as it travels: code and message.
#ifndef MXREC_COMM_CONTROL_STATUS_WIRE_H_
#define MXREC_COMM_CONTROL_STATUS_WIRE_H_

#include "mxrec/base/status.h"
#include "mxrec/comm/control/wire_bytes.h"

namespace mxrec {

inline constexpr size_t kMaxStatusText = 16 << 10;

inline bool IsStatusCode(uint64_t number) {
  switch (static_cast<StatusCode>(number)) {
    case StatusCode::kOk:
    case StatusCode::kCancelled:
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kAlreadyExists:
    case StatusCode::kPermissionDenied:
    case StatusCode::kResourceExhausted:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kAborted:
    case StatusCode::kUnimplemented:
    case StatusCode::kInternal:
    case StatusCode::kUnavailable:
    case StatusCode::kDataLoss:
      return number <= static_cast<uint64_t>(StatusCode::kDataLoss);
  }
  return false;
}

inline void WriteStatus(const Status& status, WireWriter& out) {
  out.Unsigned(static_cast<uint64_t>(status.code()));
  out.Bytes(status.message().substr(0, kMaxStatusText));
}

inline Status ReadStatus(WireReader& in) {
  const uint64_t code = in.Unsigned(static_cast<uint64_t>(StatusCode::kDataLoss));
  const std::string_view text = in.Bytes(kMaxStatusText);
  if (!IsStatusCode(code)) in.Fail();
  if (!in.ok() || code == 0) return OkStatus();
  return Status(static_cast<StatusCode>(code), std::string(text));
}

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROL_STATUS_WIRE_H_
