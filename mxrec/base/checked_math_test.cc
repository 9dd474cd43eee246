#include "mxrec/base/checked_math.h"

#include <gtest/gtest.h>

#include <limits>

namespace mxrec {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(CheckedMathTest, FittingResultsComeBack) {
  EXPECT_EQ(*CheckedAdd(kMax - 1, 1, "bytes"), kMax);
  EXPECT_EQ(*CheckedMul(uint64_t{1} << 32, (uint64_t{1} << 32) - 1, "bytes"), kMax - ((uint64_t{1} << 32) - 1));
  EXPECT_EQ(*CheckedMul(0, kMax, "bytes"), 0u);
}

TEST(CheckedMathTest, OverflowNamesTheQuantity) {
  const auto sum = CheckedAdd(kMax, 1, "bytes of table user");
  EXPECT_EQ(sum.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sum.status().message(), "bytes of table user: 18446744073709551615 + 1 does not fit into 64 bits");
  const auto product = CheckedMul(uint64_t{1} << 32, uint64_t{1} << 32, "rows * dim");
  EXPECT_EQ(product.status().message(), "rows * dim: 4294967296 * 4294967296 does not fit into 64 bits");
}

}  // namespace
}  // namespace mxrec
