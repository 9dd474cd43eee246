#include "mxrec/base/json_text.h"

#include "gtest/gtest.h"

namespace mxrec {
namespace {

TEST(JsonTextTest, OnlyWhatJsonCannotHoldIsEscaped) {
  EXPECT_EQ(JsonText(""), "\"\"");
  EXPECT_EQ(JsonText("grad \"w\"\\0\n\x1f"), "\"grad \\\"w\\\"\\\\0\\u000a\\u001f\"");
  EXPECT_EQ(JsonText("gr\xc3\xb6\xc3\x9f"
                     "e/"),
            "\"gr\xc3\xb6\xc3\x9f"
            "e/\"");
}

}  // namespace
}  // namespace mxrec
