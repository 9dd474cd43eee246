#include "mxrec/optim/registry.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "mxrec/kernels/float_mode.h"
#include "mxrec/optim/prepare_rows.h"

// Every optimizer of this folder: X(kind, name).
#define MXREC_FOR_EACH_OPTIMIZER(X)      \
  X("adadelta", Adadelta)                \
  X("adagrad", Adagrad)                  \
  X("adam", Adam)                        \
  X("adamw", AdamW)                      \
  X("amsgrad", Amsgrad)                  \
  X("ftrl", Ftrl)                        \
  X("group_ftrl", GroupFtrl)             \
  X("lamb", Lamb)                        \
  X("momentum", Momentum)                \
  X("rmsprop", Rmsprop)                  \
  X("rmsprop_centered", CenteredRmsprop) \
  X("rowwise_adagrad", RowwiseAdagrad)   \
  X("sgd", Sgd)

namespace mxrec {
namespace internal {

#define MXREC_DECLARE_SPEC(kind, Name) Result<OptimizerSpec> Name##Spec(OptionReader* options);
MXREC_FOR_EACH_OPTIMIZER(MXREC_DECLARE_SPEC)
#undef MXREC_DECLARE_SPEC

namespace {

struct Entry {
  std::string_view kind;
  Result<OptimizerSpec> (*make_spec)(OptionReader* options);
};

#define MXREC_LIST_SPEC(kind, Name) Entry{kind, &Name##Spec},
constexpr Entry kEntries[] = {MXREC_FOR_EACH_OPTIMIZER(MXREC_LIST_SPEC)};
#undef MXREC_LIST_SPEC

std::string Join(const std::vector<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : ", ") + name;
  return joined.empty() ? "none" : joined;
}

// The optimizer that a specification and the common options describe.
class RuleOptimizer final : public Optimizer {
 public:
  RuleOptimizer(std::string_view kind, OptimizerSpec spec, const CommonOptions& common)
      : kind_(kind), spec_(std::move(spec)), common_(common) {}

  std::string_view kind() const override { return kind_; }
  std::vector<std::string> slot_names() const override { return NamesOf(spec_.slots); }
  std::vector<std::string> hyper_names() const override { return spec_.hyper_names; }
  std::vector<std::string> scalar_names() const override { return NamesOf(spec_.scalars); }
  std::vector<float> slot_initial_values() const override { return StartsOf(spec_.slots); }
  std::vector<float> scalar_initial_values() const override { return StartsOf(spec_.scalars); }
  std::vector<uint32_t> slot_widths(size_t dim) const override {
    std::vector<uint32_t> widths;
    for (const SlotSpec& slot : spec_.slots) widths.push_back(slot.one_float ? 1 : static_cast<uint32_t>(dim));
    return widths;
  }

  Status BeginStep(std::span<const float> hyper, OptimizerState* state, StepConstants* constants) const override {
    MXREC_RETURN_IF_ERROR(CheckCount("takes", "hyperparameters", spec_.hyper_names, hyper.size()));
    MXREC_RETURN_IF_ERROR(CheckCount("keeps", "scalars", scalar_names(), state->scalars.size()));
    if (!std::isfinite(hyper[0])) {  // One such step would leave nothing of the rows that it touches.
      return InvalidArgumentError("optimizer " + std::string(kind_) + " takes a finite learning_rate: found " +
                                  std::to_string(hyper[0]));
    }
    if (spec_.divides_by_rate && !(hyper[0] > 0)) {
      return InvalidArgumentError("optimizer " + std::string(kind_) + " divides by learning_rate, which must be above 0: found " +
                                  std::to_string(hyper[0]));
    }
    const ScopedIeeeFloat ieee;
    ++state->step;
    *constants = spec_.begin_step(hyper.data(), state->scalars.data());
    if (common_.any()) SetPrepareConstants(common_, hyper[0], constants);
    return OkStatus();
  }

  size_t UpdateRows(const StepConstants& constants, const RowBatch& batch) const override {
    return Update(constants, batch, spec_.rows, PrepareRows);
  }
  size_t UpdateRowsReference(const StepConstants& constants, const RowBatch& batch) const override {
    return Update(constants, batch, spec_.reference, PrepareRowsReference);
  }

 private:
  template <typename Specs>
  static std::vector<std::string> NamesOf(const Specs& specs) {
    std::vector<std::string> names;
    for (const auto& spec : specs) names.push_back(spec.name);
    return names;
  }
  template <typename Specs>
  static std::vector<float> StartsOf(const Specs& specs) {
    std::vector<float> starts;
    for (const auto& spec : specs) starts.push_back(spec.initial);
    return starts;
  }

  Status CheckCount(std::string_view verb, std::string_view what, const std::vector<std::string>& names, size_t found) const {
    if (found == names.size()) return OkStatus();
    std::ostringstream text;
    text << "optimizer " << kind_ << " " << verb << " " << names.size() << " " << what << " (" << Join(names) << "), found "
         << found;
    return InvalidArgumentError(text.str());
  }

  size_t Update(const StepConstants& constants, const RowBatch& batch, RowFunction rule, PrepareFunction prepare) const {
    const ScopedIeeeFloat ieee;
    if (!common_.any()) return rule(constants, batch);
    // Gradients are the caller's, so they change in a copy: a few rows at a time, that they stay in cache.
    const size_t most = std::max<size_t>(1, kPreparedFloats / std::max<size_t>(1, batch.dim));
    thread_local std::vector<float> copies;
    thread_local std::vector<const float*> grads;
    if (copies.size() < std::min(most, batch.count) * batch.dim) copies.resize(std::min(most, batch.count) * batch.dim);
    size_t non_finite_rows = 0;
    for (size_t first = 0; first < batch.count; first += most) {
      const RowBatch piece{batch.rows + first, batch.grads + first, std::min(most, batch.count - first), batch.dim};
      grads.resize(piece.count);
      for (size_t i = 0; i < piece.count; ++i) grads[i] = copies.data() + i * batch.dim;
      prepare(constants, piece, copies.data());
      non_finite_rows += rule(constants, {piece.rows, grads.data(), piece.count, piece.dim});
    }
    return non_finite_rows;
  }

