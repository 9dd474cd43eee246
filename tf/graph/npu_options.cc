#include "tf/graph/npu_options.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <system_error>

namespace mxrec {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostDumpSets = 100;

std::string Quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

std::vector<std::string_view> Split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(by);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string Joined(std::string_view words) {
  std::string text;
  for (std::string_view word : Split(words, '|')) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

bool AllDigits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

std::optional<int64_t> Number(std::string_view text) {
  int64_t value = 0;
  if (!AllDigits(text)) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view FieldName(char field) {
  switch (field) {
    case 'b':
      return "b (bool)";
    case 'i':
      return "i (int)";
    case 's':
      return "s (bytes)";
    case 'f':
      return "f (float)";
    default:
      return "another field";
  }
}

std::string ValueText(const OptionValue& value) {
  switch (value.field) {
    case 'b':
      return value.b ? "true" : "false";
    case 'i':
      return std::to_string(value.i);
    case 's':
      return Quoted(value.s);
    case 0:
      return "an entry without a value";
    default:
      return "a value in " + std::string(FieldName(value.field));
  }
}

std::string AllowedText(const OptionSpec& spec) {
  std::string text = Joined(spec.words);
  if (spec.words.empty()) text = spec.allowed;
  return text;
}

std::string Head(std::string_view key) { return "NpuOptimizer option " + Quoted(key); }

Status Wrong(std::string_view key, const std::string& found, const std::string& expected) {
  return InvalidArgumentError(Head(key) + " = " + found + ": expected " + expected);
}

bool IsFile(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

bool IsFolder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!IsFile(path) || !file || !(text << file.rdbuf())) return std::nullopt;
  return text.str();
}

bool IsMixed(std::string_view key, std::string_view mode) {
  if (key == "precision_mode") return mode.starts_with("allow_mix_precision");
  return mode == "mixed_float16" || mode == "mixed_bfloat16" || mode == "mixed_hif8";
}

bool GoodStreamMode(std::string_view mode) {
  if (mode == "cv" || mode == "LoadBalance") return true;
  for (std::string_view prefix : {"LoadBalance:", "MainStream:"}) {
    if (!mode.starts_with(prefix)) continue;
    const std::optional<int64_t> count = Number(mode.substr(prefix.size()));
    return count && *count >= 1 && *count <= 64;
  }
  return false;
}

bool IsAlgorithmName(std::string_view name) {
  const auto good = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; };
  return !name.empty() && std::ranges::all_of(name, good);
}

// level<n>:<algorithm>, joined by ';', each level at most once; or such lists for single operations, <operation>=<list>, joined by
// '/'. Which algorithms there are differs between releases of the original: any name passes.
bool GoodAlgorithm(std::string_view text) {
  const std::vector<std::string_view> groups = Split(text, '/');
  for (std::string_view group : groups) {
    if (const size_t equals = group.find('='); equals != std::string_view::npos) {
      if (!IsAlgorithmName(group.substr(0, equals))) return false;
      group.remove_prefix(equals + 1);
    } else if (groups.size() > 1) {
      return false;
    }
    std::set<std::string_view> levels;
    for (std::string_view part : Split(group, ';')) {
      const size_t colon = part.find(':');
      if (colon == std::string_view::npos || !part.starts_with("level")) return false;
      const std::string_view level = part.substr(5, colon - 5);
      if (!AllDigits(level) || !IsAlgorithmName(part.substr(colon + 1)) || !levels.insert(level).second) return false;
    }
  }
  return true;
}

// Whether a fusion switch file switches all graph fusions off; nullopt when it is no such file.
std::optional<bool> SwitchesFusionsOff(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const Json* at = &json;
  for (const char* member : {"Switch", "GraphFusion"}) {
    if (at->is_object() && at->contains(member)) at = &at->at(member);
  }
  if (!at->is_object() || !at->contains("ALL")) return false;
  return at->at("ALL") == "off";
}

// The checks of one map.
class Check {
 public:
  Check(const OptionMap& map, std::vector<OptionNote>* notes) : map_(map), notes_(notes) {}

  Result<NpuOptions> Run() {
    for (const auto& [key, value] : map_) MXREC_RETURN_IF_ERROR(One(key, value));
    MXREC_RETURN_IF_ERROR(Exclusions());
    MXREC_RETURN_IF_ERROR(Precisions());
    MXREC_RETURN_IF_ERROR(Dumps());
    MXREC_RETURN_IF_ERROR(Files());
    Rest();
    return std::move(options_);
  }

