#include "mxrec/table/occurrences.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "mxrec/base/thread_pool.h"

namespace mxrec {
namespace {

const std::string kTable = "t";

// What the sort has to give, found the slow way: (value row, scale) of each key's occurrences.
std::vector<std::vector<std::pair<uint32_t, float>>> Expected(const OccurrenceInput& in) {
  std::vector<std::vector<std::pair<uint32_t, float>>> of(in.unique);
  size_t key_base = 0, value_base = 0;
  for (const UpdatePart& part : in.parts) {
    for (size_t j = 0; j < OccurrenceCount(part); ++j) {
      const size_t u = part.dense ? j : static_cast<size_t>(part.index[j]);
      if (part.handles[u] == kNeverTrained || (in.skip_not_admitted && part.handles[u] == kNotAdmitted)) continue;
      const size_t m = in.merged_of == nullptr ? u : static_cast<size_t>(in.merged_of[key_base + u]);
      const size_t row = part.value_rows.empty() ? j : static_cast<size_t>(part.value_rows[j]);
      of[m].emplace_back(static_cast<uint32_t>(value_base + row), part.scales.empty() ? 1.0f : part.scales[j]);
    }
    key_base += part.keys.size();
    value_base += ValueRowCount(part);
  }
  return of;
}

void ExpectSorted(const OccurrenceInput& in, Executor* executor) {
  OccurrenceSort sort;
  ASSERT_TRUE(sort.Run(in, executor).ok());
  const auto expected = Expected(in);
  for (size_t m = 0; m < in.unique; ++m) {
    ASSERT_EQ(sort.offsets()[m + 1] - sort.offsets()[m], expected[m].size()) << m;
    for (size_t i = 0; i < expected[m].size(); ++i) {
      const uint32_t at = sort.offsets()[m] + static_cast<uint32_t>(i);
      ASSERT_EQ(sort.value_rows()[at], expected[m][i].first) << m;
      if (in.scaled) {
        ASSERT_EQ(sort.scales()[at], expected[m][i].second) << m;
      }
    }
  }
}

TEST(OccurrenceSortTest, ListsTheOccurrencesOfEachKeyInOrderForAnyNumberOfThreads) {
  std::mt19937 random(3);
  InlineExecutor one;
  ThreadPool four(4);
  for (const size_t unique : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{1000}, size_t{40000}}) {
    const size_t count = unique * 3;
    std::vector<uint64_t> keys(unique);
    std::vector<uint32_t> handles(unique);
    std::vector<int32_t> index(count);
    for (size_t u = 0; u < unique; ++u) {
      keys[u] = u;
      handles[u] = random() % 7 == 0 ? kNeverTrained : random() % 5 == 0 ? kNotAdmitted : static_cast<uint32_t>(u);
    }
    for (int32_t& i : index) i = static_cast<int32_t>(random() % unique);
    UpdatePart part;
    part.keys = keys;
    part.handles = handles;
    part.index = index;
    const OccurrenceInput in{kTable, {&part, 1}, nullptr, unique, unique % 2 == 0, true, false};
    ExpectSorted(in, &one);
    ExpectSorted(in, &four);
  }
}

TEST(OccurrenceSortTest, GoesThroughPartsInOrderWithTheirSharedRowsAndScales) {
  std::mt19937 random(4);
  ThreadPool two(2);
  const size_t unique = 5000;
  std::vector<uint64_t> keys(unique, 0);
  std::vector<uint32_t> handles(unique, 1);
  std::vector<int32_t> index(50000), rows(50000), merged_of(2 * unique);
  std::vector<float> scales(50000);
  for (size_t j = 0; j < index.size(); ++j) {
    index[j] = static_cast<int32_t>(random() % unique);
    rows[j] = static_cast<int32_t>(random() % 700);
    scales[j] = static_cast<float>(random() % 100) / 8;
  }
  for (int32_t& m : merged_of) m = static_cast<int32_t>(random() % unique);
  UpdatePart parts[2];
  for (UpdatePart& part : parts) part.keys = keys, part.handles = handles;
  parts[0].index = index;
  parts[0].value_rows = rows;
  parts[0].value_count = 700;
  parts[0].scales = scales;
  parts[1].dense = true;
  ExpectSorted({kTable, parts, merged_of.data(), unique, false, false, true}, &two);
}

TEST(OccurrenceSortTest, AnIndexOutsideOfThePartIsNamedTheFirstOneFirst) {
  std::vector<uint64_t> keys(10);
  std::vector<uint32_t> handles(10, 1);
  std::vector<int32_t> index(100000, 3);
  index[70000] = -1;
  index[40001] = 10;
  UpdatePart part;
  part.keys = keys;
  part.handles = handles;
  part.index = index;
  ThreadPool four(4);
  OccurrenceSort sort;
  const Status status = sort.Run({kTable, {&part, 1}, nullptr, 10, false, false, false}, &four);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("table t, part 0: gradient row 40001 names row 10, expected 0 to 10"),
            std::string::npos)
      << status.message();
}

TEST(OccurrenceSortTest, NoPartsAndNoKeysAreFine) {
  InlineExecutor one;
  OccurrenceSort sort;
  ASSERT_TRUE(sort.Run({kTable, {}, nullptr, 0, false, false, false}, &one).ok());
  EXPECT_EQ(sort.offsets()[0], 0u);
}

}  // namespace
}  // namespace mxrec
