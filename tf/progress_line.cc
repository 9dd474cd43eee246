#include "tf/progress_line.h"

#include <atomic>

namespace mxrec {
namespace {

std::atomic<int64_t> delay_ms{2000};

}  // namespace

void SetProgressDelay(std::chrono::milliseconds delay) { delay_ms = delay.count(); }
std::chrono::milliseconds ProgressDelay() { return std::chrono::milliseconds(delay_ms.load()); }

}  // namespace mxrec
