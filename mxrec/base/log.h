// MXREC_LOG(WARNING) << "table " << name << ...: one line to whoever runs the engine.
//
// Levels: DEBUG, INFO, WARNING, ERROR, CRITICAL. Lines below the level (INFO at start) cost one load: their operands are not
// evaluated. The default sink writes "2026-01-31 23:59:59.123 WARNING mxrec: text" (UTC) to stderr in one piece.
// Threads: everything here may be called from any thread at any time; a sink is called by several threads at once.
#ifndef MXREC_BASE_LOG_H_
#define MXREC_BASE_LOG_H_

#include <optional>
#include <sstream>
#include <string_view>

namespace mxrec {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kCritical = 4 };

// "DEBUG", ...
std::string_view LogLevelName(LogLevel level);
// The level of a name in either case; nullopt for an unknown name.
std::optional<LogLevel> LogLevelFromName(std::string_view name);

LogLevel GetLogLevel();
void SetLogLevel(LogLevel level);

struct LogRecord {
  LogLevel level;
  const char* file;
  int line;
  std::string_view text;  // without a line end; valid during the call
};

// Takes the place of the default sink; null puts the default back. Returns the sink that was in place, null for the default.
// The replaced sink may still be running in other threads for a moment.
using LogSink = void (*)(const LogRecord& record);
LogSink SetLogSink(LogSink sink);

namespace internal {

class LogLine {
 public:
  LogLine(LogLevel level, const char* file, int line) : level_(level), file_(file), line_(line) {}
  ~LogLine();
  template <typename T>
  LogLine& operator<<(const T& value) {
    text_ << value;
    return *this;
  }

 private:
  LogLevel level_;
  const char* file_;
  int line_;
  std::ostringstream text_;
};

struct LogVoidify {
  void operator&(const LogLine&) {}
};

}  // namespace internal
}  // namespace mxrec

#define MXREC_LOG_LEVEL_DEBUG_ ::mxrec::LogLevel::kDebug
#define MXREC_LOG_LEVEL_INFO_ ::mxrec::LogLevel::kInfo
#define MXREC_LOG_LEVEL_WARNING_ ::mxrec::LogLevel::kWarning
#define MXREC_LOG_LEVEL_ERROR_ ::mxrec::LogLevel::kError
#define MXREC_LOG_LEVEL_CRITICAL_ ::mxrec::LogLevel::kCritical

#define MXREC_LOG(level)                                \
  (MXREC_LOG_LEVEL_##level##_ < ::mxrec::GetLogLevel()) \
      ? static_cast<void>(0)                            \
      : ::mxrec::internal::LogVoidify() & ::mxrec::internal::LogLine(MXREC_LOG_LEVEL_##level##_, __FILE__, __LINE__)

#endif  // MXREC_BASE_LOG_H_
