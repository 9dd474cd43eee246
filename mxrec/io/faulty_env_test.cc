#include "mxrec/io/faulty_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mxrec/io/test_dir.h"

namespace mxrec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FaultyEnvTest : public testing::Test {
 protected:
  FaultyEnvTest() : env_(Env::Default(), dir_.File("scratch")) { EXPECT_TRUE(Env::Default()->CreateDirs(dir_.File("d")).ok()); }
  std::string File(std::string_view name) const { return dir_.File("d/" + std::string(name)); }
  std::string Dir() const { return dir_.File("d"); }
  Status Write(const std::string& name, std::string_view data, bool sync) {
    MXREC_ASSIGN_OR_RETURN(const auto file, env_.NewWritableFile(File(name)));
    MXREC_RETURN_IF_ERROR(file->Append(data));
    if (sync) MXREC_RETURN_IF_ERROR(file->Sync());
    return file->Close();
  }
  std::string Contents(const std::string& name) {
    auto data = ReadWholeFile(Env::Default(), File(name), 1 << 20);
    return data.ok() ? *data : std::string(StatusCodeName(data.status().code()));
  }
  std::vector<std::string> Names() { return std::move(Env::Default()->ListDir(Dir())).value(); }
  TestDir dir_;
  FaultyEnv env_;
};

TEST_F(FaultyEnvTest, PassesEverythingThroughAndCounts) {
  ASSERT_TRUE(Write("a", "hello", true).ok());
  ASSERT_TRUE(env_.Rename(File("a"), File("b")).ok());
  ASSERT_TRUE(env_.Link(File("b"), File("c")).ok());
  ASSERT_TRUE(env_.RemoveFile(File("b")).ok());
  ASSERT_TRUE(env_.CreateDirs(File("e/f")).ok());
  ASSERT_TRUE(env_.RemoveDir(File("e/f")).ok());
  ASSERT_TRUE(env_.SyncDir(Dir()).ok());
  EXPECT_EQ(*ReadWholeFile(&env_, File("c"), 100), "hello");
  EXPECT_THAT(*env_.ListDir(Dir()), ElementsAre("c", "e"));
  EXPECT_TRUE(env_.FileExists(File("c")));
  EXPECT_EQ(*env_.FileSize(File("c")), 5u);
  const auto counters = env_.counters();
  EXPECT_EQ(counters.mutations, 10u);
  EXPECT_EQ(counters.reads, 2u);
  EXPECT_EQ(counters.bytes_written, 5u);
  EXPECT_EQ(counters.file_syncs, 1u);
  EXPECT_EQ(counters.dir_syncs, 1u);
  EXPECT_EQ(counters.open_writers, 0u);
  EXPECT_EQ(env_.operations().size(), 10u);
  EXPECT_EQ(env_.operations()[1], "append " + File("a") + " 5 bytes");
}

TEST_F(FaultyEnvTest, FailAtFailsOneOperationWithoutEffect) {
  env_.FailAt(2, ResourceExhaustedError("disk full"));
  const Status status = Write("a", "hello", false);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("append " + File("a")));
  EXPECT_EQ(Contents("a"), "");
  EXPECT_EQ(env_.counters().open_writers, 0u);
  EXPECT_TRUE(Write("a", "hello", false).ok());
}

