#include "mxrec/table/initializer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "mxrec/kernels/simd_targets.h"

namespace mxrec {
namespace {

using ::testing::HasSubstr;
using Kind = InitializerSpec::Kind;

// ---- names and parameters ----

InitializerSpec Resolve(std::string_view name, std::vector<InitializerParam> params, uint64_t vocabulary, uint64_t dim) {
  const auto spec = ResolveInitializer(name, params, vocabulary, dim);
  EXPECT_TRUE(spec.ok()) << name << ": " << spec.status();
  return spec.ok() ? *spec : InitializerSpec{};
}

std::string Refusal(std::string_view name, std::vector<InitializerParam> params) {
  const auto spec = ResolveInitializer(name, params, 1000, 16);
  if (spec.ok()) return "accepted";
  EXPECT_EQ(spec.status().code(), StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

TEST(InitializerTest, PlainFormsTakeTensorFlowsDefaults) {
  EXPECT_EQ(Resolve("zeros", {}, 9, 4), (InitializerSpec{Kind::kConstant, 0.0, 0.0}));
  EXPECT_EQ(Resolve("ones", {}, 9, 4), (InitializerSpec{Kind::kConstant, 1.0, 0.0}));
  EXPECT_EQ(Resolve("constant", {}, 9, 4), (InitializerSpec{Kind::kConstant, 0.0, 0.0}));
  EXPECT_EQ(Resolve("constant", {{"value", 2.5, ""}}, 9, 4), (InitializerSpec{Kind::kConstant, 2.5, 0.0}));
  EXPECT_EQ(Resolve("random_uniform", {}, 9, 4), (InitializerSpec{Kind::kUniform, 0.0, 1.0}));
  EXPECT_EQ(Resolve("random_uniform", {{"maxval", 0.5, ""}, {"minval", -0.5, ""}}, 9, 4),
            (InitializerSpec{Kind::kUniform, -0.5, 0.5}));
  EXPECT_EQ(Resolve("random_normal", {}, 9, 4), (InitializerSpec{Kind::kNormal, 0.0, 1.0}));
  EXPECT_EQ(Resolve("random_normal", {{"stddev", 0.0, ""}}, 9, 4), (InitializerSpec{Kind::kNormal, 0.0, 0.0}));
  EXPECT_EQ(Resolve("truncated_normal", {{"mean", -0.01, ""}, {"stddev", 0.01, ""}}, 9, 4),
            (InitializerSpec{Kind::kTruncatedNormal, -0.01, 0.01}));
}

// Numbers that TensorFlow 2.21's own objects hand to their random ops for the shape [vocabulary, dim].
TEST(InitializerTest, ScalingFormsGiveTheNumbersOfTensorFlow) {
  const double cut = 0.87962566103423978;
  EXPECT_EQ(Resolve("glorot_uniform", {}, 1000003, 16),
            (InitializerSpec{Kind::kUniform, -std::sqrt(3.0 / 500009.5), std::sqrt(3.0 / 500009.5)}));
  EXPECT_EQ(Resolve("glorot_normal", {}, 10, 4), (InitializerSpec{Kind::kTruncatedNormal, 0.0, std::sqrt(1.0 / 7.0) / cut}));
  EXPECT_EQ(Resolve("he_uniform", {}, 10, 4),
            (InitializerSpec{Kind::kUniform, -std::sqrt(3.0 * (2.0 / 10)), std::sqrt(3.0 * (2.0 / 10))}));
  EXPECT_EQ(Resolve("he_normal", {}, 1000003, 16), (InitializerSpec{Kind::kTruncatedNormal, 0.0, std::sqrt(2.0 / 1000003) / cut}));
  EXPECT_EQ(Resolve("lecun_uniform", {}, 10, 4),
            (InitializerSpec{Kind::kUniform, -std::sqrt(3.0 * (1.0 / 10)), std::sqrt(3.0 * (1.0 / 10))}));
  EXPECT_EQ(Resolve("lecun_normal", {}, 10, 4), (InitializerSpec{Kind::kTruncatedNormal, 0.0, std::sqrt(1.0 / 10) / cut}));
  EXPECT_EQ(Resolve("uniform_unit_scaling", {{"factor", 2.5, ""}}, 10, 4),
            (InitializerSpec{Kind::kUniform, -(std::sqrt(3.0 / 10) * 2.5), std::sqrt(3.0 / 10) * 2.5}));
  EXPECT_EQ(Resolve("variance_scaling", {}, 10, 4), (InitializerSpec{Kind::kTruncatedNormal, 0.0, std::sqrt(1.0 / 10) / cut}));
  EXPECT_EQ(
      Resolve("variance_scaling", {{"scale", 3.3, ""}, {"mode", 0, "fan_out"}, {"distribution", 0, "untruncated_normal"}}, 10, 4),
      (InitializerSpec{Kind::kNormal, 0.0, std::sqrt(3.3 / 4)}));
  EXPECT_EQ(Resolve("variance_scaling", {{"mode", 0, "fan_avg"}, {"distribution", 0, "normal"}}, 10, 4),
            (InitializerSpec{Kind::kTruncatedNormal, 0.0, std::sqrt(1.0 / 7) / cut}));
  // As printed by TensorFlow, all digits.
  EXPECT_DOUBLE_EQ(Resolve("glorot_uniform", {}, 1000003, 16).b, 0.0024494664729622162);
  EXPECT_DOUBLE_EQ(Resolve("he_normal", {}, 1000003, 16).b, 0.0016077423655361913);
}

TEST(InitializerTest, FansBelowOneCountAsOne) {
  EXPECT_EQ(Resolve("lecun_uniform", {}, 0, 4).b, std::sqrt(3.0));
  EXPECT_EQ(Resolve("uniform_unit_scaling", {}, 0, 4).b, std::sqrt(3.0));
}

TEST(InitializerTest, FormsThatNeedTheWholeMatrixAreRefusedWithTheReason) {
  EXPECT_THAT(Refusal("identity", {}), HasSubstr("identity is not supported: a row of it depends on the whole matrix"));
  EXPECT_THAT(Refusal("orthogonal", {}), HasSubstr("orthogonal is not supported"));
}

TEST(InitializerTest, WrongNamesAndValuesAreRefusedNamingThem) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  EXPECT_THAT(Refusal("random_norm", {}), HasSubstr("unknown initializer \"random_norm\""));
  EXPECT_THAT(Refusal("random_normal", {{"std", 1, ""}}), HasSubstr("no parameter \"std\"; it has mean, stddev"));
  EXPECT_THAT(Refusal("zeros", {{"value", 1, ""}}), HasSubstr("no parameter \"value\"; it has none"));
  EXPECT_THAT(Refusal("he_normal", {{"scale", 1, ""}}), HasSubstr("no parameter \"scale\""));
  EXPECT_THAT(Refusal("random_normal", {{"mean", 1, ""}, {"mean", 1, ""}}), HasSubstr("\"mean\" is given twice"));
  EXPECT_THAT(Refusal("random_normal", {{"stddev", -0.5, ""}}), HasSubstr("stddev must not be negative, found -0.5"));
  EXPECT_THAT(Refusal("truncated_normal", {{"stddev", -1, ""}}), HasSubstr("stddev must not be negative, found -1"));
  EXPECT_THAT(Refusal("random_uniform", {{"minval", 2, ""}, {"maxval", 1, ""}}), HasSubstr("maxval 1 is below minval 2"));
  EXPECT_THAT(Refusal("random_uniform", {{"minval", -3e38, ""}, {"maxval", 3e38, ""}}),
              HasSubstr("maxval - minval must be a finite"));
  EXPECT_THAT(Refusal("random_normal", {{"mean", nan, ""}}), HasSubstr("mean must be a finite float32, found nan"));
  EXPECT_THAT(Refusal("constant", {{"value", inf, ""}}), HasSubstr("value must be a finite float32, found inf"));
  EXPECT_THAT(Refusal("constant", {{"value", 1e39, ""}}), HasSubstr("value must be a finite float32"));
  EXPECT_THAT(Refusal("constant", {{"value", 0, "three"}}), HasSubstr("value must be a number, found \"three\""));
  EXPECT_THAT(Refusal("variance_scaling", {{"scale", 0, ""}}), HasSubstr("scale must be positive, found 0"));
  EXPECT_THAT(Refusal("variance_scaling", {{"mode", 0, "fan"}}),
              HasSubstr("mode must be fan_in, fan_out or fan_avg, found \"fan\""));
  EXPECT_THAT(Refusal("variance_scaling", {{"distribution", 0, "cauchy"}}), HasSubstr("found \"cauchy\""));
  EXPECT_THAT(Refusal("uniform_unit_scaling", {{"factor", -1, ""}}), HasSubstr("factor must not be negative"));
}

// ---- rows ----

std::vector<float> Generate(const InitializerSpec& spec, uint64_t seed, const std::vector<uint64_t>& keys, size_t dim) {
  std::vector<float> rows(keys.size() * dim);
  GenerateFirstRows(spec, seed, keys.data(), keys.size(), dim, rows.data(), dim);
  return rows;
}

std::vector<uint64_t> Consecutive(size_t count, uint64_t first = 0) {
  std::vector<uint64_t> keys(count);
  for (size_t i = 0; i < count; ++i) keys[i] = first + i;
  return keys;
}

const std::vector<uint64_t> kOddKeys = {0, ~uint64_t{0}, uint64_t{1} << 63, 1, 0x7FFFFFFFFFFFFFFFu, 0x0123456789ABCDEFu};

TEST(InitializerTest, AllSpecsEqualTheReferenceToTheBitOnEveryTarget) {
  const InitializerSpec specs[] = {{Kind::kConstant, 0.1, 0}, {Kind::kUniform, -0.05, 0.05}, {Kind::kUniform, 0.5, 0.5},
                                   {Kind::kNormal, 0, 1},     {Kind::kNormal, 2, 0},         {Kind::kTruncatedNormal, 0, 0.3},
                                   {Kind::kNormal, 0, 1e-40}};
  for (const InitializerSpec& spec : specs) {
    for (const size_t dim : {1, 2, 3, 4, 5, 8, 15, 16, 17, 63, 64, 65, 200}) {
      const size_t stride = dim + 3;
      std::vector<float> expected(kOddKeys.size() * stride, -7.0f);
      const std::vector<float> untouched = expected;
      GenerateFirstRowsReference(spec, 99, kOddKeys.data(), kOddKeys.size(), dim, expected.data(), stride);
      ForEachSimdTarget([&](const char* target) {
        std::vector<float> rows = untouched;
        GenerateFirstRows(spec, 99, kOddKeys.data(), kOddKeys.size(), dim, rows.data(), stride);
        for (size_t i = 0; i < rows.size(); ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(rows[i]), std::bit_cast<uint32_t>(expected[i]))
              << target << " dim " << dim << " at " << i;
        }
      });
    }
  }
}

TEST(InitializerTest, ARowDependsOnNothingButSeedKeyAndColumn) {
  const InitializerSpec spec{Kind::kNormal, 0, 1};
  const std::vector<uint64_t> keys = Consecutive(100, ~uint64_t{0} - 50);
  const std::vector<float> together = Generate(spec, 5, keys, 20);
  for (size_t i = keys.size(); i-- > 0;) {
    const std::vector<float> alone = Generate(spec, 5, {keys[i]}, 20);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + static_cast<ptrdiff_t>(i * 20)));
    // A narrower table of the same seed has the same first columns.
    const std::vector<float> narrow = Generate(spec, 5, {keys[i]}, 7);
    EXPECT_TRUE(std::equal(narrow.begin(), narrow.end(), together.begin() + static_cast<ptrdiff_t>(i * 20)));
  }
}

