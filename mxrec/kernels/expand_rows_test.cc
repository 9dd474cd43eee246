#include "mxrec/kernels/expand_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "mxrec/kernels/simd_targets.h"

namespace mxrec {
namespace {

TEST(ExpandRowsTest, EveryTargetEqualsTheReferenceForManyWidths) {
  std::mt19937 random(1);
  ForEachSimdTarget([&](const char* target) {
    for (size_t dim = 1; dim <= 130; ++dim) {
      const size_t unique = 7, n = 41;
      std::vector<float> rows(unique * dim);
      for (float& x : rows) x = static_cast<float>(random());
      std::vector<int32_t> inverse(n);
      for (int32_t& i : inverse) i = static_cast<int32_t>(random() % unique);
      // One float before and after must stay as they are.
      std::vector<float> out(n * dim + 2, -5.0f), expected = out;
      EXPECT_EQ(ExpandRows(rows.data(), unique, dim, inverse.data(), n, out.data() + 1), n);
      EXPECT_EQ(ExpandRowsReference(rows.data(), unique, dim, inverse.data(), n, expected.data() + 1), n);
      ASSERT_EQ(out, expected) << target << " dim " << dim;
    }
  });
}

TEST(ExpandRowsTest, KeepsEveryBitOfNaNAndNegativeZero) {
  const uint32_t bits[4] = {0x7FC12345u, 0x80000000u, 0xFFC00001u, 0x00000001u};
  float rows[4], out[4];
  std::memcpy(rows, bits, sizeof(rows));
  const int32_t inverse = 0;
  ForEachSimdTarget([&](const char* target) {
    ASSERT_EQ(ExpandRows(rows, 1, 4, &inverse, 1, out), 1u);
    EXPECT_EQ(std::memcmp(rows, out, sizeof(rows)), 0) << target;
  });
}

TEST(ExpandRowsTest, StopsAtTheFirstPositionOutOfRangeAndWritesNothingAtOrAfterIt) {
  const std::vector<float> rows = {1, 2, 3, 4};
  ForEachSimdTarget([&](const char* target) {
    for (const int32_t bad : {2, -1, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
      for (size_t where = 0; where < 5; ++where) {
        std::vector<int32_t> inverse = {0, 1, 0, 1, 1};
        inverse[where] = bad;
        std::vector<float> out(10, -5.0f);
        EXPECT_EQ(ExpandRows(rows.data(), 2, 2, inverse.data(), 5, out.data()), where) << target << " " << bad;
        for (size_t i = 2 * where; i < out.size(); ++i) EXPECT_EQ(out[i], -5.0f);
        for (size_t i = 0; i < where; ++i) EXPECT_EQ(out[2 * i], rows[2 * static_cast<size_t>(inverse[i])]);
      }
    }
  });
}

TEST(ExpandRowsTest, NothingToExpandTouchesNothing) {
  EXPECT_EQ(ExpandRows(nullptr, 0, 16, nullptr, 0, nullptr), 0u);
  const int32_t inverse = 0;
  EXPECT_EQ(ExpandRows(nullptr, 0, 16, &inverse, 1, nullptr), 0u);  // no row exists: position 0 is out of range
}

}  // namespace
}  // namespace mxrec
