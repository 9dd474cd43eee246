// MXREC_REGISTER_OPTIMIZER: how the file of an optimizer makes its kind known. For files of mxrec/optim only.
//
// The macro defines the factory of one kind; the list in registry.cc names every factory, so a linker that drops unused
// members of a static library cannot drop a kind, and no code runs before main.
#ifndef MXREC_OPTIM_REGISTRY_H_
#define MXREC_OPTIM_REGISTRY_H_

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/optim/optimizer.h"

namespace mxrec::internal {

using OptimizerFactory = Result<std::shared_ptr<const Optimizer>> (*)(std::span<const OptimizerOption> options);

// The value of option `name`, or `otherwise`.
double OptionOr(std::span<const OptimizerOption> options, std::string_view name, double otherwise);
// kInvalidArgument when an option is not among `known`, or given twice.
Status CheckOptions(std::string_view kind, std::span<const OptimizerOption> options, std::initializer_list<std::string_view> known);
// kInvalidArgument naming the hyperparameters when their number is wrong.
Status CheckHyperCount(const Optimizer& optimizer, std::span<const float> hyper);
// kInvalidArgument when state does not hold one scalar per scalar_names().
Status CheckScalars(const Optimizer& optimizer, const OptimizerState& state);

}  // namespace mxrec::internal

// Class must have: static Result<std::shared_ptr<const Optimizer>> Make(std::span<const OptimizerOption>).
// Use inside namespace mxrec; then add Class to the list in registry.cc.
#define MXREC_REGISTER_OPTIMIZER(Class)                                                                                           \
  namespace internal {                                                                                                            \
  Result<std::shared_ptr<const Optimizer>> Make##Class(std::span<const OptimizerOption> options) { return Class::Make(options); } \
  }

#endif  // MXREC_OPTIM_REGISTRY_H_
