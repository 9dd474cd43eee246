// The SIMD loops of all optimizers. Included once per target by Highway (hence no ordinary guard).
//
// UpdateRowsWith<Rule>: each element by itself. A Rule is the formula for one vector of elements:
//   struct Rule {
//     static constexpr size_t kSlots = 1;                           // slots of dim floats, 0 to 3
//     template <class D, class V>                                   // D: tag, V: its vector of float
//     static HWY_INLINE void Apply(D d, const float* k, V g, V& w, V& slot0);  // k: the StepConstants
//   };
// UpdateWholeRowsWith<Rule>: something is summed over the row between two passes (order: kSumLanes of reference_loop.h):
//   struct Rule {
//     static constexpr size_t kSlots = 1;                           // slots of dim floats
//     static constexpr size_t kSums = 1;                            // 1 or 2
//     // Pass one: may change slots, sets the terms to be summed. t1 only with kSums = 2.
//     static HWY_INLINE void First(D d, const float* k, V& t0, V& t1, V g, V w, V& slot0);
//     // Between: the sums, and the row's slots of one float, give up to two numbers r.
//     static HWY_INLINE void Between(const float* k, size_t dim, const float* sums, float* row_slots, float* r);
//     // Pass two: changes the values only.
//     static HWY_INLINE void Second(D d, const float* k, const float* r, V g, V& w, V slot0);
//   };
// Use Mul, Add, Sub, Div, Sqrt; never MulAdd and its relatives (docs/numerics.md: no fused multiply-add). Min, Max and Abs of
// NaN differ between processors: compare and select instead.
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

#include <cmath>

#include "mxrec/optim/optimizer.h"
#include "mxrec/optim/reference_loop.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Hands columns [c, c + Lanes(d)) of a row to visit(d, c, g, w, slots...) and stores what it changed. Returns w - w of the
// values: +0 where finite, NaN elsewhere.
template <size_t kSlots, bool kStoreValues, bool kStoreSlots, class D, class Visit>
HWY_INLINE hn::Vec<D> VisitColumns(D d, const Visit& visit, const float* g, float* w, size_t dim, size_t c) {
  const auto grad = hn::LoadU(d, g + c);
  auto value = hn::LoadU(d, w + c);
  if constexpr (kSlots == 0) {
    visit(d, c, grad, value);
  } else {
    float* const p0 = w + dim + c;
    auto s0 = hn::LoadU(d, p0);
    if constexpr (kSlots == 1) {
      visit(d, c, grad, value, s0);
    } else {
      float* const p1 = w + 2 * dim + c;
      auto s1 = hn::LoadU(d, p1);
      if constexpr (kSlots == 2) {
        visit(d, c, grad, value, s0, s1);
      } else {
        static_assert(kSlots == 3, "an optimizer with more slots needs a line here");
        float* const p2 = w + 3 * dim + c;
        auto s2 = hn::LoadU(d, p2);
        visit(d, c, grad, value, s0, s1, s2);
        if constexpr (kStoreSlots) hn::StoreU(s2, d, p2);
      }
      if constexpr (kStoreSlots) hn::StoreU(s1, d, p1);
    }
    if constexpr (kStoreSlots) hn::StoreU(s0, d, p0);
  }
  if constexpr (kStoreValues) hn::StoreU(value, d, w + c);
  return hn::Sub(value, value);
}

// Visits all columns of a row; says whether its values are finite then.
template <size_t kSlots, bool kStoreValues, bool kStoreSlots, class Full, class Visit>
HWY_INLINE bool VisitRow(Full full, const Visit& visit, const float* g, float* w, size_t dim) {
  const hn::CappedTag<float, 4> quarter;
  const hn::CappedTag<float, 1> one;
  const size_t full_lanes = hn::Lanes(full), quarter_lanes = hn::Lanes(quarter);
  const size_t full_end = dim - dim % full_lanes, quarter_end = dim - dim % quarter_lanes;
  auto check = hn::Zero(full);
  size_t c = 0;
  for (; c < full_end; c += full_lanes) {
    check = hn::Or(check, VisitColumns<kSlots, kStoreValues, kStoreSlots>(full, visit, g, w, dim, c));
  }
  bool finite = hn::AllTrue(full, hn::Eq(check, hn::Zero(full)));
  for (; c < quarter_end; c += quarter_lanes) {
    const auto difference = VisitColumns<kSlots, kStoreValues, kStoreSlots>(quarter, visit, g, w, dim, c);
    finite &= hn::AllTrue(quarter, hn::Eq(difference, hn::Zero(quarter)));
  }
  for (; c < dim; ++c) finite &= hn::GetLane(VisitColumns<kSlots, kStoreValues, kStoreSlots>(one, visit, g, w, dim, c)) == 0.0f;
  return finite;
}

