#include "tf/graph/npu_options_proto.h"

#include <map>
#include <mutex>
#include <utility>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"
#include "tf/session_settings.h"

namespace mxrec {
namespace {

using Entry = tensorflow::RewriterConfig::CustomGraphOptimizer;
using tensorflow::AttrValue;
using tensorflow::RewriterConfig;

constexpr size_t kMostKept = 256;

struct Checked {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const NpuOptions>> by_entry;
};

Checked& Known() {
  static Checked* known = new Checked;
  return *known;
}

OptionValue ValueOf(const AttrValue& value) {
  switch (value.value_case()) {
    case AttrValue::kB:
      return OptionValue::Bool(value.b());
    case AttrValue::kI:
      return OptionValue::Int(value.i());
    case AttrValue::kS:
      return OptionValue::Text(value.s());
    case AttrValue::kF:
      return {.field = 'f', .s = {}};
    case AttrValue::VALUE_NOT_SET:
      return {};
    default:
      return {.field = '?', .s = {}};
  }
}

// The same text for the same map, in whatever order protobuf keeps it.
std::string KeyOf(const OptionMap& map) {
  std::string text;
  for (const auto& [key, value] : map) {
    text += std::to_string(key.size()) + ":" + key + value.field + (value.b ? "1" : "0") + std::to_string(value.i) + "," +
            std::to_string(value.s.size()) + ":" + value.s;
  }
  return text;
}

void ApplyToProcess(const NpuOptions& options) {
  if (options.hccl_timeout_seconds) SetCollectiveTimeout(*options.hccl_timeout_seconds);
  if (!options.hccl_algorithm.empty()) SetCollectiveAlgorithm(options.hccl_algorithm);
  if (options.high_precision) tensorflow::enable_tensor_float_32_execution(false);
}

Result<std::shared_ptr<const NpuOptions>> CheckAnew(const OptionMap& map) {
  std::vector<OptionNote> notes;
  Result<NpuOptions> options = ParseNpuOptions(map, &notes);
  LogOptionNotes(notes);
  if (!options.ok()) return std::move(options).status();
  auto kept = std::make_shared<const NpuOptions>(std::move(*options));
  Checked& known = Known();
  const std::lock_guard lock(known.mutex);
  if (known.by_entry.size() >= kMostKept) known.by_entry.clear();
  known.by_entry[KeyOf(map)] = kept;
  return kept;
}

}  // namespace

OptionMap OptionMapOf(const Entry& optimizer) {
  OptionMap map;
  for (const auto& [key, value] : optimizer.parameter_map()) map[key] = ValueOf(value);
  return map;
}

std::vector<OptionNote> RewriteNotes(const RewriterConfig& config) {
  std::vector<OptionNote> notes;
  const auto note = [&](const std::string& name, const std::string& found, const std::string& expected) {
    const std::string text = "rewrite_options." + name + " is " + found + " in a session with NpuOptimizer: expected " + expected;
    notes.push_back({LogLevel::kWarning, text, text});
  };
  if (config.remapping() != RewriterConfig::OFF) note("remapping", RewriterConfig::Toggle_Name(config.remapping()), "OFF");
  // RewriterConfig.OFF, as scripts write it, is MANUAL in the field's own enumeration.
  const auto memory = config.memory_optimization();
  if (memory != RewriterConfig::MANUAL && memory != RewriterConfig::NO_MEM_OPT) {
    note("memory_optimization", RewriterConfig::MemOptType_Name(memory), "OFF");
  }
  const std::pair<const char*, RewriterConfig::Toggle> stay_on[] = {
      {"function_optimization", config.function_optimization()}, {"constant_folding", config.constant_folding()},
      {"shape_optimization", config.shape_optimization()},       {"arithmetic_optimization", config.arithmetic_optimization()},
      {"loop_optimization", config.loop_optimization()},         {"dependency_optimization", config.dependency_optimization()},
      {"layout_optimizer", config.layout_optimizer()},
  };
  for (const auto& [name, value] : stay_on) {
    if (value == RewriterConfig::OFF) note(name, "OFF", "ON, TensorFlow's default");
  }
  if (config.disable_model_pruning()) note("disable_model_pruning", "true", "false, TensorFlow's default");
  return notes;
}

Result<std::shared_ptr<const NpuOptions>> CheckedNpuOptions(const Entry& optimizer) {
  const OptionMap map = OptionMapOf(optimizer);
  std::shared_ptr<const NpuOptions> options;
  {
    Checked& known = Known();
    const std::lock_guard lock(known.mutex);
    if (const auto found = known.by_entry.find(KeyOf(map)); found != known.by_entry.end()) options = found->second;
  }
  if (options == nullptr) {
    MXREC_ASSIGN_OR_RETURN(options, CheckAnew(map));
  }
  ApplyToProcess(*options);
  return options;
}

Result<std::shared_ptr<const NpuOptions>> CheckRewriterConfig(const RewriterConfig& config) {
  OptionMap map;
  bool found = false;
  for (const Entry& optimizer : config.custom_optimizers()) {
    if (optimizer.name() != kNpuOptimizer) continue;
    found = true;
    MXREC_RETURN_IF_ERROR(MergeOptions(OptionMapOf(optimizer), &map));
  }
  if (found) LogOptionNotes(RewriteNotes(config));
  MXREC_ASSIGN_OR_RETURN(std::shared_ptr<const NpuOptions> options, CheckAnew(map));
  ApplyToProcess(*options);
  return options;
}

}  // namespace mxrec
