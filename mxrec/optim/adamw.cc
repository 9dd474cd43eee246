// AdamW, lazy: decoupled weight decay and bias-corrected moments on the rows of the batch. The formula and its two sets of start
// values are those of the Rec SDK's optimizer of that name (docs/numerics.md).
#include "mxrec/optim/reference_loop.h"
#include "mxrec/optim/registry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/optim/adamw.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "mxrec/optim/row_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {

// k: lr, 1 - lr weight_decay, beta_1, 1 - beta_1, beta_2, 1 - beta_2, 1 - beta_1^t, 1 - beta_2^t, epsilon
struct AdamWRule {
  static constexpr size_t kSlots = 2;
  template <class D, class V>
  static HWY_INLINE void Apply(D d, const float* k, V g, V& w, V& m, V& v) {
    m = hn::Add(hn::Mul(hn::Set(d, k[2]), m), hn::Mul(hn::Set(d, k[3]), g));
    v = hn::Add(hn::Mul(hn::Set(d, k[4]), v), hn::Mul(hn::Mul(hn::Set(d, k[5]), g), g));
    const V below = hn::Add(hn::Sqrt(hn::Div(v, hn::Set(d, k[7]))), hn::Set(d, k[8]));
    const V above = hn::Mul(hn::Set(d, k[0]), hn::Div(m, hn::Set(d, k[6])));
    w = hn::Sub(hn::Mul(w, hn::Set(d, k[1])), hn::Div(above, below));
  }
};

// With AMSGrad: the largest second moment so far stands for it.
struct AdamWTopRule {
  static constexpr size_t kSlots = 3;
  template <class D, class V>
  static HWY_INLINE void Apply(D d, const float* k, V g, V& w, V& m, V& v, V& top) {
    m = hn::Add(hn::Mul(hn::Set(d, k[2]), m), hn::Mul(hn::Set(d, k[3]), g));
    v = hn::Add(hn::Mul(hn::Set(d, k[4]), v), hn::Mul(hn::Mul(hn::Set(d, k[5]), g), g));
    top = hn::IfThenElse(hn::Gt(v, top), v, top);
    const V below = hn::Add(hn::Sqrt(hn::Div(top, hn::Set(d, k[7]))), hn::Set(d, k[8]));
    const V above = hn::Mul(hn::Set(d, k[0]), hn::Div(m, hn::Set(d, k[6])));
    w = hn::Sub(hn::Mul(w, hn::Set(d, k[1])), hn::Div(above, below));
  }
};

size_t AdamWRows(const StepConstants& constants, const RowBatch& batch) { return UpdateRowsWith<AdamWRule>(constants, batch); }
size_t AdamWTopRows(const StepConstants& constants, const RowBatch& batch) {
  return UpdateRowsWith<AdamWTopRule>(constants, batch);
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace mxrec {

HWY_EXPORT(AdamWRows);
HWY_EXPORT(AdamWTopRows);

namespace internal {
namespace {

template <bool kAmsgrad>
size_t Reference(const StepConstants& k, const RowBatch& batch) {
  return ForEachElement(batch, [&k](float g, float& w, const auto& slot) {
    const float lr = k[0], keep = k[1], beta_1 = k[2], rest_1 = k[3], beta_2 = k[4], rest_2 = k[5];
    const float correction_1 = k[6], correction_2 = k[7], epsilon = k[8];
    float& m = slot(0);
    float& v = slot(1);
    w = w * keep;
    m = beta_1 * m + rest_1 * g;
    v = beta_2 * v + rest_2 * g * g;
    float second = v;
    if constexpr (kAmsgrad) {
      float& top = slot(2);
      if (v > top) top = v;
      second = top;
    }
    const float denominator = std::sqrt(second / correction_2) + epsilon;
    w = w - (lr * (m / correction_1)) / denominator;
  });
}

}  // namespace

// Option initial_state: 0 (default) starts with m = v = 0 and powers 1, the textbook's; 1 with m = v = 1 and powers 0.9, the
// original's. Option amsgrad: 1 divides by the largest second moment so far, a third slot.
Result<OptimizerSpec> AdamWSpec(OptionReader* options) {
  MXREC_ASSIGN_OR_RETURN(const bool original, options->Flag("initial_state", "0 (zeros) or 1 (original)"));
  MXREC_ASSIGN_OR_RETURN(const bool amsgrad, options->Flag("amsgrad", "0 (no) or 1 (yes)"));
  OptimizerSpec spec;
  spec.slots = {{"m", original ? 1.0f : 0.0f}, {"v", original ? 1.0f : 0.0f}};
  if (amsgrad) spec.slots.push_back({"v_max", original ? 1.0f : 0.0f});
  spec.hyper_names = {"learning_rate", "weight_decay", "beta_1", "beta_2", "epsilon"};
  spec.scalars = BetaPowers(original ? 0.9f : 1.0f);
  spec.takes_weight_decay = false;  // it has one
  spec.begin_step = [](const float* hyper, float* powers) -> StepConstants {
    const float lr = hyper[0], weight_decay = hyper[1], beta_1 = hyper[2], beta_2 = hyper[3], epsilon = hyper[4];
    AdvanceBetaPowers(beta_1, beta_2, powers);
    return {lr,     1.0f - lr * weight_decay, beta_1, 1.0f - beta_1, beta_2, 1.0f - beta_2, 1.0f - powers[0], 1.0f - powers[1],
            epsilon};
  };
  if (amsgrad) {
    spec.rows = MXREC_DISPATCH_ROWS(AdamWTopRows);
    spec.reference = Reference<true>;
  } else {
    spec.rows = MXREC_DISPATCH_ROWS(AdamWRows);
    spec.reference = Reference<false>;
  }
  return spec;
}

}  // namespace internal
}  // namespace mxrec
#endif  // HWY_ONCE
