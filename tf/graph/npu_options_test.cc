#include "tf/graph/npu_options.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

namespace mxrec {
namespace {

using testing::Test;

class NpuOptionsTest : public Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("npu_options_test_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string File(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  NpuOptions Good(const OptionMap& map) {
    notes_.clear();
    Result<NpuOptions> options = ParseNpuOptions(map, &notes_);
    EXPECT_TRUE(options.ok()) << options.status();
    return options.ok() ? *options : NpuOptions();
  }

  // The message of a map that must be refused.
  std::string Bad(const OptionMap& map) {
    notes_.clear();
    const Result<NpuOptions> options = ParseNpuOptions(map, &notes_);
    if (options.ok()) return "accepted";
    EXPECT_EQ(options.status().code(), StatusCode::kInvalidArgument);
    return std::string(options.status().message());
  }

  static bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

  std::filesystem::path folder_;
  std::vector<OptionNote> notes_;
};

#define EXPECT_HAS(text, part) EXPECT_PRED2(Has, text, part)

OptionValue S(const std::string& text) { return OptionValue::Text(text); }
OptionValue I(int64_t value) { return OptionValue::Int(value); }
OptionValue B(bool value) { return OptionValue::Bool(value); }

TEST_F(NpuOptionsTest, EveryRowOfTheTableIsComplete) {
  std::set<std::string_view> keys;
  for (const OptionSpec& spec : NpuOptionTable()) {
    EXPECT_TRUE(keys.insert(spec.key).second) << spec.key;
    EXPECT_TRUE(spec.field == 'b' || spec.field == 'i' || spec.field == 's') << spec.key;
    EXPECT_FALSE(spec.words.empty() && spec.allowed.empty()) << spec.key;
    EXPECT_FALSE(spec.default_value.empty() || spec.meaning.empty() || spec.group.empty()) << spec.key;
    EXPECT_EQ(FindNpuOption(spec.key), &spec);
  }
  EXPECT_EQ(FindNpuOption("min_group_size"), nullptr);
}

TEST_F(NpuOptionsTest, EveryAllowedWordPassesAndAnotherFailsWithKeyValueAndAllAllowed) {
  for (const OptionSpec& spec : NpuOptionTable()) {
    if (spec.words.empty()) continue;
    std::string words(spec.words), word;
    std::stringstream stream(words);
    while (std::getline(stream, word, '|')) {
      OptionMap map{{std::string(spec.key), spec.field == 'i' ? I(std::stoll(word)) : S(word)}};
      if (spec.key == "dynamic_node_type" || spec.key == "compile_hybrid_mode") {
        map.insert({{"input_shape", S("x:1")}, {"dynamic_dims", S("1;2")}});
        if (spec.key == "compile_hybrid_mode") map["dynamic_node_type"] = I(1);
      }
      if (word == "Host") map["mix_compile_mode"] = B(true);
      Good(map);
    }
    const std::string message = Bad({{std::string(spec.key), spec.field == 'i' ? I(77) : S("fast")}});
    EXPECT_HAS(message, std::string(spec.key) + (spec.field == 'i' ? "' = 77" : "' = 'fast'"));
    for (std::stringstream again(words); std::getline(again, word, '|');) EXPECT_HAS(message, word);
  }
}

TEST_F(NpuOptionsTest, AnEmptyMapGivesTheDefaultsAndNoNotes) {
  const NpuOptions options = Good({});
  EXPECT_EQ(options.precision, Precision::kAsWritten);
  EXPECT_FALSE(options.deterministic);
  EXPECT_EQ(options.iterations_per_loop, 1);
  EXPECT_FALSE(options.hccl_timeout_seconds.has_value());
  EXPECT_TRUE(notes_.empty());
}

TEST_F(NpuOptionsTest, AnEntryWithoutAValueIsCheckedAsTheEmptyValueOfItsField) {
  const std::string message = Bad({{"precision_mode", {}}});
  EXPECT_HAS(message, "'precision_mode' = an entry without a value");
  EXPECT_HAS(message, "field s (bytes): force_fp32");
  EXPECT_HAS(Bad({{"iterations_per_loop", {}}}), "'iterations_per_loop' = an entry without a value");
  EXPECT_HAS(Bad({{"aoe_mode", {}}}), "'aoe_mode'");
  EXPECT_HAS(Bad({{"jit_compile", {}}}), "'jit_compile'");
  Good({{"enable_dump", {}}, {"deterministic", {}}, {"modify_mixlist", {}}, {"use_off_line", {}}, {"hccl_timeout", {}}});
  EXPECT_TRUE(notes_.empty());
}

TEST_F(NpuOptionsTest, OptionsOfSeveralEntriesMergeUnlessTheyDisagree) {
  OptionMap map{{"deterministic", I(1)}, {"use_off_line", {}}};
  ASSERT_TRUE(MergeOptions({{"deterministic", I(1)}, {"use_off_line", B(true)}, {"dump_mode", S("all")}}, &map).ok());
  ASSERT_TRUE(MergeOptions({{"dump_mode", {}}}, &map).ok());
  EXPECT_EQ(map, (OptionMap{{"deterministic", I(1)}, {"use_off_line", B(true)}, {"dump_mode", S("all")}}));
  const Status status = MergeOptions({{"dump_mode", S("input")}}, &map);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_HAS(std::string(status.message()), "'dump_mode' = 'all' in one entry NpuOptimizer and 'input' in another");
}

TEST_F(NpuOptionsTest, AnAlgorithmIsAListOfLevels) {
  for (const char* good : {"level0:NA;level1:ring", "level1:H-D_R", "level0:fullmesh;level1:pipeline", "",
                           "allreduce=level0:NA;level1:ring/allgather=level0:NA", "allreduce=level1:NHR_V1"}) {
    Good({{"HCCL_algorithm", S(good)}});
  }
  for (const char* bad : {"xx::", "ring", "level0", "level0:", "level:ring", "levelx:ring", "level0:NA;", ";", "level0:a;level0:b",
                          "level0:NA/level1:ring", "=level0:NA", "level0:N A", "level0:NA,level1:ring"}) {
    EXPECT_HAS(Bad({{"HCCL_algorithm", S(bad)}}), "'HCCL_algorithm' = '" + std::string(bad) + "'");
  }
}

TEST_F(NpuOptionsTest, UnknownKeysAreOneNoteEachWithTheNearestName) {
  Good({{"min_group_size", I(1)}, {"master_slave_mode", B(true)}, {"precision_mod", S("fast")}});
  ASSERT_EQ(notes_.size(), 3u);
  EXPECT_HAS(notes_[2].text, "'precision_mod' is unknown");
  EXPECT_HAS(notes_[2].text, "'precision_mode'");
  EXPECT_EQ(NearestNpuOption("Enable_Dumb"), "enable_dump");
}

TEST_F(NpuOptionsTest, AcceptedAndCheckedKeysAreOneNoteEachActingOnesNone) {
  Good({{"use_off_line", B(true)}, {"graph_run_mode", I(1)}, {"iterations_per_loop", I(10)}});
  ASSERT_EQ(notes_.size(), 2u);
  EXPECT_HAS(notes_[0].text, "'graph_run_mode' = 1 is valid");
  EXPECT_HAS(notes_[1].text, "'use_off_line' = true is accepted");
}

TEST_F(NpuOptionsTest, AWrongFieldIsNamedAndOnlyAWarningForAcceptedKeys) {
  const std::string message = Bad({{"precision_mode", B(true)}});
  EXPECT_HAS(message, "'precision_mode' = true in field b (bool)");
  EXPECT_HAS(message, "field s (bytes)");
  EXPECT_HAS(Bad({{"deterministic", S("1")}}), "field i (int)");
  EXPECT_HAS(Bad({{"hccl_timeout", {.field = 'f', .s = {}}}}), "field f (float)");
  EXPECT_HAS(Bad({{"enable_dump", {.field = '?', .s = {}}}}), "another field");
  Good({{"use_off_line", S("True")}});
  EXPECT_EQ(notes_.at(0).level, LogLevel::kWarning);
}

TEST_F(NpuOptionsTest, JitCompileTakesABoolWithANote) {
  EXPECT_HAS(Bad({{"jit_compile", S("maybe")}}), "true, false, auto");
  EXPECT_HAS(Bad({{"jit_compile", I(1)}}), "field s");
  Good({{"jit_compile", B(true)}});
  EXPECT_HAS(notes_.at(0).text, "field b");
}

TEST_F(NpuOptionsTest, KeysThatExcludeOrNeedEachOther) {
  EXPECT_HAS(Bad({{"precision_mode", S("force_fp32")}, {"precision_mode_v2", S("origin")}}), "only one of them");
  EXPECT_HAS(Bad({{"mix_compile_mode", B(true)}, {"iterations_per_loop", I(2)}}), "iterations_per_loop 1");
  Good({{"mix_compile_mode", B(false)}, {"iterations_per_loop", I(10)}});
  EXPECT_HAS(Bad({{"variable_placement", S("Host")}}), "mix_compile_mode");
  EXPECT_HAS(Bad({{"optypelist_for_implmode", S("Pooling")}}), "op_select_implmode");
  EXPECT_HAS(Bad({{"enable_compress_weight", B(true)}, {"compress_weight_conf", S("x")}}), "only one of them");
  EXPECT_HAS(Bad({{"input_shape", S("x:1")}}), "all three");
  EXPECT_HAS(Bad({{"dynamic_node_type", I(0)}}), "all three");
  EXPECT_HAS(Bad({{"compile_hybrid_mode", I(1)}}), "dynamic_node_type");
}

TEST_F(NpuOptionsTest, NumbersOutOfRange) {
  EXPECT_HAS(Bad({{"graph_run_mode", I(2)}}), "0, 1");
  EXPECT_HAS(Bad({{"iterations_per_loop", I(0)}}), "1 or more");
  EXPECT_HAS(Bad({{"hccl_timeout", I(-1)}}), "0 or more");
  EXPECT_EQ(Good({{"hccl_timeout", I(0)}}).hccl_timeout_seconds, 0);
  EXPECT_HAS(Bad({{"local_rank_id", I(8)}}), "0 to 7");
  EXPECT_HAS(Bad({{"graph_max_parallel_model_num", I(0)}}), "1 or more");
  EXPECT_HAS(Bad({{"session_device_id", I(-1)}}), "0 or more");
  Good({{"input_fusion_size", I(1 << 30)}});
  EXPECT_EQ(notes_.at(0).level, LogLevel::kWarning);
}

TEST_F(NpuOptionsTest, Grammars) {
  EXPECT_HAS(Bad({{"local_device_list", S("0,a")}}), "digits");
  Good({{"local_device_list", S("0,1")}});
  for (const char* mode : {"cv", "LoadBalance", "LoadBalance:4", "MainStream:64"})
    Good({{"auto_multistream_parallel_mode", S(mode)}});
  for (const char* mode : {"MainStream", "MainStream:65", "LoadBalance:0", "x"}) {
    EXPECT_HAS(Bad({{"auto_multistream_parallel_mode", S(mode)}}), mode);
  }
  EXPECT_HAS(Bad({{"aoe_mode", S("")}}), "1, 2, 3, 4");
  EXPECT_HAS(Bad({{"precision_mode", S("")}}), "force_fp32");
  Good({{"op_select_implmode", S("")}, {"modify_mixlist", S("")}});
}

TEST_F(NpuOptionsTest, DumpsNeedAFolderAndOneOfTwoKinds) {
  EXPECT_HAS(Bad({{"enable_dump", B(true)}}), "dump_path");
  EXPECT_HAS(Bad({{"enable_dump_debug", B(true)}}), "dump_path");
  EXPECT_HAS(Bad({{"enable_dump", B(true)}, {"dump_path", S("/no/such/folder")}}), "'/no/such/folder'");
  EXPECT_HAS(Bad({{"enable_dump", B(true)}, {"dump_path", S(File("file", ""))}}), "a folder");
  const OptionValue here = S(folder_.string());
  EXPECT_HAS(Bad({{"enable_dump", B(true)}, {"enable_dump_debug", B(true)}, {"dump_path", here}}), "only one of them");
  const NpuOptions options = Good({{"enable_dump", B(true)},
                                   {"dump_path", here},
                                   {"dump_step", S("0|3-5|10")},
                                   {"dump_mode", S("all")},
                                   {"dump_layer", S("a b/c")}});
  EXPECT_EQ(options.dump.steps, (std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {3, 5}, {10, 10}}));
  EXPECT_EQ(options.dump.layers, (std::vector<std::string>{"a", "b/c"}));
  EXPECT_EQ(options.dump.mode, "all");
  Good({{"dump_path", S("/no/such/folder")}});  // no dump is asked for
}

