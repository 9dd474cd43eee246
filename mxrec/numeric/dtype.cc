#include "mxrec/numeric/dtype.h"

#include <array>

namespace mxrec {
namespace {

struct Entry {
  DType dtype;
  uint8_t size;
  bool floating;
  std::string_view name;
};

constexpr std::array<Entry, 13> kEntries = {{
    {DType::kFloat32, 4, true, "float32"},
    {DType::kFloat64, 8, true, "float64"},
    {DType::kFloat16, 2, true, "float16"},
    {DType::kBFloat16, 2, true, "bfloat16"},
    {DType::kInt8, 1, false, "int8"},
    {DType::kInt16, 2, false, "int16"},
    {DType::kInt32, 4, false, "int32"},
    {DType::kInt64, 8, false, "int64"},
    {DType::kUInt8, 1, false, "uint8"},
    {DType::kUInt16, 2, false, "uint16"},
    {DType::kUInt32, 4, false, "uint32"},
    {DType::kUInt64, 8, false, "uint64"},
    {DType::kBool, 1, false, "bool"},
}};

const Entry* Find(uint32_t number) { return number >= 1 && number <= kEntries.size() ? &kEntries[number - 1] : nullptr; }

constexpr bool InOrder() {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (static_cast<size_t>(kEntries[i].dtype) != i + 1) return false;
  }
  return true;
}
static_assert(InOrder());

}  // namespace

size_t DTypeSize(DType dtype) {
  const Entry* entry = Find(static_cast<uint32_t>(dtype));
  return entry != nullptr ? entry->size : 0;
}

std::string_view DTypeName(DType dtype) {
  const Entry* entry = Find(static_cast<uint32_t>(dtype));
  return entry != nullptr ? entry->name : "unknown";
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromNumber(uint32_t number) {
  const Entry* entry = Find(number);
  if (entry == nullptr) return std::nullopt;
  return entry->dtype;
}

bool IsFloating(DType dtype) {
  const Entry* entry = Find(static_cast<uint32_t>(dtype));
  return entry != nullptr && entry->floating;
}

}  // namespace mxrec