// These bits are in every checkpoint's future: a table that resumes must give a new key the row it would have had. If this test
// fails, the change is a change of the format.
TEST(InitializerTest, GoldenValuesNeverChange) {
  struct Golden {
    InitializerSpec spec;
    uint64_t seed, key;
    uint32_t bits[6];
  };
  const Golden goldens[] = {
      {{Kind::kUniform, -0.05, 0.05}, 0x0u, 0, {0xBC256700u, 0x3D1BDC6Fu, 0x3CC1188Eu, 0x3C2CD248u, 0x3ADA9DC0u, 0x3D34157Du}},
      {{Kind::kUniform, -0.05, 0.05},
       0x0u,
       ~uint64_t{0},
       {0x3D394A53u, 0x3D1928F3u, 0xBC701558u, 0xBD104ACAu, 0xBAECC6C0u, 0xBC82365Au}},
      {{Kind::kUniform, -0.05, 0.05},
       0x0u,
       uint64_t{1} << 63,
       {0x3C5E0D1Cu, 0xBC9597EAu, 0x3C0652F8u, 0x3CAE81A2u, 0x3CC4CAAAu, 0xBB883AD0u}},
      {{Kind::kUniform, -0.05, 0.05}, 0x0u, 12345, {0xBD2A6E78u, 0x3CA3BB82u, 0x3D342BDFu, 0x3D0D144Du, 0xBD38CB25u, 0xBD343FA0u}},
      {{Kind::kNormal, 0, 1}, 0x0u, 0, {0x3FA35876u, 0xBF96BB4Fu, 0xBF2153B7u, 0xBE88FDECu, 0xBD2B4C1Fu, 0xBFC6A4FAu}},
      {{Kind::kNormal, 0, 1}, 0x0u, ~uint64_t{0}, {0xBFD589E5u, 0xBF929426u, 0x3F869498u, 0x3EC2245Eu, 0x40061C32u, 0x3F7FB010u}},
      {{Kind::kNormal, 0, 1},
       0x0u,
       uint64_t{1} << 63,
       {0xBEB16CEBu, 0x3F67CCA9u, 0xBE53F109u, 0xBF0FEE58u, 0xBF24DF98u, 0x3FDDC94Fu}},
      {{Kind::kNormal, 0, 1}, 0x0u, 12345, {0x3E58FC4Eu, 0xBF062660u, 0xBFC6DF84u, 0xBF81A4C5u, 0x3DFB5FBAu, 0x3E1A6FDFu}},
      {{Kind::kTruncatedNormal, 0, 0.02}, 0x0u, 0, {0x3CC13D90u, 0xBCB360E0u, 0xBC43DCAFu, 0xBBA730FDu, 0xBA51475Bu, 0xBCE5D35Eu}},
      {{Kind::kTruncatedNormal, 0, 0.02},
       0x0u,
       ~uint64_t{0},
       {0xBCF3FEABu, 0xBCAEBE41u, 0x3CA12DAEu, 0x3BECAD52u, 0x3D0F6C4Eu, 0x3C997619u}},
      {{Kind::kTruncatedNormal, 0, 0.02},
       0x0u,
       uint64_t{1} << 63,
       {0xBBD860A5u, 0x3C8BA004u, 0xBB816355u, 0xBC2EFAE0u, 0xBC481B78u, 0x3CFB70B5u}},
      {{Kind::kTruncatedNormal, 0, 0.02},
       0x0u,
       12345,
       {0x3B847695u, 0xBC23333Eu, 0xBCE60CBBu, 0xBC9B8790u, 0x3B19865Eu, 0x3B3C9EFDu}},
      {{Kind::kUniform, -0.05, 0.05},
       0x123456789ABCDEFu,
       12345,
       {0x3CF9A60Eu, 0xBCAE595Du, 0xBD1E20EAu, 0x3C13CE40u, 0x3C51B614u, 0xBCB07500u}},
      {{Kind::kNormal, 0, 1},
       0x123456789ABCDEFu,
       12345,
       {0xBF5BD3BDu, 0x3F4BF0F8u, 0x3E944832u, 0xBE69917Bu, 0xBEA73229u, 0x3F49AE70u}},
      {{Kind::kTruncatedNormal, 0, 0.02},
       0x123456789ABCDEFu,
       12345,
       {0xBC84A01Au, 0x3C768ECEu, 0x3BB4EFC2u, 0xBB8E9237u, 0xBBCBF1CBu, 0x3C73E375u}},
  };
  for (const Golden& golden : goldens) {
    const std::vector<float> row = Generate(golden.spec, golden.seed, {golden.key}, 6);
    std::string found;
    bool same = true;
    for (size_t c = 0; c < 6; ++c) {
      char text[16];
      std::snprintf(text, sizeof(text), "0x%08Xu, ", std::bit_cast<uint32_t>(row[c]));
      found += text;
      same &= std::bit_cast<uint32_t>(row[c]) == golden.bits[c];
    }
    EXPECT_TRUE(same) << "kind " << static_cast<int>(golden.spec.kind) << " key " << golden.key << " gives " << found;
  }
}

