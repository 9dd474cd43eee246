#include "mxrec/ckpt/format/names.h"

#include <set>

#include "gtest/gtest.h"

namespace mxrec::format {
namespace {

TEST(NamesTest, StepFoldersRoundTrip) {
  for (const uint64_t step : {uint64_t{0}, uint64_t{7}, uint64_t{100000}, ~uint64_t{0}}) {
    EXPECT_EQ(ParseStepDirName(StepDirName(step)), step);
  }
  EXPECT_EQ(StepDirName(42), "mxrec-42");
}

TEST(NamesTest, OtherFoldersAreNotOurs) {
  for (const char* name : {"", "mxrec", "mxrec-", "mxrec-x", "mxrec-1x", "mxrec--1", "mxrec-+1", "mxrec-01", "mxrec- 1", "model-5",
                           "Mxrec-5", "mxrec-18446744073709551616", "mxrec-1.bak"}) {
    EXPECT_EQ(ParseStepDirName(name), std::nullopt) << name;
  }
}

TEST(NamesTest, PlainTableNamesStay) {
  EXPECT_EQ(EscapeTableName("User_id.2"), "User_id.2");
  EXPECT_EQ(TableFileName("user", 0x12AB, 3, 12), "user-00000000000012ab-00003-of-00012.mxt");
}

TEST(NamesTest, D51_AnyNameGivesASafeFileName) {
  std::set<std::string> all;
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../../etc/passwd"), std::string("a b"),
        std::string("100%"), std::string("用户"), std::string("a-b"), std::string("a\nb"), std::string("a\0b", 3),
        std::string("\xFF\xFE"), std::string(300, 'x'), std::string(299, 'x') + "y", std::string(300, '%')}) {
    const std::string file = TableFileName(name, 1, 0, 1);
    EXPECT_LE(file.size(), 200u);
    EXPECT_EQ(file.find('/'), std::string::npos);
    EXPECT_NE(file[0], '.');
    for (const char c : file) EXPECT_TRUE(c > 0x20 && c < 0x7F) << file;
    EXPECT_TRUE(IsTableFileName(file)) << file;
    EXPECT_TRUE(all.insert(file).second) << file;
  }
  EXPECT_EQ(EscapeTableName("a b%"), "a%20b%25");
}

TEST(NamesTest, FilesThatAreNotOursAreKnownAsSuch) {
  for (const char* name : {"", "x.mxt", "notes.txt", "user-12ab-00000-of-00001.mxt", "user-00000000000012ab-0-of-1.mxt",
                           "user-00000000000012ab-00000-of-00001", "user-00000000000012AB-00000-of-00001.mxt",
                           ".user-00000000000012ab-00000-of-00001.mxt", "a/b-00000000000012ab-00000-of-00001.mxt"}) {
    EXPECT_FALSE(IsTableFileName(name)) << name;
  }
}

TEST(NamesTest, TemporariesAreUniqueAndKnown) {
  const std::string file = TableFileName("user", 1, 0, 1);
  std::set<std::string> all;
  for (int i = 0; i < 1000; ++i) {
    const std::string name = TemporaryName(file);
    EXPECT_TRUE(IsTemporaryName(name)) << name;
    EXPECT_TRUE(all.insert(name).second);
  }
  EXPECT_TRUE(IsTemporaryName("MANIFEST.json.tmp-123"));
  EXPECT_TRUE(IsTemporaryName("latest.tmp-1"));
  for (const char* name :
       {"MANIFEST.json", "latest", "notes.tmp-12", "latest.tmp-", "latest.tmp-x", "latest.tmp-12-12", "latest.bak"}) {
    EXPECT_FALSE(IsTemporaryName(name)) << name;
  }
}

TEST(NamesTest, OnlyTemporariesOfGoneProcessesOfThisMachineAreDead) {
  const std::string mine = TemporaryName("model-5.data-00000-of-mxrec");
  EXPECT_FALSE(IsDeadTemporary(mine)) << mine;
  const size_t at = mine.find(".tmp-") + 5, dash = mine.find('-', at);
  const std::string gone = mine.substr(0, at) + "2147483646" + mine.substr(dash);  // above every pid
  EXPECT_TRUE(IsDeadTemporary(gone)) << gone;
  std::string elsewhere = gone;
  elsewhere[elsewhere.size() - 16] = elsewhere[elsewhere.size() - 16] == '0' ? '1' : '0';
  EXPECT_FALSE(IsDeadTemporary(elsewhere));
  for (const char* name : {"", "model-5.index", "a.tmp-2147483646", "a.tmp-2147483646-12", "a.tmp-x-0123456789abcdef"}) {
    EXPECT_FALSE(IsDeadTemporary(name)) << name;
  }
}

TEST(NamesTest, TheStepOfAFileIsReadFromItsPath) {
  EXPECT_EQ(StepOfPath("a/mxrec-12/user-0000000000000000-00000-of-00001.mxt"), 12u);
  EXPECT_EQ(StepOfPath("mxrec-12/x"), 12u);
  EXPECT_EQ(StepOfPath("a/model-7.data-abcde-of-mxrec"), 7u);
  EXPECT_EQ(StepOfPath("a/my-model.v2-7.data-abcde-of-mxrec"), 7u);
  for (const char* path : {"", "x", "a/x", "a-7", "a/model.data-abcde-of-mxrec", "a/model-x.data-abcde-of-mxrec", "mxrec-07/x",
                           "a/model-.data-abcde-of-mxrec", "mxrec-5"}) {
    EXPECT_EQ(StepOfPath(path), std::nullopt) << path;
  }
}

}  // namespace
}  // namespace mxrec::format
