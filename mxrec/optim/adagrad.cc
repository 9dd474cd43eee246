// Adagrad: a += g^2, w -= lr g / sqrt(a). TensorFlow's v1 AdagradOptimizer on the rows of a batch, with a correctly rounded
// square root and division (TensorFlow multiplies by Eigen's reciprocal square root: docs/numerics.md).
#include "mxrec/optim/reference_loop.h"
#include "mxrec/optim/registry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/optim/adagrad.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "mxrec/optim/row_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {

// k: lr
struct AdagradRule {
  static constexpr size_t kSlots = 1;
  template <class D, class V>
  static HWY_INLINE void Apply(D d, const float* k, V g, V& w, V& a) {
    a = hn::Add(a, hn::Mul(g, g));
    w = hn::Sub(w, hn::Div(hn::Mul(hn::Set(d, k[0]), g), hn::Sqrt(a)));
  }
};

size_t AdagradRows(const StepConstants& constants, const RowBatch& batch) { return UpdateRowsWith<AdagradRule>(constants, batch); }

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace mxrec {

HWY_EXPORT(AdagradRows);

namespace internal {

Result<OptimizerSpec> AdagradSpec(OptionReader* options) {
  MXREC_ASSIGN_OR_RETURN(const float initial, options->Positive("initial_accumulator_value", 0.1f));  // as TensorFlow
  OptimizerSpec spec;
  spec.slots = {{"accumulator", initial}};
  spec.hyper_names = {"learning_rate"};
  spec.begin_step = [](const float* hyper, float*) -> StepConstants { return {hyper[0]}; };
  spec.rows = MXREC_DISPATCH_ROWS(AdagradRows);
  spec.reference = [](const StepConstants& k, const RowBatch& batch) {
    return ForEachElement(batch, [lr = k[0]](float g, float& w, const auto& slot) {
      float& a = slot(0);
      a = a + g * g;
      w = w - (lr * g) / std::sqrt(a);
    });
  };
  return spec;
}

}  // namespace internal
}  // namespace mxrec
#endif  // HWY_ONCE
