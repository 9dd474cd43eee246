// The border between mxrec::Status and TensorFlow's: codes are translated here and nowhere else.
//
// Both have the canonical codes under the same numbers. tensorflow::Status has been another name of absl::Status since
// TensorFlow 2.13, so the same code serves 2.15 and 2.21. The Abseil meant here is the one inside TensorFlow.
#ifndef MXREC_TF_STATUS_ADAPTER_H_
#define MXREC_TF_STATUS_ADAPTER_H_

#include <string>

#include "absl/status/status.h"
#include "mxrec/base/status.h"

namespace mxrec {

using TfStatus = absl::Status;

// Same code, same text.
inline TfStatus ToTf(const Status& status) {
  if (status.ok()) return TfStatus();
  const std::string_view text = status.message();
  return TfStatus(static_cast<absl::StatusCode>(status.code()), {text.data(), text.size()});
}

// A failure inside TensorFlow (an allocation, an attribute) that has to pass through the engine. Codes the engine does not
// have become kInternal.
inline Status FromTf(const TfStatus& status) {
  if (status.ok()) return Status();
  StatusCode code = static_cast<StatusCode>(static_cast<int>(status.code()));
  if (StatusCodeName(code) == "UNKNOWN") code = StatusCode::kInternal;
  return Status(code, std::string(status.message()));
}

}  // namespace mxrec

// Hands a failure of TensorFlow on to TensorFlow.
#define MXREC_TF_RETURN_IF_ERROR(expr)                                                                \
  do {                                                                                                \
    if (::mxrec::TfStatus mxrec_tf_status_ = (expr); !mxrec_tf_status_.ok()) return mxrec_tf_status_; \
  } while (false)

#endif  // MXREC_TF_STATUS_ADAPTER_H_
