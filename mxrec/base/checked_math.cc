#include "mxrec/base/checked_math.h"

#include <string>

namespace mxrec::internal {

Status OverflowError(uint64_t a, char operation, uint64_t b, std::string_view what) {
  std::string text(what);
  text += ": " + std::to_string(a) + " " + operation + " " + std::to_string(b) + " does not fit into 64 bits";
  return InvalidArgumentError(std::move(text));
}

}  // namespace mxrec::internal
