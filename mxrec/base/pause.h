// Pause: tells the processor that a loop waits for another thread, so that it takes less from its sibling and ends without delay.
#ifndef MXREC_BASE_PAUSE_H_
#define MXREC_BASE_PAUSE_H_

namespace mxrec {

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace mxrec

#endif  // MXREC_BASE_PAUSE_H_
