// FTRL-proximal (McMahan et al., KDD 2013), with L1, L2, shrinkage, beta and any power of the learning rate. TensorFlow's v1
// FtrlOptimizer on the rows of a batch.
#include "mxrec/optim/pow.h"
#include "mxrec/optim/reference_loop.h"
#include "mxrec/optim/registry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/optim/ftrl.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "mxrec/optim/row_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {

// k: lr, minus the power of the learning rate, l1, 2 l2 (beta included), 2 l2_shrinkage
template <bool kSquareRoot>
struct FtrlRule {
  static constexpr size_t kSlots = 2;
  template <class D, class V>
  static HWY_INLINE V Power(D d, const float* k, V a) {
    if constexpr (kSquareRoot) {
      return hn::Sqrt(a);
    } else {
      HWY_ALIGN float lanes[HWY_LANES(float)];
      hn::Store(a, d, lanes);
      for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = internal::PositivePower(lanes[i], k[1]);
      return hn::Load(d, lanes);
    }
  }
  template <class D, class V>
  static HWY_INLINE void Apply(D d, const float* k, V g, V& w, V& a, V& z) {
    const V lr = hn::Set(d, k[0]), l1 = hn::Set(d, k[2]), minus_l1 = hn::Set(d, -k[2]);
    const V shrunk = hn::Add(g, hn::Mul(hn::Set(d, k[4]), w));
    const V new_a = hn::Add(a, hn::Mul(g, g));
    const V power = Power(d, k, new_a);
    z = hn::Add(z, hn::Sub(shrunk, hn::Mul(hn::Div(hn::Sub(power, Power(d, k, a)), lr), w)));
    V clipped = hn::IfThenElse(hn::Gt(z, l1), l1, z);
    clipped = hn::IfThenElse(hn::Lt(clipped, minus_l1), minus_l1, clipped);
    const V below = hn::Add(hn::Div(power, lr), hn::Set(d, k[3]));
    w = hn::Div(hn::Sub(clipped, z), below);
    w = hn::IfThenElse(hn::Eq(below, hn::Zero(d)), hn::Zero(d), w);
    a = new_a;
  }
};

size_t FtrlRows(const StepConstants& constants, const RowBatch& batch) {
  return constants[1] == 0.5f ? UpdateRowsWith<FtrlRule<true>>(constants, batch)
                              : UpdateRowsWith<FtrlRule<false>>(constants, batch);
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace mxrec {

HWY_EXPORT(FtrlRows);

namespace internal {

Result<OptimizerSpec> FtrlSpec(OptionReader* options) {
  MXREC_ASSIGN_OR_RETURN(const float initial, options->NotNegative("initial_accumulator_value", 0.1f));  // as TensorFlow
  OptimizerSpec spec;
  spec.slots = {{"accumulator", initial}, {"linear"}};
  spec.hyper_names = {"learning_rate", "learning_rate_power", "l1", "l2", "l2_shrinkage", "beta"};
  spec.takes_weight_decay = spec.takes_l2 = false;
  spec.divides_by_rate = true;
  spec.begin_step = [](const float* hyper, float*) -> StepConstants {
    return {hyper[0], -hyper[1], hyper[2], FtrlTwiceL2(hyper[3], hyper[5], hyper[0]), 2.0f * hyper[4]};
  };
  spec.rows = MXREC_DISPATCH_ROWS(FtrlRows);
  spec.reference = [](const StepConstants& k, const RowBatch& batch) {
    return ForEachElement(batch, [&k](float g, float& w, const auto& slot) {
      const float lr = k[0], l1 = k[2], twice_l2 = k[3], twice_shrinkage = k[4];
      const auto power = [&k](float x) { return k[1] == 0.5f ? std::sqrt(x) : PositivePower(x, k[1]); };
      float& a = slot(0);
      float& z = slot(1);
      const float new_a = a + g * g;
      z = z + ((g + twice_shrinkage * w) - ((power(new_a) - power(a)) / lr) * w);
      float clipped = z > l1 ? l1 : z;
      clipped = clipped < -l1 ? -l1 : clipped;
      const float below = power(new_a) / lr + twice_l2;
      w = below == 0 ? 0.0f : (clipped - z) / below;
      a = new_a;
    });
  };
  return spec;
}

}  // namespace internal
}  // namespace mxrec
#endif  // HWY_ONCE
