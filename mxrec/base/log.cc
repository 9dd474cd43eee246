#include "mxrec/base/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>

namespace mxrec {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"};

std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::atomic<LogSink> g_sink{nullptr};

void WriteToStderr(const LogRecord& record) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = static_cast<std::time_t>(ms / 1000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char stamp[48];
  const size_t length = std::strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S", &utc);
  std::snprintf(stamp + length, sizeof(stamp) - length, ".%03d", static_cast<int>(ms % 1000));

  std::string line(stamp);
  line.append(" ").append(LogLevelName(record.level)).append(" mxrec: ").append(record.text).append("\n");
  // One call to write, so that lines of several threads and processes do not mix. stdio would add a lock that a forked child
  // may find taken.
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (written <= 0) return;
    rest.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

std::string_view LogLevelName(LogLevel level) {
  const auto index = static_cast<size_t>(level);
  return index < kNames.size() ? kNames[index] : std::string_view("UNKNOWN");
}

std::optional<LogLevel> LogLevelFromName(std::string_view name) {
  std::string upper(name);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (upper == kNames[i]) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

LogLevel GetLogLevel() { return g_level.load(std::memory_order_relaxed); }
void SetLogLevel(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }
LogSink SetLogSink(LogSink sink) { return g_sink.exchange(sink, std::memory_order_acq_rel); }

namespace internal {

LogLine::~LogLine() {
  const std::string text = text_.str();
  const LogRecord record{level_, file_, line_, text};
  const LogSink sink = g_sink.load(std::memory_order_acquire);
  (sink != nullptr ? sink : &WriteToStderr)(record);
}

}  // namespace internal
}  // namespace mxrec