// One row under an element-wise rule.
template <class Rule>
struct ElementWise {
  struct Visit {
    const float* k;
    template <class D, class V, class... S>
    HWY_INLINE void operator()(D d, size_t, V g, V& w, S&... slots) const {
      Rule::Apply(d, k, g, w, slots...);
    }
  };
  static HWY_INLINE bool Update(const float* k, const float* g, float* w, size_t dim) {
    return VisitRow<Rule::kSlots, true, true>(hn::ScalableTag<float>(), Visit{k}, g, w, dim);
  }
};

// One row under a rule with sums.
template <class Rule>
struct WholeRow {
  struct First {
    const float* k;
    float* partial;  // [kSums][kSumLanes]
    template <class D, class V, class... S>
    HWY_INLINE void operator()(D d, size_t c, V g, V& w, S&... slots) const {
      float* const at = partial + c % internal::kSumLanes;
      auto t0 = hn::Zero(d);
      if constexpr (Rule::kSums == 1) {
        Rule::First(d, k, t0, g, w, slots...);
      } else {
        static_assert(Rule::kSums == 2, "a rule with more sums needs a line here");
        auto t1 = hn::Zero(d);
        Rule::First(d, k, t0, t1, g, w, slots...);
        float* const at1 = at + internal::kSumLanes;
        hn::StoreU(hn::Add(hn::LoadU(d, at1), t1), d, at1);
      }
      hn::StoreU(hn::Add(hn::LoadU(d, at), t0), d, at);
    }
  };
  struct Second {
    const float* k;
    const float* r;
    template <class D, class V, class... S>
    HWY_INLINE void operator()(D d, size_t, V g, V& w, S&... slots) const {
      Rule::Second(d, k, r, g, w, slots...);
    }
  };
  static HWY_INLINE bool Update(const float* k, const float* g, float* w, size_t dim) {
    constexpr size_t kLanes = internal::kSumLanes;
    const hn::CappedTag<float, kLanes> full;
    HWY_ALIGN float partial[Rule::kSums * kLanes] = {};
    VisitRow<Rule::kSlots, false, true>(full, First{k, partial}, g, w, dim);
    float sums[Rule::kSums];
    for (size_t s = 0; s < Rule::kSums; ++s) sums[s] = internal::FoldPartialSums(partial + s * kLanes);
    float r[2] = {};
    Rule::Between(k, dim, sums, w + dim * (1 + Rule::kSlots), r);
    return VisitRow<Rule::kSlots, true, false>(full, Second{k, r}, g, w, dim);
  }
};

// kDim = 0: the width is batch.dim.
template <class Row, size_t kDim>
HWY_INLINE size_t UpdateRowsOfWidth(const StepConstants& constants, const RowBatch& batch) {
  const StepConstants copy = constants;  // so that stores to rows cannot be thought to change it
  const size_t dim = kDim != 0 ? kDim : batch.dim;
  size_t non_finite_rows = 0;
  for (size_t i = 0; i < batch.count; ++i) {
    if (HWY_UNLIKELY(!Row::Update(copy.data(), batch.grads[i], batch.rows[i], dim))) ++non_finite_rows;
  }
  return non_finite_rows;
}

template <class Row>
HWY_INLINE size_t UpdateRowsOfAnyWidth(const StepConstants& constants, const RowBatch& batch) {
  switch (batch.dim) {
    case 8:
      return UpdateRowsOfWidth<Row, 8>(constants, batch);
    case 16:
      return UpdateRowsOfWidth<Row, 16>(constants, batch);
    case 32:
      return UpdateRowsOfWidth<Row, 32>(constants, batch);
    case 64:
      return UpdateRowsOfWidth<Row, 64>(constants, batch);
    default:
      return UpdateRowsOfWidth<Row, 0>(constants, batch);
  }
}

template <class Rule>
HWY_INLINE size_t UpdateRowsWith(const StepConstants& constants, const RowBatch& batch) {
  return UpdateRowsOfAnyWidth<ElementWise<Rule>>(constants, batch);
}

template <class Rule>
HWY_INLINE size_t UpdateWholeRowsWith(const StepConstants& constants, const RowBatch& batch) {
  return UpdateRowsOfAnyWidth<WholeRow<Rule>>(constants, batch);
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