TEST(InitializerTest, TableSeedsArePinnedAndEachPartOfThemCounts) {
  EXPECT_EQ(TableSeed("user", 0, 0), 0x607C1BD35B8E8B8Fu);
  EXPECT_EQ(TableSeed("user", 1, 0), 0x1B2768E9BE665907u);
  EXPECT_NE(TableSeed("user", 1, 0), TableSeed("user", 0, 1));
  EXPECT_NE(TableSeed("user", 0, 0), TableSeed("item", 0, 0));
  EXPECT_NE(TableSeed("user", -1, 0), TableSeed("user", 0, -1));
}

// ---- distribution ----

double Phi(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

// The largest distance between the sample's distribution and cdf, times sqrt(n): above 1.95 once in a thousand.
template <typename Cdf>
double KolmogorovSmirnov(std::vector<float> sample, const Cdf& cdf) {
  std::sort(sample.begin(), sample.end());
  const double n = static_cast<double>(sample.size());
  double worst = 0;
  for (size_t i = 0; i < sample.size(); ++i) {
    const double p = cdf(sample[i]);
    worst = std::max({worst, std::fabs(p - static_cast<double>(i) / n), std::fabs(p - static_cast<double>(i + 1) / n)});
  }
  return worst * std::sqrt(n);
}

struct Moments {
  double mean, variance;
};

template <typename Sample>
Moments MomentsOf(const Sample& sample) {
  double sum = 0, squares = 0;
  for (const float x : sample) sum += x;
  const double mean = sum / static_cast<double>(sample.size());
  for (const float x : sample) squares += (x - mean) * (x - mean);
  return {mean, squares / static_cast<double>(sample.size())};
}

double Correlation(const std::vector<float>& a, const std::vector<float>& b) {
  const Moments ma = MomentsOf(a), mb = MomentsOf(b);
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - ma.mean) * (b[i] - mb.mean);
  return sum / static_cast<double>(a.size()) / std::sqrt(ma.variance * mb.variance);
}

