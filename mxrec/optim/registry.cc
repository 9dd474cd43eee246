#include "mxrec/optim/registry.h"

#include <algorithm>
#include <sstream>

// Every optimizer of this folder: X(kind, class).
#define MXREC_FOR_EACH_OPTIMIZER(X) \
  X("adagrad", Adagrad)             \
  X("adam", Adam)                   \
  X("adamw", AdamW)                 \
  X("sgd", Sgd)

namespace mxrec {
namespace internal {

#define MXREC_DECLARE_FACTORY(kind, Class) \
  Result<std::shared_ptr<const Optimizer>> Make##Class(std::span<const OptimizerOption> options);
MXREC_FOR_EACH_OPTIMIZER(MXREC_DECLARE_FACTORY)
#undef MXREC_DECLARE_FACTORY

namespace {

struct Entry {
  std::string_view kind;
  OptimizerFactory make;
};

#define MXREC_LIST_FACTORY(kind, Class) Entry{kind, &Make##Class},
constexpr Entry kEntries[] = {MXREC_FOR_EACH_OPTIMIZER(MXREC_LIST_FACTORY)};
#undef MXREC_LIST_FACTORY

std::string Join(const std::vector<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : ", ") + name;
  return joined.empty() ? "none" : joined;
}

}  // namespace

double OptionOr(std::span<const OptimizerOption> options, std::string_view name, double otherwise) {
  for (const OptimizerOption& option : options) {
    if (option.name == name) return option.value;
  }
  return otherwise;
}

Status CheckOptions(std::string_view kind, std::span<const OptimizerOption> options,
                    std::initializer_list<std::string_view> known) {
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string& name = options[i].name;
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return InvalidArgumentError("optimizer " + std::string(kind) + " has no option \"" + name + "\"; it has " +
                                  Join(std::vector<std::string>(known.begin(), known.end())));
    }
    for (size_t j = 0; j < i; ++j) {
      if (options[j].name == name) {
        return InvalidArgumentError("optimizer " + std::string(kind) + ": option \"" + name + "\" is given twice");
      }
    }
  }
  return OkStatus();
}

Status CheckHyperCount(const Optimizer& optimizer, std::span<const float> hyper) {
  const std::vector<std::string> names = optimizer.hyper_names();
  if (hyper.size() == names.size()) return OkStatus();
  std::ostringstream text;
  text << "optimizer " << optimizer.kind() << " takes " << names.size() << " hyperparameters (" << Join(names) << "), found "
       << hyper.size();
  return InvalidArgumentError(text.str());
}

Status CheckScalars(const Optimizer& optimizer, const OptimizerState& state) {
  const std::vector<std::string> names = optimizer.scalar_names();
  if (state.scalars.size() == names.size()) return OkStatus();
  std::ostringstream text;
  text << "optimizer " << optimizer.kind() << " keeps " << names.size() << " scalars (" << Join(names) << "), found "
       << state.scalars.size();
  return InvalidArgumentError(text.str());
}

}  // namespace internal

Result<std::shared_ptr<const Optimizer>> MakeOptimizer(std::string_view kind, std::span<const OptimizerOption> options) {
  for (const internal::Entry& entry : internal::kEntries) {
    if (entry.kind == kind) return entry.make(options);
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
