// Status and Result<T>: how every fallible call of the engine reports failure.
//
// The world, the data or the caller can cause a failure: return a Status. Only our own bug can cause it:
// MXREC_CHECK (base/check.h). Which code to choose:
//   kInvalidArgument     an argument is wrong whatever the state of the system
//   kFailedPrecondition  the state is wrong (another optimizer is attached, the table has another dim): fix it first
//   kNotFound            a named thing (file, table, step) does not exist
//   kAlreadyExists       a thing that was to be created exists
//   kResourceExhausted   capacity, byte cap, disk or memory is used up
//   kDataLoss            stored bytes are damaged, short or foreign
//   kUnavailable         try the same call again
//   kCancelled           the caller gave up
//   kPermissionDenied    the file system refuses
//   kUnimplemented       a version of the format or an option this build does not know
//   kInternal            none of the above
// One pointer wide; null means OK, so passing success around costs nothing. Copying a failure copies its message.
// Threads: a Status is a value; concurrent const access is safe.
#ifndef MXREC_BASE_STATUS_H_
#define MXREC_BASE_STATUS_H_

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "mxrec/base/check.h"

namespace mxrec {

enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

// "INVALID_ARGUMENT", ...
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message);
  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;

  bool ok() const { return rep_ == nullptr; }
  StatusCode code() const { return rep_ ? rep_->code : StatusCode::kOk; }
  // Empty when ok().
  std::string_view message() const;
  // "OK" or "DATA_LOSS: <message>".
  std::string ToString() const;

  friend bool operator==(const Status& a, const Status& b) { return a.code() == b.code() && a.message() == b.message(); }
  friend std::ostream& operator<<(std::ostream& os, const Status& s) { return os << s.ToString(); }

 private:
  struct Rep {
    StatusCode code;
    std::string message;
  };
  std::unique_ptr<Rep> rep_;
};

inline Status OkStatus() { return Status(); }
Status CancelledError(std::string message);
Status InvalidArgumentError(std::string message);
Status NotFoundError(std::string message);
Status AlreadyExistsError(std::string message);
Status PermissionDeniedError(std::string message);
Status ResourceExhaustedError(std::string message);
Status FailedPreconditionError(std::string message);
Status AbortedError(std::string message);
Status UnimplementedError(std::string message);
Status InternalError(std::string message);
Status UnavailableError(std::string message);
Status DataLossError(std::string message);

// A T or the failure that kept it from being made. value() on a failure is a bug of the caller (aborts).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    MXREC_CHECK(!status_.ok()) << "a Result needs a value or a failure";
  }
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose

  bool ok() const { return status_.ok(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }

  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(Checked()); }
  T& operator*() & { return Checked(); }
  const T& operator*() const& { return const_cast<Result*>(this)->Checked(); }
  T&& operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &const_cast<Result*>(this)->Checked(); }

 private:
  T& Checked() {
    MXREC_CHECK(value_.has_value()) << status_.ToString();
    return *value_;
  }
  Status status_;
  std::optional<T> value_;
};

}  // namespace mxrec

#define MXREC_RETURN_IF_ERROR(expr)                                                        \
  do {                                                                                     \
    if (::mxrec::Status mxrec_status_ = (expr); !mxrec_status_.ok()) return mxrec_status_; \
  } while (false)

#define MXREC_CONCAT_INNER_(a, b) a##b
#define MXREC_CONCAT_(a, b) MXREC_CONCAT_INNER_(a, b)
// MXREC_ASSIGN_OR_RETURN(auto x, MakeX());
#define MXREC_ASSIGN_OR_RETURN(lhs, expr) MXREC_ASSIGN_OR_RETURN_IMPL_(MXREC_CONCAT_(mxrec_result_, __LINE__), lhs, expr)
#define MXREC_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return std::move(tmp).status();     \
  lhs = std::move(tmp).value()

#endif  // MXREC_BASE_STATUS_H_
