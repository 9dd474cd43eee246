#include "tf/kernels/memory_shelf.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace mxrec {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(MemoryShelfTest, ABlockThatWasGivenIsTheNextOneThatFits) {
  MemoryShelf shelf(64 * kMiB, 4);
  const MemoryShelf::Block first = shelf.Take(16 * kMiB);
  ASSERT_NE(first.data, nullptr);
  EXPECT_GE(first.bytes, 16 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.data) % 64, 0u);
  std::memset(first.data, 1, first.bytes);
  const MemoryShelf::Block second = shelf.Take(16 * kMiB);
  EXPECT_NE(second.data, first.data) << "still in use";
  shelf.Give(first);
  EXPECT_EQ(shelf.idle_bytes(), first.bytes);
  const MemoryShelf::Block small = shelf.Take(4 * kMiB), large = shelf.Take(32 * kMiB);
  EXPECT_NE(small.data, first.data) << "a block of four times the size would be wasted";
  EXPECT_NE(large.data, first.data);
  const MemoryShelf::Block again = shelf.Take(15 * kMiB);
  EXPECT_EQ(again.data, first.data);
  EXPECT_EQ(again.bytes, first.bytes);
  EXPECT_EQ(shelf.idle_bytes(), 0u);
  std::memset(again.data, 2, again.bytes);
  for (const MemoryShelf::Block& block : {second, small, large, again}) shelf.Give(block);
}

TEST(MemoryShelfTest, WhatStaysIdleIsBoundedInBytesAndBlocks) {
  MemoryShelf shelf(20 * kMiB, 3);
  const auto take = [&](int count, size_t bytes) {
    std::vector<MemoryShelf::Block> blocks;
    for (int i = 0; i < count; ++i) blocks.push_back(shelf.Take(bytes));
    return blocks;
  };
  for (const MemoryShelf::Block& block : take(5, 8 * kMiB)) {
    shelf.Give(block);
    EXPECT_LE(shelf.idle_bytes(), 20 * kMiB);
  }
  EXPECT_EQ(shelf.idle_bytes(), 20 * kMiB) << "two of 10 MiB";
  for (const MemoryShelf::Block& block : take(9, kMiB)) shelf.Give(block);
  EXPECT_EQ(shelf.idle_bytes(), 3 * 2 * kMiB) << "three of 2 MiB";
  const MemoryShelf::Block huge = shelf.Take(64 * kMiB);
  shelf.Give(huge);
  EXPECT_EQ(shelf.idle_bytes(), 3 * 2 * kMiB) << "one that is too large drives out no other";
}

TEST(MemoryShelfTest, ThreadsNeverHoldOneBlockTwice) {
  MemoryShelf shelf(64 * kMiB, 8);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&shelf, t] {
      for (int i = 0; i < 200; ++i) {
        const MemoryShelf::Block block = shelf.Take(2 * kMiB + static_cast<size_t>(i % 3) * kMiB);
        auto* const words = static_cast<volatile int*>(block.data);
        words[0] = t;
        std::this_thread::yield();
        EXPECT_EQ(words[0], t);
        shelf.Give(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(shelf.idle_bytes(), 64 * kMiB);
}

}  // namespace
}  // namespace mxrec
