#include "mxrec/base/environment_switch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace mxrec {
namespace {

using testing::HasSubstr;

constexpr char kVariable[] = "MXREC_SWITCH_OF_A_TEST";

class EnvironmentSwitch : public testing::Test {
 protected:
  void TearDown() override { unsetenv(kVariable); }
  void Set(const char* text) { setenv(kVariable, text, 1); }
};

TEST_F(EnvironmentSwitch, SaysNothingWhenTheVariableIsNotSetOrBlank) {
  EXPECT_EQ(ReadSwitch(kVariable).value(), std::nullopt);
  EXPECT_EQ(ReadSwitchOrNumber(kVariable, 9).value(), std::nullopt);
  for (const char* blank : {"", " ", "\t \n"}) {
    Set(blank);
    EXPECT_EQ(ReadSwitch(kVariable).value(), std::nullopt);
    EXPECT_EQ(ReadSwitchOrNumber(kVariable, 9).value(), std::nullopt);
  }
}

TEST_F(EnvironmentSwitch, TakesTheUsualSpellings) {
  for (const char* on : {"1", "true", "TRUE", "yes", "Yes", "on", " on "}) {
    Set(on);
    EXPECT_EQ(ReadSwitch(kVariable).value(), true) << on;
    EXPECT_EQ(ReadSwitchOrNumber(kVariable, 9).value(), 1) << on;
  }
  for (const char* off : {"0", "false", "False", "no", "NO", "off", "\toff"}) {
    Set(off);
    EXPECT_EQ(ReadSwitch(kVariable).value(), false) << off;
    EXPECT_EQ(ReadSwitchOrNumber(kVariable, 9).value(), 0) << off;
  }
}

TEST_F(EnvironmentSwitch, ANumberIsTakenWhereOneMayStand) {
  Set("12");
  EXPECT_EQ(ReadSwitchOrNumber(kVariable, 12).value(), 12);
  EXPECT_FALSE(ReadSwitchOrNumber(kVariable, 11).ok());
  EXPECT_FALSE(ReadSwitch(kVariable).ok());
}

TEST_F(EnvironmentSwitch, OtherTextsAreRefusedByName) {
  for (const char* wrong : {"maybe", "-1", "2x", "1.0", "9999999999", "o n"}) {
    Set(wrong);
    const Status status = ReadSwitch(kVariable).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("MXREC_SWITCH_OF_A_TEST must be 1, true, yes or on, 0, false, no or off"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("found \"") + wrong + "\""));
    const Status number = ReadSwitchOrNumber(kVariable, 64).status();
    EXPECT_THAT(std::string(number.message()), HasSubstr("or a number up to 64")) << wrong;
  }
}

}  // namespace
}  // namespace mxrec
