// The functions of tf/c_api.h for the options of NpuOptimizer.
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "tensorflow/core/protobuf/rewriter_config.pb.h"
#include "tf/c_api.h"
#include "tf/graph/determinism_pass.h"
#include "tf/graph/npu_options.h"
#include "tf/graph/npu_options_proto.h"
#include "tf/session_settings.h"

int mxrec_npu_check(const char* rewriter_config, int64_t size, const char** text) {
  thread_local std::string kept;
  tensorflow::RewriterConfig config;
  mxrec::Status status;
  if (size < 0 || size > std::numeric_limits<int>::max() || !config.ParseFromArray(rewriter_config, static_cast<int>(size))) {
    status = mxrec::InvalidArgumentError("rewrite_options: " + std::to_string(size) + " bytes are no RewriterConfig");
  } else if (const auto options = mxrec::CheckRewriterConfig(config); options.ok()) {
    kept = mxrec::NpuOptionsJson(**options);
  } else {
    status = options.status();
  }
  if (!status.ok()) kept = status.message();
  *text = kept.c_str();
  return static_cast<int>(status.code());
}

const char* mxrec_npu_table() {
  static const std::string* table = new std::string(mxrec::NpuOptionTableJson());
  return table->c_str();
}

const char* mxrec_npu_nearest(const char* key) { return mxrec::NearestNpuOption(key == nullptr ? "" : key).data(); }

void mxrec_forget_option_notes() { mxrec::ForgetOptionNotes(); }

void mxrec_enter_deterministic_run() { mxrec::EnterDeterministicRun(); }

void mxrec_leave_deterministic_run() { mxrec::LeaveDeterministicRun(); }

int64_t mxrec_collective_timeout_seconds() { return mxrec::CollectiveTimeout().value_or(-1); }

const char* mxrec_collective_algorithm() {
  thread_local std::string kept;
  kept = mxrec::CollectiveAlgorithm();
  return kept.c_str();
}

int64_t mxrec_npu_optimizer_runs() { return mxrec::OptimizerRuns(); }