// Key sets that a weak mixing of the key would betray.
std::vector<std::vector<uint64_t>> KeySets(size_t count) {
  std::vector<std::vector<uint64_t>> sets = {Consecutive(count), Consecutive(count, ~uint64_t{0} - count / 2)};
  std::vector<uint64_t> high(count), strided(count);
  for (size_t i = 0; i < count; ++i) {
    high[i] = uint64_t{i} << 32;
    strided[i] = i * 1000003;
  }
  sets.push_back(high);
  sets.push_back(strided);
  return sets;
}

TEST(InitializerTest, NormalHasItsMeanVarianceAndDistribution) {
  const InitializerSpec spec{Kind::kNormal, 0.5, 0.2};
  for (const auto& keys : KeySets(20000)) {
    const std::vector<float> rows = Generate(spec, 1, keys, 16);
    const double n = static_cast<double>(rows.size());
    const Moments m = MomentsOf(rows);
    EXPECT_NEAR(m.mean, 0.5, 4 * 0.2 / std::sqrt(n));
    EXPECT_NEAR(m.variance, 0.04, 4 * 0.04 * std::sqrt(2 / n));
    EXPECT_LT(KolmogorovSmirnov(rows, [](double x) { return Phi((x - 0.5) / 0.2); }), 1.95);
    const auto [low, high] = std::minmax_element(rows.begin(), rows.end());
    EXPECT_LT(*low, 0.5 - 4 * 0.2);  // 320,000 numbers reach beyond four deviations
    EXPECT_GT(*high, 0.5 + 4 * 0.2);
  }
}

