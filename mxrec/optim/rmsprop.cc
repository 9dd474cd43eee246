// RMSProp, plain and centered. TensorFlow's v1 RMSPropOptimizer on the rows of a batch, with a correctly rounded square root
// and division (TensorFlow multiplies by Eigen's reciprocal square root: docs/numerics.md).
#include "mxrec/optim/reference_loop.h"
#include "mxrec/optim/registry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/optim/rmsprop.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "mxrec/optim/row_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {

// k: lr, rho, 1 - rho, momentum, epsilon
struct RmspropRule {
  static constexpr size_t kSlots = 2;
  template <class D, class V>
  static HWY_INLINE void Apply(D d, const float* k, V g, V& w, V& s, V& step) {
    s = hn::Add(hn::Mul(s, hn::Set(d, k[1])), hn::Mul(hn::Mul(g, g), hn::Set(d, k[2])));
    const V root = hn::Sqrt(hn::Add(s, hn::Set(d, k[4])));
    step = hn::Add(hn::Mul(step, hn::Set(d, k[3])), hn::Div(hn::Mul(hn::Set(d, k[0]), g), root));
    w = hn::Sub(w, step);
  }
};

// The same with the mean of gradients.
struct CenteredRmspropRule {
  static constexpr size_t kSlots = 3;
  template <class D, class V>
  static HWY_INLINE void Apply(D d, const float* k, V g, V& w, V& s, V& step, V& mean) {
    const V epsilon = hn::Set(d, k[4]);
    s = hn::Add(hn::Mul(s, hn::Set(d, k[1])), hn::Mul(hn::Mul(g, g), hn::Set(d, k[2])));
    mean = hn::Add(hn::Mul(mean, hn::Set(d, k[1])), hn::Mul(g, hn::Set(d, k[2])));
    V variance = hn::Sub(hn::Add(s, epsilon), hn::Mul(mean, mean));
    variance = hn::IfThenElse(hn::Lt(variance, epsilon), epsilon, variance);
    step = hn::Add(hn::Mul(step, hn::Set(d, k[3])), hn::Div(hn::Mul(hn::Set(d, k[0]), g), hn::Sqrt(variance)));
    w = hn::Sub(w, step);
  }
};

size_t CenteredRmspropRows(const StepConstants& constants, const RowBatch& batch) {
  return UpdateRowsWith<CenteredRmspropRule>(constants, batch);
}

size_t RmspropRows(const StepConstants& constants, const RowBatch& batch) { return UpdateRowsWith<RmspropRule>(constants, batch); }

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace mxrec {

HWY_EXPORT(RmspropRows);
HWY_EXPORT(CenteredRmspropRows);

namespace internal {

namespace {

OptimizerSpec CommonSpec() {
  OptimizerSpec spec;
  spec.slots = {{"rms", 1.0f}, {"momentum"}};  // TensorFlow's start values
  spec.hyper_names = {"learning_rate", "rho", "momentum", "epsilon"};
  spec.begin_step = [](const float* hyper, float*) -> StepConstants {
    return {hyper[0], hyper[1], 1.0f - hyper[1], hyper[2], hyper[3]};
  };
  return spec;
}

}  // namespace

Result<OptimizerSpec> RmspropSpec(OptionReader*) {
  OptimizerSpec spec = CommonSpec();
  spec.rows = MXREC_DISPATCH_ROWS(RmspropRows);
  spec.reference = [](const StepConstants& k, const RowBatch& batch) {
    return ForEachElement(batch, [&k](float g, float& w, const auto& slot) {
      const float lr = k[0], rho = k[1], rest = k[2], momentum = k[3], epsilon = k[4];
      float& s = slot(0);
      float& step = slot(1);
      s = s * rho + (g * g) * rest;
      step = step * momentum + (lr * g) / std::sqrt(s + epsilon);
      w = w - step;
    });
  };
  return spec;
}

Result<OptimizerSpec> CenteredRmspropSpec(OptionReader*) {
  OptimizerSpec spec = CommonSpec();
  spec.slots.push_back({"mean"});
  spec.rows = MXREC_DISPATCH_ROWS(CenteredRmspropRows);
  spec.reference = [](const StepConstants& k, const RowBatch& batch) {
    return ForEachElement(batch, [&k](float g, float& w, const auto& slot) {
      const float lr = k[0], rho = k[1], rest = k[2], momentum = k[3], epsilon = k[4];
      float& s = slot(0);
      float& step = slot(1);
      float& mean = slot(2);
      s = s * rho + (g * g) * rest;
      mean = mean * rho + g * rest;
      float variance = (s + epsilon) - mean * mean;
      if (variance < epsilon) variance = epsilon;  // it is at least that but for rounding
      step = step * momentum + (lr * g) / std::sqrt(variance);
      w = w - step;
    });
  };
  return spec;
}

}  // namespace internal
}  // namespace mxrec
#endif  // HWY_ONCE
