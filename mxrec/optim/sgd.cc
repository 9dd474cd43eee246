// SGD: w -= lr g. TensorFlow's GradientDescentOptimizer on the rows of a batch; equal to the bit.
#include "mxrec/optim/reference_loop.h"
#include "mxrec/optim/registry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/optim/sgd.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "mxrec/optim/row_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {

// k: lr
struct SgdRule {
  static constexpr size_t kSlots = 0;
  template <class D, class V>
  static HWY_INLINE void Apply(D d, const float* k, V g, V& w) {
    w = hn::Sub(w, hn::Mul(hn::Set(d, k[0]), g));
  }
};

size_t SgdRows(const StepConstants& constants, const RowBatch& batch) { return UpdateRowsWith<SgdRule>(constants, batch); }

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(SgdRows);

namespace internal {

Result<OptimizerSpec> SgdSpec(OptionReader*) {
  OptimizerSpec spec;
  spec.hyper_names = {"learning_rate"};
  spec.begin_step = [](const float* hyper, float*) -> StepConstants { return {hyper[0]}; };
  spec.rows = MXREC_DISPATCH_ROWS(SgdRows);
  spec.reference = [](const StepConstants& k, const RowBatch& batch) {
    return ForEachElement(batch, [lr = k[0]](float g, float& w, const auto&) { w = w - lr * g; });
  };
  return spec;
}

}  // namespace internal
}  // namespace mxrec
#endif  // HWY_ONCE
