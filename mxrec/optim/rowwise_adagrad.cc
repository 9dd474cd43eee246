// Row-wise Adagrad: Adagrad with one accumulator a row, which takes the mean of the row's squared gradients; FBGEMM's
// EXACT_ROWWISE_ADAGRAD.
#include "mxrec/optim/reference_loop.h"
#include "mxrec/optim/registry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/optim/rowwise_adagrad.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "mxrec/optim/row_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {

// k: lr, epsilon
struct RowwiseAdagradRule {
  static constexpr size_t kSlots = 0;
  static constexpr size_t kSums = 1;
  template <class D, class V>
  static HWY_INLINE void First(D, const float*, V& t0, V g, V) {
    t0 = hn::Mul(g, g);
  }
  static HWY_INLINE void Between(const float* k, size_t dim, const float* sums, float* accumulator, float* r) {
    *accumulator = *accumulator + sums[0] / static_cast<float>(dim);
    r[0] = k[0] / (std::sqrt(*accumulator) + k[1]);
  }
  template <class D, class V>
  static HWY_INLINE void Second(D d, const float*, const float* r, V g, V& w) {
    w = hn::Sub(w, hn::Mul(hn::Set(d, r[0]), g));
  }
};

size_t RowwiseAdagradRows(const StepConstants& constants, const RowBatch& batch) {
  return UpdateWholeRowsWith<RowwiseAdagradRule>(constants, batch);
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace mxrec {

HWY_EXPORT(RowwiseAdagradRows);

namespace internal {

Result<OptimizerSpec> RowwiseAdagradSpec(OptionReader* options) {
  MXREC_ASSIGN_OR_RETURN(const float initial, options->NotNegative("initial_accumulator_value", 0.0f));
  OptimizerSpec spec;
  spec.slots = {{"accumulator", initial, /*one_float=*/true}};
  spec.hyper_names = {"learning_rate", "epsilon"};
  spec.begin_step = [](const float* hyper, float*) -> StepConstants { return {hyper[0], hyper[1]}; };
  spec.rows = MXREC_DISPATCH_ROWS(RowwiseAdagradRows);
  spec.reference = [](const StepConstants& k, const RowBatch& batch) {
    return ForEachRow(batch, [&k, dim = batch.dim](const float* g, float* row) {
      const float lr = k[0], epsilon = k[1];
      float& a = row[dim];
      a = a + SumOverRow(dim, [g](size_t c) { return g[c] * g[c]; }) / static_cast<float>(dim);
      const float rate = lr / (std::sqrt(a) + epsilon);
      for (size_t c = 0; c < dim; ++c) row[c] = row[c] - rate * g[c];
    });
  };
  return spec;
}

}  // namespace internal
}  // namespace mxrec
#endif  // HWY_ONCE
