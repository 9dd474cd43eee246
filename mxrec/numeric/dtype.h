// DType: element types of stored and exchanged arrays. The numbers are stored in files: they never change.
#ifndef MXREC_NUMERIC_DTYPE_H_
#define MXREC_NUMERIC_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mxrec {

enum class DType : uint8_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  kInt8 = 5,
  kInt16 = 6,
  kInt32 = 7,
  kInt64 = 8,
  kUInt8 = 9,
  kUInt16 = 10,
  kUInt32 = 11,
  kUInt64 = 12,
  kBool = 13,
};

// Bytes of one element; 0 for a number that names no type (as read from a file).
size_t DTypeSize(DType dtype);
// "float32", "bfloat16", ... as NumPy and TensorFlow write them; "unknown" for a number that names no type.
std::string_view DTypeName(DType dtype);
// The type of a name or of a stored number; nullopt when there is none.
std::optional<DType> DTypeFromName(std::string_view name);
std::optional<DType> DTypeFromNumber(uint32_t number);
bool IsFloating(DType dtype);

}  // namespace mxrec

#endif  // MXREC_NUMERIC_DTYPE_H_
