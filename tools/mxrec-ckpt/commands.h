// The commands of mxrec-ckpt.
//
//   mxrec-ckpt list DIR       the checkpoints of a directory
//   mxrec-ckpt show PATH      what a checkpoint or table file holds (reads manifest, headers and footers only)
//   mxrec-ckpt verify PATH    reads every byte and checks every checksum
// PATH: a table file; one step's folder (mxrec-<step>); or a directory of checkpoints, then the latest for show, all for verify.
#ifndef MXREC_TOOLS_MXREC_CKPT_COMMANDS_H_
#define MXREC_TOOLS_MXREC_CKPT_COMMANDS_H_

#include <ostream>
#include <string>
#include <vector>

#include "mxrec/base/executor.h"

namespace mxrec {

inline constexpr int kExitFine = 0;
inline constexpr int kExitDamaged = 1;
inline constexpr int kExitCouldNotCheck = 2;  // wrong arguments, no such file, no permission, a newer format

// Runs one command line (without the program's name) and returns its exit code.
int RunCkptCommand(const std::vector<std::string>& arguments, Executor* executor, std::ostream& out, std::ostream& err);

}  // namespace mxrec

#endif  // MXREC_TOOLS_MXREC_CKPT_COMMANDS_H_
