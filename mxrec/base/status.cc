#include "mxrec/base/status.h"

namespace mxrec {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kCancelled:
      return "CANCELLED";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case StatusCode::kAborted:
      return "ABORTED";
    case StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kDataLoss:
      return "DATA_LOSS";
  }
  return "UNKNOWN";
}

Status::Status(StatusCode code, std::string message) {
  if (code != StatusCode::kOk) rep_ = std::make_unique<Rep>(Rep{code, std::move(message)});
}

Status::Status(const Status& other) : rep_(other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr) {}

Status& Status::operator=(const Status& other) {
  if (this != &other) rep_ = other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr;
  return *this;
}

// Never a null pointer, even when empty: callers hand data() to memcpy and to C.
std::string_view Status::message() const { return rep_ ? std::string_view(rep_->message) : std::string_view(""); }

std::string Status::ToString() const {
  if (ok()) return "OK";
  std::string text(StatusCodeName(code()));
  text += ": ";
  text += rep_->message;
  return text;
}

Status CancelledError(std::string message) { return Status(StatusCode::kCancelled, std::move(message)); }
Status InvalidArgumentError(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }
Status NotFoundError(std::string message) { return Status(StatusCode::kNotFound, std::move(message)); }
Status AlreadyExistsError(std::string message) { return Status(StatusCode::kAlreadyExists, std::move(message)); }
Status PermissionDeniedError(std::string message) { return Status(StatusCode::kPermissionDenied, std::move(message)); }
Status ResourceExhaustedError(std::string message) { return Status(StatusCode::kResourceExhausted, std::move(message)); }
Status FailedPreconditionError(std::string message) { return Status(StatusCode::kFailedPrecondition, std::move(message)); }
Status AbortedError(std::string message) { return Status(StatusCode::kAborted, std::move(message)); }
Status UnimplementedError(std::string message) { return Status(StatusCode::kUnimplemented, std::move(message)); }
Status InternalError(std::string message) { return Status(StatusCode::kInternal, std::move(message)); }
Status UnavailableError(std::string message) { return Status(StatusCode::kUnavailable, std::move(message)); }
Status DataLossError(std::string message) { return Status(StatusCode::kDataLoss, std::move(message)); }

}  // namespace mxrec
