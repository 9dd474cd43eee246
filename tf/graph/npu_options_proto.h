// From TensorFlow's session configuration to npu_options.h, and what a session's options set for the whole process.
#ifndef MXREC_TF_GRAPH_NPU_OPTIONS_PROTO_H_
#define MXREC_TF_GRAPH_NPU_OPTIONS_PROTO_H_

#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/protobuf/rewriter_config.pb.h"
#include "tf/graph/npu_options.h"

namespace mxrec {

inline constexpr char kNpuOptimizer[] = "NpuOptimizer";

OptionMap OptionMapOf(const tensorflow::RewriterConfig::CustomGraphOptimizer& optimizer);

// Checks the options of the entry NpuOptimizer of a configuration (none: the defaults; several: all their options together, where
// one key may not have two values) and writes what is to be said to the log:
// notes of npu_options.h, and switches of the configuration itself that contradict a run with NpuOptimizer. Options that hold for
// the process (hccl_timeout, HCCL_algorithm, op_select_implmode) take effect.
Result<std::shared_ptr<const NpuOptions>> CheckRewriterConfig(const tensorflow::RewriterConfig& config);

// The same for the entry alone, as the graph pass gets it. A map that has passed before in this process is not checked again: a
// script may delete a file that an option names once the session exists.
Result<std::shared_ptr<const NpuOptions>> CheckedNpuOptions(const tensorflow::RewriterConfig::CustomGraphOptimizer& optimizer);

// The contradictions alone: remapping or memory_optimization not off; one of the seven rewrites that stay on switched off; model
// pruning disabled.
std::vector<OptionNote> RewriteNotes(const tensorflow::RewriterConfig& config);

}  // namespace mxrec

#endif  // MXREC_TF_GRAPH_NPU_OPTIONS_PROTO_H_
