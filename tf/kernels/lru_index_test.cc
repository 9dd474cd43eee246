#include "tf/kernels/lru_index.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mxrec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

LruIndex::Changes Add(LruIndex* index, const std::vector<uint64_t>& ids) {
  LruIndex::Changes changes;
  EXPECT_TRUE(index->Add(ids, &changes).ok());
  return changes;
}

TEST(LruIndexTest, IdsGetPlacesFromZeroUp) {
  LruIndex index(4);
  const auto changes = Add(&index, {7, 9, 7, 8});
  EXPECT_THAT(changes.in_ids, ElementsAre(7, 9, 8));
  EXPECT_THAT(changes.in_places, ElementsAre(0, 1, 2));
  EXPECT_THAT(changes.out_ids, IsEmpty());
  uint64_t places[2];
  const uint64_t asked[] = {8, 7};
  EXPECT_TRUE(index.Places(asked, places).ok());
  EXPECT_THAT(places, ElementsAre(2, 0));
  EXPECT_THAT(index.Ids(), ElementsAre(7, 9, 8));
}

TEST(LruIndexTest, TheIdThatWasNotUsedForTheLongestTimeGivesWay) {
  LruIndex index(3);
  Add(&index, {1, 2, 3});
  Add(&index, {1});
  const auto changes = Add(&index, {4});
  EXPECT_THAT(changes.out_ids, ElementsAre(2));
  EXPECT_THAT(changes.out_places, ElementsAre(1));
  EXPECT_THAT(changes.in_places, ElementsAre(1));
}

TEST(LruIndexTest, NoIdOfACallGivesWayToAnotherOfIt) {
  LruIndex index(3);
  Add(&index, {1, 2, 3});
  const auto changes = Add(&index, {4, 5, 1});  // 1 is the oldest
  EXPECT_THAT(changes.out_ids, ElementsAre(2, 3));
  EXPECT_THAT(index.Ids(), ElementsAre(1, 4, 5));
}

TEST(LruIndexTest, MoreIdsThanPlacesChangeNothing) {
  LruIndex index(2);
  Add(&index, {1, 2});
  LruIndex::Changes changes;
  const uint64_t ids[] = {1, 3, 4};
  const Status status = index.Add(ids, &changes);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 places cannot take 3"));
  EXPECT_THAT(index.Ids(), ElementsAre(1, 2));
}

TEST(LruIndexTest, AnAbsentIdIsNotFound) {
  LruIndex index(2);
  uint64_t place;
  const uint64_t ids[] = {~uint64_t{0}};
  const Status status = index.Places(ids, &place);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("id -1 (element 0)"));
}

TEST(LruIndexTest, RandomRunsAgreeWithAListInTheOrderOfUse) {
  std::mt19937_64 random(1);
  LruIndex index(8);
  std::vector<uint64_t> used;  // oldest first
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint64_t> ids(random() % 7);
    for (uint64_t& id : ids) id = random() % 20;
    const auto changes = Add(&index, ids);
    std::vector<uint64_t> gone;
    std::vector<uint64_t> fresh;
    for (const uint64_t id : ids) {
      if (std::find(used.begin(), used.end(), id) == used.end() && std::find(fresh.begin(), fresh.end(), id) == fresh.end()) {
        fresh.push_back(id);
      }
      used.erase(std::remove(used.begin(), used.end(), id), used.end());
      used.push_back(id);
    }
    while (used.size() > 8) {
      gone.push_back(used.front());
      used.erase(used.begin());
    }
    ASSERT_EQ(changes.in_ids, fresh) << round;
    ASSERT_EQ(changes.out_ids, gone) << round;
    std::vector<uint64_t> expected = used, found = index.Ids();
    std::sort(expected.begin(), expected.end());
    std::sort(found.begin(), found.end());
    ASSERT_EQ(found, expected) << round;
  }
}

}  // namespace
}  // namespace mxrec
