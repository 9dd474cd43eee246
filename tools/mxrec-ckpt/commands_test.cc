#include "tools/mxrec-ckpt/commands.h"

#include <sstream>

#include "gmock/gmock.h"
#include "mxrec/ckpt/ckpt_test_util.h"
#include "mxrec/ckpt/format/names.h"

namespace mxrec {
namespace {

using ::testing::HasSubstr;

class CommandsTest : public ::testing::Test {
 protected:
  CommandsTest() {
    const auto table = testing::MakeTable({.candidates = 2}, testing::KeysOf(20));
    const Table* const tables[] = {table.get()};
    for (const uint64_t step : {5, 10}) EXPECT_EQ(SaveCheckpoint({}, dir_, tables, {.step = step}), OkStatus());
    file_ = JoinPath(dir_ + "/mxrec-10", VerifyCheckpoint({}, dir_, 10).value()[0].file);
  }
  int Run(std::vector<std::string> arguments) {
    out_.str("");
    err_.str("");
    return RunCkptCommand(arguments, nullptr, out_, err_);
  }
  void Damage() {
    std::string bytes = testing::ReadBytes(file_);
    bytes[bytes.size() - 60] ^= 1;
    testing::WriteBytes(file_, bytes);
  }

  testing::TempDir temp_;
  const std::string dir_ = temp_.Join("a b");
  std::string file_;
  std::ostringstream out_, err_;
};

TEST_F(CommandsTest, ListShowsStepsAndTheLatest) {
  std::filesystem::create_directories(dir_ + "/mxrec-11");
  EXPECT_EQ(Run({"list", dir_}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("5\t1\t20\t"));
  EXPECT_THAT(out_.str(), HasSubstr("complete, latest\n"));
  EXPECT_THAT(out_.str(), HasSubstr("11\t-\t-\t-\tunfinished"));
  std::filesystem::remove(file_);
  EXPECT_EQ(Run({"list", dir_}), 1);
  EXPECT_THAT(out_.str(), HasSubstr("files missing"));
}

TEST_F(CommandsTest, ShowTakesAFileAStepOrADirectory) {
  for (const std::string& path : {file_, dir_ + "/mxrec-10", dir_ + "/mxrec-5/", dir_}) {
    EXPECT_EQ(Run({"show", path}), 0) << err_.str();
    EXPECT_THAT(out_.str(), HasSubstr("dim 4, rows 20, candidates 2, seed 000000000000004d, counts, times"));
    EXPECT_THAT(out_.str(), HasSubstr("optimizer adam, step 41, slots m n, beta1_power 0.9, beta2_power 0.999"));
  }
}

TEST_F(CommandsTest, VerifyIsZeroForFineOneForDamagedTwoForNotChecked) {
  for (const std::string& path : {file_, dir_ + "/mxrec-10", dir_ + "/mxrec-5/", dir_})
    EXPECT_EQ(Run({"verify", path}), 0) << err_.str();
  EXPECT_EQ(Run({"verify", dir_ + "/nothing"}), 2);
  EXPECT_EQ(Run({"verify", dir_ + "/mxrec-77"}), 2);
  EXPECT_EQ(Run({"verify", temp_.path()}), 2);
  Damage();
  EXPECT_EQ(Run({"verify", file_}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("DATA_LOSS: " + file_));
  EXPECT_EQ(Run({"verify", dir_ + "/mxrec-10"}), 1);
  EXPECT_EQ(Run({"verify", dir_}), 1);
  EXPECT_EQ(Run({"verify", dir_ + "/mxrec-5"}), 0);
}

TEST_F(CommandsTest, WrongArgumentsAreTwoAndHelpIsZero) {
  EXPECT_EQ(Run({}), 2);
  EXPECT_EQ(Run({"verify"}), 2);
  EXPECT_EQ(Run({"repair", dir_}), 2);
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("verify"));
}

}  // namespace
}  // namespace mxrec
