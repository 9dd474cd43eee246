// What tests over all kinds of optimizers share.
#ifndef MXREC_OPTIM_OPTIMIZER_TEST_UTIL_H_
#define MXREC_OPTIM_OPTIMIZER_TEST_UTIL_H_

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "mxrec/optim/optimizer.h"

namespace mxrec::testing {

// A plausible value for a hyperparameter by its name; a new name needs a line here.
inline float HyperValue(const std::string& name) {
  if (name == "learning_rate") return 0.05f;
  if (name == "weight_decay") return 0.004f;
  if (name == "beta_1") return 0.9f;
  if (name == "beta_2") return 0.999f;
  if (name == "epsilon") return 1e-6f;
  if (name == "momentum") return 0.9f;
  if (name == "rho") return 0.95f;
  if (name == "learning_rate_power") return -0.5f;
  if (name == "l1" || name == "l2" || name == "l2_shrinkage") return 0.001f;
  if (name == "l21") return 0.01f;
  if (name == "beta") return 0.1f;
  ADD_FAILURE() << "no test value for hyperparameter " << name;
  return 0;
}

inline std::vector<float> HyperValues(const Optimizer& optimizer) {
  std::vector<float> values;
  for (const std::string& name : optimizer.hyper_names()) values.push_back(HyperValue(name));
  return values;
}

}  // namespace mxrec::testing

#endif  // MXREC_OPTIM_OPTIMIZER_TEST_UTIL_H_
