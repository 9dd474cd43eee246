#include "mxrec/base/environment_switch.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace mxrec {
namespace {

// What the variable holds, without blanks around it, in small letters.
std::string TextOf(const std::string& variable) {
  const char* const found = std::getenv(variable.c_str());
  std::string_view text = found == nullptr ? "" : found;
  constexpr std::string_view kBlanks = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  text = text.substr(0, text.find_last_not_of(kBlanks) + 1);
  std::string small(text);
  for (char& c : small) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return small;
}

std::optional<bool> SwitchOf(std::string_view text) {
  for (const std::string_view on : {"1", "true", "yes", "on"}) {
    if (text == on) return true;
  }
  for (const std::string_view off : {"0", "false", "no", "off"}) {
    if (text == off) return false;
  }
  return std::nullopt;
}

Status Wrong(const std::string& variable, const std::string& more) {
  return InvalidArgumentError("environment variable " + variable + " must be 1, true, yes or on, 0, false, no or off" + more +
                              "; found \"" + std::getenv(variable.c_str()) + "\"");
}

}  // namespace

Result<std::optional<bool>> ReadSwitch(const std::string& variable) {
  const std::string text = TextOf(variable);
  if (text.empty()) return std::optional<bool>();
  const std::optional<bool> found = SwitchOf(text);
  if (!found.has_value()) return Wrong(variable, "");
  return found;
}

Result<std::optional<int>> ReadSwitchOrNumber(const std::string& variable, int most) {
  const std::string text = TextOf(variable);
  if (text.empty()) return std::optional<int>();
  if (const std::optional<bool> found = SwitchOf(text); found.has_value()) return std::optional<int>(*found ? 1 : 0);
  const bool digits = text.size() <= 9 && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  const int number = digits ? std::atoi(text.c_str()) : most;
  if (!digits || number > most) return Wrong(variable, ", or a number up to " + std::to_string(most));
  return std::optional<int>(number);
}

}  // namespace mxrec
