#include "mxrec/base/check.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace mxrec::internal {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  text_ << file << ":" << line << ": check failed: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  // One write, no allocation by iostreams of stderr: other threads may be in any state.
  std::string text = text_.str();
  text.push_back('\n');
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::abort();
}

}  // namespace mxrec::internal
