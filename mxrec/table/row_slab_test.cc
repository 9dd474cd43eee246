#include "mxrec/table/row_slab.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace mxrec {
namespace {

TEST(RowSlabTest, RecordsAreApartAndNeverMove) {
  for (const size_t stride : {4u, 12u, 64u, 72u, 1000u, 70'000u}) {
    RowSlab slab = RowSlab::Create(stride).value();
    std::vector<char*> at;
    uint32_t next = 0;
    for (uint32_t run = 1; run < 30; ++run) {
      const uint32_t first = slab.AllocateRun(run).value();
      ASSERT_EQ(first, next);
      next += run;
      for (uint32_t h = first; h < first + run; ++h) {
        at.push_back(slab.At(h));
        std::memset(slab.At(h), static_cast<int>(h % 251), stride);
      }
    }
    EXPECT_EQ(slab.allocated(), next);
    for (uint32_t h = 0; h < next; ++h) {
      ASSERT_EQ(slab.At(h), at[h]);
      ASSERT_EQ(slab.At(h)[0], static_cast<char>(h % 251));
      ASSERT_EQ(slab.At(h)[stride - 1], static_cast<char>(h % 251));
    }
  }
}

TEST(RowSlabTest, D11RowsBeyond2To31ElementsAreIndependent) {
  // 40 M rows of 64 floats: 10 GB of addresses, of which three rows are touched.
  constexpr size_t kDim = 64;
  constexpr uint32_t kRows = 40'000'000;
  RowSlab slab = RowSlab::Create(kDim * sizeof(float)).value();
  ASSERT_TRUE(slab.AllocateRun(kRows).ok());
  const uint32_t handles[] = {0, kRows / 2, (1u << 31) / kDim, (1u << 31) / kDim + 1, kRows - 1};
  for (const uint32_t h : handles) std::fill_n(reinterpret_cast<float*>(slab.At(h)), kDim, static_cast<float>(h));
  for (const uint32_t h : handles) {
    for (size_t d = 0; d < kDim; ++d) ASSERT_EQ(reinterpret_cast<float*>(slab.At(h))[d], static_cast<float>(h));
  }
}

TEST(RowSlabTest, HandsOutRecordsUpToTheLargestHandleAndThenRefuses) {
  // Strides whose regions do not divide the directory evenly.
  for (const size_t stride : {4u, 5u, 9u}) {
    RowSlab slab = RowSlab::Create(stride).value();
    uint64_t left = RowSlab::kMaxRecords;
    while (left > 0) {
      const uint32_t run = static_cast<uint32_t>(std::min<uint64_t>(left, 1u << 24));
      ASSERT_TRUE(slab.AllocateRun(run).ok());
      left -= run;
    }
    std::memset(slab.At(RowSlab::kMaxRecords - 1), 3, stride);
    std::memset(slab.At(0), 4, stride);
    EXPECT_EQ(slab.At(RowSlab::kMaxRecords - 1)[stride - 1], 3);
    const auto refused = slab.AllocateRun(1);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(slab.allocated(), RowSlab::kMaxRecords);
  }
}

TEST(RowSlabTest, SeveralThreadsGetDifferentRecords) {
  RowSlab slab = RowSlab::Create(8).value();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&slab, t] {
      for (uint64_t i = 0; i < 5000; ++i) {
        const uint32_t first = slab.AllocateRun(3).value();
        for (uint32_t h = first; h < first + 3; ++h) std::memcpy(slab.At(h), &t, 8);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t of[4] = {};
  for (uint32_t h = 0; h < slab.allocated(); ++h) {
    uint64_t t = 0;
    std::memcpy(&t, slab.At(h), 8);
    ++of[t];
  }
  for (const uint64_t count : of) EXPECT_EQ(count, 15'000u);
}

TEST(RowSlabTest, MovingASlabMovesItsRecords) {
  RowSlab from = RowSlab::Create(16).value();
  const uint32_t handle = from.AllocateRun(1).value();
  std::memset(from.At(handle), 9, 16);
  RowSlab to = std::move(from);
  EXPECT_EQ(to.At(handle)[15], 9);
  EXPECT_EQ(to.AllocateRun(1).value(), handle + 1);
}

}  // namespace
}  // namespace mxrec