TEST(InitializerTest, TruncatedNormalHasItsMeanVarianceBoundsAndDistribution) {
  const InitializerSpec spec{Kind::kTruncatedNormal, -0.01, 0.01};
  const double cut = 0.87962566103423978, within = Phi(2) - Phi(-2);
  for (const auto& keys : KeySets(20000)) {
    const std::vector<float> rows = Generate(spec, 1, keys, 16);
    const double n = static_cast<double>(rows.size()), deviation = 0.01 * cut;
    const Moments m = MomentsOf(rows);
    EXPECT_NEAR(m.mean, -0.01, 4 * deviation / std::sqrt(n));
    EXPECT_NEAR(m.variance, deviation * deviation, 4 * deviation * deviation * std::sqrt(2 / n));
    EXPECT_LT(KolmogorovSmirnov(rows, [&](double x) { return (Phi((x + 0.01) / 0.01) - Phi(-2)) / within; }), 1.95);
    const auto [low, high] = std::minmax_element(rows.begin(), rows.end());
    EXPECT_GE(*low, -0.03f);
    EXPECT_LE(*high, 0.01f);
    EXPECT_LT(*low, -0.0299f);
    EXPECT_GT(*high, 0.0099f);
  }
}

TEST(InitializerTest, UniformHasItsMeanVarianceBoundsAndDistribution) {
  const InitializerSpec spec{Kind::kUniform, -0.05, 0.15};
  for (const auto& keys : KeySets(20000)) {
    const std::vector<float> rows = Generate(spec, 1, keys, 16);
    const double n = static_cast<double>(rows.size()), variance = 0.2 * 0.2 / 12;
    const Moments m = MomentsOf(rows);
    EXPECT_NEAR(m.mean, 0.05, 4 * std::sqrt(variance / n));
    EXPECT_NEAR(m.variance, variance, 4 * variance * std::sqrt(0.8 / n));
    EXPECT_LT(KolmogorovSmirnov(rows, [](double x) { return std::clamp((x + 0.05) / 0.2, 0.0, 1.0); }), 1.95);
    for (const float x : rows) {
      ASSERT_GE(x, -0.05f);
      ASSERT_LT(x, 0.15f);
    }
  }
}

