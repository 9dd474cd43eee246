// Adadelta. TensorFlow's v1 AdadeltaOptimizer on the rows of a batch, with a correctly rounded square root and division
// (TensorFlow multiplies by Eigen's reciprocal square root: docs/numerics.md).
#include "mxrec/optim/reference_loop.h"
#include "mxrec/optim/registry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/optim/adadelta.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "mxrec/optim/row_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {

// k: lr, rho, 1 - rho, epsilon
struct AdadeltaRule {
  static constexpr size_t kSlots = 2;
  template <class D, class V>
  static HWY_INLINE void Apply(D d, const float* k, V g, V& w, V& a, V& b) {
    const V rho = hn::Set(d, k[1]), rest = hn::Set(d, k[2]), epsilon = hn::Set(d, k[3]);
    a = hn::Add(hn::Mul(a, rho), hn::Mul(hn::Mul(g, g), rest));
    const V u = hn::Mul(hn::Div(hn::Sqrt(hn::Add(b, epsilon)), hn::Sqrt(hn::Add(a, epsilon))), g);
    b = hn::Add(hn::Mul(b, rho), hn::Mul(hn::Mul(u, u), rest));
    w = hn::Sub(w, hn::Mul(u, hn::Set(d, k[0])));
  }
};

size_t AdadeltaRows(const StepConstants& constants, const RowBatch& batch) {
  return UpdateRowsWith<AdadeltaRule>(constants, batch);
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace mxrec {

HWY_EXPORT(AdadeltaRows);

namespace internal {

Result<OptimizerSpec> AdadeltaSpec(OptionReader*) {
  OptimizerSpec spec;
  spec.slots = {{"accumulator"}, {"accumulated_update"}};
  spec.hyper_names = {"learning_rate", "rho", "epsilon"};
  spec.begin_step = [](const float* hyper, float*) -> StepConstants { return {hyper[0], hyper[1], 1.0f - hyper[1], hyper[2]}; };
  spec.rows = MXREC_DISPATCH_ROWS(AdadeltaRows);
  spec.reference = [](const StepConstants& k, const RowBatch& batch) {
    return ForEachElement(batch, [&k](float g, float& w, const auto& slot) {
      const float lr = k[0], rho = k[1], rest = k[2], epsilon = k[3];
      float& a = slot(0);
      float& b = slot(1);
      a = a * rho + (g * g) * rest;
      const float u = (std::sqrt(b + epsilon) / std::sqrt(a + epsilon)) * g;
      b = b * rho + (u * u) * rest;
      w = w - u * lr;
    });
  };
  return spec;
}

}  // namespace internal
}  // namespace mxrec
#endif  // HWY_ONCE
