// The few functions that Python calls in the op library without a graph (through ctypes). Plain C; every other symbol is hidden.
#ifndef MXREC_TF_C_API_H_
#define MXREC_TF_C_API_H_

#include <stdint.h>

#define MXREC_EXPORT extern "C" __attribute__((visibility("default")))

// "0.1.0".
MXREC_EXPORT const char* mxrec_version();
// The clock of admission and eviction for this process, in milliseconds; negative: the system clock again.
MXREC_EXPORT void mxrec_set_clock_ms(int64_t now_ms);
MXREC_EXPORT int64_t mxrec_now_ms();
// "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", in either case. 0, or -1 for another name.
MXREC_EXPORT int mxrec_set_log_level(const char* level);
// Receives each log line instead of standard error: level (0 = DEBUG ... 4 = CRITICAL) and text. Null: standard error again.
// Called by any thread, several at once.
typedef void (*mxrec_log_sink)(int level, const char* text);
MXREC_EXPORT void mxrec_set_log_sink(mxrec_log_sink sink);
// Asked after a SIGINT during a save, on a thread of ours: nonzero stops the save. Null: saves are not stopped. See
// tf/interrupt.h.
typedef int (*mxrec_interrupt_rule)(void);
MXREC_EXPORT void mxrec_set_interrupt_rule(mxrec_interrupt_rule rule);
// Raises SIGINT in the calling thread; 0. What Python is given to call when a stopped save is over.
MXREC_EXPORT int mxrec_raise_interrupt(void*);
// How long a save or load runs before it shows its progress on a terminal, in milliseconds; 2000 at first. For tests.
MXREC_EXPORT void mxrec_set_progress_delay_ms(int64_t delay_ms);
// The entry of the tolerance table (docs/numerics.md) for a subject. 0, or -1 for an unknown subject; outputs are then untouched.
MXREC_EXPORT int mxrec_tolerance(const char* subject, double* rtol, double* atol, int64_t* ulp);
// For the warning of tables that a step leaves untrained (graph/untrained_tables_pass.h): a graph has got a table of this shared
// name; it has got an op that updates it.
MXREC_EXPORT void mxrec_note_table(const char* shared_name);
MXREC_EXPORT void mxrec_note_table_update(const char* shared_name);
// Whether the engine has an optimizer of that kind with those options. Null, or what is wrong, valid until the thread's next call.
MXREC_EXPORT const char* mxrec_check_optimizer(const char* kind, const char* const* option_names, const double* option_values,
                                               int count);
// The world and the groups of the collective ops (kernels/hcom_groups.h). Texts are null on success, else what is wrong, valid
// until the thread's next call.
MXREC_EXPORT const char* mxrec_hcom_add_group(const char* name, const int* ranks, int count);
MXREC_EXPORT const char* mxrec_hcom_remove_group(const char* name);
// *count is the group's size; its first `capacity` world ranks are written to ranks.
MXREC_EXPORT const char* mxrec_hcom_find_group(const char* name, int* ranks, int capacity, int* count);
// The communicator of the process (comm_runtime.h). Texts as above. Configure takes the options as a JSON object, with times in
// milliseconds (kernels/comm_c_api.cc has the keys), and tells the world too. Start waits for the other ranks, shutdown too; leave
// waits for nobody.
MXREC_EXPORT const char* mxrec_comm_configure(const char* json);
MXREC_EXPORT const char* mxrec_comm_start();
MXREC_EXPORT void mxrec_comm_shutdown();
MXREC_EXPORT void mxrec_comm_leave();
MXREC_EXPORT const char* mxrec_comm_health();
// Tells the other ranks of a group that this one does not take part in the operation of `parts` tensors that it would have asked
// for by this name, and why (Communicator::Refuse).
MXREC_EXPORT void mxrec_comm_refuse(const char* group, const char* name, int parts, const char* why);
// Writes the number of each rank's machine (Communicator::Machines), of the first `capacity` ranks.
MXREC_EXPORT const char* mxrec_comm_machines(int* machines, int capacity);
// What the present communicator has done, as in CommStats (mxrec/comm/communicator.h), field after field in its order: the first
// `count` of them. Zeros when there is none.
MXREC_EXPORT void mxrec_comm_stats(uint64_t* values, int count);
// The options of NpuOptimizer (graph/npu_options.h). Checks the rewrite options of a session's configuration, given as a serialized
// RewriterConfig, and writes to the log what is to be said of them. Returns 0 and in *text a JSON object (NpuOptionsJson), or the
// canonical code of the failure and its message. *text lasts until the next call in the same thread.
MXREC_EXPORT int mxrec_npu_check(const char* rewriter_config, int64_t size, const char** text);
// The table of all options as a JSON array; the known option that is written most like `key`.
MXREC_EXPORT const char* mxrec_npu_table();
MXREC_EXPORT const char* mxrec_npu_nearest(const char* key);
// Lets lines that are written once a process be written again. For tests.
MXREC_EXPORT void mxrec_forget_option_notes();
// Around a run of a session with the option deterministic (graph/determinism_pass.h).
MXREC_EXPORT void mxrec_enter_deterministic_run();
MXREC_EXPORT void mxrec_leave_deterministic_run();
// What sessions have set for the process (session_settings.h): seconds, or -1 when none has; the text of HCCL_algorithm, lasting
// until the next call in the same thread; how often the graph pass has run.
MXREC_EXPORT int64_t mxrec_collective_timeout_seconds();
MXREC_EXPORT const char* mxrec_collective_algorithm();
MXREC_EXPORT int64_t mxrec_npu_optimizer_runs();

#endif  // MXREC_TF_C_API_H_
