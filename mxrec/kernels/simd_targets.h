// ForEachSimdTarget: runs a test once per instruction set that this CPU and this build have. For tests only.
#ifndef MXREC_KERNELS_SIMD_TARGETS_H_
#define MXREC_KERNELS_SIMD_TARGETS_H_

#include <hwy/highway.h>

#include <cstdint>

namespace mxrec {

// Calls body(name) with dynamic dispatch limited to one target after the other; afterwards dispatch is as usual.
// Not to be used while other threads run kernels.
template <typename Body>
void ForEachSimdTarget(const Body& body) {
  // The baseline is compiled into every build even where HWY_TARGETS supersedes it.
  int64_t left = (hwy::SupportedTargets() & HWY_TARGETS) | HWY_STATIC_TARGET;
  while (left != 0) {
    const int64_t target = left & -left;
    left &= left - 1;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    body(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace mxrec

#endif  // MXREC_KERNELS_SIMD_TARGETS_H_
