// Switches in the environment: one set of spellings for all of them, and an error for any other.
//
// On: 1, true, yes, on. Off: 0, false, no, off. In either case of letters, blanks around them do not count.
#ifndef MXREC_BASE_ENVIRONMENT_SWITCH_H_
#define MXREC_BASE_ENVIRONMENT_SWITCH_H_

#include <optional>
#include <string>

#include "mxrec/base/status.h"

namespace mxrec {

// Whether the variable is on; nothing when it is not set or blank. kInvalidArgument names the variable and what it holds.
Result<std::optional<bool>> ReadSwitch(const std::string& variable);

// The same for a switch that may hold a number too: 1 for on, 0 for off, or a number up to `most` (at most 9 digits).
Result<std::optional<int>> ReadSwitchOrNumber(const std::string& variable, int most);

}  // namespace mxrec

#endif  // MXREC_BASE_ENVIRONMENT_SWITCH_H_
