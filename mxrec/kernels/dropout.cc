#include "mxrec/kernels/dropout.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "mxrec/kernels/first_row.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/dropout.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "mxrec/kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DU = hn::CappedTag<uint32_t, 16>;
using DI = hn::RebindToSigned<DU>;
using VU = hn::Vec<DU>;
using VI = hn::Vec<DI>;

// The bits of the words above `last`, lane 0 lowest. Unsigned order is signed order with the highest bit flipped.
HWY_INLINE uint64_t DroppedBits(VU words, VI last) {
  const DI di;
  const VI flipped = hn::BitCast(di, hn::Xor(words, hn::Set(DU(), 0x80000000u)));
  HWY_ALIGN uint8_t bytes[8] = {};
  hn::StoreMaskBits(di, hn::Gt(flipped, last), bytes);
  uint64_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

void DropoutMaskSimd(const DropoutStream& stream, uint64_t group, size_t count, uint8_t* mask) {
  const DU du;
  const size_t lanes = hn::Lanes(du);  // divides 16
  const VI last = hn::Set(DI(), static_cast<int32_t>(static_cast<uint32_t>(stream.threshold - 1) ^ 0x80000000u));
  const VU stream_low = hn::Set(du, static_cast<uint32_t>(stream.stream));
  const VU stream_high = hn::Set(du, static_cast<uint32_t>(stream.stream >> 32));
  for (size_t g = 0; g < count; ++g) {
    const uint64_t counter = stream.first + 16 * (group + g);
    const VU low = hn::Set(du, static_cast<uint32_t>(counter)), high = hn::Set(du, static_cast<uint32_t>(counter >> 32));
    uint64_t bits = 0;
    for (size_t j = 0; j < 16;) {
      // A multiple of 16 and less than 16: no carry.
      VU a0 = hn::Add(low, hn::Iota(du, static_cast<uint32_t>(j))), a1 = high, a2 = stream_low, a3 = stream_high;
      if (lanes == 16) {
        Philox(du, stream.seed, a0, a1, a2, a3);
      } else {
        VU b0 = hn::Add(low, hn::Iota(du, static_cast<uint32_t>(j + lanes))), b1 = high, b2 = stream_low, b3 = stream_high;
        PhiloxTwice(du, stream.seed, a0, a1, a2, a3, b0, b1, b2, b3);
        const size_t at = j + lanes;
        bits |= DroppedBits(b0, last) << at | DroppedBits(b1, last) << (16 + at) | DroppedBits(b2, last) << (32 + at) |
                DroppedBits(b3, last) << (48 + at);
      }
      bits |= DroppedBits(a0, last) << j | DroppedBits(a1, last) << (16 + j) | DroppedBits(a2, last) << (32 + j) |
              DroppedBits(a3, last) << (48 + j);
      j += lanes == 16 ? 16 : 2 * lanes;
    }
    bits = ~bits;
    std::memcpy(mask + 8 * g, &bits, sizeof(bits));
  }
}

template <typename T>
HWY_INLINE size_t Apply(const T* x, const uint8_t* mask, size_t n, T keep_prob, T* out) {
  const hn::CappedTag<T, 16> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  using Word = hn::TFromD<decltype(du)>;
  const size_t lanes = hn::Lanes(d);  // divides 64
  HWY_ALIGN Word bit_of_lane[16];
  for (size_t l = 0; l < 16; ++l) bit_of_lane[l] = Word{1} << l;
  const auto bit = hn::Load(du, bit_of_lane);
  const auto divisor = hn::Set(d, keep_prob);
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    uint64_t bits;
    std::memcpy(&bits, mask + i / 8, sizeof(bits));
    for (size_t l = 0; l < 64; l += lanes) {
      const auto own = hn::And(hn::Set(du, static_cast<Word>(bits >> l)), bit);
      const auto kept = hn::RebindMask(d, hn::Ne(own, hn::Zero(du)));
      hn::StoreU(hn::IfThenElseZero(kept, hn::Div(hn::LoadU(d, x + i + l), divisor)), d, out + i + l);
    }
  }
  return i;
}

size_t ApplyFloatSimd(const float* x, const uint8_t* mask, size_t n, float keep_prob, float* out) {
  return Apply(x, mask, n, keep_prob, out);
}

size_t ApplyDoubleSimd(const double* x, const uint8_t* mask, size_t n, double keep_prob, double* out) {
#if HWY_HAVE_FLOAT64
  return Apply(x, mask, n, keep_prob, out);
#else
  return 0;
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(DropoutMaskSimd);
HWY_EXPORT(ApplyFloatSimd);
HWY_EXPORT(ApplyDoubleSimd);

static_assert(std::endian::native == std::endian::little, "masks are written as 64-bit numbers");

uint64_t DropoutThreshold(double keep_prob) {
  return std::clamp<uint64_t>(static_cast<uint64_t>(std::llround(keep_prob * 0x1p32)), 1, uint64_t{1} << 32);
}

void DropoutMask(const DropoutStream& stream, uint64_t group, size_t count, uint8_t* mask) {
  HWY_DYNAMIC_DISPATCH(DropoutMaskSimd)(stream, group, count, mask);
}

void DropoutMaskReference(const DropoutStream& stream, uint64_t group, size_t count, uint8_t* mask) {
  const uint32_t key[2] = {static_cast<uint32_t>(stream.seed), static_cast<uint32_t>(stream.seed >> 32)};
  std::fill_n(mask, 8 * count, uint8_t{0});
  for (size_t g = 0; g < count; ++g) {
    for (size_t j = 0; j < 16; ++j) {
      const uint64_t low = stream.first + 16 * (group + g) + j;
      const uint32_t counter[4] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                                   static_cast<uint32_t>(stream.stream), static_cast<uint32_t>(stream.stream >> 32)};
      uint32_t words[4];
      Philox4x32(counter, key, words);
      for (size_t k = 0; k < 4; ++k) {
        const size_t element = 64 * g + 16 * k + j;
        if (words[k] < stream.threshold) mask[element / 8] |= static_cast<uint8_t>(1u << (element % 8));
      }
    }
  }
}

namespace {

template <typename T>
void ApplyFrom(size_t i, const T* x, const uint8_t* mask, size_t n, T keep_prob, T* out) {
  for (; i < n; ++i) out[i] = (mask[i / 8] >> (i % 8) & 1) != 0 ? x[i] / keep_prob : T{0};
}

}  // namespace

void DropoutApply(const float* x, const uint8_t* mask, size_t n, float keep_prob, float* out) {
  ApplyFrom(HWY_DYNAMIC_DISPATCH(ApplyFloatSimd)(x, mask, n, keep_prob, out), x, mask, n, keep_prob, out);
}
void DropoutApply(const double* x, const uint8_t* mask, size_t n, double keep_prob, double* out) {
  ApplyFrom(HWY_DYNAMIC_DISPATCH(ApplyDoubleSimd)(x, mask, n, keep_prob, out), x, mask, n, keep_prob, out);
}
void DropoutApplyReference(const float* x, const uint8_t* mask, size_t n, float keep_prob, float* out) {
  ApplyFrom(0, x, mask, n, keep_prob, out);
}
void DropoutApplyReference(const double* x, const uint8_t* mask, size_t n, double keep_prob, double* out) {
  ApplyFrom(0, x, mask, n, keep_prob, out);
}

}  // namespace mxrec
#endif  // HWY_ONCE