 private:
  // The value of a key in the field where it belongs; null when it is absent.
  const OptionValue* Find(std::string_view key) const {
    const auto found = map_.find(key);
    if (found == map_.end()) return nullptr;
    const OptionSpec* spec = FindNpuOption(key);
    return spec != nullptr && spec->field == found->second.field ? &found->second : nullptr;
  }
  bool Bool(std::string_view key) const { return Find(key) != nullptr && Find(key)->b; }
  std::string Text(std::string_view key) const { return Find(key) != nullptr ? Find(key)->s : std::string(); }
  int64_t Int(std::string_view key, int64_t otherwise) const { return Find(key) != nullptr ? Find(key)->i : otherwise; }

  void Note(LogLevel level, std::string id, std::string text) { notes_->push_back({level, std::move(id), std::move(text)}); }
  void Warn(const std::string& text) { Note(LogLevel::kWarning, text, text); }

  Status One(const std::string& key, const OptionValue& value) {
    const OptionSpec* spec = FindNpuOption(key);
    if (value.field == 0 && spec != nullptr) return Untouched(*spec);
    if (spec == nullptr) {
      Note(LogLevel::kWarning, key,
           Head(key) + " is unknown and ignored; the nearest known key is " + Quoted(NearestNpuOption(key)));
      return OkStatus();
    }
    if (value.field != spec->field) {
      if (key == "jit_compile" && value.field == 'b') {
        Note(LogLevel::kWarning, key, Head(key) + " = " + ValueText(value) + " in field b: taken for the text, has no effect here");
        return OkStatus();
      }
      const std::string expected = "a value in field " + std::string(FieldName(spec->field));
      const std::string found = ValueText(value) + " in field " + std::string(FieldName(value.field));
      if (spec->policy != OptionPolicy::kAccept) return Wrong(key, found, expected + " (" + AllowedText(*spec) + ")");
      Note(LogLevel::kWarning, key, Head(key) + " = " + found + ": expected " + expected + "; ignored");
      return OkStatus();
    }
    if (value.field == 's' && value.s.empty() && spec->default_value == "unset" && key != "aoe_mode") return OkStatus();
    const std::string found = ValueText(value);
    const bool in_range = value.field != 'i' || (value.i >= spec->min && value.i <= spec->max);
    if (spec->policy == OptionPolicy::kAccept) {
      if (!in_range) Warn(Head(key) + " = " + found + " is out of range (" + AllowedText(*spec) + "); it has no effect here");
      Note(LogLevel::kInfo, key, Head(key) + " = " + found + " is accepted and has no effect here");
      return OkStatus();
    }
    if (!spec->words.empty()) {
      const std::string plain = value.field == 's' ? value.s : std::to_string(value.i);
      const std::vector<std::string_view> words = Split(spec->words, '|');
      if (std::ranges::find(words, plain) == words.end()) return Wrong(key, found, "one of " + Joined(spec->words));
    }
    if (!in_range) return Wrong(key, found, std::string(spec->allowed));
    if (spec->policy == OptionPolicy::kCheck) {
      const bool acts = key == "op_select_implmode" || key == "HCCL_algorithm";
      if (!acts) Note(LogLevel::kInfo, key, Head(key) + " = " + found + " is valid and has no effect here");
    }
    return OkStatus();
  }

  // An entry that was made and not given a value: right where the empty value of its field is.
  Status Untouched(const OptionSpec& spec) {
    if (spec.policy == OptionPolicy::kAccept || spec.field == 'b') return OkStatus();
    const std::string plain = spec.field == 's' ? "" : "0";
    const std::vector<std::string_view> words = Split(spec.words, '|');
    const bool is_word = spec.words.empty() || std::ranges::find(words, plain) != words.end();
    const bool in_range = spec.field == 's' || (spec.min <= 0 && spec.max >= 0);
    const bool may_be_empty = spec.field == 's' && spec.default_value == "unset" && spec.key != "aoe_mode";
    if (may_be_empty || (is_word && in_range)) return OkStatus();
    return Wrong(spec.key, ValueText({}), "a value in field " + std::string(FieldName(spec.field)) + ": " + AllowedText(spec));
  }

