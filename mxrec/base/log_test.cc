#include "mxrec/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace mxrec {
namespace {

std::mutex g_mutex;
std::vector<std::string> g_lines;

void Collect(const LogRecord& record) {
  std::lock_guard lock(g_mutex);
  g_lines.push_back(std::string(LogLevelName(record.level)) + " " + std::string(record.text));
}

class LogTest : public testing::Test {
 protected:
  void SetUp() override {
    g_lines.clear();
    SetLogLevel(LogLevel::kInfo);
  }
  void TearDown() override {
    SetLogSink(nullptr);
    SetLogLevel(LogLevel::kInfo);
  }
};

TEST_F(LogTest, LinesReachTheSinkFromTheLevelUp) {
  EXPECT_EQ(SetLogSink(&Collect), nullptr);
  MXREC_LOG(DEBUG) << "hidden";
  MXREC_LOG(INFO) << "rows " << 3;
  MXREC_LOG(CRITICAL) << "end";
  SetLogLevel(LogLevel::kError);
  MXREC_LOG(WARNING) << "hidden";
  MXREC_LOG(ERROR) << "shown";
  SetLogLevel(LogLevel::kDebug);
  MXREC_LOG(DEBUG) << "all";
  EXPECT_THAT(g_lines, testing::ElementsAre("INFO rows 3", "CRITICAL end", "ERROR shown", "DEBUG all"));
  EXPECT_EQ(SetLogSink(nullptr), &Collect);
}

TEST_F(LogTest, HiddenLinesDoNotEvaluateTheirOperands) {
  SetLogSink(&Collect);
  int evaluated = 0;
  MXREC_LOG(DEBUG) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
}

TEST_F(LogTest, DefaultSinkWritesTimeLevelAndTextToStderr) {
  testing::internal::CaptureStderr();
  MXREC_LOG(WARNING) << "table user is full";
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::MatchesRegex("....-..-.. ..:..:..\\.... WARNING mxrec: table user is full\n"));
}

TEST_F(LogTest, LinesOfSeveralThreadsStayWhole) {
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) MXREC_LOG(INFO) << "<" << std::string(50, static_cast<char>('a' + t)) << ">";
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::istringstream lines(testing::internal::GetCapturedStderr());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const std::string text = line.substr(line.find('<'));
    ASSERT_EQ(text, "<" + std::string(50, text[1]) + ">");
  }
  EXPECT_EQ(count, 800);
}

TEST_F(LogTest, LevelNamesGoBothWays) {
  for (int i = 0; i <= 4; ++i) EXPECT_EQ(LogLevelFromName(LogLevelName(static_cast<LogLevel>(i))), static_cast<LogLevel>(i));
  EXPECT_EQ(LogLevelFromName("warning"), LogLevel::kWarning);
  EXPECT_EQ(LogLevelFromName("TRACE"), std::nullopt);
  EXPECT_EQ(LogLevelFromName(""), std::nullopt);
}

}  // namespace
}  // namespace mxrec
