#include "mxrec/kernels/first_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "mxrec/kernels/float_mode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/first_row.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "mxrec/kernels/philox-inl.h"

// Numbers that the vector code and the reference share. This part is compiled once.
#ifndef MXREC_KERNELS_FIRST_ROW_CONSTANTS_
#define MXREC_KERNELS_FIRST_ROW_CONSTANTS_
namespace mxrec::first_row {

inline constexpr float kTwoToMinus24 = 0x1p-24f, kTwoToMinus31 = 0x1p-31f;
// 2 Phi(2) - 1.
inline constexpr float kWithinTwoDeviations = 0.954499736103642f;
// log(2), and the bits of sqrt(1/2), from where the mantissa of the logarithm runs to sqrt(2).
inline constexpr float kLog2 = 0.69314718055994531f;
inline constexpr int32_t kSqrtHalfBits = 0x3F3504F3;
// atanh(s) = s (1 + s^2/3 + s^4/5 + s^6/7 + s^8/9 + ...), |s| <= 0.172.
inline constexpr float kThird = 1.0f / 3, kFifth = 1.0f / 5, kSeventh = 1.0f / 7, kNinth = 1.0f / 9;

// P in powers of w - 2.5 for 0 <= w < 5: relative error 6e-9. Fitted (least squares reweighted towards the largest relative
// error, in float64) to z / x of a float64 inverse normal distribution.
inline constexpr float kSplit = 5.0f, kCentre = 2.5f;
inline constexpr float kMiddle[] = {
    2.1233134269714355f,     0.34880203008651733f,   -0.005907717160880566f, -0.0017716445727273822f, 0.00030878567486070096f,
    -7.019229542493122e-06f, -4.89700369143975e-06f, 6.592639465452521e-07f, 3.285589755819274e-08f,  -1.2432363583059214e-08f};
// P in powers of sqrt(w) - 3.4 for 5 <= w < 21.6: relative error 2e-8.
inline constexpr float kTailCentre = 3.4f;
inline constexpr float kTail[] = {4.5746750831604f,       1.4236140251159668f,    0.00561369676142931f,   -0.0036532387603074312f,
                                  0.002124173566699028f,  -0.001369156059809029f, 0.0008795930189080536f, -0.0004620426334440708f,
                                  9.035714173387977e-05f, 6.576014857273549e-05f, -3.181675492669456e-05f};

}  // namespace mxrec::first_row
#endif  // MXREC_KERNELS_FIRST_ROW_CONSTANTS_

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace fr = mxrec::first_row;

using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;

HWY_INLINE VF MinusLog(VF y) {
  const DF d;
  const DI di;
  const auto bits = hn::BitCast(di, y);
  const auto exponent = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, fr::kSqrtHalfBits)));
  const VF mantissa = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent)));
  const VF f = hn::Sub(mantissa, hn::Set(d, 1.0f));
  const VF s = hn::Div(f, hn::Add(hn::Set(d, 2.0f), f));
  const VF s2 = hn::Mul(s, s);
  VF r = hn::Add(hn::Mul(hn::Set(d, fr::kNinth), s2), hn::Set(d, fr::kSeventh));
  r = hn::Add(hn::Mul(r, s2), hn::Set(d, fr::kFifth));
  r = hn::Add(hn::Mul(r, s2), hn::Set(d, fr::kThird));
  r = hn::Mul(r, s2);
  const VF twice = hn::Add(s, s);
  const VF log_mantissa = hn::Add(twice, hn::Mul(twice, r));
  const VF log = hn::Add(hn::Mul(hn::ConvertTo(d, exponent), hn::Set(d, fr::kLog2)), log_mantissa);
  return hn::Sub(hn::Zero(d), log);
}

template <size_t kN>
HWY_INLINE VF Polynomial(const float (&c)[kN], VF t) {
  const DF d;
  VF p = hn::Set(d, c[kN - 1]);
  for (size_t i = kN - 1; i-- > 0;) p = hn::Add(hn::Mul(p, t), hn::Set(d, c[i]));
  return p;
}

// From words to numbers. These hold no vectors, which could not be members on processors with vectors of unknown length.
struct Uniform {
  float a, range, below_b;
  explicit HWY_INLINE Uniform(const FirstRowFormula& f)
      : a(f.a), range(f.b - f.a), below_b(std::nextafter(f.b, -std::numeric_limits<float>::infinity())) {}
  HWY_INLINE VF operator()(VU word) const {
    const DF d;
    const VF u = hn::Mul(hn::ConvertTo(d, hn::BitCast(DI(), hn::ShiftRight<8>(word))), hn::Set(d, fr::kTwoToMinus24));
    return hn::Min(hn::Add(hn::Set(d, a), hn::Mul(u, hn::Set(d, range))), hn::Set(d, below_b));
  }
};

