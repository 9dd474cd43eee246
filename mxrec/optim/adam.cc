// Adam, lazy: TensorFlow's v1 AdamOptimizer with everything that it does to all rows done to the rows of the batch only.
#include "mxrec/kernels/float_mode.h"
#include "mxrec/optim/optimizer.h"
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

namespace {

class Adam final : public Optimizer {
 public:
  static Result<std::shared_ptr<const Optimizer>> Make(std::span<const OptimizerOption> options) {
    MXREC_RETURN_IF_ERROR(internal::CheckOptions("adam", options, {}));
    return std::shared_ptr<const Optimizer>(std::make_shared<Adam>());
  }

  std::string_view kind() const override { return "adam"; }
  std::vector<std::string> slot_names() const override { return {"m", "v"}; }
  std::vector<std::string> hyper_names() const override { return {"learning_rate", "beta_1", "beta_2", "epsilon"}; }
  // beta^t after t steps, multiplied step by step in float32 as TensorFlow does.
  std::vector<std::string> scalar_names() const override { return {"beta_1_power", "beta_2_power"}; }
  std::vector<float> slot_initial_values() const override { return {0.0f, 0.0f}; }
  std::vector<float> scalar_initial_values() const override { return {1.0f, 1.0f}; }

  Status BeginStep(std::span<const float> hyper, OptimizerState* state, StepConstants* constants) const override {
    MXREC_RETURN_IF_ERROR(internal::CheckHyperCount(*this, hyper));
    MXREC_RETURN_IF_ERROR(internal::CheckScalars(*this, *state));
    const ScopedIeeeFloat ieee;
    const float lr = hyper[0], beta_1 = hyper[1], beta_2 = hyper[2], epsilon = hyper[3];
    float& power_1 = state->scalars[0];
    float& power_2 = state->scalars[1];
    ++state->step;
    power_1 *= beta_1;
    power_2 *= beta_2;
    const float lr_t = lr * std::sqrt(1.0f - power_2) / (1.0f - power_1);
    *constants = {lr_t, beta_1, 1.0f - beta_1, beta_2, 1.0f - beta_2, epsilon};
    return OkStatus();
  }

  size_t UpdateRows(const StepConstants& constants, const RowBatch& batch) const override {
    const ScopedIeeeFloat ieee;
    return HWY_DYNAMIC_DISPATCH(AdamRows)(constants, batch);
  }

  size_t UpdateRowsReference(const StepConstants& constants, const RowBatch& batch) const override {
    const auto [lr_t, beta_1, rest_1, beta_2, rest_2, epsilon, u6, u7, u8, u9, u10, u11] = constants;
    return internal::ForEachElement(batch, [=](float g, float& w, const auto& slot) {
      float& m = slot(0);
      float& v = slot(1);
      m = m * beta_1 + g * rest_1;
      v = v * beta_2 + (g * g) * rest_2;
      w = w - (lr_t * m) / (std::sqrt(v) + epsilon);
    });
  }
};

}  // namespace

MXREC_REGISTER_OPTIMIZER(Adam)

}  // namespace mxrec
#endif  // HWY_ONCE
