#include "mxrec/io/little_endian.h"

#include <gtest/gtest.h>

#include <string_view>

namespace mxrec {
namespace {

using namespace std::string_view_literals;

TEST(LittleEndianTest, BytesGoLowFirst) {
  std::string out;
  AppendLittleEndian<uint32_t>(0x04030201, &out);
  AppendLittleEndian<uint16_t>(0x0605, &out);
  AppendLittleEndian<uint8_t>(0x07, &out);
  AppendLittleEndian<int64_t>(-2, &out);
  AppendLittleEndian<float>(1.0f, &out);
  EXPECT_EQ(out, "\x01\x02\x03\x04\x05\x06\x07\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x00\x00\x80\x3F"sv);
  EXPECT_EQ(LoadLittleEndian<uint32_t>(out.data()), 0x04030201u);
  EXPECT_EQ(LoadLittleEndian<uint16_t>(out.data() + 4), 0x0605u);
  EXPECT_EQ(LoadLittleEndian<int64_t>(out.data() + 7), -2);  // unaligned
  EXPECT_EQ(LoadLittleEndian<float>(out.data() + 15), 1.0f);
}

TEST(LittleEndianTest, DoublesRoundTrip) {
  char bytes[8];
  for (const double value : {0.0, -0.0, 1e308, -3.5}) {
    StoreLittleEndian(value, bytes);
    EXPECT_EQ(std::bit_cast<uint64_t>(LoadLittleEndian<double>(bytes)), std::bit_cast<uint64_t>(value));
  }
}

}  // namespace
}  // namespace mxrec