// The sign bit of a word and x = (k + 0.5) 2^-31 of its other bits.
HWY_INLINE VU SignOf(VU word) { return hn::And(word, hn::Set(DU(), 0x80000000u)); }
HWY_INLINE VF HalfOpen(VU k) {
  return hn::Mul(hn::Add(hn::ConvertTo(DF(), hn::BitCast(DI(), k)), hn::Set(DF(), 0.5f)), hn::Set(DF(), fr::kTwoToMinus31));
}

struct Normal {
  float mean, deviation;
  explicit HWY_INLINE Normal(const FirstRowFormula& f) : mean(f.a), deviation(f.b) {}
  HWY_INLINE VF operator()(VU word) const {
    const DF d;
    const VU sign = SignOf(word);
    const VU k = hn::Xor(word, sign);
    const VF x = HalfOpen(k);
    const VF rest = HalfOpen(hn::Sub(hn::Set(DU(), 0x7FFFFFFFu), k));
    const VF w = MinusLog(hn::Mul(rest, hn::Add(hn::Set(d, 1.0f), x)));
    VF p = Polynomial(fr::kMiddle, hn::Sub(w, hn::Set(d, fr::kCentre)));
    const auto middle = hn::Lt(w, hn::Set(d, fr::kSplit));
    if (HWY_UNLIKELY(!hn::AllTrue(d, middle))) {
      const VF tail = Polynomial(fr::kTail, hn::Sub(hn::Sqrt(hn::Max(w, hn::Zero(d))), hn::Set(d, fr::kTailCentre)));
      p = hn::IfThenElse(middle, p, tail);
    }
    const VF z = hn::BitCast(d, hn::Xor(hn::BitCast(DU(), hn::Mul(p, x)), sign));
    return hn::Add(hn::Set(d, mean), hn::Mul(hn::Set(d, deviation), z));
  }
};

struct TruncatedNormal {
  float mean, deviation;
  explicit HWY_INLINE TruncatedNormal(const FirstRowFormula& f) : mean(f.a), deviation(f.b) {}
  HWY_INLINE VF operator()(VU word) const {
    const DF d;
    const VU sign = SignOf(word);
    const VF one = hn::Set(d, 1.0f);
    const VF x = hn::Mul(HalfOpen(hn::Xor(word, sign)), hn::Set(d, fr::kWithinTwoDeviations));
    const VF w = MinusLog(hn::Mul(hn::Sub(one, x), hn::Add(one, x)));
    const VF p = Polynomial(fr::kMiddle, hn::Sub(w, hn::Set(d, fr::kCentre)));
    const VF size = hn::Min(hn::Mul(p, x), hn::Set(d, 2.0f));
    const VF z = hn::BitCast(d, hn::Xor(hn::BitCast(DU(), size), sign));
    return hn::Add(hn::Set(d, mean), hn::Mul(hn::Set(d, deviation), z));
  }
};

// Each lane makes one block of four columns of some row. Lanes run through the blocks of a row, then of the next. Two vectors
// of lanes go side by side where there is work for both: the ten rounds are one long chain of dependent multiplications.
template <class FromWord>
HWY_INLINE void Fill(const FirstRowFormula& formula, uint64_t seed, const uint64_t* HWY_RESTRICT keys, size_t count, size_t dim,
                     float* HWY_RESTRICT out, size_t stride) {
  const DF d;
  const DU du;
  const FromWord from_word(formula);
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kMost = 2 * hn::MaxLanes(d);
  HWY_ALIGN uint32_t low[kMost] = {}, high[kMost] = {}, block[kMost] = {};
  HWY_ALIGN float values[4 * kMost];
  float* places[kMost];

  size_t row = 0, column = 0;
  while (row < count) {
    size_t used = 0;
    for (; used < 2 * lanes && row < count; ++used) {
      low[used] = static_cast<uint32_t>(keys[row]);
      high[used] = static_cast<uint32_t>(keys[row] >> 32);
      block[used] = static_cast<uint32_t>(column / 4);
      places[used] = out + row * stride + column;
      column += 4;
      if (column >= dim) {
        column = 0;
        ++row;
      }
    }
    VU a0 = hn::Load(du, low), a1 = hn::Load(du, high), a2 = hn::Load(du, block), a3 = hn::Zero(du);
    if (used <= lanes) {
      Philox(du, seed, a0, a1, a2, a3);
    } else {
      VU b0 = hn::Load(du, low + lanes), b1 = hn::Load(du, high + lanes), b2 = hn::Load(du, block + lanes), b3 = hn::Zero(du);
      PhiloxTwice(du, seed, a0, a1, a2, a3, b0, b1, b2, b3);
      hn::StoreInterleaved4(from_word(b0), from_word(b1), from_word(b2), from_word(b3), d, values + 4 * lanes);
    }
    hn::StoreInterleaved4(from_word(a0), from_word(a1), from_word(a2), from_word(a3), d, values);
    for (size_t j = 0; j < used; ++j) {
      const size_t first = size_t{block[j]} * 4;
      std::memcpy(places[j], values + 4 * j, (first + 4 <= dim ? 4 : dim - first) * sizeof(float));
    }
  }
}

