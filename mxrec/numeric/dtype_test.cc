#include "mxrec/numeric/dtype.h"

#include <gtest/gtest.h>

namespace mxrec {
namespace {

TEST(DTypeTest, NamesNumbersAndSizesGoBothWays) {
  const std::pair<std::string_view, size_t> expected[] = {
      {"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2}, {"int8", 1},   {"int16", 2}, {"int32", 4},
      {"int64", 8},   {"uint8", 1},   {"uint16", 2},  {"uint32", 4},   {"uint64", 8}, {"bool", 1}};
  uint32_t number = 1;
  for (const auto& [name, size] : expected) {
    const auto dtype = DTypeFromNumber(number);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(static_cast<uint32_t>(*dtype), number);
    EXPECT_EQ(DTypeName(*dtype), name);
    EXPECT_EQ(DTypeSize(*dtype), size) << name;
    EXPECT_EQ(DTypeFromName(name), dtype);
    EXPECT_EQ(IsFloating(*dtype), name.find("float") != std::string_view::npos) << name;
    ++number;
  }
}

TEST(DTypeTest, UnknownNumbersAndNamesAreHarmless) {
  for (const uint32_t number : {0u, 14u, 255u, 256u, 257u, ~0u}) EXPECT_EQ(DTypeFromNumber(number), std::nullopt);
  EXPECT_EQ(DTypeFromName("float"), std::nullopt);
  EXPECT_EQ(DTypeFromName(""), std::nullopt);
  EXPECT_EQ(DTypeSize(static_cast<DType>(200)), 0u);
  EXPECT_EQ(DTypeName(static_cast<DType>(0)), "unknown");
}

}  // namespace
}  // namespace mxrec
