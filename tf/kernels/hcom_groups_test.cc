#include "tf/kernels/hcom_groups.h"

#include <gtest/gtest.h>

namespace mxrec {
namespace {

class HcomGroupsTest : public ::testing::Test {
 protected:
  void SetUp() override { SetHcomWorld({.rank = 2, .size = 4}); }
  void TearDown() override { SetHcomWorld({}); }
};

TEST_F(HcomGroupsTest, TheWorldGroupHoldsEveryRank) {
  EXPECT_EQ(*FindHcomGroup("hccl_world_group"), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(GetHcomWorld().rank, 2);
}

TEST_F(HcomGroupsTest, GroupsKeepTheOrderOfTheirRanks) {
  ASSERT_TRUE(AddHcomGroup("g", {3, 0}).ok());
  EXPECT_EQ(*FindHcomGroup("g"), (std::vector<int>{3, 0}));
  EXPECT_EQ(AddHcomGroup("g", {1}).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(AddHcomGroup(kHcomWorldGroup, {1}).code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(RemoveHcomGroup("g").ok());
  EXPECT_EQ(RemoveHcomGroup("g").code(), StatusCode::kNotFound);
  EXPECT_EQ(RemoveHcomGroup(kHcomWorldGroup).code(), StatusCode::kInvalidArgument);
}

TEST_F(HcomGroupsTest, RanksOutsideTheWorldTwiceOrNoneAreRefused) {
  for (const std::vector<int>& ranks : {std::vector<int>{4}, {-1}, {1, 1}, {}}) {
    EXPECT_EQ(AddHcomGroup("g", ranks).code(), StatusCode::kInvalidArgument);
  }
  const Result<std::vector<int>> missing = FindHcomGroup("g");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("'g'"), std::string::npos);
}

TEST_F(HcomGroupsTest, AnotherWorldForgetsTheGroups) {
  ASSERT_TRUE(AddHcomGroup("g", {0}).ok());
  SetHcomWorld({.rank = 2, .size = 4});
  EXPECT_TRUE(FindHcomGroup("g").ok());
  SetHcomWorld({.rank = 0, .size = 2});
  EXPECT_FALSE(FindHcomGroup("g").ok());
}

}  // namespace
}  // namespace mxrec
