#include "mxrec/table/batch.h"

#include <algorithm>
#include <array>
#include <random>
#include <unordered_map>
#include <vector>

#include "gtest/gtest.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

struct Order {
  std::vector<uint64_t> keys;
  std::vector<uint32_t> counts, inverse;
  friend bool operator==(const Order&, const Order&) = default;
};

Order OrderOf(const KeyBatch& batch, size_t ids) {
  Order order;
  order.inverse.assign(ids, 0xFFFFFFFFu);
  size_t next = 0;
  for (const KeyGroup& group : batch.groups()) {
    EXPECT_EQ(group.unique_begin, next);
    next += group.unique_count;
    order.keys.insert(order.keys.end(), batch.unique_keys(group), batch.unique_keys(group) + group.unique_count);
    order.counts.insert(order.counts.end(), batch.unique_counts(group), batch.unique_counts(group) + group.unique_count);
    for (uint32_t j = group.ids_begin; j < group.ids_end; ++j) {
      order.inverse[batch.positions()[j]] = group.unique_begin + batch.local()[j];
    }
  }
  EXPECT_EQ(next, batch.unique());
  return order;
}

// The rule, said plainly.
Order Expected(const std::vector<uint64_t>& ids) {
  std::array<std::vector<uint64_t>, kBatchShards> by_shard;
  std::unordered_map<uint64_t, uint32_t> counts;
  for (const uint64_t id : ids) {
    if (++counts[id] == 1) by_shard[ShardOfHash(KeyHash(id))].push_back(id);
  }
  Order order;
  std::unordered_map<uint64_t, uint32_t> number;
  for (const auto& keys : by_shard) {
    for (const uint64_t key : keys) {
      number[key] = static_cast<uint32_t>(order.keys.size());
      order.keys.push_back(key);
      order.counts.push_back(counts[key]);
    }
  }
  for (const uint64_t id : ids) order.inverse.push_back(number[id]);
  return order;
}

class BatchOrder : public ::testing::TestWithParam<int> {};

TEST_P(BatchOrder, IsByShardThenFirstOccurrenceForAnyNumberOfThreads) {
  ThreadPool pool(GetParam());
  KeyBatch batch;  // one object for all, as scratch is used again
  for (const size_t size : {100'000, 0, 1, 2, 1000, 5000, 4096, 1023}) {
    std::mt19937_64 random(size);
    std::vector<uint64_t> different(size), equal(size, 42), some(size), one_shard(size);
    for (uint64_t& id : different) id = random();
    for (uint64_t& id : some) id = random() % (size / 3 + 1) - 1;  // ~0 among them
    for (size_t i = 0; i < size; ++i) one_shard[i] = Unmix64((uint64_t{13} << 58) + random() % 5000);
    for (const auto& ids : {different, equal, some, one_shard}) {
      batch.Build(ids, &pool);
      const Order order = OrderOf(batch, size);
      ASSERT_TRUE(order == Expected(ids)) << size << " ids";
      batch.Build(ids, nullptr);
      ASSERT_TRUE(OrderOf(batch, size) == order) << size << " ids, no executor";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, BatchOrder, ::testing::Values(1, 2, 4, 16));

TEST(KeyBatchTest, KeysThatShareTheLowBitsOfTheirHashAreDedupedRight) {
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 3000; ++i) ids.push_back(Unmix64((i % 1500) << 32));
  KeyBatch batch;
  batch.Build(ids, nullptr);
  EXPECT_TRUE(OrderOf(batch, ids.size()) == Expected(ids));
}

}  // namespace
}  // namespace mxrec
