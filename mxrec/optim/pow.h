// PositivePower: x^y with the same bits on every CPU, for rules that need a power other than a square root.
#ifndef MXREC_OPTIM_POW_H_
#define MXREC_OPTIM_POW_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace mxrec::internal {

// x^y for x >= 0, computed in float64 with additions, multiplications and divisions only; relative error below 1e-12 before the
// rounding to float32, for |y| up to 8. 0^0 = 1; NaN for x < 0.
inline float PositivePower(float x, float y) {
  if (y == 0) return 1;
  if (std::isnan(x) || std::isnan(y) || x < 0) return std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (x == 0) return y > 0 ? 0 : kInfinity;
  if (x == kInfinity) return y > 0 ? kInfinity : 0;
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh((m - 1) / (m + 1)).
  uint64_t bits = std::bit_cast<uint64_t>(static_cast<double>(x));  // a normal double, also where x is a denormal float
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double t = (m - 1) / (m + 1), t2 = t * t;
  double series = 0;
  for (int n = 19; n >= 1; n -= 2) series = series * t2 + 1.0 / n;
  constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;
  const double power = static_cast<double>(y) * (static_cast<double>(exponent) + 2 * t * series * kLog2E);
  if (power < -160) return 0;  // below half of the smallest float
  if (power > 129) return kInfinity;
  if (std::isnan(power)) return std::numeric_limits<float>::quiet_NaN();  // 1 to an infinite power
  // 2^power = 2^n e^(f ln 2), |f| <= 1/2.
  const double n = std::floor(power + 0.5), f = (power - n) * kLn2;
  double e = 1;
  for (int i = 14; i >= 1; --i) e = 1 + e * f / i;
  return static_cast<float>(e * std::bit_cast<double>(static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52));
}

}  // namespace mxrec::internal

#endif  // MXREC_OPTIM_POW_H_
