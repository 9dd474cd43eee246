#include "mxrec/table/memory.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace mxrec {
namespace {

TEST(MappedMemoryTest, BlocksOfEverySizeAreZeroAlignedAndWritable) {
  for (const size_t bytes : {1u, 63u, 64u, 4096u, 16383u, 16384u, 100'000u, (2u << 20) - 1, 2u << 20, (5u << 20) + 123}) {
    const MappedMemory memory = MappedMemory::Allocate(bytes, "a test").value();
    auto* data = static_cast<unsigned char*>(memory.data());
    EXPECT_EQ(memory.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % (bytes >= (2u << 20) ? 2u << 20 : 64u), 0u);
    EXPECT_EQ(data[0] | data[bytes / 2] | data[bytes - 1], 0);
    std::memset(data, 0xAB, bytes);
    EXPECT_EQ(data[bytes - 1], 0xAB);
  }
}

TEST(MappedMemoryTest, NoBytesAreNoBlock) {
  const MappedMemory memory = MappedMemory::Allocate(0, "nothing").value();
  EXPECT_EQ(memory.data(), nullptr);
}

TEST(MappedMemoryTest, WhatTheSystemCannotGiveIsAnErrorThatNamesItAndTheBytes) {
  const auto memory = MappedMemory::Allocate(size_t{1} << 62, "rows");
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
  const std::string text(memory.status().message());
  EXPECT_NE(text.find("rows"), std::string::npos) << text;
  EXPECT_NE(text.find("4611686018427387904"), std::string::npos) << text;
}

TEST(MappedMemoryTest, AMovedBlockIsFreedOnce) {
  MappedMemory a = MappedMemory::Allocate(100, "a test").value();
  MappedMemory b = std::move(a);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT: what a move leaves is part of the contract
  a = MappedMemory::Allocate(50'000, "a test").value();
  b = std::move(a);
  EXPECT_EQ(b.bytes(), 50'000u);
}

TEST(MappedMemoryTest, PoisonedBlocksReadAsNaN) {
  PoisonFreshMemoryForTesting(true);
  const MappedMemory small = MappedMemory::Allocate(64, "a test").value(),
                     large = MappedMemory::Allocate(1 << 20, "a test").value();
  PoisonFreshMemoryForTesting(false);
  EXPECT_TRUE(std::isnan(static_cast<float*>(small.data())[3]));
  EXPECT_TRUE(std::isnan(static_cast<float*>(large.data())[(1 << 18) - 1]));
}

}  // namespace
}  // namespace mxrec
