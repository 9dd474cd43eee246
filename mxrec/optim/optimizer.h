// Optimizer: the rule that turns a row's gradient into its new values and slots.
//
// One object per kind and options, stateless and shared by all tables; what changes lives in the table (slots in its rows,
// step counter and scalars in OptimizerState). A new optimizer is one file (optim/registry.h says what is in it);
// optim/optimizer_conformance_test.cc runs over every registered kind.
//
// A row is contiguous float32: values [dim], then its slots. A slot has dim floats, or one float a row; those of one float
// stand last.
// Arithmetic: plain float32 operations in the order the formula gives, no fused multiply-add, correctly rounded sqrt and
// division; so scalar and SIMD code agree to the bit on every CPU. Formulas and sources: docs/numerics.md.
// Threads: all methods are const and may run at once on different rows.
#ifndef MXREC_OPTIM_OPTIMIZER_H_
#define MXREC_OPTIM_OPTIMIZER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/base/status.h"

namespace mxrec {

// Rows to update and the summed gradient of each. rows[i] points at Optimizer::row_floats(dim) floats; grads[i] at dim floats.
// Neither needs an alignment beyond 4 bytes. A row appears at most once.
struct RowBatch {
  float* const* rows;
  const float* const* grads;
  size_t count;
  size_t dim;
};

// What an optimizer keeps once per table. Saved with the table.
struct OptimizerState {
  uint64_t step = 0;           // applies so far
  std::vector<float> scalars;  // one per Optimizer::scalar_names(), e.g. beta powers
};

// Numbers that are the same for all rows of one step, derived from hyperparameters and state.
using StepConstants = std::array<float, 16>;

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // "sgd", "adagrad", ...: part of checkpoints.
  virtual std::string_view kind() const = 0;
  // Names of the slots, in row order, e.g. {"m", "v"}; the size is the slot count.
  virtual std::vector<std::string> slot_names() const = 0;
  // Floats of each slot in a row of that width: dim, or 1.
  virtual std::vector<uint32_t> slot_widths(size_t dim) const = 0;
  // Hyperparameters, in the order in which BeginStep expects them. The first is learning_rate.
  virtual std::vector<std::string> hyper_names() const = 0;
  // Names of the scalars in OptimizerState.
  virtual std::vector<std::string> scalar_names() const { return {}; }
  // Start values of the slots of a new row (one float per slot), from the options.
  virtual std::vector<float> slot_initial_values() const = 0;
  // Start values of the scalars.
  virtual std::vector<float> scalar_initial_values() const { return {}; }

  // Advances state (step, scalars) by one step and derives the constants of UpdateRows. Hyperparameters are float32, one
  // per hyper_names(). Fails with kInvalidArgument on a wrong count, a learning rate that is NaN or
  // infinite, or one of 0 and below where the formula divides by it (the FTRL kinds); state is then untouched.
  virtual Status BeginStep(std::span<const float> hyper, OptimizerState* state, StepConstants* constants) const = 0;

  // Updates the rows. Returns how many of them hold a NaN or Inf among their values afterwards.
  virtual size_t UpdateRows(const StepConstants& constants, const RowBatch& batch) const = 0;
  // The same, one element at a time, as the formula reads; what the tests compare with.
  virtual size_t UpdateRowsReference(const StepConstants& constants, const RowBatch& batch) const = 0;

  size_t slot_count() const { return slot_names().size(); }
  // Floats of a row: its values and slots.
  size_t row_floats(size_t dim) const {
    size_t floats = dim;
    for (const uint32_t width : slot_widths(dim)) floats += width;
    return floats;
  }
};

// Options of a kind, e.g. {"initial_accumulator_value": 0.1} or {"initial_state": 1} (AdamW: 0 = zeros, 1 = the original's
// ones and 0.9 powers), and those that kinds have in common, done to a row before its rule, in this order:
//   row_clip_norm       c > 0: g <- g * (c / |g|) where |g| > c; the summed gradient of one row
//   l2_regularization   >= 0: g <- g + l2 * w
//   weight_decay        >= 0: w <- w * (1 - learning_rate * weight_decay), decoupled
// Kinds with such terms of their own refuse those two (docs/numerics.md). Unknown names are an error.
struct OptimizerOption {
  std::string name;
  double value;
};

// Makes the optimizer of a kind. kInvalidArgument names the kind, the known ones, or the wrong option.
Result<std::shared_ptr<const Optimizer>> MakeOptimizer(std::string_view kind, std::span<const OptimizerOption> options = {});
// All registered kinds, sorted.
std::vector<std::string> OptimizerKinds();

}  // namespace mxrec

#endif  // MXREC_OPTIM_OPTIMIZER_H_
