// What options of a session (parameter_map of NpuOptimizer) set for the whole process, for ops that cannot see the session.
// The last session that sets one decides. Threads: all functions may be called at any time.
#ifndef MXREC_TF_SESSION_SETTINGS_H_
#define MXREC_TF_SESSION_SETTINGS_H_

#include <cstdint>
#include <optional>
#include <string>

namespace mxrec {

// How long a collective may wait for other processes, in seconds; 0: without limit (option hccl_timeout). nullopt: no session said.
void SetCollectiveTimeout(int64_t seconds);
std::optional<int64_t> CollectiveTimeout();

// The text of the option HCCL_algorithm; empty: no session said.
void SetCollectiveAlgorithm(std::string text);
std::string CollectiveAlgorithm();

// How often the graph pass of NpuOptimizer has run in this process.
void CountOptimizerRun();
int64_t OptimizerRuns();

}  // namespace mxrec

#endif  // MXREC_TF_SESSION_SETTINGS_H_
