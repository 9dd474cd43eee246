// The numbers of Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC11): two multipliers
// and two key increments.
#ifndef MXREC_KERNELS_PHILOX_H_
#define MXREC_KERNELS_PHILOX_H_

#include <cstdint>

namespace mxrec::philox {

inline constexpr uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;
inline constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
inline constexpr int kRounds = 10;

}  // namespace mxrec::philox

#endif  // MXREC_KERNELS_PHILOX_H_
