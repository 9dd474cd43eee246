#include "tf/graph/mixed_precision.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "mxrec/base/environment_switch.h"
#include "mxrec/base/log.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/grappler/optimizers/meta_optimizer.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tensorflow/core/protobuf/rewriter_config.pb.h"
#include "tensorflow/core/util/util.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::RewriterConfig;
using tensorflow::grappler::GrapplerItem;

constexpr std::string_view kKeep = "_keep_dtype";
constexpr std::string_view kCastMark = "-AutoMixedPrecision";  // TensorFlow's pass ends the names of its casts with it

enum class Pass { kFloat16, kBfloat16 };

void Warn(const std::string& text) {
  const OptionNote note{LogLevel::kWarning, text, text};
  LogOptionNotes({&note, 1});
}

bool HasGpu(const tensorflow::grappler::Cluster& cluster) {
  return std::ranges::any_of(cluster.GetDevices(), [](const auto& device) { return device.second.type() == "GPU"; });
}

bool Keeps(const NodeDef& node) {
  const auto found = node.attr().find(std::string(kKeep));
  return found != node.attr().end() && (found->second.i() != 0 || found->second.b());
}

// Sets the environment variables that add to and remove from one of the lists; puts the former values back.
class ScopedListChanges {
 public:
  explicit ScopedListChanges(const MixLists& lists) {
    Set("ALLOWLIST_ADD", lists.allow_add);
    Set("ALLOWLIST_REMOVE", lists.allow_remove);
    Set("DENYLIST_ADD", lists.deny_add);
    Set("DENYLIST_REMOVE", lists.deny_remove);
    // An op in two lists would make TensorFlow's pass fail.
    std::vector<std::string> placed = lists.allow_add;
    placed.insert(placed.end(), lists.deny_add.begin(), lists.deny_add.end());
    Set("INFERLIST_REMOVE", placed);
    Set("CLEARLIST_REMOVE", placed);
    Set("ALLOWLIST_REMOVE", lists.deny_add);
    Set("DENYLIST_REMOVE", lists.allow_add);
  }
  ~ScopedListChanges() {
    for (auto former = former_.rbegin(); former != former_.rend(); ++former) {
      if (former->second) {
        setenv(former->first.c_str(), former->second->c_str(), 1);
      } else {
        unsetenv(former->first.c_str());
      }
    }
  }
  ScopedListChanges(const ScopedListChanges&) = delete;
  ScopedListChanges& operator=(const ScopedListChanges&) = delete;

 private:
  // Adds the types to what the variable holds.
  void Set(const std::string& list, const std::vector<std::string>& types) {
    if (types.empty()) return;
    const std::string name = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_" + list;
    const char* found = std::getenv(name.c_str());
    former_.emplace_back(name, found == nullptr ? std::nullopt : std::optional<std::string>(found));
    std::string value = found == nullptr ? "" : found;
    for (const std::string& type : types) value += (value.empty() ? "" : ",") + type;
    setenv(name.c_str(), value.c_str(), 1);
  }

  std::vector<std::pair<std::string, std::optional<std::string>>> former_;
};

// Op types of the NPU that TensorFlow calls otherwise.
std::string TypeHere(const std::string& type) {
  if (tensorflow::OpRegistry::Global()->LookUp(type) != nullptr) return type;
  static constexpr std::pair<std::string_view, std::string_view> kOther[] = {
      {"MatMulV2", "MatMul"},  {"SoftmaxV2", "Softmax"},  {"SoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"},
      {"ReduceSum", "Sum"},    {"ReduceSumD", "Sum"},     {"ReduceMean", "Mean"},
      {"ReduceMeanD", "Mean"}, {"ReduceMax", "Max"},      {"ReduceMaxD", "Max"},
      {"ConcatD", "ConcatV2"}, {"ConcatV2D", "ConcatV2"}, {"GatherV2D", "GatherV2"},
  };
  for (const auto& [npu, here] : kOther) {
    if (npu == type) return std::string(here);
  }
  Warn("NpuOptimizer option 'modify_mixlist': TensorFlow has no op type '" + type + "'; it is passed over");
  return "";
}

std::vector<std::string> TypesHere(const std::vector<std::string>& types) {
  std::vector<std::string> here;
  for (const std::string& type : types) {
    if (std::string known = TypeHere(type); !known.empty()) here.push_back(std::move(known));
  }
  return here;
}