  Status Exclusions() {
    if (Find("precision_mode") != nullptr && Find("precision_mode_v2") != nullptr) {
      return InvalidArgumentError(Head("precision_mode") + " = " + Quoted(Text("precision_mode")) +
                                  " together with 'precision_mode_v2' = " + Quoted(Text("precision_mode_v2")) +
                                  ": expected only one of them");
    }
    if (Bool("enable_dump") && Bool("enable_dump_debug")) {
      return InvalidArgumentError(Head("enable_dump") +
                                  " = true together with 'enable_dump_debug' = true: expected only one of them");
    }
    if (Bool("mix_compile_mode") && Int("iterations_per_loop", 1) > 1) {
      return Wrong("mix_compile_mode", "true with 'iterations_per_loop' = " + std::to_string(Int("iterations_per_loop", 1)),
                   "iterations_per_loop 1 in mixed mode");
    }
    if (Text("variable_placement") == "Host" && !Bool("mix_compile_mode")) {
      return Wrong("variable_placement", "'Host'", "'mix_compile_mode' = true with it, or Device");
    }
    if (!Text("optypelist_for_implmode").empty() && Text("op_select_implmode").empty()) {
      return Wrong("optypelist_for_implmode", Quoted(Text("optypelist_for_implmode")), "'op_select_implmode' with it");
    }
    if (Bool("enable_compress_weight") && !Text("compress_weight_conf").empty()) {
      return InvalidArgumentError(Head("enable_compress_weight") + " = true together with 'compress_weight_conf' = " +
                                  Quoted(Text("compress_weight_conf")) + ": expected only one of them");
    }
    const bool shape = !Text("input_shape").empty(), dims = !Text("dynamic_dims").empty(),
               type = Find("dynamic_node_type") != nullptr;
    if ((shape || dims || type) && !(shape && dims && type)) {
      const std::string_view given = shape ? "input_shape" : dims ? "dynamic_dims" : "dynamic_node_type";
      return Wrong(given, ValueText(*Find(given)), "all three of input_shape, dynamic_dims, dynamic_node_type, or none");
    }
    if (Int("compile_hybrid_mode", 0) == 1 && !(shape && dims && Int("dynamic_node_type", 0) == 1)) {
      return Wrong("compile_hybrid_mode", "1", "input_shape, dynamic_dims and 'dynamic_node_type' = 1 with it");
    }
    if (const std::string devices = Text("local_device_list"); !devices.empty()) {
      for (std::string_view device : Split(devices, ',')) {
        if (!AllDigits(device))
          return Wrong("local_device_list", Quoted(devices), std::string(FindNpuOption("local_device_list")->allowed));
      }
    }
    if (const std::string algorithm = Text("HCCL_algorithm"); !algorithm.empty() && !GoodAlgorithm(algorithm)) {
      return Wrong("HCCL_algorithm", Quoted(algorithm), std::string(FindNpuOption("HCCL_algorithm")->allowed));
    }
    if (const std::string mode = Text("auto_multistream_parallel_mode"); !mode.empty() && !GoodStreamMode(mode)) {
      return Wrong("auto_multistream_parallel_mode", Quoted(mode),
                   std::string(FindNpuOption("auto_multistream_parallel_mode")->allowed));
    }
    return OkStatus();
  }

