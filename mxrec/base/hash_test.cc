#include "mxrec/base/hash.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <string>

namespace mxrec {
namespace {

TEST(HashTest, Mix64IsBijective) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const uint64_t x = random();
    ASSERT_EQ(Unmix64(Mix64(x)), x);
    ASSERT_EQ(Mix64(Unmix64(x)), x);
  }
  for (const uint64_t x : {uint64_t{0}, ~uint64_t{0}, uint64_t{1} << 63}) EXPECT_EQ(Unmix64(Mix64(x)), x);
}

TEST(HashTest, Mix64NeverChanges) {
  // Stored orders depend on these.
  static_assert(Mix64(0) == 0);
  EXPECT_EQ(Mix64(1), 0x5692161D100B05E5u);
  EXPECT_EQ(Mix64(0x9E3779B97F4A7C15u), 0xE220A8397B1DCDAFu);  // first output of SplitMix64 with seed 0
}

TEST(HashTest, OneInputBitFlipsAboutHalfOfTheOutputBits) {
  std::mt19937_64 random(2);
  for (int bit = 0; bit < 64; ++bit) {
    double flips = 0;
    constexpr int kSamples = 2000;
    for (int i = 0; i < kSamples; ++i) {
      const uint64_t x = random();
      flips += std::popcount(Mix64(x) ^ Mix64(x ^ (uint64_t{1} << bit)));
    }
    EXPECT_NEAR(flips / kSamples, 32.0, 1.0) << "bit " << bit;
  }
}

TEST(HashTest, SequentialKeysFillBucketsEvenly) {
  constexpr int kBuckets = 64, kKeys = 64000;
  for (const uint64_t stride : {1, 2, 64, 1 << 20}) {
    for (const int shift : {0, 26, 58}) {
      int counts[kBuckets] = {};
      for (uint64_t i = 0; i < kKeys; ++i) ++counts[(Mix64(i * stride) >> shift) % kBuckets];
      double chi2 = 0;
      for (const int count : counts) chi2 += (count - 1000.0) * (count - 1000.0) / 1000.0;
      EXPECT_LT(chi2, 130) << "stride " << stride << " shift " << shift;  // 63 degrees of freedom, far tail
    }
  }
}

TEST(HashTest, Hash64NeverChanges) {
  // XXH3_64bits of nothing, known from its specification.
  EXPECT_EQ(Hash64(""), 0x2D06800538D394C2u);
  EXPECT_NE(Hash64("", 1), Hash64(""));
  EXPECT_NE(Hash64("a"), Hash64("b"));
}

TEST(HashTest, StreamsHashLikeTheWhole) {
  std::string data(100000, '\0');
  std::mt19937 random(3);
  for (char& c : data) c = static_cast<char>(random());
  for (const size_t piece : {1, 7, 240, 1024, 99999}) {
    Hasher64 hasher(42);
    for (size_t i = 0; i < data.size(); i += piece) hasher.Update(std::string_view(data).substr(i, piece));
    EXPECT_EQ(hasher.digest(), Hash64(data, 42)) << "pieces of " << piece;
  }
}

}  // namespace
}  // namespace mxrec