TEST_F(NpuOptionsTest, DumpStepsRefuseOtherTexts) {
  for (const char* text : {"3-1", "3-3", "a", "1|", "|1", "1--2", "-1", "1-", " 1", "1 ", "99999999999999999999", ""}) {
    EXPECT_FALSE(ParseDumpSteps(text).ok()) << text;
  }
  std::string sets = "0";
  for (int i = 1; i < 100; ++i) sets.append("|").append(std::to_string(i));
  EXPECT_EQ(ParseDumpSteps(sets)->size(), 100u);
  EXPECT_HAS(Bad({{"dump_step", S(sets + "|100")}}), "at most 100 steps or ranges, found 101");
}

TEST_F(NpuOptionsTest, PrecisionModesMapToWhatACpuCanDo) {
  const std::pair<const char*, Precision> old[] = {{"force_fp32", Precision::kAsWritten},
                                                   {"must_keep_origin_dtype", Precision::kAsWritten},
                                                   {"cube_fp16in_fp32out", Precision::kAsWritten},
                                                   {"allow_fp32_to_fp16", Precision::kAsWritten},
                                                   {"allow_mix_precision", Precision::kMixedFloat16},
                                                   {"allow_mix_precision_fp16", Precision::kMixedFloat16},
                                                   {"allow_mix_precision_bf16", Precision::kMixedBfloat16},
                                                   {"allow_fp32_to_bf16", Precision::kMixedBfloat16},
                                                   {"force_fp16", Precision::kNoFloat16}};
  for (const auto& [mode, precision] : old) EXPECT_EQ(Good({{"precision_mode", S(mode)}}).precision, precision) << mode;
  const std::pair<const char*, Precision> newer[] = {
      {"origin", Precision::kAsWritten},           {"cube_fp16in_fp32out", Precision::kAsWritten},
      {"mixed_float16", Precision::kMixedFloat16}, {"mixed_bfloat16", Precision::kMixedBfloat16},
      {"mixed_hif8", Precision::kMixedBfloat16},   {"fp16", Precision::kNoFloat16},
      {"cube_hif8", Precision::kNoFloat16}};
  for (const auto& [mode, precision] : newer) EXPECT_EQ(Good({{"precision_mode_v2", S(mode)}}).precision, precision) << mode;
}

