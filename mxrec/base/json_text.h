// JsonText: a text as a string of JSON, for code that writes JSON piece by piece.
#ifndef MXREC_BASE_JSON_TEXT_H_
#define MXREC_BASE_JSON_TEXT_H_

#include <string>
#include <string_view>

namespace mxrec {

// In double quotes; quotes, backslashes and control characters are escaped, all other bytes (UTF-8) stay as they are.
std::string JsonText(std::string_view text);

}  // namespace mxrec

#endif  // MXREC_BASE_JSON_TEXT_H_
