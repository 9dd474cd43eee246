#include "mxrec/kernels/combine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "mxrec/kernels/simd_targets.h"
#include "mxrec/numeric/half.h"

namespace mxrec {
namespace {

const DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt8,
                        DType::kInt16,   DType::kInt32,   DType::kInt64,   DType::kUInt8,    DType::kUInt16,
                        DType::kUInt32,  DType::kUInt64,  DType::kBool};
const Combine kOps[] = {Combine::kSum, Combine::kMin, Combine::kMax, Combine::kProduct};

// Any bits at all: NaNs, infinities and denormal numbers among the floats.
std::string AnyBits(size_t bytes, std::mt19937& random) {
  std::string bits(bytes, '\0');
  for (char& c : bits) c = static_cast<char>(random());
  return bits;
}

// One pattern of bits for all NaNs: which of two NaNs an addition hands on depends on the order in which a compiler names them.
template <typename Bits>
void UnifyNans(std::string* bytes, Bits magnitude, Bits infinity) {
  for (size_t at = 0; at + sizeof(Bits) <= bytes->size(); at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, bytes->data() + at, sizeof bits);
    if ((bits & magnitude) <= infinity) continue;
    bits = magnitude;
    std::memcpy(bytes->data() + at, &bits, sizeof bits);
  }
}

std::string Unified(std::string bytes, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      UnifyNans<uint32_t>(&bytes, 0x7FFFFFFFu, 0x7F800000u);
      break;
    case DType::kFloat64:
      UnifyNans<uint64_t>(&bytes, 0x7FFFFFFFFFFFFFFFu, 0x7FF0000000000000u);
      break;
    case DType::kFloat16:
      UnifyNans<uint16_t>(&bytes, 0x7FFFu, 0x7C00u);
      break;
    case DType::kBFloat16:
      UnifyNans<uint16_t>(&bytes, 0x7FFFu, 0x7F80u);
      break;
    default:
      break;
  }
  return bytes;
}

TEST(CombineTest, EveryTypeAndOperationEqualsTheReferenceToTheBit) {
  ForEachSimdTarget([&](const char* target) {
    SCOPED_TRACE(target);
    std::mt19937 random(1);
    for (DType dtype : kTypes) {
      for (Combine op : kOps) {
        for (size_t n : {0, 1, 7, 64, 2500}) {
          const std::string a = AnyBits(n * DTypeSize(dtype), random), b = AnyBits(a.size(), random);
          std::string expected(a.size(), '\0'), got = a, onto_b = b;
          CombineNumbersReference(a.data(), b.data(), n, dtype, op, expected.data());
          CombineNumbers(got.data(), b.data(), n, dtype, op, got.data());
          CombineNumbers(a.data(), onto_b.data(), n, dtype, op, onto_b.data());
          ASSERT_TRUE(Unified(got, dtype) == Unified(expected, dtype))
              << DTypeName(dtype) << " " << static_cast<int>(op) << " " << n;
          ASSERT_TRUE(Unified(onto_b, dtype) == Unified(expected, dtype))
              << DTypeName(dtype) << " " << static_cast<int>(op) << " " << n;
        }
      }
    }
  });
}

TEST(CombineTest, ScalingEqualsTheReferenceToTheBit) {
  ForEachSimdTarget([&](const char* target) {
    SCOPED_TRACE(target);
    std::mt19937 random(2);
    for (DType dtype : kTypes) {
      for (const NumberScale& scale : {NumberScale{1, 3}, NumberScale{0.1, 1}, NumberScale{-2.5, 7}, NumberScale{}}) {
        for (size_t n : {1, 7, 2500}) {
          std::string got = AnyBits(n * DTypeSize(dtype), random), expected = got;
          ScaleNumbersReference(expected.data(), n, dtype, scale);
          ScaleNumbers(got.data(), n, dtype, scale);
          ASSERT_TRUE(Unified(got, dtype) == Unified(expected, dtype)) << DTypeName(dtype);
        }
      }
    }
  });
}

TEST(CombineTest, PartsAreCombinedFirstToLastAlsoOntoOneOfThem) {
  std::mt19937 random(3);
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt16, DType::kUInt64}) {
    const size_t n = 2500, size = DTypeSize(dtype);
    for (size_t count : {1, 2, 3, 5}) {
      for (size_t out = 0; out < count; ++out) {
        std::vector<std::string> parts;
        std::vector<const void*> pointers;
        for (size_t p = 0; p < count; ++p) parts.push_back(AnyBits(n * size, random));
        for (const std::string& part : parts) pointers.push_back(part.data());
        std::string expected = parts[0];
        for (size_t p = 1; p < count; ++p) {
          CombineNumbersReference(expected.data(), parts[p].data(), n, dtype, Combine::kSum, expected.data());
        }
        ScaleNumbersReference(expected.data(), n, dtype, {1, 3});
        CombineParts(pointers, n, dtype, Combine::kSum, {1, 3}, parts[out].data());
        ASSERT_TRUE(Unified(parts[out], dtype) == Unified(expected, dtype))
            << DTypeName(dtype) << ", " << count << " parts onto " << out;
      }
    }
  }
}

TEST(CombineTest, SixteenBitFloatsAreAddedInFloat32AndRoundedOnce) {
  // The sum of eight 30,000 does not fit into float16, its mean does.
  const std::vector<uint16_t> large(100, FloatToHalf(30'000));
  const std::vector<const void*> parts(8, large.data());
  std::vector<uint16_t> mean(100);
  CombineParts(parts, 100, DType::kFloat16, Combine::kSum, {1, 8}, mean.data());
  for (uint16_t x : mean) EXPECT_EQ(HalfToFloat(x), 30'000);
  // 256 + 1 + 1 in bfloat16, rounded after every addition, stays 256.
  const uint16_t numbers[] = {FloatToBFloat16(256), FloatToBFloat16(1), FloatToBFloat16(1)};
  const void* const three[] = {&numbers[0], &numbers[1], &numbers[2]};
  uint16_t sum = 0;
  CombineParts(three, 1, DType::kBFloat16, Combine::kSum, {}, &sum);
  EXPECT_EQ(BFloat16ToFloat(sum), 258);
}

TEST(CombineTest, ANanOnEitherSidePassesThrough) {
  const float nan = std::nanf("");
  for (Combine op : kOps) {
    const float left[] = {nan, 1, nan}, right[] = {1, nan, nan};
    float out[3];
    CombineNumbers(left, right, 3, DType::kFloat32, op, out);
    for (float x : out) EXPECT_TRUE(std::isnan(x));
  }
}

TEST(CombineTest, ScaledIntegersAreRoundedAndKeptInsideTheirType) {
  int8_t small[] = {5, 7, -100, 100, 127};
  ScaleNumbers(small, 5, DType::kInt8, {3, 2});
  EXPECT_EQ(std::vector<int>(small, small + 5), (std::vector<int>{8, 10, -128, 127, 127}));
  uint64_t large[] = {std::numeric_limits<uint64_t>::max(), 6};
  ScaleNumbers(large, 2, DType::kUInt64, {2, 1});
  EXPECT_EQ(large[0], std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(large[1], 12u);
  int64_t wide[] = {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
  ScaleNumbers(wide, 2, DType::kInt64, {2, 1});
  EXPECT_EQ(wide[0], std::numeric_limits<int64_t>::max());
  EXPECT_EQ(wide[1], std::numeric_limits<int64_t>::min());
}

}  // namespace
}  // namespace mxrec
