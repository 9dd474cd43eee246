// ScopedIeeeFloat: for its lifetime the calling thread computes in plain IEEE arithmetic: round to nearest, denormal numbers
// kept.
//
// TensorFlow lets its own threads flush denormals to zero. A row must not depend on which thread computes it, so every
// kernel whose result is stored in a table runs inside this scope. On exit the thread's former mode is back.
// Cost: about 10 ns when the mode has to change, less when not. It acts on the current thread only.
#ifndef MXREC_KERNELS_FLOAT_MODE_H_
#define MXREC_KERNELS_FLOAT_MODE_H_

#include <cfenv>
#include <cstdint>

namespace mxrec {

class ScopedIeeeFloat {
 public:
#if defined(__x86_64__)
  // The control bits of MXCSR are written without <cfenv>, which would reload the x87 unit too (100 ns).
  ScopedIeeeFloat() {
    asm volatile("stmxcsr %0" : "=m"(former_));
    if ((former_ & kControl) != kDefault) Load((former_ & ~kControl) | kDefault);
  }
  ~ScopedIeeeFloat() {
    if ((former_ & kControl) != kDefault) Load(former_);
  }

 private:
  static constexpr uint32_t kControl = 0xFFC0u;  // flush, rounding, exception masks, denormals-are-zero
  static constexpr uint32_t kDefault = 0x1F80u;  // no flush, nearest, all exceptions masked
  static void Load(uint32_t mxcsr) { asm volatile("ldmxcsr %0" ::"m"(mxcsr) : "memory"); }
  uint32_t former_;
#else
  ScopedIeeeFloat() {
    std::fegetenv(&former_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~ScopedIeeeFloat() { std::fesetenv(&former_); }

 private:
  std::fenv_t former_;
#endif

 public:
  ScopedIeeeFloat(const ScopedIeeeFloat&) = delete;
  ScopedIeeeFloat& operator=(const ScopedIeeeFloat&) = delete;
};

}  // namespace mxrec

#endif  // MXREC_KERNELS_FLOAT_MODE_H_
