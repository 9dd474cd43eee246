// AdamW, lazy: decoupled weight decay and bias-corrected moments on the rows of the batch. The formula and its two sets of start
// values are those of the Rec SDK's optimizer of that name (docs/numerics.md).
#include "mxrec/kernels/float_mode.h"
#include "mxrec/optim/optimizer.h"
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

size_t AdamWRows(const StepConstants& constants, const RowBatch& batch) { return UpdateRowsWith<AdamWRule>(constants, batch); }

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace mxrec {

HWY_EXPORT(AdamWRows);

namespace {

class AdamW final : public Optimizer {
 public:
  explicit AdamW(bool original_start) : original_start_(original_start) {}

  // Option initial_state: 0 (default) starts with m = v = 0 and powers 1, the textbook's; 1 with m = v = 1 and powers 0.9, the
  // original's.
  static Result<std::shared_ptr<const Optimizer>> Make(std::span<const OptimizerOption> options) {
    MXREC_RETURN_IF_ERROR(internal::CheckOptions("adamw", options, {"initial_state"}));
    const double start = internal::OptionOr(options, "initial_state", 0.0);
    if (start != 0.0 && start != 1.0) {
      return InvalidArgumentError("optimizer adamw: initial_state must be 0 (zeros) or 1 (original), found " +
                                  std::to_string(start));
    }
    return std::shared_ptr<const Optimizer>(std::make_shared<AdamW>(start == 1.0));
  }

  std::string_view kind() const override { return "adamw"; }
  std::vector<std::string> slot_names() const override { return {"m", "v"}; }
  std::vector<std::string> hyper_names() const override { return {"learning_rate", "weight_decay", "beta_1", "beta_2", "epsilon"}; }
  std::vector<std::string> scalar_names() const override { return {"beta_1_power", "beta_2_power"}; }
  std::vector<float> slot_initial_values() const override {
    return original_start_ ? std::vector{1.0f, 1.0f} : std::vector{0.0f, 0.0f};
  }
  std::vector<float> scalar_initial_values() const override {
    return original_start_ ? std::vector{0.9f, 0.9f} : std::vector{1.0f, 1.0f};
  }

  Status BeginStep(std::span<const float> hyper, OptimizerState* state, StepConstants* constants) const override {
    MXREC_RETURN_IF_ERROR(internal::CheckHyperCount(*this, hyper));
    MXREC_RETURN_IF_ERROR(internal::CheckScalars(*this, *state));
    const ScopedIeeeFloat ieee;
    const float lr = hyper[0], weight_decay = hyper[1], beta_1 = hyper[2], beta_2 = hyper[3], epsilon = hyper[4];
    float& power_1 = state->scalars[0];
    float& power_2 = state->scalars[1];
    ++state->step;
    power_1 *= beta_1;
    power_2 *= beta_2;
    *constants = {lr,     1.0f - lr * weight_decay, beta_1, 1.0f - beta_1, beta_2, 1.0f - beta_2, 1.0f - power_1, 1.0f - power_2,
                  epsilon};
    return OkStatus();
  }

  size_t UpdateRows(const StepConstants& constants, const RowBatch& batch) const override {
    const ScopedIeeeFloat ieee;
    return HWY_DYNAMIC_DISPATCH(AdamWRows)(constants, batch);
  }

  size_t UpdateRowsReference(const StepConstants& constants, const RowBatch& batch) const override {
    const auto [lr, keep, beta_1, rest_1, beta_2, rest_2, correction_1, correction_2, epsilon, u9, u10, u11] = constants;
    return internal::ForEachElement(batch, [=](float g, float& w, const auto& slot) {
      float& m = slot(0);
      float& v = slot(1);
      w = w * keep;
      m = beta_1 * m + rest_1 * g;
      v = beta_2 * v + rest_2 * g * g;
      const float denominator = std::sqrt(v / correction_2) + epsilon;
      w = w - (lr * (m / correction_1)) / denominator;
    });
  }

 private:
  bool original_start_;
};

}  // namespace

MXREC_REGISTER_OPTIMIZER(AdamW)

}  // namespace mxrec
#endif  // HWY_ONCE
