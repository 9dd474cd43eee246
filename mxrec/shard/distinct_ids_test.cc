#include "mxrec/shard/distinct_ids.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <vector>

namespace mxrec {
namespace {

// Adds the list, and compares with a map that numbers by first occurrence.
class Checked {
 public:
  explicit Checked(DistinctIds* ids) : ids_(ids) { ids->Start(); }

  void Add(const std::vector<uint64_t>& list) {
    std::vector<int32_t> numbers(list.size(), -7);
    ids_->Add(list, numbers.data());
    for (size_t i = 0; i < list.size(); ++i) {
      const auto [entry, fresh] = numbers_.try_emplace(list[i], static_cast<int32_t>(numbers_.size()));
      if (fresh) keys_.push_back(list[i]);
      ASSERT_EQ(numbers[i], entry->second) << i << " of " << list.size();
    }
    ASSERT_EQ(std::vector<uint64_t>(ids_->keys(), ids_->keys() + ids_->size()), keys_);
  }

 private:
  DistinctIds* const ids_;
  std::map<uint64_t, int32_t> numbers_;
  std::vector<uint64_t> keys_;
};

std::vector<uint64_t> Range(uint64_t begin, size_t count) {
  std::vector<uint64_t> list(count);
  std::iota(list.begin(), list.end(), begin);
  return list;
}

TEST(DistinctIdsTest, ListsAreNumberedByFirstOccurrenceOneBehindTheOther) {
  DistinctIds ids;
  Checked checked(&ids);
  checked.Add({});
  checked.Add({5, 3, 5, 0, 3});
  checked.Add({0, 9, 5, 9, 1});
  EXPECT_EQ(ids.size(), 5u);
}

TEST(DistinctIdsTest, TheTableGrowsWithTheLists) {
  DistinctIds ids;
  Checked checked(&ids);
  for (uint64_t i = 0; i < 12; ++i) checked.Add(Range(i * 7, size_t{1} << i));
}

TEST(DistinctIdsTest, IdsOf64BitsFollowThoseOf32) {
  DistinctIds ids;
  Checked checked(&ids);
  checked.Add(Range(0xFFFFFF00u, 0x100));
  // Equal in their lower halves, and the other way round.
  checked.Add(Range(0x7'FFFFFF00u, 0x200));
  checked.Add(Range(0xFFFFFF00u, 0x200));
  checked.Add({~uint64_t{0}, 0, uint64_t{1} << 63, 0xFFFFFFFFu});
}

TEST(DistinctIdsTest, NothingOfAFormerUseIsLeft) {
  DistinctIds ids;
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    Checked checked(&ids);
    // Wide and narrow, large and small in turns, so that the tables hold entries of several former uses.
    const uint64_t high = random() % 2 == 0 ? 0 : random() % 4 << 40, span = 1 + random() % 3000;
    for (uint64_t lists = 1 + random() % 3; lists > 0; --lists) {
      std::vector<uint64_t> list(random() % 700);
      for (uint64_t& id : list) id = high + random() % span;
      checked.Add(list);
    }
  }
}

TEST(DistinctIdsTest, NumbersStartAnewBeforeTheyPass32Bits) {
  DistinctIds ids(0xFFFFFFFFu - 50);
  for (int round = 0; round < 3; ++round) {
    Checked(&ids).Add(Range(1, 300));
    Checked(&ids).Add(Range(uint64_t{1} << 40, 300));
  }
}

}  // namespace
}  // namespace mxrec