  Status Precisions() {
    std::string key = "precision_mode", mode = Text("precision_mode");
    if (mode.empty()) {
      key = "precision_mode_v2";
      mode = Text("precision_mode_v2");
    }
    options_.precision_value = mode.empty() ? "" : key + " = " + Quoted(mode);
    if (mode == "allow_mix_precision" || mode == "allow_mix_precision_fp16" || mode == "mixed_float16") {
      options_.precision = Precision::kMixedFloat16;
    } else if (mode == "allow_mix_precision_bf16" || mode == "allow_fp32_to_bf16" || mode == "mixed_bfloat16" ||
               mode == "mixed_hif8") {
      options_.precision = Precision::kMixedBfloat16;
    } else if (mode == "force_fp16" || mode == "fp16" || mode == "cube_hif8") {
      options_.precision = Precision::kNoFloat16;
      Warn(Head(key) + " = " + Quoted(mode) + ": the graph stays float32, which is more precise");
    }
    if (mode == "mixed_hif8") Warn(Head(key) + " = 'mixed_hif8': hif8 is not available here, bfloat16 takes its place");

    const std::string lists = Text("modify_mixlist");
    if (lists.empty()) return OkStatus();
    if (!IsMixed(key, mode)) {
      return Wrong("modify_mixlist", Quoted(lists) + " with " + (mode.empty() ? "no precision_mode" : options_.precision_value),
                   "precision_mode allow_mix_precision, allow_mix_precision_fp16 or allow_mix_precision_bf16, or precision_mode_v2 "
                   "mixed_float16, mixed_bfloat16 or mixed_hif8 with it");
    }
    const std::optional<std::string> text = ReadFile(lists);
    if (!text) return Wrong("modify_mixlist", Quoted(lists), "a file that can be read");
    Result<MixLists> parsed = ParseMixLists(*text);
    if (!parsed.ok()) return Wrong("modify_mixlist", Quoted(lists), "a list file; " + std::string(parsed.status().message()));
    options_.mix_lists = std::move(*parsed);
    return OkStatus();
  }

  Status Dumps() {
    DumpOptions& dump = options_.dump;
    dump.dump = Bool("enable_dump");
    dump.overflow = Bool("enable_dump_debug");
    dump.path = Text("dump_path");
    if (dump.dump || dump.overflow) {
      const std::string key = dump.dump ? "enable_dump" : "enable_dump_debug";
      if (dump.path.empty()) return Wrong(key, "true", "'dump_path' with it");
      if (!IsFolder(dump.path)) return Wrong("dump_path", Quoted(dump.path), "a folder that exists");
      if (access(dump.path.c_str(), R_OK | W_OK | X_OK) != 0) {
        return Wrong("dump_path", Quoted(dump.path), "a folder that can be read and written");
      }
      Warn(Head(key) + " = true: this version checks the dump options, but writes no dumps");
    }
    if (Find("dump_step") != nullptr && !Text("dump_step").empty()) {
      Result<std::vector<std::pair<int64_t, int64_t>>> steps = ParseDumpSteps(Text("dump_step"));
      if (!steps.ok()) return Wrong("dump_step", Quoted(Text("dump_step")), std::string(steps.status().message()));
      dump.steps = std::move(*steps);
    }
    if (Find("dump_mode") != nullptr) dump.mode = Text("dump_mode");
    if (Find("dump_data") != nullptr) dump.data = Text("dump_data");
    const std::string layers = Text("dump_layer");
    for (std::string_view layer : Split(layers, ' ')) {
      if (!layer.empty()) dump.layers.emplace_back(layer);
    }
    return OkStatus();
  }

  Status Files() {
    for (const char* key : {"customize_dtypes", "op_debug_config"}) {
      const std::string path = Text(key);
      if (!path.empty() && !IsFile(path)) return Wrong(key, Quoted(path), "a file that exists");
    }
    if (const std::string path = Text("work_path"); !path.empty() && !Text("aoe_mode").empty() && !IsFolder(path)) {
      return Wrong("work_path", Quoted(path), "a folder that exists");
    }
    for (const char* key : {"op_precision_mode", "fusion_switch_file"}) {
      const std::string path = Text(key);
      if (path.empty()) continue;
      const std::optional<std::string> text = ReadFile(path);
      if (!text) {
        Warn(Head(key) + " = " + Quoted(path) + ": there is no such file; it is passed over");
      } else if (std::string_view(key) == "fusion_switch_file") {
        const std::optional<bool> off = SwitchesFusionsOff(*text);
        if (!off) Warn(Head(key) + " = " + Quoted(path) + ": the file is not JSON; it is passed over");
        options_.fusions_off = off.value_or(false);
      }
    }
    return OkStatus();
  }

