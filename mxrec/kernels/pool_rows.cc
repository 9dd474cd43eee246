#include "mxrec/kernels/pool_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "mxrec/kernels/float_mode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/pool_rows.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

// What every target shares, once.
#ifndef MXREC_KERNELS_POOL_ROWS_SHARED
#define MXREC_KERNELS_POOL_ROWS_SHARED
namespace mxrec {
namespace {

// W or R of a bag; 1 for a sum.
inline float Denominator(const Bags& bags, size_t begin, size_t end) {
  if (bags.combiner == Combiner::kSum) return 1.0f;
  const float* weights = bags.weights;
  float sum = weights == nullptr ? static_cast<float>(end - begin) : 0.0f;
  if (weights != nullptr) {
    const bool squares = bags.combiner == Combiner::kSqrtN;
    for (size_t j = begin; j < end; ++j) sum += squares ? weights[j] * weights[j] : weights[j];
  }
  return bags.combiner == Combiner::kSqrtN ? std::sqrt(sum) : sum;
}

// The first of the occurrences [begin, end) whose row is outside [0, unique), or `end`.
inline size_t FirstOutOfRange(const int32_t* inverse, size_t begin, size_t end, size_t unique) {
  for (size_t j = begin; j < end; ++j) {
    // A negative position becomes a huge one.
    if (static_cast<uint32_t>(inverse[j]) >= unique) return j;
  }
  return end;
}

}  // namespace
}  // namespace mxrec
#endif  // MXREC_KERNELS_POOL_ROWS_SHARED

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Adds up one vector's width of columns at `rows` over a bag's occurrences [0, n) (n > 0) and divides (divide = false: not).
template <bool kWeighted, class D>
HWY_INLINE void PoolOne(D d, const float* HWY_RESTRICT rows, size_t dim, const int32_t* HWY_RESTRICT inverse,
                        const float* HWY_RESTRICT weights, size_t n, bool divide, float by, float* HWY_RESTRICT out) {
  auto sum = hn::LoadU(d, rows + static_cast<size_t>(inverse[0]) * dim);
  if (kWeighted) sum = hn::Mul(hn::Set(d, weights[0]), sum);
  for (size_t j = 1; j < n; ++j) {
    auto next = hn::LoadU(d, rows + static_cast<size_t>(inverse[j]) * dim);
    if (kWeighted) next = hn::Mul(hn::Set(d, weights[j]), next);
    sum = hn::Add(sum, next);
  }
  hn::StoreU(divide ? hn::Div(sum, hn::Set(d, by)) : sum, d, out);
}

// The same for two vectors at once: half the index arithmetic, two independent chains of additions.
template <bool kWeighted, class D>
HWY_INLINE void PoolTwo(D d, const float* HWY_RESTRICT rows, size_t dim, const int32_t* HWY_RESTRICT inverse,
                        const float* HWY_RESTRICT weights, size_t n, bool divide, float by, float* HWY_RESTRICT out) {
  const size_t lanes = hn::Lanes(d);
  const float* HWY_RESTRICT row = rows + static_cast<size_t>(inverse[0]) * dim;
  auto sum0 = hn::LoadU(d, row), sum1 = hn::LoadU(d, row + lanes);
  if (kWeighted) {
    const auto w = hn::Set(d, weights[0]);
    sum0 = hn::Mul(w, sum0);
    sum1 = hn::Mul(w, sum1);
  }
  for (size_t j = 1; j < n; ++j) {
    row = rows + static_cast<size_t>(inverse[j]) * dim;
    auto next0 = hn::LoadU(d, row), next1 = hn::LoadU(d, row + lanes);
    if (kWeighted) {
      const auto w = hn::Set(d, weights[j]);
      next0 = hn::Mul(w, next0);
      next1 = hn::Mul(w, next1);
    }
    sum0 = hn::Add(sum0, next0);
    sum1 = hn::Add(sum1, next1);
  }
  if (divide) {
    const auto divisor = hn::Set(d, by);
    sum0 = hn::Div(sum0, divisor);
    sum1 = hn::Div(sum1, divisor);
  }
  hn::StoreU(sum0, d, out);
  hn::StoreU(sum1, d, out + lanes);
}

template <bool kWeighted>
HWY_INLINE void PoolBag(const float* HWY_RESTRICT rows, size_t dim, const int32_t* HWY_RESTRICT inverse,
                        const float* HWY_RESTRICT weights, size_t n, bool divide, float by, float* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t c = 0;
  for (; c + 2 * lanes <= dim; c += 2 * lanes) PoolTwo<kWeighted>(d, rows + c, dim, inverse, weights, n, divide, by, out + c);
  for (; c + lanes <= dim; c += lanes) PoolOne<kWeighted>(d, rows + c, dim, inverse, weights, n, divide, by, out + c);
  const hn::CappedTag<float, 4> quarter;
  const size_t few = hn::Lanes(quarter);
  for (; c + few <= dim; c += few) PoolOne<kWeighted>(quarter, rows + c, dim, inverse, weights, n, divide, by, out + c);
  const hn::CappedTag<float, 1> single;
  for (; c < dim; ++c) PoolOne<kWeighted>(single, rows + c, dim, inverse, weights, n, divide, by, out + c);
}

