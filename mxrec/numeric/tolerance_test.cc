#include "mxrec/numeric/tolerance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "mxrec/numeric/ulp.h"

namespace mxrec {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(ToleranceTest, EverySubjectIsFoundAndBoundsAreSane) {
  for (const ToleranceEntry& entry : ToleranceTable()) {
    const auto found = FindTolerance(entry.subject);
    ASSERT_TRUE(found.ok()) << entry.subject;
    EXPECT_EQ(*found, entry.tolerance);
    EXPECT_GE(entry.tolerance.rtol, 0);
    EXPECT_LE(entry.tolerance.rtol, 1e-4);
    EXPECT_GE(entry.tolerance.atol, 0);
    EXPECT_LE(entry.tolerance.atol, 1e-4);
    EXPECT_GE(entry.tolerance.max_ulp, 0);
    EXPECT_FALSE(entry.meaning.empty());
  }
  for (const char* subject : {"sgd", "adagrad", "adam", "adamw", "first_row", "kernel"}) {
    EXPECT_TRUE(FindTolerance(subject).ok()) << subject;
  }
}

TEST(ToleranceTest, AnUnknownSubjectListsTheKnown) {
  const Status status = FindTolerance("ftrl2").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"ftrl2\"; known subjects: adadelta, adagrad, adam, "));
}

TEST(ToleranceTest, TheDumpIsOneMarkdownLineAnEntry) {
  const std::string text = DumpToleranceTable();
  EXPECT_THAT(text, HasSubstr("| subject | rtol | atol | ulp |"));
  EXPECT_THAT(text, HasSubstr("\n| adagrad | 1e-05 | 1e-06 | 0 | "));
  EXPECT_EQ(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')), ToleranceTable().size() + 2);
}

TEST(ToleranceTest, RelativeAbsoluteAndUlpBoundsEachSuffice) {
  EXPECT_TRUE(WithinTolerance(1.00001f, 1.0f, {.rtol = 2e-5}));
  EXPECT_FALSE(WithinTolerance(1.0001f, 1.0f, {.rtol = 2e-5}));
  EXPECT_TRUE(WithinTolerance(1e-7f, 0.0f, {.atol = 1e-6}));
  EXPECT_FALSE(WithinTolerance(1e-5f, 0.0f, {.atol = 1e-6}));
  EXPECT_TRUE(WithinTolerance(std::nextafter(1.0f, 2.0f), 1.0f, {.max_ulp = 1}));
  EXPECT_FALSE(WithinTolerance(std::nextafter(1.0f, 2.0f), 1.0f, {}));
  EXPECT_TRUE(WithinTolerance(0.0f, -0.0f, {}));
  EXPECT_TRUE(WithinTolerance(1.0 + 1e-12, 1.0, {.rtol = 1e-11}));
}

TEST(ToleranceTest, NanAndInfinityAgreeWithTheirLikeOnly) {
  const Tolerance wide = {.rtol = 1, .atol = 1e30, .max_ulp = std::numeric_limits<int64_t>::max()};
  EXPECT_TRUE(WithinTolerance(kNan, kNan, {}));
  EXPECT_FALSE(WithinTolerance(kNan, 1.0f, wide));
  EXPECT_FALSE(WithinTolerance(1.0f, kNan, wide));
  EXPECT_TRUE(WithinTolerance(kInfinity, kInfinity, {}));
  EXPECT_FALSE(WithinTolerance(kInfinity, -kInfinity, wide));
  EXPECT_FALSE(WithinTolerance(1.0f, kInfinity, wide));
}

TEST(ToleranceTest, CompareFindsTheWorst) {
  const std::vector<float> references = {1, 2, 3, 4}, values = {1, 2.5, 3.00001f, 4};
  const Deviation deviation = Compare(values, references, {.rtol = 1e-4});
  EXPECT_EQ(deviation.beyond, 1u);
  EXPECT_FALSE(deviation.within());
  EXPECT_EQ(deviation.worst_index, 1u);
  EXPECT_DOUBLE_EQ(deviation.max_abs, 0.5);
  EXPECT_DOUBLE_EQ(deviation.max_rel, 0.25);
  EXPECT_EQ(DescribeDeviation(deviation, values, references, {.rtol = 1e-4}).substr(0, 88),
            "1 of 4 beyond rtol 0.0001, atol 0, 0 ulp: worst at 1: expected 2, found 2.5; largest dif");
}

TEST(ToleranceTest, CompareReportsTheWorstAlsoWithinTolerance) {
  const std::vector<float> references = {1, 2, 3}, values = {1, 2.001f, 3.01f};
  const Deviation deviation = Compare(values, references, {.atol = 1});
  EXPECT_TRUE(deviation.within());
  EXPECT_EQ(deviation.worst_index, 2u);
  EXPECT_GT(deviation.max_ulp, 0u);
}

TEST(ToleranceTest, AFarValueWithinItsOwnBoundIsNotTheWorst) {
  const std::vector<float> references = {1e6f, 1}, values = {1e6f + 1, 1.5f};
  const Deviation deviation = Compare(values, references, {.rtol = 1e-5});
  EXPECT_EQ(deviation.beyond, 1u);
  EXPECT_EQ(deviation.worst_index, 1u);
}

TEST(ToleranceTest, ALoneNanIsBeyondEverything) {
  const std::vector<float> references = {1, 2}, values = {1, kNan};
  const Deviation deviation = Compare(values, references, {.rtol = 1, .atol = 100});
  EXPECT_EQ(deviation.beyond, 1u);
  EXPECT_EQ(deviation.worst_index, 1u);
  EXPECT_TRUE(std::isinf(deviation.max_abs));
  EXPECT_EQ(deviation.max_ulp, kUlpNever);
  EXPECT_EQ(Compare(references, references, {}).max_ulp, 0u);
  EXPECT_EQ(DescribeDeviation(Compare(references, references, {}), references, references, {}),
            "0 of 2 beyond rtol 0, atol 0, 0 ulp: all equal");
}

TEST(ToleranceTest, TheDocsShowThisTable) {
  std::ifstream file(std::string(MXREC_SOURCE_DIR) + "/docs/numerics.md");
  ASSERT_TRUE(file.good());
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string begin = "<!-- tolerances: begin -->\n";
  const size_t at = text.find(begin), end = text.find("<!-- tolerances: end -->");
  ASSERT_NE(at, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  EXPECT_EQ(text.substr(at + begin.size(), end - at - begin.size()), DumpToleranceTable());
}

}  // namespace
}  // namespace mxrec
