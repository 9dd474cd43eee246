// How the file of an optimizer makes its kind known. For files of mxrec/optim only.
//
// A file has: a Rule and a function of rows made from it (row_loop-inl.h), HWY_EXPORT of that function, a scalar reference
// (reference_loop.h), and a function `Result<OptimizerSpec> internal::<Name>Spec(OptionReader*)` that brings them together.
// Then kind and name get a line in the list of registry.cc: a linker that drops unused members of a static library cannot
// drop a kind, and no code runs before main.
#ifndef MXREC_OPTIM_REGISTRY_H_
#define MXREC_OPTIM_REGISTRY_H_

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/optim/optimizer.h"

namespace mxrec::internal {

struct SlotSpec {
  std::string name;
  float initial = 0;
  bool one_float = false;  // once a row instead of once a column; such slots stand last
};

struct ScalarSpec {
  std::string name;
  float initial = 0;
};

using RowFunction = size_t (*)(const StepConstants& constants, const RowBatch& batch);

// A kind of optimizer. The functions are called with IEEE arithmetic on (kernels/float_mode.h).
struct OptimizerSpec {
  std::vector<SlotSpec> slots;
  std::vector<std::string> hyper_names;
  std::vector<ScalarSpec> scalars;
  // Advances the scalars by a step and derives the constants [0, 12); the others are not the kind's.
  std::function<StepConstants(const float* hyper, float* scalars)> begin_step;
  RowFunction rows = nullptr;
  RowFunction reference = nullptr;
  // Which common options (optimizer.h) make sense.
  bool takes_weight_decay = true, takes_l2 = true;
  // The formula divides by the learning rate, which must then be above 0.
  bool divides_by_rate = false;
};

// Reads options by name and remembers which names a kind has, so that others can be refused.
class OptionReader {
 public:
  OptionReader(std::string_view kind, std::span<const OptimizerOption> options) : kind_(kind), options_(options) {}
  // The value of option `name`, or `otherwise`, as float32. kInvalidArgument unless finite and in [low, high].
  Result<float> Number(std::string_view name, float otherwise, float low, float high);
  // Above 0; at least 0.
  Result<float> Positive(std::string_view name, float otherwise);
  Result<float> NotNegative(std::string_view name, float otherwise);
  // 0 or 1; `meaning` explains them in the message.
  Result<bool> Flag(std::string_view name, std::string_view meaning);
  // kInvalidArgument when an option was given that nobody has read, or given twice.
  Status Finish() const;

 private:
  std::string_view kind_;
  std::span<const OptimizerOption> options_;
  std::vector<std::string> known_;
};

// What Adam and its relatives keep: beta^t after t steps, multiplied step by step in float32 as TensorFlow does.
std::vector<ScalarSpec> BetaPowers(float start = 1.0f);
inline void AdvanceBetaPowers(float beta_1, float beta_2, float* powers) {
  powers[0] *= beta_1;
  powers[1] *= beta_2;
}
// begin_step of Adam: hyper {lr, beta_1, beta_2, epsilon} give {lr_t, beta_1, 1 - beta_1, beta_2, 1 - beta_2, epsilon}.
StepConstants AdamConstants(const float* hyper, float* powers);
// Twice FTRL's l2, in which beta is an l2 of beta / (2 lr), as in TensorFlow.
inline float FtrlTwiceL2(float l2, float beta, float lr) { return 2.0f * (l2 + beta / (2.0f * (lr > 1e-36f ? lr : 1e-36f))); }

}  // namespace mxrec::internal

// A RowFunction that runs an exported function of rows on the best instruction set.
#define MXREC_DISPATCH_ROWS(function) \
  [](const StepConstants& constants, const RowBatch& batch) { return HWY_DYNAMIC_DISPATCH(function)(constants, batch); }

#endif  // MXREC_OPTIM_REGISTRY_H_