size_t PoolRowsSimd(const float* HWY_RESTRICT rows, size_t unique, size_t dim, const Bags& bags, size_t begin, size_t end,
                    float* HWY_RESTRICT out) {
  // Far enough to hide a miss in the last-level cache, near enough to stay in the first level.
  constexpr size_t kAhead = 16;
  const int32_t* HWY_RESTRICT inverse = bags.inverse;
  for (size_t b = begin; b < end; ++b) {
    const size_t first = static_cast<size_t>(bags.offsets[b]), last = static_cast<size_t>(bags.offsets[b + 1]);
    for (size_t j = first + kAhead; j < last + kAhead && j < bags.occurrences; ++j) {
      // A prefetch of an address out of range is harmless, but do not form the pointer.
      const uint32_t next = static_cast<uint32_t>(inverse[j]);
      if (next >= unique) continue;
      const float* row = rows + next * dim;
      for (size_t c = 0; c < dim && c < 128; c += 16) hwy::Prefetch(row + c);
    }
    const size_t bad = FirstOutOfRange(inverse, first, last, unique);
    if (HWY_UNLIKELY(bad != last)) return bad;
    float* HWY_RESTRICT to = out + b * dim;
    const float by = first == last ? 0.0f : Denominator(bags, first, last);
    if (by == 0.0f) {
      for (size_t c = 0; c < dim; ++c) to[c] = 0.0f;
    } else if (bags.weights != nullptr) {
      PoolBag<true>(rows, dim, inverse + first, bags.weights + first, last - first, by != 1.0f, by, to);
    } else {
      PoolBag<false>(rows, dim, inverse + first, nullptr, last - first, by != 1.0f, by, to);
    }
  }
  return bags.occurrences;
}

