// ProgressLine: one line on a terminal that shows how far a long save or load is.
//
// Says nothing for the first two seconds (see SetProgressDelay) and nothing at all when standard error is no terminal. Threads:
// Show may be called from several at once.
#ifndef MXREC_TF_PROGRESS_LINE_H_
#define MXREC_TF_PROGRESS_LINE_H_

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>

namespace mxrec {

// For tests: the time before the first line of what is started from now on.
void SetProgressDelay(std::chrono::milliseconds delay);
std::chrono::milliseconds ProgressDelay();

class ProgressLine {
 public:
  explicit ProgressLine(std::string what)
      : what_(std::move(what)), on_(isatty(STDERR_FILENO) == 1), next_(Clock::now() + ProgressDelay()) {}
  ~ProgressLine() {
    if (shown_) std::fprintf(stderr, "\r%s: %s%*s\n", what_.c_str(), done_ ? "done" : "stopped", 24, "");
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // The work has been done to its end; else the line says that it stopped.
  void Done() { done_ = true; }
  void Show(uint64_t done_bytes, uint64_t total_bytes) {
    if (!on_ || total_bytes == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const Clock::time_point now = Clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(500);
    shown_ = true;
    std::fprintf(stderr, "\r%s: %3d %% of %.2f GB", what_.c_str(),
                 static_cast<int>(done_bytes * 100.0 / static_cast<double>(total_bytes)), static_cast<double>(total_bytes) / 1e9);
    std::fflush(stderr);
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::string what_;
  const bool on_;
  std::mutex mutex_;
  Clock::time_point next_;
  bool shown_ = false, done_ = false;
};

}  // namespace mxrec

#endif  // MXREC_TF_PROGRESS_LINE_H_
