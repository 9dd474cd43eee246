#include "mxrec/table/extent_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "mxrec/table/bucket_index.h"

namespace mxrec {
namespace {

TEST(ExtentPoolTest, BlocksAreAlignedAndNeverOverlap) {
  ExtentPool pool;
  std::mt19937_64 random(1);
  std::map<char*, size_t> taken;
  for (int step = 0; step < 3000; ++step) {
    if (taken.empty() || random() % 3 != 0) {
      const size_t bytes = 1 + random() % 300'000;
      char* block = pool.Take(bytes).value();
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
      const auto next = taken.lower_bound(block);
      if (next != taken.end()) {
        ASSERT_LE(block + bytes, next->first);
      }
      if (next != taken.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second, block);
      }
      std::memset(block, step & 0xFF, bytes);
      taken.emplace(block, bytes);
    } else {
      auto victim = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
      const char first = victim->first[0];
      ASSERT_TRUE(std::all_of(victim->first, victim->first + victim->second, [first](char c) { return c == first; }));
      pool.Give(victim->first, victim->second);
      taken.erase(victim);
    }
  }
}

TEST(ExtentPoolTest, WhatWasGivenBackIsJoinedAndUsedAgain) {
  ExtentPool pool;
  std::vector<char*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(pool.Take(128 << 10).value());
  const uint64_t before = pool.region_bytes();
  for (const int i : {3, 1, 2, 4}) pool.Give(blocks[i], 128 << 10);
  EXPECT_EQ(pool.Take(512 << 10).value(), blocks[1]) << "four neighbours make one extent";
  EXPECT_EQ(pool.region_bytes(), before);
}

TEST(ExtentPoolTest, RegionsThatAreEmptyGoBackToTheSystemButForOne) {
  ExtentPool pool;
  std::vector<std::pair<char*, size_t>> blocks;
  for (size_t bytes = 1 << 20; bytes <= 64 << 20; bytes *= 2) blocks.emplace_back(pool.Take(bytes).value(), bytes);
  EXPECT_GT(pool.region_bytes(), uint64_t{100} << 20);
  for (const auto& [block, bytes] : blocks) pool.Give(block, bytes);
  EXPECT_LE(pool.region_bytes(), uint64_t{128} << 20);
  char* again = pool.Take(1 << 20).value();
  pool.Give(again, 1 << 20);
}

// The way the 64 shards of a table grow: one after the other, by a fifth each.
TEST(ExtentPoolTest, ShardsThatGrowInTurnLeaveLittleIdle) {
  constexpr int kShards = 64;
  ExtentPool pool;
  std::vector<std::pair<char*, size_t>> shards(kShards);
  std::mt19937_64 random(2);
  for (int s = 0; s < kShards; ++s) {
    const size_t bytes = static_cast<size_t>((256 << 10) * (1 + 0.2 * s / kShards));
    shards[s] = {pool.Take(bytes).value(), bytes};
  }
  for (int round = 0; round < 20; ++round) {
    std::vector<int> order(kShards);
    for (int s = 0; s < kShards; ++s) order[s] = s;
    // Nearly in turn: neighbours change places.
    for (int s = 0; s + 1 < kShards; ++s) {
      if (random() % 4 == 0) std::swap(order[s], order[s + 1]);
    }
    for (const int s : order) {
      const size_t grown = shards[s].second * 6 / 5;
      char* block = pool.Take(grown).value();
      pool.Give(shards[s].first, shards[s].second);
      shards[s] = {block, grown};
    }
  }
  uint64_t live = 0;
  for (const auto& [block, bytes] : shards) live += bytes;
  EXPECT_LT(pool.region_bytes(), 4 * live) << "regions double, so some of the last one was never handed out";
}

TEST(ExtentPoolTest, HugePagesThatLieIdleHoldNoMemory) {
  ExtentPool pool;
  constexpr size_t kBytes = size_t{5} << 20;
  char* kept = pool.Take(kBytes).value();
  char* block = pool.Take(kBytes).value();
  std::memset(kept, 7, kBytes);
  std::memset(block, 7, kBytes);
  pool.Give(block, kBytes);
  char* again = pool.Take(kBytes).value();
  ASSERT_EQ(again, block);
  char* page = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(block) + (2 << 20) - 1) >> 21 << 21);
  EXPECT_EQ(page[0], 0) << "a page that went back to the system reads as zeros";
  EXPECT_TRUE(std::all_of(kept, kept + kBytes, [](char c) { return c == 7; }));
}

TEST(ExtentPoolTest, IndexesOfAnySizeKeepTheirKeysWhileTheyGrowOutOfOnePool) {
  ExtentPool pool;
  std::vector<BucketIndex> indexes;
  for (int i = 0; i < 4; ++i) indexes.emplace_back(&pool);
  for (uint64_t key = 0; key < 120'000; ++key) {
    BucketIndex& index = indexes[key % 4];
    const auto stagger = static_cast<uint32_t>(key % 4 * 16);
    if (index.BucketsAfter(1, stagger) != index.bucket_count()) index = index.Grown(1, stagger).value();
    index.Insert(key * 0x9E3779B97F4A7C15ull, static_cast<uint32_t>(key));
  }
  for (uint64_t key = 0; key < 120'000; ++key) {
    const uint32_t* handle = indexes[key % 4].Find(key * 0x9E3779B97F4A7C15ull);
    ASSERT_NE(handle, nullptr);
    ASSERT_EQ(*handle, key);
  }
  EXPECT_TRUE(indexes[0].buckets()[indexes[0].bucket_count() - 1].last());
}

}  // namespace
}  // namespace mxrec
