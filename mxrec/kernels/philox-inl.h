// Philox 4x32-10 on vectors: each lane makes the four words of one counter. What the words are good for: first_row.h, dropout.h.
// Included once per target by Highway (hence no ordinary guard); the scalar reference is Philox4x32 of first_row.h.
#if defined(MXREC_KERNELS_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MXREC_KERNELS_PHILOX_INL_H_
#undef MXREC_KERNELS_PHILOX_INL_H_
#else
#define MXREC_KERNELS_PHILOX_INL_H_
#endif

#include <hwy/highway.h>

#include "mxrec/kernels/philox.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The two halves of the 64-bit products of each lane.
template <class DU, class VU>
HWY_INLINE void MulWide(DU du, VU a, VU m, VU& low, VU& high) {
#if HWY_TARGET == HWY_SCALAR
  const uint64_t product = uint64_t{hn::GetLane(a)} * hn::GetLane(m);
  low = hn::Set(du, static_cast<uint32_t>(product));
  high = hn::Set(du, static_cast<uint32_t>(product >> 32));
#else
  const hn::RepartitionToWide<DU> dw;
  const auto even = hn::MulEven(a, m);
  const auto odd = hn::MulEven(hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(dw, a))), m);
  low = hn::OddEven(hn::BitCast(du, hn::ShiftLeft<32>(odd)), hn::BitCast(du, even));
  high = hn::OddEven(hn::BitCast(du, odd), hn::BitCast(du, hn::ShiftRight<32>(even)));
#endif
}

template <class DU, class VU>
HWY_INLINE void PhiloxRound(DU du, uint32_t k0, uint32_t k1, VU& c0, VU& c1, VU& c2, VU& c3) {
  VU low0, high0, low1, high1;
  MulWide(du, c0, hn::Set(du, philox::kMul0), low0, high0);
  MulWide(du, c2, hn::Set(du, philox::kMul1), low1, high1);
  c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(du, k0));
  c1 = low1;
  c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(du, k1));
  c3 = low0;
}

// From counters to words, in place; the generator's key is `seed`.
template <class DU, class VU>
HWY_INLINE void Philox(DU du, uint64_t seed, VU& c0, VU& c1, VU& c2, VU& c3) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < philox::kRounds; ++round, k0 += philox::kWeyl0, k1 += philox::kWeyl1) {
    PhiloxRound(du, k0, k1, c0, c1, c2, c3);
  }
}

// Two vectors of counters side by side: the rounds are one long chain of dependent multiplications.
template <class DU, class VU>
HWY_INLINE void PhiloxTwice(DU du, uint64_t seed, VU& a0, VU& a1, VU& a2, VU& a3, VU& b0, VU& b1, VU& b2, VU& b3) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < philox::kRounds; ++round, k0 += philox::kWeyl0, k1 += philox::kWeyl1) {
    PhiloxRound(du, k0, k1, a0, a1, a2, a3);
    PhiloxRound(du, k0, k1, b0, b1, b2, b3);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
