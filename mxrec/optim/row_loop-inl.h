// UpdateRowsWith<Rule>: the SIMD loop of every optimizer. Included once per target by Highway (hence no ordinary guard).
//
// A Rule is the formula for one vector of elements:
//   struct Rule {
//     static constexpr size_t kSlots = 1;                           // 0 to 3
//     template <class D, class V>                                   // D: tag, V: its vector of float
//     static HWY_INLINE void Apply(D d, const float* k, V g, V& w, V& slot0);  // k: the StepConstants
//   };
// Use Mul, Add, Sub, Div, Sqrt; never MulAdd and its relatives (docs/numerics.md: no fused multiply-add).
//
// Columns run in whole vectors, then in quarters of four, then one by one, so nothing outside the row is read or written:
// neighbouring rows may belong to another thread. Widths 8, 16, 32 and 64 have loops of their own.
#if defined(MXREC_OPTIM_ROW_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MXREC_OPTIM_ROW_LOOP_INL_H_
#undef MXREC_OPTIM_ROW_LOOP_INL_H_
#else
#define MXREC_OPTIM_ROW_LOOP_INL_H_
#endif

#include <hwy/highway.h>

#include "mxrec/optim/optimizer.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Updates columns [c, c + Lanes(d)) of a row. Returns w - w of the new values: +0 where finite, NaN elsewhere.
template <class Rule, class D>
HWY_INLINE hn::Vec<D> UpdateColumns(D d, const float* k, const float* g, float* w, size_t dim, size_t c) {
  const auto grad = hn::LoadU(d, g + c);
  auto value = hn::LoadU(d, w + c);
  if constexpr (Rule::kSlots == 0) {
    Rule::Apply(d, k, grad, value);
  } else {
    float* const p0 = w + dim + c;
    auto s0 = hn::LoadU(d, p0);
    if constexpr (Rule::kSlots == 1) {
      Rule::Apply(d, k, grad, value, s0);
    } else {
      float* const p1 = w + 2 * dim + c;
      auto s1 = hn::LoadU(d, p1);
      if constexpr (Rule::kSlots == 2) {
        Rule::Apply(d, k, grad, value, s0, s1);
      } else {
        static_assert(Rule::kSlots == 3, "an optimizer with more slots needs a line here");
        float* const p2 = w + 3 * dim + c;
        auto s2 = hn::LoadU(d, p2);
        Rule::Apply(d, k, grad, value, s0, s1, s2);
        hn::StoreU(s2, d, p2);
      }
      hn::StoreU(s1, d, p1);
    }
    hn::StoreU(s0, d, p0);
  }
  hn::StoreU(value, d, w + c);
  return hn::Sub(value, value);
}

// kDim = 0: the width is batch.dim.
template <class Rule, size_t kDim>
HWY_INLINE size_t UpdateRowsOfWidth(const StepConstants& constants, const RowBatch& batch) {
  const StepConstants copy = constants;  // so that stores to rows cannot be thought to change it
  const float* const k = copy.data();
  const size_t dim = kDim != 0 ? kDim : batch.dim;
  const hn::ScalableTag<float> full;
  const hn::CappedTag<float, 4> quarter;
  const hn::CappedTag<float, 1> one;
  const size_t full_lanes = hn::Lanes(full), quarter_lanes = hn::Lanes(quarter);
  const size_t full_end = dim - dim % full_lanes;

  size_t non_finite_rows = 0;
  for (size_t i = 0; i < batch.count; ++i) {
    float* const w = batch.rows[i];
    const float* const g = batch.grads[i];
    auto check = hn::Zero(full);
    size_t c = 0;
    for (; c < full_end; c += full_lanes) check = hn::Or(check, UpdateColumns<Rule>(full, k, g, w, dim, c));
    bool finite = hn::AllTrue(full, hn::Eq(check, hn::Zero(full)));
    for (; c + quarter_lanes <= dim; c += quarter_lanes) {
      finite &= hn::AllTrue(quarter, hn::Eq(UpdateColumns<Rule>(quarter, k, g, w, dim, c), hn::Zero(quarter)));
    }
    for (; c < dim; ++c) finite &= hn::GetLane(UpdateColumns<Rule>(one, k, g, w, dim, c)) == 0.0f;
    if (HWY_UNLIKELY(!finite)) ++non_finite_rows;
  }
  return non_finite_rows;
}

template <class Rule>
HWY_INLINE size_t UpdateRowsWith(const StepConstants& constants, const RowBatch& batch) {
  switch (batch.dim) {
    case 8:
      return UpdateRowsOfWidth<Rule, 8>(constants, batch);
    case 16:
      return UpdateRowsOfWidth<Rule, 16>(constants, batch);
    case 32:
      return UpdateRowsOfWidth<Rule, 32>(constants, batch);
    case 64:
      return UpdateRowsOfWidth<Rule, 64>(constants, batch);
    default:
      return UpdateRowsOfWidth<Rule, 0>(constants, batch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