// The sum of x[c] * y[c] in an order that is the same on every target: eight partial sums by column modulo 8, then those in order.
HWY_INLINE float Dot(const float* HWY_RESTRICT x, const float* HWY_RESTRICT y, size_t n) {
  float part[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  size_t c = 0;
  for (; c + 8 <= n; c += 8) {
    for (size_t l = 0; l < 8; ++l) part[l] += x[c + l] * y[c + l];
  }
  for (size_t l = 0; c + l < n; ++l) part[l] += x[c + l] * y[c + l];
  float sum = part[0];
  for (size_t l = 1; l < 8; ++l) sum += part[l];
  return sum;
}

size_t PoolWeightGradientSimd(const float* HWY_RESTRICT grads, const float* HWY_RESTRICT pooled, const float* HWY_RESTRICT rows,
                              size_t unique, size_t dim, const Bags& bags, size_t begin, size_t end, float* HWY_RESTRICT out) {
  for (size_t b = begin; b < end; ++b) {
    const size_t first = static_cast<size_t>(bags.offsets[b]), last = static_cast<size_t>(bags.offsets[b + 1]);
    const size_t bad = FirstOutOfRange(bags.inverse, first, last, unique);
    if (bad != last) return bad;
    if (first == last) continue;
    const float by = Denominator(bags, first, last);
    const float* g = grads + b * dim;
    const float shared = bags.combiner == Combiner::kSum ? 0.0f : Dot(g, pooled + b * dim, dim);
    for (size_t j = first; j < last; ++j) {
      const float along = Dot(g, rows + static_cast<size_t>(bags.inverse[j]) * dim, dim);
      if (by == 0.0f) {
        out[j] = 0.0f;
      } else if (bags.combiner == Combiner::kSum) {
        out[j] = along;
      } else if (bags.combiner == Combiner::kMean) {
        out[j] = (along - shared) / by;
      } else {
        const float w = bags.weights != nullptr ? bags.weights[j] : 1.0f;
        out[j] = (along - shared * (w / by)) / by;
      }
    }
  }
  return bags.occurrences;
}

// out[u] = sum of scales[o] * grads[bag_of[o]] over o in order[starts[u]] .. order[starts[u + 1]], for u in [begin, end).
void SumOccurrencesSimd(const float* HWY_RESTRICT grads, const uint32_t* HWY_RESTRICT starts, const int32_t* HWY_RESTRICT bag_of,
                        const float* HWY_RESTRICT scales, size_t begin, size_t end, size_t dim, float* HWY_RESTRICT out) {
  const bool unit = scales == nullptr;
  for (size_t u = begin; u < end; ++u) {
    const size_t first = starts[u], n = starts[u + 1] - first;
    float* HWY_RESTRICT to = out + u * dim;
    if (n == 0) {
      for (size_t c = 0; c < dim; ++c) to[c] = 0.0f;
    } else if (unit) {
      PoolBag<false>(grads, dim, bag_of + first, nullptr, n, false, 1.0f, to);
    } else {
      PoolBag<true>(grads, dim, bag_of + first, scales + first, n, false, 1.0f, to);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(PoolRowsSimd);
HWY_EXPORT(PoolWeightGradientSimd);
HWY_EXPORT(SumOccurrencesSimd);

size_t PoolRows(const float* rows, size_t unique, size_t dim, const Bags& bags, size_t begin, size_t end, float* out) {
  return HWY_DYNAMIC_DISPATCH(PoolRowsSimd)(rows, unique, dim, bags, begin, end, out);
}

size_t PoolRowsReference(const float* rows, size_t unique, size_t dim, const Bags& bags, size_t begin, size_t end, float* out) {
  for (size_t b = begin; b < end; ++b) {
    const auto first = static_cast<size_t>(bags.offsets[b]), last = static_cast<size_t>(bags.offsets[b + 1]);
    for (size_t j = first; j < last; ++j) {
      if (bags.inverse[j] < 0 || static_cast<size_t>(bags.inverse[j]) >= unique) return j;
    }
    const float by = Denominator(bags, first, last);
    for (size_t c = 0; c < dim; ++c) {
      float sum = 0.0f;
      for (size_t j = first; j < last; ++j) {
        const float value = rows[static_cast<size_t>(bags.inverse[j]) * dim + c];
        const float term = bags.weights != nullptr ? bags.weights[j] * value : value;
        sum = j == first ? term : sum + term;
      }
      out[b * dim + c] = by == 0.0f ? 0.0f : by == 1.0f ? sum : sum / by;
    }
  }
  return bags.occurrences;
}

void OccurrenceScales(const Bags& bags, size_t begin, size_t end, int32_t* bag_of, float* scales) {
  for (size_t b = begin; b < end; ++b) {
    const auto first = static_cast<size_t>(bags.offsets[b]), last = static_cast<size_t>(bags.offsets[b + 1]);
    std::fill(bag_of + first, bag_of + last, static_cast<int32_t>(b));
    if (scales == nullptr || first == last) continue;
    const float by = Denominator(bags, first, last);
    if (by == 0.0f) {
      std::fill(scales + first, scales + last, 0.0f);
    } else if (bags.weights == nullptr) {
      std::fill(scales + first, scales + last, 1.0f / by);
    } else {
      for (size_t j = first; j < last; ++j) scales[j] = bags.weights[j] / by;
    }
  }
}

size_t PoolRowsGradient(const float* grads, const Bags& bags, size_t unique, size_t dim, Executor* executor, float* out) {
  const size_t n = bags.occurrences;
  if (const size_t bad = FirstOutOfRange(bags.inverse, 0, n, unique); bad != n) return bad;
  const ScopedIeeeFloat ieee;  // sums must not depend on the thread
  std::vector<int32_t> bag_of(n);
  std::vector<float> scales(UnitScales(bags) ? 0 : n);
  OccurrenceScales(bags, 0, bags.count, bag_of.data(), scales.empty() ? nullptr : scales.data());
  // Occurrences sorted by row, in their order within a row: a counting sort.
  std::vector<uint32_t> starts(unique + 2, 0u);
  for (size_t j = 0; j < n; ++j) ++starts[static_cast<size_t>(bags.inverse[j]) + 2];
  for (size_t u = 2; u < unique + 2; ++u) starts[u] += starts[u - 1];
  std::vector<int32_t> sorted_bags(n);
  std::vector<float> sorted_scales(scales.size());
  for (size_t j = 0; j < n; ++j) {
    const uint32_t to = starts[static_cast<size_t>(bags.inverse[j]) + 1]++;
    sorted_bags[to] = bag_of[j];
    if (!scales.empty()) sorted_scales[to] = scales[j];
  }
  constexpr size_t kRowsEach = 1024;
  executor->ParallelFor((unique + kRowsEach - 1) / kRowsEach, [&](size_t block) {
    const ScopedIeeeFloat ieee_here;
    const size_t begin = block * kRowsEach;
    HWY_DYNAMIC_DISPATCH(SumOccurrencesSimd)
    (grads, starts.data(), sorted_bags.data(), sorted_scales.empty() ? nullptr : sorted_scales.data(), begin,
     std::min(unique, begin + kRowsEach), dim, out);
  });
  return n;
}

size_t PoolWeightGradient(const float* grads, const float* pooled, const float* rows, size_t unique, size_t dim, const Bags& bags,
                          size_t begin, size_t end, float* out) {
  return HWY_DYNAMIC_DISPATCH(PoolWeightGradientSimd)(grads, pooled, rows, unique, dim, bags, begin, end, out);
}

}  // namespace mxrec
#endif  // HWY_ONCE