void FirstRowsSimd(const FirstRowFormula& formula, uint64_t seed, const uint64_t* keys, size_t count, size_t dim, float* out,
                   size_t stride) {
  switch (formula.distribution) {
    case Distribution::kUniform:
      return Fill<Uniform>(formula, seed, keys, count, dim, out, stride);
    case Distribution::kNormal:
      return Fill<Normal>(formula, seed, keys, count, dim, out, stride);
    case Distribution::kTruncatedNormal:
      return Fill<TruncatedNormal>(formula, seed, keys, count, dim, out, stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(FirstRowsSimd);

void FirstRows(const FirstRowFormula& formula, uint64_t seed, const uint64_t* keys, size_t count, size_t dim, float* out,
               size_t stride) {
  if (dim == 0) return;
  const ScopedIeeeFloat ieee;
  HWY_DYNAMIC_DISPATCH(FirstRowsSimd)(formula, seed, keys, count, dim, out, stride);
}

// The reference. Everything below is written for reading, one number at a time.

void Philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
  uint32_t k[2] = {key[0], key[1]};
  for (int round = 0; round < philox::kRounds; ++round) {
    const uint64_t product0 = uint64_t{c[0]} * philox::kMul0;
    const uint64_t product1 = uint64_t{c[2]} * philox::kMul1;
    const uint32_t next[4] = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(product1),
                              static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(product0)};
    std::copy(next, next + 4, c);
    k[0] += philox::kWeyl0;
    k[1] += philox::kWeyl1;
  }
  std::copy(c, c + 4, out);
}

namespace {

float ReferenceMinusLog(float y) {
  const int32_t bits = std::bit_cast<int32_t>(y);
  const int32_t exponent = (bits - first_row::kSqrtHalfBits) >> 23;
  const float mantissa = std::bit_cast<float>(bits - exponent * (1 << 23));
  const float f = mantissa - 1.0f;
  const float s = f / (2.0f + f);
  const float s2 = s * s;
  const float r = (((first_row::kNinth * s2 + first_row::kSeventh) * s2 + first_row::kFifth) * s2 + first_row::kThird) * s2;
  const float twice = s + s;
  const float log = static_cast<float>(exponent) * first_row::kLog2 + (twice + twice * r);
  return 0.0f - log;
}

template <size_t kN>
float ReferencePolynomial(const float (&c)[kN], float t) {
  float p = c[kN - 1];
  for (size_t i = kN - 1; i > 0; --i) p = p * t + c[i - 1];
  return p;
}

float ReferenceHalfOpen(uint32_t k) { return (static_cast<float>(static_cast<int32_t>(k)) + 0.5f) * first_row::kTwoToMinus31; }

}  // namespace

float NormalFromWord(uint32_t word) {
  const uint32_t k = word & 0x7FFFFFFFu;
  const float x = ReferenceHalfOpen(k);
  const float one_minus_x = ReferenceHalfOpen(0x7FFFFFFFu - k);
  const float w = ReferenceMinusLog(one_minus_x * (1.0f + x));
  const float p = w < first_row::kSplit ? ReferencePolynomial(first_row::kMiddle, w - first_row::kCentre)
                                        : ReferencePolynomial(first_row::kTail, std::sqrt(w) - first_row::kTailCentre);
  const float size = p * x;
  return (word >> 31) != 0 ? -size : size;
}

float TruncatedNormalFromWord(uint32_t word) {
  const float x = ReferenceHalfOpen(word & 0x7FFFFFFFu) * first_row::kWithinTwoDeviations;
  const float w = ReferenceMinusLog((1.0f - x) * (1.0f + x));
  const float size = std::min(ReferencePolynomial(first_row::kMiddle, w - first_row::kCentre) * x, 2.0f);
  return (word >> 31) != 0 ? -size : size;
}

void FirstRowsReference(const FirstRowFormula& formula, uint64_t seed, const uint64_t* keys, size_t count, size_t dim, float* out,
                        size_t stride) {
  const ScopedIeeeFloat ieee;
  const uint32_t philox_key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (size_t row = 0; row < count; ++row) {
    for (size_t column = 0; column < dim; ++column) {
      const uint32_t counter[4] = {static_cast<uint32_t>(keys[row]), static_cast<uint32_t>(keys[row] >> 32),
                                   static_cast<uint32_t>(column / 4), 0};
      uint32_t words[4];
      Philox4x32(counter, philox_key, words);
      const uint32_t word = words[column % 4];
      float value = 0;
      switch (formula.distribution) {
        case Distribution::kUniform: {
          const float u = static_cast<float>(word >> 8) * first_row::kTwoToMinus24;
          value = formula.a + u * (formula.b - formula.a);
          if (value >= formula.b) value = std::nextafter(formula.b, formula.a);
          break;
        }
        case Distribution::kNormal:
          value = formula.a + formula.b * NormalFromWord(word);
          break;
        case Distribution::kTruncatedNormal:
          value = formula.a + formula.b * TruncatedNormalFromWord(word);
          break;
      }
      out[row * stride + column] = value;
    }
  }
}

}  // namespace mxrec
#endif  // HWY_ONCE
