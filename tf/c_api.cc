#include "tf/c_api.h"

#include <signal.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "mxrec/base/log.h"
#include "mxrec/engine/embedding_table.h"
#include "mxrec/numeric/tolerance.h"
#include "mxrec/optim/optimizer.h"
#include "tf/interrupt.h"
#include "tf/progress_line.h"
#include "tf/table_notes.h"

#ifndef MXREC_VERSION
#error "MXREC_VERSION must be given by the build: the version in the top CMakeLists.txt"
#endif

namespace {

std::atomic<mxrec_log_sink> outer_sink{nullptr};

void ForwardLog(const mxrec::LogRecord& record) {
  // The sink may be taken away while a line is on its way; the line is then dropped.
  if (const mxrec_log_sink sink = outer_sink.load()) sink(static_cast<int>(record.level), std::string(record.text).c_str());
}

}  // namespace

const char* mxrec_version() { return MXREC_VERSION; }

void mxrec_set_clock_ms(int64_t now_ms) { mxrec::SetClockForTesting(now_ms); }

int64_t mxrec_now_ms() { return mxrec::NowMs(); }

int mxrec_set_log_level(const char* level) {
  const std::optional<mxrec::LogLevel> parsed = mxrec::LogLevelFromName(level == nullptr ? "" : level);
  if (!parsed) return -1;
  mxrec::SetLogLevel(*parsed);
  return 0;
}

void mxrec_set_log_sink(mxrec_log_sink sink) {
  outer_sink = sink;
  mxrec::SetLogSink(sink != nullptr ? &ForwardLog : nullptr);
}

void mxrec_set_interrupt_rule(mxrec_interrupt_rule rule) { mxrec::SetInterruptRule(rule); }

int mxrec_raise_interrupt(void*) { return raise(SIGINT); }

void mxrec_set_progress_delay_ms(int64_t delay_ms) { mxrec::SetProgressDelay(std::chrono::milliseconds(delay_ms)); }

int mxrec_tolerance(const char* subject, double* rtol, double* atol, int64_t* ulp) {
  const mxrec::Result<mxrec::Tolerance> found = mxrec::FindTolerance(subject == nullptr ? "" : subject);
  if (!found.ok()) return -1;
  *rtol = found->rtol;
  *atol = found->atol;
  *ulp = found->max_ulp;
  return 0;
}

const char* mxrec_check_optimizer(const char* kind, const char* const* option_names, const double* option_values, int count) {
  std::vector<mxrec::OptimizerOption> options;
  for (int i = 0; i < count; ++i) options.push_back({option_names[i], option_values[i]});
  const auto made = mxrec::MakeOptimizer(kind, options);
  if (made.ok()) return nullptr;
  thread_local std::string kept;
  kept = made.status().message();
  return kept.c_str();
}

void mxrec_note_table(const char* shared_name) { mxrec::NoteTable(shared_name); }

void mxrec_note_table_update(const char* shared_name) { mxrec::NoteTableUpdate(shared_name); }
