#include "mxrec/base/copy_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <string>

namespace mxrec {
namespace {

// Two blocks at the begin of a page each.
struct Pages {
  static constexpr size_t kBytes = 128 << 10;
  Pages() {
    for (size_t i = 0; i < kBytes; ++i) from[i] = static_cast<char>(i * 31 + i / 251);
    std::memset(to, 0, kBytes);
  }
  ~Pages() {
    for (char* memory : {from, to}) ::operator delete (memory, std::align_val_t{4096});
  }
  char* const from = static_cast<char*>(::operator new (kBytes, std::align_val_t{4096}));
  char* const to = static_cast<char*>(::operator new (kBytes, std::align_val_t{4096}));
};

TEST(CopyBytesTest, EveryDistanceAndLengthIsCopiedAndNothingElse) {
  const Pages pages;
  for (const size_t source : {0, 1, 5, 64}) {
    for (const size_t target : {0, 1, 4, 16, 63, 64, 65, 127}) {
      for (const size_t bytes : {0, 1, 2047, 2048, 2049, 4095, 4096, 10'000, 100'000}) {
        std::memset(pages.to, 7, Pages::kBytes);
        CopyBytes(pages.to + target, pages.from + source, bytes);
        std::string expected(Pages::kBytes, 7);
        expected.replace(target, bytes, pages.from + source, bytes);
        ASSERT_EQ(std::memcmp(pages.to, expected.data(), Pages::kBytes), 0) << source << " " << target << " " << bytes;
      }
    }
  }
  CopyBytes(nullptr, nullptr, 0);
}

// Fails with memcpy on processors that have the worst case (25 times as long).
TEST(CopyBytesTest, NoDistanceTakesManyTimesAsLongAsAnother) {
  const Pages pages;
  const auto shortest = [&](size_t target) {
    auto best = std::chrono::nanoseconds::max();
    for (int run = 0; run < 100; ++run) {
      const auto begin = std::chrono::steady_clock::now();
      CopyBytes(pages.to + target, pages.from, 64 << 10);
      best = std::min<std::chrono::nanoseconds>(best, std::chrono::steady_clock::now() - begin);
    }
    return best;
  };
  EXPECT_LT(shortest(16), 8 * shortest(64));
  EXPECT_LT(shortest(4), 8 * shortest(64));
}

}  // namespace
}  // namespace mxrec