TEST(InitializerTest, EachColumnAndEachKeyAloneHasTheDistribution) {
  const InitializerSpec spec{Kind::kNormal, 0, 1};
  const std::vector<uint64_t> keys = Consecutive(20000);
  const size_t dim = 9;
  const std::vector<float> rows = Generate(spec, 3, keys, dim);
  for (size_t c = 0; c < dim; ++c) {
    std::vector<float> column(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) column[i] = rows[i * dim + c];
    EXPECT_LT(KolmogorovSmirnov(column, Phi), 1.95) << "column " << c;
  }
  for (const uint64_t key : kOddKeys) {
    EXPECT_LT(KolmogorovSmirnov(Generate(spec, 3, {key}, 8192), Phi), 1.95) << "key " << key;
  }
}

TEST(InitializerTest, KeysColumnsAndSeedsAreIndependent) {
  const InitializerSpec spec{Kind::kNormal, 0, 1};
  const size_t count = 40000, dim = 8;
  const double limit = 4.5 / std::sqrt(static_cast<double>(count));
  for (const auto& keys : KeySets(count)) {
    const std::vector<float> rows = Generate(spec, 1, keys, dim), other_seed = Generate(spec, 2, keys, dim);
    std::vector<std::vector<float>> columns(dim, std::vector<float>(count));
    for (size_t i = 0; i < count; ++i) {
      for (size_t c = 0; c < dim; ++c) columns[c][i] = rows[i * dim + c];
    }
    for (size_t c = 0; c < dim; ++c) {
      for (size_t e = 0; e < c; ++e) EXPECT_LT(std::fabs(Correlation(columns[c], columns[e])), limit) << c << " " << e;
      // Neighbouring keys, in the order given.
      const std::vector<float> head(columns[c].begin(), columns[c].end() - 1), tail(columns[c].begin() + 1, columns[c].end());
      EXPECT_LT(std::fabs(Correlation(head, tail)), limit) << "column " << c;
      std::vector<float> other(count);
      for (size_t i = 0; i < count; ++i) other[i] = other_seed[i * dim + c];
      EXPECT_LT(std::fabs(Correlation(columns[c], other)), limit) << "seeds, column " << c;
    }
  }
}

TEST(InitializerTest, NoTwoOfAHundredThousandKeysShareARow) {
  const std::vector<uint64_t> keys = Consecutive(100000);
  const std::vector<float> rows = Generate({Kind::kNormal, 0, 1}, 1, keys, 4);
  std::vector<std::array<float, 4>> sorted(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) std::copy_n(rows.begin() + static_cast<ptrdiff_t>(4 * i), 4, sorted[i].begin());
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
}

}  // namespace
}  // namespace mxrec
