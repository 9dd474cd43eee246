#include "mxrec/engine/clock.h"

#include <atomic>
#include <chrono>

namespace mxrec {
namespace {

std::atomic<int64_t> g_fixed_ms{-1};

}  // namespace

int64_t NowMs() {
  const int64_t fixed = g_fixed_ms.load(std::memory_order_relaxed);
  if (fixed >= 0) return fixed;
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void SetClockForTesting(int64_t now_ms) { g_fixed_ms.store(now_ms < 0 ? -1 : now_ms); }

}  // namespace mxrec
