#include "mxrec/numeric/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace mxrec {
namespace {

// The value of a finite 16-bit pattern, from the definition.
double Value(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double size = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                    : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (bits & 0x8000) != 0 ? -size : size;
}

struct Format {
  const char* name;
  int exponent_bits, mantissa_bits;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
  uint16_t infinity() const { return static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits); }
};

const Format kFormats[] = {{"float16", 5, 10, &HalfToFloat, &FloatToHalf}, {"bfloat16", 8, 7, &BFloat16ToFloat, &FloatToBFloat16}};

TEST(HalfTest, EveryPatternWidensExactlyAndComesBack) {
  for (const Format& format : kFormats) {
    for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
      const auto pattern = static_cast<uint16_t>(bits);
      const float wide = format.widen(pattern);
      const uint16_t size = pattern & 0x7FFF;
      if (size > format.infinity()) {
        ASSERT_TRUE(std::isnan(wide)) << format.name << " " << bits;
        const uint16_t quiet = static_cast<uint16_t>(pattern | (1 << (format.mantissa_bits - 1)));
        ASSERT_EQ(format.narrow(wide), quiet) << format.name << " " << bits;
        continue;
      }
      if (size == format.infinity()) {
        ASSERT_TRUE(std::isinf(wide));
      } else {
        ASSERT_EQ(static_cast<double>(wide), Value(pattern, format.exponent_bits, format.mantissa_bits))
            << format.name << " " << bits;
      }
      ASSERT_EQ(std::signbit(wide), (pattern & 0x8000) != 0);
      ASSERT_EQ(format.narrow(wide), pattern) << format.name << " " << bits;
    }
  }
}

// Between each two neighbours of the 16-bit format: the middle goes to the even one, a hair off the middle to the nearer.
TEST(HalfTest, NarrowingRoundsToNearestEvenAtEveryBoundary) {
  for (const Format& format : kFormats) {
    for (uint16_t low = 0; low < format.infinity(); ++low) {
      const auto high = static_cast<uint16_t>(low + 1);
      const double below = Value(low, format.exponent_bits, format.mantissa_bits);
      // The neighbour of the largest number is where the next one would be.
      const double above = high == format.infinity() ? std::ldexp(1.0, 1 << (format.exponent_bits - 1))
                                                     : Value(high, format.exponent_bits, format.mantissa_bits);
      const float middle = static_cast<float>((below + above) / 2);
      ASSERT_EQ(static_cast<double>(middle), (below + above) / 2);  // exact in float32
      const uint16_t even = low % 2 == 0 ? low : high;
      for (const float sign : {1.0f, -1.0f}) {
        const uint16_t mark = sign < 0 ? 0x8000 : 0;
        ASSERT_EQ(format.narrow(sign * middle), even | mark) << format.name << " " << low;
        ASSERT_EQ(format.narrow(sign * std::nextafter(middle, 0.0f)), low | mark) << format.name << " " << low;
        ASSERT_EQ(format.narrow(sign * std::nextafter(middle, std::numeric_limits<float>::infinity())), high | mark)
            << format.name << " " << low;
      }
    }
  }
}

TEST(HalfTest, RandomFloatsGoToTheNearest) {
  std::mt19937 random(5);
  for (const Format& format : kFormats) {
    for (int i = 0; i < 2000000; ++i) {
      const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
      const uint16_t narrow = format.narrow(value);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(format.widen(narrow)));
        continue;
      }
      const uint16_t size = narrow & 0x7FFF;
      ASSERT_EQ(std::signbit(value), (narrow & 0x8000) != 0);
      const auto distance = [&](uint16_t pattern) {
        const double at = pattern == format.infinity() ? std::ldexp(1.0, 1 << (format.exponent_bits - 1))
                                                       : Value(pattern, format.exponent_bits, format.mantissa_bits);
        return std::fabs(std::fabs(static_cast<double>(value)) - at);
      };
      if (size < format.infinity()) {
        if (size > 0) {
          ASSERT_LE(distance(size), distance(static_cast<uint16_t>(size - 1)));
        }
        ASSERT_LE(distance(size), distance(static_cast<uint16_t>(size + 1)));
      } else {
        ASSERT_EQ(size, format.infinity());
      }
    }
  }
}

TEST(HalfTest, KnownValues) {
  static_assert(FloatToHalf(1.0f) == 0x3C00 && FloatToHalf(-2.0f) == 0xC000 && FloatToHalf(65504.0f) == 0x7BFF);
  static_assert(FloatToHalf(65519.996f) == 0x7BFF && FloatToHalf(65520.0f) == 0x7C00);
  static_assert(FloatToHalf(0x1p-24f) == 1 && FloatToHalf(0x1p-25f) == 0 && FloatToHalf(0x1.000002p-25f) == 1);
  static_assert(FloatToBFloat16(1.0f) == 0x3F80 && FloatToBFloat16(3.1415927f) == 0x4049);
  static_assert(FloatToBFloat16(std::numeric_limits<float>::max()) == 0x7F80);
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(std::bit_cast<float>(0x7F800001u)))));
}

}  // namespace
}  // namespace mxrec
