// SGD: w -= lr g. TensorFlow's GradientDescentOptimizer on the rows of a batch; equal to the bit.
#include "mxrec/kernels/float_mode.h"
#include "mxrec/optim/optimizer.h"
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

namespace {

class Sgd final : public Optimizer {
 public:
  static Result<std::shared_ptr<const Optimizer>> Make(std::span<const OptimizerOption> options) {
    MXREC_RETURN_IF_ERROR(internal::CheckOptions("sgd", options, {}));
    return std::shared_ptr<const Optimizer>(std::make_shared<Sgd>());
  }

  std::string_view kind() const override { return "sgd"; }
  std::vector<std::string> slot_names() const override { return {}; }
  std::vector<std::string> hyper_names() const override { return {"learning_rate"}; }
  std::vector<float> slot_initial_values() const override { return {}; }

  Status BeginStep(std::span<const float> hyper, OptimizerState* state, StepConstants* constants) const override {
    MXREC_RETURN_IF_ERROR(internal::CheckHyperCount(*this, hyper));
    MXREC_RETURN_IF_ERROR(internal::CheckScalars(*this, *state));
    ++state->step;
    *constants = {hyper[0]};
    return OkStatus();
  }

  size_t UpdateRows(const StepConstants& constants, const RowBatch& batch) const override {
    const ScopedIeeeFloat ieee;
    return HWY_DYNAMIC_DISPATCH(SgdRows)(constants, batch);
  }

  size_t UpdateRowsReference(const StepConstants& constants, const RowBatch& batch) const override {
    const float lr = constants[0];
    return internal::ForEachElement(batch, [lr](float g, float& w, const auto& slot) { w = w - lr * g; });
  }
};

}  // namespace

MXREC_REGISTER_OPTIMIZER(Sgd)

}  // namespace mxrec
#endif  // HWY_ONCE