  static constexpr size_t kPreparedFloats = 2048;
  const std::string_view kind_;
  const OptimizerSpec spec_;
  const CommonOptions common_;
};

constexpr float kLargest = std::numeric_limits<float>::max();

Result<CommonOptions> ReadCommonOptions(std::string_view kind, const OptimizerSpec& spec, OptionReader* reader) {
  CommonOptions common;
  MXREC_ASSIGN_OR_RETURN(common.row_clip_norm, reader->Number("row_clip_norm", 0, 0, kLargest));
  MXREC_ASSIGN_OR_RETURN(common.l2_regularization, reader->Number("l2_regularization", 0, 0, kLargest));
  MXREC_ASSIGN_OR_RETURN(common.weight_decay, reader->Number("weight_decay", 0, 0, kLargest));
  const auto refuse = [kind](std::string_view name) {
    return InvalidArgumentError("optimizer " + std::string(kind) + " does not take the common option " + std::string(name) +
                                ": it has a regularization of its own, use that");
  };
  if (common.weight_decay != 0 && !spec.takes_weight_decay) return refuse("weight_decay");
  if (common.l2_regularization != 0 && !spec.takes_l2) return refuse("l2_regularization");
  return common;
}

}  // namespace

Result<float> OptionReader::Number(std::string_view name, float otherwise, float low, float high) {
  known_.emplace_back(name);
  for (const OptimizerOption& option : options_) {
    if (option.name != name) continue;
    const float value = static_cast<float>(option.value);
    if (std::isfinite(value) && value >= low && value <= high) return value;
    std::ostringstream text;
    text << "optimizer " << kind_ << ": " << name << " must be at least " << low;
    if (high != kLargest) text << " and at most " << high;
    text << ", and finite; found " << option.value;
    return InvalidArgumentError(text.str());
  }
  return otherwise;
}

Result<float> OptionReader::NotNegative(std::string_view name, float otherwise) { return Number(name, otherwise, 0, kLargest); }

Result<float> OptionReader::Positive(std::string_view name, float otherwise) {
  MXREC_ASSIGN_OR_RETURN(const float value, NotNegative(name, otherwise));
  if (value > 0) return value;
  return InvalidArgumentError("optimizer " + std::string(kind_) + ": " + std::string(name) + " must be above 0, found 0");
}

Result<bool> OptionReader::Flag(std::string_view name, std::string_view meaning) {
  MXREC_ASSIGN_OR_RETURN(const float value, Number(name, 0, 0, 1));
  if (value == 0 || value == 1) return value == 1;
  return InvalidArgumentError("optimizer " + std::string(kind_) + ": " + std::string(name) + " must be " + std::string(meaning) +
                              ", found " + std::to_string(value));
}

Status OptionReader::Finish() const {
  for (size_t i = 0; i < options_.size(); ++i) {
    const std::string& name = options_[i].name;
    if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
      return InvalidArgumentError("optimizer " + std::string(kind_) + " has no option \"" + name + "\"; it has " + Join(known_));
    }
    for (size_t j = 0; j < i; ++j) {
      if (options_[j].name == name) {
        return InvalidArgumentError("optimizer " + std::string(kind_) + ": option \"" + name + "\" is given twice");
      }
    }
  }
  return OkStatus();
}

std::vector<ScalarSpec> BetaPowers(float start) { return {{"beta_1_power", start}, {"beta_2_power", start}}; }

StepConstants AdamConstants(const float* hyper, float* powers) {
  const float lr = hyper[0], beta_1 = hyper[1], beta_2 = hyper[2], epsilon = hyper[3];
  AdvanceBetaPowers(beta_1, beta_2, powers);
  const float lr_t = lr * std::sqrt(1.0f - powers[1]) / (1.0f - powers[0]);
  return {lr_t, beta_1, 1.0f - beta_1, beta_2, 1.0f - beta_2, epsilon};
}

}  // namespace internal

Result<std::shared_ptr<const Optimizer>> MakeOptimizer(std::string_view kind, std::span<const OptimizerOption> options) {
  for (const internal::Entry& entry : internal::kEntries) {
    if (entry.kind != kind) continue;
    internal::OptionReader reader(entry.kind, options);
    MXREC_ASSIGN_OR_RETURN(internal::OptimizerSpec spec, entry.make_spec(&reader));
    MXREC_ASSIGN_OR_RETURN(const internal::CommonOptions common, internal::ReadCommonOptions(entry.kind, spec, &reader));
    MXREC_RETURN_IF_ERROR(reader.Finish());
    return std::shared_ptr<const Optimizer>(std::make_shared<internal::RuleOptimizer>(entry.kind, std::move(spec), common));
  }
  return InvalidArgumentError("unknown optimizer \"" + std::string(kind) + "\"; known: " + internal::Join(OptimizerKinds()));
}

std::vector<std::string> OptimizerKinds() {
  std::vector<std::string> kinds;
  for (const internal::Entry& entry : internal::kEntries) kinds.emplace_back(entry.kind);
  std::sort(kinds.begin(), kinds.end());
  return kinds;
}

}  // namespace mxrec
