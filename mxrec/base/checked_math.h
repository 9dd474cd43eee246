// CheckedAdd, CheckedMul: sizes and offsets that come from outside (files, arguments) are combined with these.
//
// `what` names the quantity in the failure: kInvalidArgument "<what>: <a> * <b> does not fit into 64 bits".
#ifndef MXREC_BASE_CHECKED_MATH_H_
#define MXREC_BASE_CHECKED_MATH_H_

#include <cstdint>
#include <string_view>

#include "mxrec/base/status.h"

namespace mxrec {

namespace internal {
Status OverflowError(uint64_t a, char operation, uint64_t b, std::string_view what);
}  // namespace internal

inline Result<uint64_t> CheckedAdd(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return internal::OverflowError(a, '+', b, what);
  return sum;
}

inline Result<uint64_t> CheckedMul(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) return internal::OverflowError(a, '*', b, what);
  return product;
}

}  // namespace mxrec

#endif  // MXREC_BASE_CHECKED_MATH_H_
