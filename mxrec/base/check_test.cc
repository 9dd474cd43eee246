#include "mxrec/base/check.h"

#include <gtest/gtest.h>

namespace mxrec {
namespace {

TEST(CheckTest, PassingChecksDoNotEvaluateTheirText) {
  int evaluated = 0;
  MXREC_CHECK(1 + 1 == 2) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
}

TEST(CheckTest, IsOneStatement) {
  if (false)
    MXREC_CHECK(false);
  else
    SUCCEED();
}

TEST(CheckDeathTest, FailurePrintsPlaceConditionAndText) {
  const int rows = 3;
  EXPECT_DEATH(MXREC_CHECK(rows == 4) << "rows " << rows, "check_test.cc:[0-9]+: check failed: rows == 4 rows 3");
}

TEST(CheckDeathTest, DebugChecksFollowTheBuild) {
#ifdef NDEBUG
  int evaluated = 0;
  MXREC_DCHECK(++evaluated == 0);
  EXPECT_EQ(evaluated, 0);
#else
  EXPECT_DEATH(MXREC_DCHECK(1 == 2), "check failed");
#endif
}

}  // namespace
}  // namespace mxrec
