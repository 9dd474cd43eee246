// FTRL with a sparse group lasso: FTRL (ftrl.cc) with each row as a group, whose L21 term sets whole rows to zero. The closed
// form of theorem 1 in Yue et al., "Adaptive Optimizers with Sparse Group Lasso for Neural Networks in CTR Prediction",
// ECML PKDD 2021 (arXiv:2107.14432), on FTRL's sums.
#include "mxrec/optim/reference_loop.h"
#include "mxrec/optim/registry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/optim/group_ftrl.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "mxrec/optim/row_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {

// k: lr, l1, 2 l2 (beta included), l21
struct GroupFtrlRule {
  static constexpr size_t kSlots = 2;
  static constexpr size_t kSums = 1;
  // z beyond l1, negated.
  template <class D, class V>
  static HWY_INLINE V Beyond(D d, const float* k, V z) {
    const V l1 = hn::Set(d, k[1]), minus_l1 = hn::Set(d, -k[1]);
    V clipped = hn::IfThenElse(hn::Gt(z, l1), l1, z);
    clipped = hn::IfThenElse(hn::Lt(clipped, minus_l1), minus_l1, clipped);
    return hn::Sub(clipped, z);
  }
  template <class D, class V>
  static HWY_INLINE void First(D d, const float* k, V& t0, V g, V w, V& a, V& z) {
    const V new_a = hn::Add(a, hn::Mul(g, g));
    z = hn::Add(z, hn::Sub(g, hn::Mul(hn::Div(hn::Sub(hn::Sqrt(new_a), hn::Sqrt(a)), hn::Set(d, k[0])), w)));
    a = new_a;
    const V s = Beyond(d, k, z);
    t0 = hn::Mul(s, s);
  }
  static HWY_INLINE void Between(const float* k, size_t dim, const float* sums, float*, float* r) {
    const float limit = k[3] * std::sqrt(static_cast<float>(dim)), norm = std::sqrt(sums[0]);
    r[0] = norm <= limit ? 0.0f : 1.0f - limit / norm;
  }
  template <class D, class V>
  static HWY_INLINE void Second(D d, const float* k, const float* r, V, V& w, V a, V z) {
    const V below = hn::Add(hn::Div(hn::Sqrt(a), hn::Set(d, k[0])), hn::Set(d, k[2]));
    w = hn::Div(hn::Mul(Beyond(d, k, z), hn::Set(d, r[0])), below);
    w = hn::IfThenElse(hn::Eq(below, hn::Zero(d)), hn::Zero(d), w);
  }
};

size_t GroupFtrlRows(const StepConstants& constants, const RowBatch& batch) {
  return UpdateWholeRowsWith<GroupFtrlRule>(constants, batch);
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace mxrec {

HWY_EXPORT(GroupFtrlRows);

namespace internal {

Result<OptimizerSpec> GroupFtrlSpec(OptionReader* options) {
  MXREC_ASSIGN_OR_RETURN(const float initial, options->NotNegative("initial_accumulator_value", 0.1f));
  OptimizerSpec spec;
  spec.slots = {{"accumulator", initial}, {"linear"}};
  spec.hyper_names = {"learning_rate", "l1", "l2", "l21", "beta"};
  spec.takes_weight_decay = spec.takes_l2 = false;
  spec.divides_by_rate = true;
  spec.begin_step = [](const float* hyper, float*) -> StepConstants {
    return {hyper[0], hyper[1], FtrlTwiceL2(hyper[2], hyper[4], hyper[0]), hyper[3]};
  };
  spec.rows = MXREC_DISPATCH_ROWS(GroupFtrlRows);
  spec.reference = [](const StepConstants& k, const RowBatch& batch) {
    return ForEachRow(batch, [&k, dim = batch.dim](const float* g, float* row) {
      const float lr = k[0], l1 = k[1], twice_l2 = k[2], l21 = k[3];
      float* const w = row;
      float* const a = row + dim;
      float* const z = row + 2 * dim;
      const auto beyond = [=](size_t c) {
        const float below_l1 = z[c] > l1 ? l1 : z[c];
        return (below_l1 < -l1 ? -l1 : below_l1) - z[c];
      };
      for (size_t c = 0; c < dim; ++c) {
        const float new_a = a[c] + g[c] * g[c];
        z[c] = z[c] + (g[c] - ((std::sqrt(new_a) - std::sqrt(a[c])) / lr) * w[c]);
        a[c] = new_a;
      }
      const float norm = std::sqrt(SumOverRow(dim, [&](size_t c) { return beyond(c) * beyond(c); }));
      const float limit = l21 * std::sqrt(static_cast<float>(dim));
      const float scale = norm <= limit ? 0.0f : 1.0f - limit / norm;
      for (size_t c = 0; c < dim; ++c) {
        const float below = std::sqrt(a[c]) / lr + twice_l2;
        w[c] = below == 0 ? 0.0f : (beyond(c) * scale) / below;
      }
    });
  };
  return spec;
}

}  // namespace internal
}  // namespace mxrec
#endif  // HWY_ONCE