  void Rest() {
    options_.deterministic = Int("deterministic", 0) == 1;
    options_.high_precision = Text("op_select_implmode").starts_with("high_precision");
    options_.iterations_given = Find("iterations_per_loop") != nullptr;
    options_.iterations_per_loop = Int("iterations_per_loop", 1);
    if (Find("hccl_timeout") != nullptr) options_.hccl_timeout_seconds = Int("hccl_timeout", 0);
    options_.hccl_algorithm = Text("HCCL_algorithm");
    if (!Text("job").empty()) options_.job = Text("job");
    options_.task_index = Int("task_index", 0);
    if (Find("session_device_id") != nullptr) options_.session_device_id = Int("session_device_id", 0);
    if (Find("variable_placement") != nullptr) options_.variable_placement = Text("variable_placement");
    ProfilingOptions& profiling = options_.profiling;
    profiling.enabled = Bool("profiling_mode");
    const std::string text = Text("profiling_options");
    if (text.empty()) return;
    bool broken = false;
    profiling.settings = ParseProfilingText(text, &broken);
    if (const auto output = profiling.settings.find("output"); output != profiling.settings.end() && !output->second.empty()) {
      profiling.output = output->second;
    }
    if (broken)
      Warn(Head("profiling_options") + " = " + Quoted(text) + ": the text is not JSON; profiles go to " + Quoted(profiling.output));
  }

  const OptionMap& map_;
  std::vector<OptionNote>* notes_;
  NpuOptions options_;
};

// From 0 (nothing in common) to 1 (equal): how much of both texts is their longest common subsequence, letters of either case being
// equal.
double Likeness(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1, 0);
  for (const char left : a) {
    int diagonal = 0;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = std::tolower(static_cast<unsigned char>(left)) == std::tolower(static_cast<unsigned char>(b[j - 1]));
      const int longest = same ? diagonal + 1 : std::max(row[j], row[j - 1]);
      diagonal = row[j];
      row[j] = longest;
    }
  }
  return 2.0 * row[b.size()] / static_cast<double>(a.size() + b.size());
}

struct Written {
  std::mutex mutex;
  std::set<std::string> ids;
};

Written& Notes() {
  static Written* notes = new Written;
  return *notes;
}

std::string Dumped(const Json& json) { return json.dump(-1, ' ', true, Json::error_handler_t::replace); }

}  // namespace

std::string_view OptionPolicyName(OptionPolicy policy) {
  switch (policy) {
    case OptionPolicy::kAct:
      return "act";
    case OptionPolicy::kCheck:
      return "valid";
    case OptionPolicy::kAccept:
      return "accept";
  }
  return "";
}

const OptionSpec* FindNpuOption(std::string_view key) {
  const auto found = std::ranges::find(NpuOptionTable(), key, &OptionSpec::key);
  return found == NpuOptionTable().end() ? nullptr : &*found;
}

std::string_view NearestNpuOption(std::string_view key) {
  return std::ranges::max_element(NpuOptionTable(), {}, [&](const OptionSpec& spec) { return Likeness(key, spec.key); })->key;
}

Status MergeOptions(const OptionMap& from, OptionMap* into) {
  for (const auto& [key, value] : from) {
    const auto [at, is_new] = into->try_emplace(key, value);
    if (is_new || at->second == value || value.field == 0) continue;
    if (at->second.field != 0) {
      return Wrong(key, ValueText(at->second) + " in one entry NpuOptimizer and " + ValueText(value) + " in another", "one value");
    }
    at->second = value;
  }
  return OkStatus();
}

Result<NpuOptions> ParseNpuOptions(const OptionMap& map, std::vector<OptionNote>* notes) { return Check(map, notes).Run(); }

void LogOptionNotes(std::span<const OptionNote> notes) {
  for (const OptionNote& note : notes) {
    {
      const std::lock_guard lock(Notes().mutex);
      if (!Notes().ids.insert(note.id).second) continue;
    }
    if (note.level == LogLevel::kInfo) {
      MXREC_LOG(INFO) << note.text;
    } else {
      MXREC_LOG(WARNING) << note.text;
    }
  }
}

void ForgetOptionNotes() {
  const std::lock_guard lock(Notes().mutex);
  Notes().ids.clear();
}

Result<std::vector<std::pair<int64_t, int64_t>>> ParseDumpSteps(std::string_view text) {
  std::vector<std::pair<int64_t, int64_t>> steps;
  const std::vector<std::string_view> parts = Split(text, '|');
  if (parts.size() > kMostDumpSets) {
    return InvalidArgumentError("at most " + std::to_string(kMostDumpSets) + " steps or ranges, found " +
                                std::to_string(parts.size()));
  }
  for (std::string_view part : parts) {
    const size_t dash = part.find('-');
    const std::optional<int64_t> first = Number(part.substr(0, dash));
    const std::optional<int64_t> last = dash == std::string_view::npos ? first : Number(part.substr(dash + 1));
    if (!first || !last) return InvalidArgumentError("steps N or ranges A-B joined by '|', found " + Quoted(part));
    if (dash != std::string_view::npos && *first >= *last) {
      return InvalidArgumentError("ranges A-B with A less than B, found " + Quoted(part));
    }
    steps.emplace_back(*first, *last);
  }
  return steps;
}

