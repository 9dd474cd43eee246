#include "tf/graph/determinism_pass.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "mxrec/base/log.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/util/determinism.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::NodeDef;

struct Switch {
  std::mutex mutex;
  int runs = 0;
  bool users = false;  // on before the first of the runs began
  bool given_up = false;
};

Switch& TheSwitch() {
  static Switch* state = new Switch;
  return *state;
}

constexpr const char* kSeeds[] = {"seed", "seed2"};

// An op with the attributes seed and seed2, both 0: TensorFlow draws a seed.
bool HasAttrsOfNoSeed(const NodeDef& node) {
  return std::ranges::all_of(kSeeds, [&](const char* name) {
    const auto found = node.attr().find(name);
    return found != node.attr().end() && found->second.value_case() == tensorflow::AttrValue::kI && found->second.i() == 0;
  });
}

// A data set with the inputs seed and seed2, both the constant 0. `producer` gives the node behind the input with an index.
template <typename Producer>
bool HasInputsOfNoSeed(const NodeDef& node, const Producer& producer) {
  const tensorflow::OpDef* op = nullptr;
  if (!tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op).ok()) return false;
  return std::ranges::all_of(kSeeds, [&](const char* name) {
    const auto arg = std::ranges::find(op->input_arg(), name, &tensorflow::OpDef::ArgDef::name);
    if (arg == op->input_arg().end()) return false;
    const NodeDef* source = producer(static_cast<int>(arg - op->input_arg().begin()));
    tensorflow::Tensor value;
    return source != nullptr && source->op() == "Const" && value.FromProto(source->attr().at("value").tensor()) &&
           value.dtype() == tensorflow::DT_INT64 && value.NumElements() == 1 && value.flat<int64_t>()(0) == 0;
  });
}

class DeterminismPass : public tensorflow::GraphOptimizationPass {
 public:
  TfStatus Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr) return TfStatus();
    Switch& state = TheSwitch();
    const std::lock_guard lock(state.mutex);
    if (state.runs == 0 || state.given_up || state.users) return TfStatus();
    // The graph's own library lacks the functions that only attributes name, such as the data set of a one-shot iterator.
    const auto* library = options.flib_def != nullptr ? options.flib_def : &(*options.graph)->flib_def();
    const std::string name = UnseededRandomOp(**options.graph, *library);
    if (name.empty()) return TfStatus();
    state.given_up = true;
    tensorflow::EnableOpDeterminism(false);
    MXREC_LOG(WARNING)
        << "NpuOptimizer option 'deterministic' = 1: the random op '" << name
        << "' has no seed, so op determinism stays off in this process. Updates of tables, ops of mxrec and CPU kernels that "
        << "do not depend on threads are repeatable all the same. Call tf.set_random_seed before building the graph";
    return TfStatus();
  }
};
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 99, DeterminismPass);

}  // namespace

void EnterDeterministicRun() {
  Switch& state = TheSwitch();
  const std::lock_guard lock(state.mutex);
  if (state.runs++ == 0) state.users = tensorflow::OpDeterminismRequired();
  if (!state.given_up) tensorflow::EnableOpDeterminism(true);
}

void LeaveDeterministicRun() {
  Switch& state = TheSwitch();
  const std::lock_guard lock(state.mutex);
  if (--state.runs == 0 && !state.users) tensorflow::EnableOpDeterminism(false);
}

std::string UnseededRandomOp(const tensorflow::Graph& graph, const tensorflow::FunctionLibraryDefinition& library) {
  for (const tensorflow::Node* node : graph.op_nodes()) {
    const auto producer = [&](int index) -> const NodeDef* {
      const tensorflow::Node* source = nullptr;
      return node->input_node(index, &source).ok() ? &source->def() : nullptr;
    };
    if (HasAttrsOfNoSeed(node->def()) || HasInputsOfNoSeed(node->def(), producer)) return node->name();
  }
  for (const std::string& name : library.ListFunctionNames()) {
    const tensorflow::FunctionDef* function = library.Find(name);
    if (function == nullptr) continue;
    for (const NodeDef& node : function->node_def()) {
      const auto producer = [&](int index) -> const NodeDef* {
        if (index >= node.input_size()) return nullptr;
        const std::string input = node.input(index).substr(0, node.input(index).find(':'));
        const auto source = std::ranges::find(function->node_def(), input, [](const NodeDef& other) { return other.name(); });
        return source == function->node_def().end() ? nullptr : &*source;
      };
      if (HasAttrsOfNoSeed(node) || HasInputsOfNoSeed(node, producer)) return name + "/" + node.name();
    }
  }
  return "";
}

}  // namespace mxrec
