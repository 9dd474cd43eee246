// The engine's clock: what time stamps and cold eviction go by.
#ifndef MXREC_ENGINE_CLOCK_H_
#define MXREC_ENGINE_CLOCK_H_

#include <cstdint>

namespace mxrec {

// Milliseconds since the epoch: the system clock, or what SetClockForTesting put in its place (process-wide).
int64_t NowMs();
// A fixed time; negative: back to the system clock.
void SetClockForTesting(int64_t now_ms);

}  // namespace mxrec

#endif  // MXREC_ENGINE_CLOCK_H_
