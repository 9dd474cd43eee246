// LAMB with each row as a layer, lazy: AdamW's direction, scaled by the trust ratio |w| / |direction| of the row (You et al.,
// ICLR 2020, algorithm 2, with the identity as its phi).
#include "mxrec/optim/reference_loop.h"
#include "mxrec/optim/registry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/optim/lamb.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "mxrec/optim/row_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {

// k: lr, weight_decay, beta_1, 1 - beta_1, beta_2, 1 - beta_2, 1 - beta_1^t, 1 - beta_2^t, epsilon
struct LambRule {
  static constexpr size_t kSlots = 2;
  static constexpr size_t kSums = 2;
  template <class D, class V>
  static HWY_INLINE V Direction(D d, const float* k, V w, V m, V v) {
    const V below = hn::Add(hn::Sqrt(hn::Div(v, hn::Set(d, k[7]))), hn::Set(d, k[8]));
    return hn::Add(hn::Div(hn::Div(m, hn::Set(d, k[6])), below), hn::Mul(hn::Set(d, k[1]), w));
  }
  template <class D, class V>
  static HWY_INLINE void First(D d, const float* k, V& t0, V& t1, V g, V w, V& m, V& v) {
    m = hn::Add(hn::Mul(hn::Set(d, k[2]), m), hn::Mul(hn::Set(d, k[3]), g));
    v = hn::Add(hn::Mul(hn::Set(d, k[4]), v), hn::Mul(hn::Set(d, k[5]), hn::Mul(g, g)));
    const V u = Direction(d, k, w, m, v);
    t0 = hn::Mul(w, w);
    t1 = hn::Mul(u, u);
  }
  static HWY_INLINE void Between(const float* k, size_t, const float* sums, float*, float* r) {
    const float ratio = sums[0] == 0 || sums[1] == 0 ? 1.0f : std::sqrt(sums[0]) / std::sqrt(sums[1]);
    r[0] = k[0] * ratio;
  }
  template <class D, class V>
  static HWY_INLINE void Second(D d, const float* k, const float* r, V, V& w, V m, V v) {
    w = hn::Sub(w, hn::Mul(hn::Set(d, r[0]), Direction(d, k, w, m, v)));
  }
};

size_t LambRows(const StepConstants& constants, const RowBatch& batch) { return UpdateWholeRowsWith<LambRule>(constants, batch); }

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace mxrec {

HWY_EXPORT(LambRows);

namespace internal {

Result<OptimizerSpec> LambSpec(OptionReader*) {
  OptimizerSpec spec;
  spec.slots = {{"m"}, {"v"}};
  spec.hyper_names = {"learning_rate", "weight_decay", "beta_1", "beta_2", "epsilon"};
  spec.scalars = BetaPowers();
  spec.takes_weight_decay = false;  // it has one, inside the norm
  spec.begin_step = [](const float* hyper, float* powers) -> StepConstants {
    const float lr = hyper[0], weight_decay = hyper[1], beta_1 = hyper[2], beta_2 = hyper[3], epsilon = hyper[4];
    AdvanceBetaPowers(beta_1, beta_2, powers);
    return {lr, weight_decay, beta_1, 1.0f - beta_1, beta_2, 1.0f - beta_2, 1.0f - powers[0], 1.0f - powers[1], epsilon};
  };
  spec.rows = MXREC_DISPATCH_ROWS(LambRows);
  spec.reference = [](const StepConstants& k, const RowBatch& batch) {
    return ForEachRow(batch, [&k, dim = batch.dim](const float* g, float* row) {
      const float lr = k[0], weight_decay = k[1], beta_1 = k[2], rest_1 = k[3], beta_2 = k[4], rest_2 = k[5];
      const float correction_1 = k[6], correction_2 = k[7], epsilon = k[8];
      float* const w = row;
      float* const m = row + dim;
      float* const v = row + 2 * dim;
      const auto direction = [=](size_t c) {
        return (m[c] / correction_1) / (std::sqrt(v[c] / correction_2) + epsilon) + weight_decay * w[c];
      };
      for (size_t c = 0; c < dim; ++c) {
        m[c] = beta_1 * m[c] + rest_1 * g[c];
        v[c] = beta_2 * v[c] + rest_2 * (g[c] * g[c]);
      }
      const float w_squares = SumOverRow(dim, [w](size_t c) { return w[c] * w[c]; });
      const float u_squares = SumOverRow(dim, [&](size_t c) { return direction(c) * direction(c); });
      const float ratio = w_squares == 0 || u_squares == 0 ? 1.0f : std::sqrt(w_squares) / std::sqrt(u_squares);
      for (size_t c = 0; c < dim; ++c) w[c] = w[c] - (lr * ratio) * direction(c);
    });
  };
  return spec;
}

}  // namespace internal
}  // namespace mxrec
#endif  // HWY_ONCE