TEST_F(NpuOptionsTest, AMixListNeedsAMixedModeAndAFile) {
  const std::string file = File("mix.json", R"({"black-list": {"to-add": ["Relu"]}, "white-list": {"to-remove": ["MatMul"]},
                                               "gray-list": {"to-add": ["Exp"]}})");
  EXPECT_HAS(Bad({{"modify_mixlist", S(file)}}), "no precision_mode");
  EXPECT_HAS(Bad({{"modify_mixlist", S(file)}, {"precision_mode", S("allow_fp32_to_fp16")}}), "'allow_fp32_to_fp16'");
  EXPECT_HAS(Bad({{"modify_mixlist", S(file)}, {"precision_mode", S("allow_fp32_to_bf16")}}), "allow_mix_precision");
  EXPECT_HAS(Bad({{"modify_mixlist", S(file + "x")}, {"precision_mode_v2", S("mixed_float16")}}), "can be read");
  const MixLists lists = Good({{"modify_mixlist", S(file)}, {"precision_mode_v2", S("mixed_bfloat16")}}).mix_lists;
  EXPECT_EQ(lists.deny_add, std::vector<std::string>{"Relu"});
  EXPECT_EQ(lists.allow_remove, (std::vector<std::string>{"MatMul", "Exp"}));
  EXPECT_EQ(lists.deny_remove, std::vector<std::string>{"Exp"});
  for (const char* text : {"", "[]", "{\"brown-list\": {}}", "{\"black-list\": []}", "{\"black-list\": {\"to-ad\": []}}",
                           "{\"black-list\": {\"to-add\": \"Relu\"}}", "{\"black-list\": {\"to-add\": [1]}}"}) {
    EXPECT_FALSE(ParseMixLists(text).ok()) << text;
  }
}

