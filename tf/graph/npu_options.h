// The options of NpuOptimizer: the one table of all keys of its parameter_map, and the check of a map against it.
//
// Knows nothing of TensorFlow: npu_options_proto.h translates the protos. docs/reference/parameter_map.md is generated from the
// table.
//
// Mistakes. A value that a key with policy act or check does not allow, a value in the wrong field of such a key, and keys that
// exclude or need each other are InvalidArgument, naming key, value and what is allowed. An unknown key, and whatever is wrong
// with a key that is only accepted, is a note for the log. Files and folders that must exist are looked at here.
#ifndef MXREC_TF_GRAPH_NPU_OPTIONS_H_
#define MXREC_TF_GRAPH_NPU_OPTIONS_H_

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mxrec/base/log.h"
#include "mxrec/base/status.h"

namespace mxrec {

// What a key means to us: it acts; its value is checked and has no effect; it is accepted whatever it says.
enum class OptionPolicy { kAct, kCheck, kAccept };
// "act", "valid", "accept": the words of the documentation.
std::string_view OptionPolicyName(OptionPolicy policy);

struct OptionSpec {
  std::string_view key;
  char field;  // of the AttrValue: 'b' bool, 'i' int, 's' bytes
  OptionPolicy policy;
  // The allowed texts or numbers, joined by '|'; empty when `allowed` says it in words.
  std::string_view words;
  std::string_view allowed;
  std::string_view default_value;
  std::string_view meaning;  // here
  std::string_view group;    // the heading in the documentation
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};

// All keys, in the order of the documentation.
std::span<const OptionSpec> NpuOptionTable();
// The row of a key; null for an unknown one.
const OptionSpec* FindNpuOption(std::string_view key);
// The known key that is written most alike.
std::string_view NearestNpuOption(std::string_view key);

// One value of a parameter_map. field is 'b', 'i', 's', 'f', '?' for another kind of value, or 0 for an entry without a value: it
// is checked as what a reader of its field would find (false, 0 or an empty text), and otherwise counts as absent.
struct OptionValue {
  char field = 0;
  bool b = false;
  int64_t i = 0;
  std::string s;

  bool operator==(const OptionValue&) const = default;

  static OptionValue Bool(bool value) { return {.field = 'b', .b = value, .s = {}}; }
  static OptionValue Int(int64_t value) { return {.field = 'i', .i = value, .s = {}}; }
  static OptionValue Text(std::string value) { return {.field = 's', .s = std::move(value)}; }
};
using OptionMap = std::map<std::string, OptionValue, std::less<>>;

struct OptionNote {
  LogLevel level;
  std::string id;  // notes of the same id are written once
  std::string text;
};

// How a session computes where float32 could be narrower.
enum class Precision {
  kAsWritten,      // the graph's own types
  kMixedFloat16,   // float16 on a GPU, bfloat16 on a CPU that has it
  kMixedBfloat16,  // bfloat16
  kNoFloat16,      // float16 was asked for everywhere; stays float32 with a warning
};

// Changes to the lists of TensorFlow's mixed precision: op types.
struct MixLists {
  std::vector<std::string> allow_add, allow_remove, deny_add, deny_remove;
  bool empty() const { return allow_add.empty() && allow_remove.empty() && deny_add.empty() && deny_remove.empty(); }
};

struct DumpOptions {
  bool dump = false;      // enable_dump
  bool overflow = false;  // enable_dump_debug
  std::string path;
  std::vector<std::pair<int64_t, int64_t>> steps;  // ranges, both ends included; empty: all
  std::string mode = "output", data = "tensor";
  std::vector<std::string> layers;  // op names; empty: all
};

struct ProfilingOptions {
  bool enabled = false;
  std::string output = "./";
  std::map<std::string, std::string> settings;  // all members of profiling_options as text, "output" included
};

// A map that has passed the check.
struct NpuOptions {
  Precision precision = Precision::kAsWritten;
  std::string precision_value;  // as given, with its key; for messages
  MixLists mix_lists;
  bool deterministic = false;
  bool high_precision = false;  // op_select_implmode asks for kernels of full precision
  bool fusions_off = false;     // fusion_switch_file switches fusions off
  int64_t iterations_per_loop = 1;
  bool iterations_given = false;
  std::optional<int64_t> hccl_timeout_seconds;
  std::string hccl_algorithm;
  std::string job = "localhost";
  int64_t task_index = 0;
  std::optional<int64_t> session_device_id;
  std::string variable_placement = "Device";
  DumpOptions dump;
  ProfilingOptions profiling;
};

// Adds the options of a further entry of the same session. InvalidArgument if a key is there with another value.
Status MergeOptions(const OptionMap& from, OptionMap* into);

// Checks a map and reads it. `notes` gets what is worth a line in the log, whatever the outcome: unknown keys, keys without effect.
Result<NpuOptions> ParseNpuOptions(const OptionMap& map, std::vector<OptionNote>* notes);

// Writes the notes to the log, each id once in the life of the process.
void LogOptionNotes(std::span<const OptionNote> notes);
// Begins that life anew. For tests.
void ForgetOptionNotes();

// The parts of ParseNpuOptions that read texts.
// "0|3-5|10": at most 100 steps or ranges of rising ends.
Result<std::vector<std::pair<int64_t, int64_t>>> ParseDumpSteps(std::string_view text);
// {"black-list": {"to-add": [...], "to-remove": [...]}, "white-list": {...}}.
Result<MixLists> ParseMixLists(std::string_view json);
// Members of the JSON text. What is not JSON is read as far as it can be understood, and *broken is set.
std::map<std::string, std::string> ParseProfilingText(std::string_view text, bool* broken);

// The table as a JSON array of objects with key, field, policy, allowed, words, default, meaning, group.
std::string NpuOptionTableJson();
// What Python needs to know of a checked map, as a JSON object.
std::string NpuOptionsJson(const NpuOptions& options);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_NPU_OPTIONS_H_