// One rewrite on, all others off. TensorFlow knows the bfloat16 pass by its switch only, not by its name in the list of optimizers.
RewriterConfig NothingBut(Pass pass) {
  RewriterConfig config;
  constexpr auto kOff = RewriterConfig::OFF;
  config.set_layout_optimizer(kOff);
  config.set_constant_folding(kOff);
  config.set_shape_optimization(kOff);
  config.set_remapping(kOff);
  config.set_common_subgraph_elimination(kOff);
  config.set_arithmetic_optimization(kOff);
  config.set_dependency_optimization(kOff);
  config.set_loop_optimization(kOff);
  config.set_function_optimization(kOff);
  config.set_debug_stripper(kOff);
  config.set_scoped_allocator_optimization(kOff);
  config.set_pin_to_host_optimization(kOff);
  config.set_implementation_selector(kOff);
  config.set_use_plugin_optimizers(kOff);
  config.set_memory_optimization(RewriterConfig::NO_MEM_OPT);
  config.set_disable_model_pruning(true);
  config.set_disable_tfg_optimizer(true);
  config.set_meta_optimizer_iterations(RewriterConfig::ONE);
  config.set_min_graph_nodes(-1);
  config.set_fail_on_optimizer_errors(true);
  if (pass == Pass::kFloat16) {
    config.set_auto_mixed_precision(RewriterConfig::ON);
  } else {
    config.set_auto_mixed_precision_onednn_bfloat16(RewriterConfig::ON);
  }
  return config;
}

TfStatus Rewrite(Pass pass, const NpuOptions& options, tensorflow::grappler::Cluster* cluster, const GrapplerItem& item,
                 GraphDef* graph) {
  GrapplerItem work = item.WithGraph(GraphDef(*graph));
  for (const NodeDef& node : graph->node()) {
    if (Keeps(node)) work.keep_ops.push_back(node.name());
  }
  work.optimization_options().optimize_function_library = false;
  tensorflow::ConfigProto config;
  *config.mutable_graph_options()->mutable_rewrite_options() = NothingBut(pass);
  MixLists lists = options.mix_lists;
  for (std::vector<std::string>* types : {&lists.allow_add, &lists.allow_remove, &lists.deny_add, &lists.deny_remove}) {
    *types = TypesHere(*types);
  }
  // The pass reads its lists from the environment; sessions with different lists take turns.
  static std::mutex* turns = new std::mutex;
  const std::lock_guard lock(*turns);
  const ScopedListChanges changes(lists);
  GraphDef rewritten;
  MXREC_TF_RETURN_IF_ERROR(tensorflow::grappler::RunMetaOptimizer(std::move(work), config, nullptr, cluster, &rewritten));
  // With nothing to do the meta optimizer may hand back an empty graph.
  if (rewritten.node_size() > 0) graph->Swap(&rewritten);
  return TfStatus();
}

}  // namespace

bool CpuHasBfloat16() {
  const auto setting = ReadSwitch("MXREC_BFLOAT16");
  if (!setting.ok()) {
    Warn(std::string(setting.status().message()) + "; it is passed over");
  } else if (setting->has_value()) {
    return **setting;
  }
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#elif defined(__aarch64__)
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16
  return (getauxval(AT_HWCAP2) & kBf16) != 0;
#else
  return false;
#endif
}

void ApplyMixedPrecision(const NpuOptions& options, tensorflow::grappler::Cluster* cluster, const GrapplerItem& item,
                         GraphDef* graph) {
  if (options.precision != Precision::kMixedFloat16 && options.precision != Precision::kMixedBfloat16) return;
  if (cluster == nullptr) return;
  if (std::ranges::any_of(graph->node(), [](const NodeDef& node) { return std::string_view(node.name()).ends_with(kCastMark); }))
    return;
  const std::string head = "NpuOptimizer option " + options.precision_value + ": ";
  Pass pass = Pass::kBfloat16;
  if (HasGpu(*cluster)) {
    pass = Pass::kFloat16;
    if (options.precision == Precision::kMixedBfloat16) Warn(head + "ops on the GPU compute in float16, not bfloat16");
  } else if (!tensorflow::IsMKLEnabled()) {
    Warn(head + "oneDNN is off in this process (TF_ENABLE_ONEDNN_OPTS); the graph stays float32, which is more precise");
    return;
  } else if (!CpuHasBfloat16()) {
    Warn(head + "this CPU has no bfloat16 arithmetic; the graph stays float32, which is more precise");
    return;
  }
  if (const TfStatus status = Rewrite(pass, options, cluster, item, graph); !status.ok()) {
    Warn(head + "TensorFlow's pass failed, the graph stays float32: " + std::string(status.message()));
  }
}

}  // namespace mxrec
