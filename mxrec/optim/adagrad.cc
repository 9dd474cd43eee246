// Adagrad: a += g^2, w -= lr g / sqrt(a). TensorFlow's v1 AdagradOptimizer on the rows of a batch, with a correctly rounded
// square root and division (TensorFlow multiplies by Eigen's reciprocal square root: docs/numerics.md).
#include "mxrec/kernels/float_mode.h"
#include "mxrec/optim/optimizer.h"
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

namespace {

class Adagrad final : public Optimizer {
 public:
  explicit Adagrad(float initial_accumulator) : initial_accumulator_(initial_accumulator) {}

  // Option initial_accumulator_value, default 0.1, must be positive as in TensorFlow.
  static Result<std::shared_ptr<const Optimizer>> Make(std::span<const OptimizerOption> options) {
    MXREC_RETURN_IF_ERROR(internal::CheckOptions("adagrad", options, {"initial_accumulator_value"}));
    const float initial = static_cast<float>(internal::OptionOr(options, "initial_accumulator_value", 0.1));
    if (!(initial > 0) || !std::isfinite(initial)) {
      return InvalidArgumentError("optimizer adagrad: initial_accumulator_value must be positive and finite, found " +
                                  std::to_string(initial));
    }
    return std::shared_ptr<const Optimizer>(std::make_shared<Adagrad>(initial));
  }

  std::string_view kind() const override { return "adagrad"; }
  std::vector<std::string> slot_names() const override { return {"accumulator"}; }
  std::vector<std::string> hyper_names() const override { return {"learning_rate"}; }
  std::vector<float> slot_initial_values() const override { return {initial_accumulator_}; }

  Status BeginStep(std::span<const float> hyper, OptimizerState* state, StepConstants* constants) const override {
    MXREC_RETURN_IF_ERROR(internal::CheckHyperCount(*this, hyper));
    MXREC_RETURN_IF_ERROR(internal::CheckScalars(*this, *state));
    ++state->step;
    *constants = {hyper[0]};
    return OkStatus();
  }

  size_t UpdateRows(const StepConstants& constants, const RowBatch& batch) const override {
    const ScopedIeeeFloat ieee;
    return HWY_DYNAMIC_DISPATCH(AdagradRows)(constants, batch);
  }

  size_t UpdateRowsReference(const StepConstants& constants, const RowBatch& batch) const override {
    const float lr = constants[0];
    return internal::ForEachElement(batch, [lr](float g, float& w, const auto& slot) {
      float& a = slot(0);
      a = a + g * g;
      w = w - (lr * g) / std::sqrt(a);
    });
  }

 private:
  float initial_accumulator_;
};

}  // namespace

MXREC_REGISTER_OPTIMIZER(Adagrad)

}  // namespace mxrec
#endif  // HWY_ONCE