TEST_F(NpuOptionsTest, FilesThatMustExistAndFilesThatMayBeMissing) {
  EXPECT_HAS(Bad({{"customize_dtypes", S("/no/such/file")}}), "a file that exists");
  EXPECT_HAS(Bad({{"op_debug_config", S("/no/such/file")}}), "a file that exists");
  EXPECT_HAS(Bad({{"work_path", S("/no/such/folder")}, {"aoe_mode", S("2")}}), "a folder that exists");
  Good({{"work_path", S("/no/such/folder")}});
  Good({{"op_precision_mode", S("/no/such/file")}});
  EXPECT_HAS(notes_.back().text, "there is no such file");
  Good({{"fusion_switch_file", S("/no/such/file")}});
  EXPECT_HAS(notes_.back().text, "there is no such file");
}

TEST_F(NpuOptionsTest, AFusionSwitchFileSwitchesFusionsOff) {
  const auto off = [&](const std::string& text) { return Good({{"fusion_switch_file", S(File("fusion.cfg", text))}}).fusions_off; };
  EXPECT_TRUE(off(R"({"Switch": {"GraphFusion": {"ALL": "off"}, "UBFusion": {"ALL": "off"}}})"));
  EXPECT_TRUE(off(R"({"ALL": "off"})"));
  EXPECT_FALSE(off(R"({"Switch": {"GraphFusion": {"ConvBatchnormFusionPass": "off"}}})"));
  EXPECT_FALSE(off(R"({"Switch": {"GraphFusion": {"ALL": "on"}}})"));
  EXPECT_FALSE(off("SomePass:off"));
  EXPECT_HAS(notes_.back().text, "not JSON");
}

