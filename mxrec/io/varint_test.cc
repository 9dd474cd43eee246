#include "mxrec/io/varint.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace mxrec {
namespace {

std::string Encode(uint64_t value) {
  std::string bytes;
  AppendVarint(value, &bytes);
  return bytes;
}

TEST(VarintTest, RoundTripsAtEveryLength) {
  std::mt19937_64 random(1);
  for (int bits = 0; bits <= 64; ++bits) {
    for (int i = 0; i < 100; ++i) {
      uint64_t value = bits == 0 ? 0 : random() >> (64 - bits);
      if (i == 0 && bits > 0) value = std::numeric_limits<uint64_t>::max() >> (64 - bits);
      const std::string bytes = Encode(value);
      ASSERT_EQ(bytes.size(), VarintBytes(value));
      ASSERT_LE(bytes.size(), kMaxVarintBytes);
      std::string_view in = bytes;
      uint64_t decoded = 0;
      ASSERT_TRUE(ConsumeVarint(&in, &decoded)) << value;
      ASSERT_EQ(decoded, value);
      ASSERT_TRUE(in.empty());
    }
  }
}

TEST(VarintTest, KnownBytes) {
  EXPECT_EQ(Encode(0), std::string(1, '\0'));
  EXPECT_EQ(Encode(127), "\x7F");
  EXPECT_EQ(Encode(300), "\xAC\x02");
  EXPECT_EQ(Encode(std::numeric_limits<uint64_t>::max()), "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01");
}

TEST(VarintTest, LeavesWhatFollows) {
  std::string_view in = "\xAC\x02rest";
  uint64_t value = 0;
  ASSERT_TRUE(ConsumeVarint(&in, &value));
  EXPECT_EQ(value, 300u);
  EXPECT_EQ(in, "rest");
}

TEST(VarintTest, RefusesShortLongAndPaddedNumbers) {
  using namespace std::string_view_literals;
  const std::string_view bad[] = {
      ""sv,
      "\x80"sv,
      "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"sv,      // ends within
      "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x02"sv,  // 65 bits
      "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x81\x00"sv,
      "\x80\x00"sv,  // zero in two bytes
      "\xAC\x82\x00"sv,
  };
  for (const std::string_view bytes : bad) {
    std::string_view in = bytes;
    uint64_t value = 99;
    EXPECT_FALSE(ConsumeVarint(&in, &value)) << testing::PrintToString(bytes);
    EXPECT_EQ(value, 99u);
    EXPECT_EQ(in, bytes);
  }
}

}  // namespace
}  // namespace mxrec