Result<MixLists> ParseMixLists(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return InvalidArgumentError("the file is not a JSON object");
  MixLists lists;
  std::vector<std::string> nowhere;
  for (const auto& [name, changes] : json.items()) {
    const bool black = name == "black-list", white = name == "white-list", gray = name == "gray-list";
    if (!black && !white && !gray)
      return InvalidArgumentError("members are black-list, white-list and gray-list, found " + Quoted(name));
    if (!changes.is_object()) return InvalidArgumentError(Quoted(name) + " is not an object");
    for (const auto& [change, types] : changes.items()) {
      const bool add = change == "to-add";
      if (!add && change != "to-remove") {
        return InvalidArgumentError("members of " + Quoted(name) + " are to-add and to-remove, found " + Quoted(change));
      }
      if (!types.is_array()) return InvalidArgumentError(Quoted(name) + " " + Quoted(change) + " is not a list");
      for (const Json& type : types) {
        if (!type.is_string())
          return InvalidArgumentError(Quoted(name) + " " + Quoted(change) + " holds something that is no text");
        const auto& op = type.get_ref<const std::string&>();
        if (black) (add ? lists.deny_add : lists.deny_remove).push_back(op);
        if (white) (add ? lists.allow_add : lists.allow_remove).push_back(op);
        if (gray && add) {  // neither forced nor forbidden
          lists.allow_remove.push_back(op);
          lists.deny_remove.push_back(op);
        }
      }
    }
  }
  return lists;
}

std::map<std::string, std::string> ParseProfilingText(std::string_view text, bool* broken) {
  std::map<std::string, std::string> settings;
  const Json json = Json::parse(text, nullptr, false);
  *broken = !json.is_object();
  if (json.is_object()) {
    for (const auto& [name, value] : json.items()) settings[name] = value.is_string() ? value.get<std::string>() : Dumped(value);
    return settings;
  }
  // name, ':', value, up to the next comma or brace; quotes and blanks around both do not count.
  const auto trimmed = [](std::string_view part) {
    const std::string_view around = " \t\r\n\"'{}";
    const size_t first = part.find_first_not_of(around);
    if (first == std::string_view::npos) return std::string();
    return std::string(part.substr(first, part.find_last_not_of(around) - first + 1));
  };
  for (std::string_view part : Split(text, ',')) {
    const size_t colon = part.find_first_of(":=");
    if (colon == std::string_view::npos) continue;
    const std::string name = trimmed(part.substr(0, colon));
    if (!name.empty()) settings.try_emplace(name, trimmed(part.substr(colon + 1)));
  }
  return settings;
}

std::string NpuOptionTableJson() {
  Json table = Json::array();
  for (const OptionSpec& spec : NpuOptionTable()) {
    Json row;
    row["key"] = spec.key;
    row["field"] = std::string(1, spec.field);
    row["policy"] = OptionPolicyName(spec.policy);
    row["words"] = Json::array();
    if (!spec.words.empty()) {
      for (std::string_view word : Split(spec.words, '|')) row["words"].push_back(word);
    }
    std::string allowed = Joined(spec.words);
    if (!spec.allowed.empty()) allowed += (allowed.empty() ? "" : "; ") + std::string(spec.allowed);
    row["allowed"] = allowed;
    row["default"] = spec.default_value;
    row["meaning"] = spec.meaning;
    row["group"] = spec.group;
    table.push_back(std::move(row));
  }
  return Dumped(table);
}

std::string NpuOptionsJson(const NpuOptions& options) {
  Json json;
  json["deterministic"] = options.deterministic;
  json["iterations_per_loop"] = options.iterations_given ? Json(options.iterations_per_loop) : Json();
  json["profiling"] = options.profiling.enabled;
  json["profiling_output"] = options.profiling.output;
  json["job"] = options.job;
  json["task_index"] = options.task_index;
  json["precision"] = options.precision_value;
  return Dumped(json);
}

}  // namespace mxrec