TEST_F(NpuOptionsTest, ProfilingTextIsReadEvenWhenItIsBroken) {
  bool broken = true;
  std::map<std::string, std::string> read =
      ParseProfilingText(R"({"output": "/tmp/prof", "task_trace": "on", "storage_limit": 5})", &broken);
  EXPECT_FALSE(broken);
  EXPECT_EQ(read["output"], "/tmp/prof");
  EXPECT_EQ(read["storage_limit"], "5");
  for (const char* text : {R"({"output":"/tmp/prof","training_trace":"on",})", R"({'output':'/tmp/prof','training_trace':'on'})",
                           R"({"output":"/tmp/prof","training_trace":"on")", R"("output":"/tmp/prof","training_trace":"on"})"}) {
    read = ParseProfilingText(text, &broken);
    EXPECT_TRUE(broken) << text;
    EXPECT_EQ(read["output"], "/tmp/prof") << text;
    EXPECT_EQ(read["training_trace"], "on") << text;
  }
  for (const char* text : {"task_trace", "", "{", "::,,:", "[1,2]"}) ParseProfilingText(text, &broken);
  const NpuOptions options = Good({{"profiling_mode", B(true)}, {"profiling_options", S("{\"output\":\"/p\",}")}});
  EXPECT_TRUE(options.profiling.enabled);
  EXPECT_EQ(options.profiling.output, "/p");
  EXPECT_HAS(notes_.back().text, "not JSON");
}

TEST_F(NpuOptionsTest, TheJsonOfATableHoldsEveryKey) {
  const std::string json = NpuOptionTableJson();
  for (const OptionSpec& spec : NpuOptionTable()) EXPECT_HAS(json, std::string(R"("key":")").append(spec.key).append(R"(")"));
}

}  // namespace
}  // namespace mxrec
