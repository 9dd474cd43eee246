// Adam, lazy: TensorFlow's v1 AdamOptimizer with everything that it does to all rows done to the rows of the batch only.
#include "mxrec/optim/reference_loop.h"
#include "mxrec/optim/registry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/optim/adam.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "mxrec/optim/row_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {

// k: lr_t, beta_1, 1 - beta_1, beta_2, 1 - beta_2, epsilon
struct AdamRule {
  static constexpr size_t kSlots = 2;
  template <class D, class V>
  static HWY_INLINE void Apply(D d, const float* k, V g, V& w, V& m, V& v) {
    m = hn::Add(hn::Mul(m, hn::Set(d, k[1])), hn::Mul(g, hn::Set(d, k[2])));
    v = hn::Add(hn::Mul(v, hn::Set(d, k[3])), hn::Mul(hn::Mul(g, g), hn::Set(d, k[4])));
    w = hn::Sub(w, hn::Div(hn::Mul(hn::Set(d, k[0]), m), hn::Add(hn::Sqrt(v), hn::Set(d, k[5]))));
  }
};

size_t AdamRows(const StepConstants& constants, const RowBatch& batch) { return UpdateRowsWith<AdamRule>(constants, batch); }

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace mxrec {

HWY_EXPORT(AdamRows);

namespace internal {

Result<OptimizerSpec> AdamSpec(OptionReader*) {
  OptimizerSpec spec;
  spec.slots = {{"m"}, {"v"}};
  spec.hyper_names = {"learning_rate", "beta_1", "beta_2", "epsilon"};
  spec.scalars = BetaPowers();
  spec.begin_step = AdamConstants;
  spec.rows = MXREC_DISPATCH_ROWS(AdamRows);
  spec.reference = [](const StepConstants& k, const RowBatch& batch) {
    return ForEachElement(batch, [&k](float g, float& w, const auto& slot) {
      const float lr_t = k[0], beta_1 = k[1], rest_1 = k[2], beta_2 = k[3], rest_2 = k[4], epsilon = k[5];
      float& m = slot(0);
      float& v = slot(1);
      m = m * beta_1 + g * rest_1;
      v = v * beta_2 + (g * g) * rest_2;
      w = w - (lr_t * m) / (std::sqrt(v) + epsilon);
    });
  };
  return spec;
}

}  // namespace internal
}  // namespace mxrec
#endif  // HWY_ONCE
