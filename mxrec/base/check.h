// MXREC_CHECK(condition) << "details": stops the process when our own code is wrong.
//
// For invariants only. Anything a caller, a file or the machine can cause is a Status (base/status.h).
// MXREC_DCHECK is the same in debug builds and nothing (its condition is not evaluated) in release builds.
#ifndef MXREC_BASE_CHECK_H_
#define MXREC_BASE_CHECK_H_

#include <sstream>

namespace mxrec::internal {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  template <typename T>
  CheckFailure& operator<<(const T& value) {
    text_ << value;
    return *this;
  }

 private:
  std::ostringstream text_;
};

struct CheckVoidify {
  void operator&(const CheckFailure&) {}
};

}  // namespace mxrec::internal

#define MXREC_CHECK(condition)       \
  (condition) ? static_cast<void>(0) \
              : ::mxrec::internal::CheckVoidify() & ::mxrec::internal::CheckFailure(__FILE__, __LINE__, #condition)

#ifdef NDEBUG
#define MXREC_DCHECK(condition) MXREC_CHECK(true || (condition))
#else
#define MXREC_DCHECK(condition) MXREC_CHECK(condition)
#endif

#endif  // MXREC_BASE_CHECK_H_