TEST_F(FaultyEnvTest, FailReadAtFailsOneRead) {
  ASSERT_TRUE(Write("a", "hello", false).ok());
  env_.FailReadAt(2, UnavailableError("bad sector"));
  EXPECT_EQ(ReadWholeFile(&env_, File("a"), 100).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(ReadWholeFile(&env_, File("a"), 100).ok());
}

TEST_F(FaultyEnvTest, AfterACrashEverythingFailsUntilRestart) {
  auto file = std::move(env_.NewWritableFile(File("a"))).value();
  env_.CrashAt(1);
  EXPECT_EQ(file->Append("12345678").code(), StatusCode::kUnavailable);
  EXPECT_TRUE(env_.crashed());
  EXPECT_EQ(Contents("a"), "1234");  // torn: half of it came through
  EXPECT_FALSE(file->Append("x").ok());
  EXPECT_FALSE(file->Close().ok());
  EXPECT_FALSE(env_.NewWritableFile(File("b")).ok());
  EXPECT_FALSE(env_.NewRandomAccessFile(File("a")).ok());
  EXPECT_FALSE(env_.ListDir(Dir()).ok());
  EXPECT_FALSE(env_.FileExists(File("a")));
  env_.Restart();
  EXPECT_FALSE(env_.crashed());
  EXPECT_FALSE(file->Append("x").ok()) << "files of the dead process stay dead";
  EXPECT_TRUE(Write("b", "new", false).ok());
}

TEST_F(FaultyEnvTest, APowerCutLosesUnsyncedBytes) {
  auto file = std::move(env_.NewWritableFile(File("a"))).value();
  ASSERT_TRUE(file->Append("synced").ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(file->Append(" and not").ok());
  ASSERT_TRUE(file->WriteAt(1, "XX").ok());
  ASSERT_TRUE(file->Close().ok());
  ASSERT_TRUE(Write("b", "never synced", false).ok());
  ASSERT_TRUE(env_.SyncDir(Dir()).ok());
  env_.DropUnsynced(NameLoss::kUnsynced);
  EXPECT_EQ(Contents("a"),
            "s\xDB\xDB"
            "ced");
  EXPECT_EQ(Contents("b"), "");
}

TEST_F(FaultyEnvTest, APowerCutLosesUnsyncedNames) {
  ASSERT_TRUE(Write("old", "old", true).ok());
  ASSERT_TRUE(Write("gone", "gone", true).ok());
  ASSERT_TRUE(env_.SyncDir(Dir()).ok());
  ASSERT_TRUE(Write("new", "new", true).ok());
  ASSERT_TRUE(env_.Rename(File("new"), File("old")).ok());
  ASSERT_TRUE(env_.RemoveFile(File("gone")).ok());
  ASSERT_TRUE(Write("fresh", "fresh", true).ok());
  EXPECT_EQ(Contents("old"), "new");
  env_.DropUnsynced(NameLoss::kUnsynced);
  EXPECT_THAT(Names(), ElementsAre("gone", "old"));
  EXPECT_EQ(Contents("old"), "old");
  EXPECT_EQ(Contents("gone"), "gone");
}

TEST_F(FaultyEnvTest, APowerCutMayAlsoKeepNames) {
  ASSERT_TRUE(Write("old", "old", true).ok());
  ASSERT_TRUE(env_.SyncDir(Dir()).ok());
  ASSERT_TRUE(Write("new", "not synced", false).ok());
  ASSERT_TRUE(env_.Rename(File("new"), File("old")).ok());
  env_.DropUnsynced(NameLoss::kNone);
  EXPECT_THAT(Names(), ElementsAre("old"));
  EXPECT_EQ(Contents("old"), "") << "renamed over before it was synced: the classic mistake";
}

TEST_F(FaultyEnvTest, SyncedNamesSurvive) {
  ASSERT_TRUE(Write("new", "new", true).ok());
  ASSERT_TRUE(env_.Rename(File("new"), File("old")).ok());
  ASSERT_TRUE(env_.SyncDir(Dir()).ok());
  env_.DropUnsynced(NameLoss::kUnsynced);
  EXPECT_THAT(Names(), ElementsAre("old"));
  EXPECT_EQ(Contents("old"), "new");
}

TEST_F(FaultyEnvTest, AnUnsyncedFolderIsLostWithAllInIt) {
  ASSERT_TRUE(env_.CreateDirs(File("e/f")).ok());
  ASSERT_TRUE(Write("e/f/a", "x", true).ok());
  ASSERT_TRUE(env_.SyncDir(File("e/f")).ok());
  ASSERT_TRUE(env_.SyncDir(File("e")).ok());
  env_.DropUnsynced(NameLoss::kUnsynced);
  EXPECT_THAT(Names(), ElementsAre());
  ASSERT_TRUE(env_.CreateDirs(File("e")).ok());
  ASSERT_TRUE(Write("e/a", "x", true).ok());
  ASSERT_TRUE(env_.SyncDir(File("e")).ok());
  ASSERT_TRUE(env_.SyncDir(Dir()).ok());
  env_.DropUnsynced(NameLoss::kUnsynced);
  EXPECT_EQ(Contents("e/a"), "x");
}

TEST_F(FaultyEnvTest, ARemovedFolderComesBackWhenUnsynced) {
  ASSERT_TRUE(Env::Default()->CreateDirs(File("e")).ok());
  ASSERT_TRUE(WriteFileAtomically(Env::Default(), File("e/a"), "before").ok());
  ASSERT_TRUE(env_.RemoveFile(File("e/a")).ok());
  ASSERT_TRUE(env_.RemoveDir(File("e")).ok());
  env_.DropUnsynced(NameLoss::kUnsynced);
  EXPECT_EQ(Contents("e/a"), "before");
}

TEST_F(FaultyEnvTest, FilesMadeElsewhereCountAsSynced) {
  ASSERT_TRUE(WriteFileAtomically(Env::Default(), File("a"), "before").ok());
  ASSERT_TRUE(Write("b", "after", true).ok());
  ASSERT_TRUE(env_.Rename(File("b"), File("a")).ok());
  env_.DropUnsynced(NameLoss::kUnsynced);
  EXPECT_EQ(Contents("a"), "before");
  ASSERT_TRUE(env_.NewWritableFile(File("a")).ok());  // opening for writing empties it for good
  env_.DropUnsynced(NameLoss::kUnsynced);
  EXPECT_EQ(Contents("a"), "");
}

TEST_F(FaultyEnvTest, AQuotaCutsTheWriteThatExceedsIt) {
  env_.SetQuota(10);
  ASSERT_TRUE(Write("a", "123456", false).ok());
  const Status status = Write("b", "abcdefgh", false);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no space left: expected 8 free bytes, found 4"));
  EXPECT_EQ(Contents("b"), "abcd");
  ASSERT_TRUE(env_.RemoveFile(File("a")).ok());  // gives its space back
  EXPECT_TRUE(Write("c", "123456", false).ok());
  env_.SetQuota(std::nullopt);
  EXPECT_TRUE(Write("b", "abcdefgh", false).ok());
}

TEST_F(FaultyEnvTest, RenamingAFolderIsRefused) {
  ASSERT_TRUE(env_.CreateDirs(File("e")).ok());
  EXPECT_EQ(env_.Rename(File("e"), File("f")).code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Names(), ElementsAre("e"));
}

// What the env is for: the atomic write, crashed at each of its operations, leaves the old contents or the new.
TEST_F(FaultyEnvTest, WriteFileAtomicallySurvivesACrashAtEveryOperation) {
  for (const NameLoss names : {NameLoss::kUnsynced, NameLoss::kNone}) {
    for (const bool power_cut : {false, true}) {
      bool finished = false;
      for (uint64_t n = 1; !finished; ++n) {
        ASSERT_LT(n, 20u);
        ASSERT_TRUE(WriteFileAtomically(Env::Default(), File("m"), "old contents").ok());
        FaultyEnv env(Env::Default(), dir_.File("scratch"));
        env.CrashAt(n);
        const Status status = WriteFileAtomically(&env, File("m"), "new contents");
        finished = !env.crashed();
        EXPECT_EQ(status.ok(), finished);
        if (power_cut) env.DropUnsynced(names);
        env.Restart();
        const std::string found = *ReadWholeFile(&env, File("m"), 100);
        if (status.ok()) {
          EXPECT_EQ(found, "new contents");
        } else {
          EXPECT_TRUE(found == "old contents" || found == "new contents") << n << ": " << env.operations().back() << ": " << found;
        }
      }
    }
  }
}

TEST_F(FaultyEnvTest, WriteFileAtomicallyFailsCleanlyAtEveryOperation) {
  ASSERT_TRUE(WriteFileAtomically(Env::Default(), File("m"), "old").ok());
  for (uint64_t n = 1; n <= 5; ++n) {  // create, append, sync, close, rename
    FaultyEnv env(Env::Default(), dir_.File("scratch"));
    env.FailAt(n, PermissionDeniedError("no"));
    EXPECT_EQ(WriteFileAtomically(&env, File("m"), "new").code(), StatusCode::kPermissionDenied) << n;
    EXPECT_EQ(Contents("m"), "old") << n;
    EXPECT_THAT(Names(), ElementsAre("m")) << n;
    EXPECT_EQ(env.counters().open_writers, 0u) << n;
  }
}

}  // namespace
}  // namespace mxrec
