#include "mxrec/io/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace mxrec {
namespace {

// One bit at a time, as the definition reads.
uint32_t Reference(std::string_view data) {
  uint32_t crc = ~0u;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0);
  }
  return ~crc;
}

std::string RandomBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string data(size, '\0');
  for (char& c : data) c = static_cast<char>(random());
  return data;
}

TEST(Crc32cTest, KnownVectors) {
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
  // RFC 3720, appendix B.4.
  std::string bytes(32, '\0');
  EXPECT_EQ(Crc32c(bytes), 0x8A9136AAu);
  bytes.assign(32, '\xFF');
  EXPECT_EQ(Crc32c(bytes), 0x62A8AB43u);
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<char>(i);
  EXPECT_EQ(Crc32c(bytes), 0x46DD794Eu);
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<char>(31 - i);
  EXPECT_EQ(Crc32c(bytes), 0x113FDB5Cu);
}

TEST(Crc32cTest, EqualsTheDefinitionAtEveryLengthAndAlignment) {
  const std::string data = RandomBytes(4096 + 64, 1);
  for (size_t offset = 0; offset < 16; ++offset) {
    for (size_t size = 0; size < 300; ++size) {
      const std::string_view part = std::string_view(data).substr(offset, size);
      ASSERT_EQ(Crc32c(part), Reference(part)) << "offset " << offset << " size " << size;
    }
    const std::string_view part = std::string_view(data).substr(offset, 4096);
    ASSERT_EQ(Crc32c(part), Reference(part));
  }
}

TEST(Crc32cTest, PiecesContinueAndCombine) {
  const std::string data = RandomBytes(100001, 2);
  const uint32_t whole = Crc32c(data);
  for (const size_t cut : {0, 1, 8, 4096, 50000, 100000, 100001}) {
    const std::string_view a = std::string_view(data).substr(0, cut), b = std::string_view(data).substr(cut);
    EXPECT_EQ(Crc32c(b, Crc32c(a)), whole) << "cut " << cut;
    EXPECT_EQ(Crc32cCombine(Crc32c(a), Crc32c(b), b.size()), whole) << "cut " << cut;
  }
}

TEST(Crc32cTest, AnyFlippedBitChangesIt) {
  std::string data = RandomBytes(64, 3);
  const uint32_t before = Crc32c(data);
  for (size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_NE(Crc32c(data), before);
    data[bit / 8] ^= static_cast<char>(1 << (bit % 8));
  }
}

}  // namespace
}  // namespace mxrec
