// Momentum: a = momentum a + g, w -= lr a; or Nesterov's form. TensorFlow's v1 MomentumOptimizer on the rows of a batch.
#include "mxrec/optim/reference_loop.h"
#include "mxrec/optim/registry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/optim/momentum.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "mxrec/optim/row_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {

// k: lr, momentum, lr momentum
template <bool kNesterov>
struct MomentumRule {
  static constexpr size_t kSlots = 1;
  template <class D, class V>
  static HWY_INLINE void Apply(D d, const float* k, V g, V& w, V& a) {
    a = hn::Add(hn::Mul(a, hn::Set(d, k[1])), g);
    V step = hn::Mul(hn::Set(d, k[0]), kNesterov ? g : a);
    if constexpr (kNesterov) step = hn::Add(step, hn::Mul(hn::Set(d, k[2]), a));
    w = hn::Sub(w, step);
  }
};

// k[3] says whether Nesterov's form is wanted.
size_t MomentumRows(const StepConstants& constants, const RowBatch& batch) {
  return constants[3] != 0 ? UpdateRowsWith<MomentumRule<true>>(constants, batch)
                           : UpdateRowsWith<MomentumRule<false>>(constants, batch);
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(MomentumRows);

namespace internal {

// Option nesterov: 0 (default) or 1.
Result<OptimizerSpec> MomentumSpec(OptionReader* options) {
  MXREC_ASSIGN_OR_RETURN(const bool nesterov, options->Flag("nesterov", "0 or 1"));
  OptimizerSpec spec;
  spec.slots = {{"momentum"}};
  spec.hyper_names = {"learning_rate", "momentum"};
  spec.begin_step = [nesterov](const float* hyper, float*) -> StepConstants {
    return {hyper[0], hyper[1], hyper[0] * hyper[1], nesterov ? 1.0f : 0.0f};
  };
  spec.rows = MXREC_DISPATCH_ROWS(MomentumRows);
  spec.reference = [](const StepConstants& k, const RowBatch& batch) {
    return ForEachElement(batch, [&k](float g, float& w, const auto& slot) {
      const float lr = k[0], momentum = k[1], lr_momentum = k[2];
      const bool is_nesterov = k[3] != 0;
      float& a = slot(0);
      a = a * momentum + g;
      w = is_nesterov ? w - (lr * g + lr_momentum * a) : w - lr * a;
    });
  };
  return spec;
}

}  // namespace internal
}  // namespace mxrec
#endif  // HWY_ONCE
