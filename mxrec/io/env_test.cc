#include "mxrec/io/env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "mxrec/io/test_dir.h"

namespace mxrec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class EnvTest : public testing::Test {
 protected:
  Status Write(const std::string& path, std::string_view data) {
    MXREC_ASSIGN_OR_RETURN(const auto file, env_->NewWritableFile(path));
    MXREC_RETURN_IF_ERROR(file->Append(data));
    return file->Close();
  }
  std::string Contents(const std::string& path) {
    auto data = ReadWholeFile(env_, path, 1 << 20);
    return data.ok() ? *data : data.status().ToString();
  }
  TestDir dir_;
  Env* env_ = Env::Default();
};

TEST_F(EnvTest, WritesAndReads) {
  const std::string path = dir_.File("a");
  auto file = std::move(env_->NewWritableFile(path)).value();
  ASSERT_TRUE(file->Append("hello ").ok());
  ASSERT_TRUE(file->Append("").ok());
  ASSERT_TRUE(file->Append("world").ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(file->Close().ok());
  EXPECT_EQ(Contents(path), "hello world");
  EXPECT_EQ(*env_->FileSize(path), 11u);
  ASSERT_TRUE(Write(path, "new").ok());  // truncates
  EXPECT_EQ(Contents(path), "new");
}

TEST_F(EnvTest, AClosedFileRefusesEverything) {
  auto file = std::move(env_->NewWritableFile(dir_.File("a"))).value();
  ASSERT_TRUE(file->Close().ok());
  for (const Status& status : {file->Append("x"), file->WriteAt(0, "x"), file->Sync(), file->Close()}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(dir_.File("a")));
  }
}

TEST_F(EnvTest, WriteAtFillsHolesInAnyOrderFromSeveralThreads) {
  const std::string path = dir_.File("a");
  auto file = std::move(env_->NewWritableFile(path)).value();
  std::vector<std::thread> threads;
  for (int t = 3; t >= 0; --t) {
    threads.emplace_back([&file, t] {
      for (int i = 0; i < 100; ++i) ASSERT_TRUE(file->WriteAt((i * 4 + t) * 10, std::string(10, static_cast<char>('a' + t))).ok());
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(file->Close().ok());
  const std::string data = Contents(path);
  ASSERT_EQ(data.size(), 4000u);
  for (size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], 'a' + static_cast<char>(i / 10 % 4));
}

TEST_F(EnvTest, OffsetsBeyondFourGigabytesWork) {
  const std::string path = dir_.File("sparse");
  const uint64_t offset = (uint64_t{5} << 30) + 1;
  auto file = std::move(env_->NewWritableFile(path)).value();
  ASSERT_TRUE(file->WriteAt(offset, "end").ok());
  ASSERT_TRUE(file->Close().ok());
  EXPECT_EQ(*env_->FileSize(path), offset + 3);
  const auto read = std::move(env_->NewRandomAccessFile(path)).value();
  std::string buffer(3, ' ');
  ASSERT_TRUE(read->ReadAt(offset, buffer).ok());
  EXPECT_EQ(buffer, "end");
}

TEST_F(EnvTest, AReadBeyondTheEndIsDataLossWithNumbers) {
  const std::string path = dir_.File("a");
  ASSERT_TRUE(Write(path, "0123456789").ok());
  const auto file = std::move(env_->NewRandomAccessFile(path)).value();
  EXPECT_EQ(file->size(), 10u);
  std::string buffer(4, ' ');
  ASSERT_TRUE(file->ReadAt(6, buffer).ok());
  EXPECT_EQ(buffer, "6789");
  const Status status = file->ReadAt(8, buffer);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), path + ": the file ends early: expected 4 bytes at offset 8, found 2");
}

TEST_F(EnvTest, MissingThingsAreNotFoundAndNamed) {
  const std::string path = dir_.File("none");
  const Status statuses[] = {env_->NewRandomAccessFile(path).status(),
                             env_->FileSize(path).status(),
                             env_->RemoveFile(path),
                             env_->Rename(path, dir_.File("b")),
                             env_->ListDir(path).status(),
                             env_->RemoveDir(path),
                             env_->SyncDir(path),
                             env_->NewWritableFile(path + "/x").status()};
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), StatusCode::kNotFound) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(path)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("No such file or directory")) << status;
  }
  EXPECT_FALSE(env_->FileExists(path));
}

TEST_F(EnvTest, LinkAndRenameKeepTheirRules) {
  ASSERT_TRUE(Write(dir_.File("a"), "A").ok());
  ASSERT_TRUE(Write(dir_.File("b"), "B").ok());
  EXPECT_EQ(env_->Link(dir_.File("a"), dir_.File("b")).code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(env_->Link(dir_.File("a"), dir_.File("c")).ok());
  ASSERT_TRUE(env_->Rename(dir_.File("a"), dir_.File("b")).ok());
  EXPECT_EQ(Contents(dir_.File("b")), "A");
  EXPECT_EQ(Contents(dir_.File("c")), "A");
  EXPECT_THAT(*env_->ListDir(dir_.path()), ElementsAre("b", "c"));
  ASSERT_TRUE(env_->RemoveFile(dir_.File("c")).ok());
  EXPECT_THAT(*env_->ListDir(dir_.path()), ElementsAre("b"));
}

TEST_F(EnvTest, FoldersAreMadeWithParentsAndRemovedWhenEmpty) {
  const std::string deep = dir_.File("x/y/z");
  ASSERT_TRUE(env_->CreateDirs(deep).ok());
  ASSERT_TRUE(env_->CreateDirs(deep).ok());
  ASSERT_TRUE(env_->CreateDirs(deep + "/").ok());
  ASSERT_TRUE(env_->SyncDir(deep).ok());
  ASSERT_TRUE(Write(deep + "/f", "1").ok());
  EXPECT_EQ(env_->RemoveDir(deep).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(env_->CreateDirs(deep + "/f").code(), StatusCode::kFailedPrecondition);
  const Status below_a_file = env_->CreateDirs(deep + "/f/g");
  EXPECT_EQ(below_a_file.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(below_a_file.message()), HasSubstr("expected a folder at " + deep + "/f, found a file"));
  ASSERT_TRUE(env_->RemoveFile(deep + "/f").ok());
  ASSERT_TRUE(env_->RemoveDir(deep).ok());
  EXPECT_FALSE(env_->FileExists(deep));
}

TEST_F(EnvTest, AFolderIsNotAFile) {
  EXPECT_EQ(env_->NewRandomAccessFile(dir_.path()).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(env_->NewWritableFile(dir_.path()).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(EnvTest, AFileAmongTheParentsIsNamedByEveryOperation) {
  ASSERT_TRUE(Write(dir_.File("file"), "x").ok());
  const std::string path = dir_.File("file/a/b");
  const Status statuses[] = {env_->NewRandomAccessFile(path).status(),
                             env_->NewWritableFile(path).status(),
                             env_->FileSize(path).status(),
                             env_->Identify(path).status(),
                             env_->RemoveFile(path),
                             env_->CreateDirs(path),
                             env_->ListDir(path).status(),
                             env_->SyncDir(path),
                             env_->ListDir(dir_.File("file")).status()};
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected a folder at " + dir_.File("file") + ", found a file")) << status;
  }
}

TEST_F(EnvTest, TheNamesOfAFileHaveOneIdentityAndAWriteChangesIt) {
  const std::string a = dir_.File("a"), b = dir_.File("b"), c = dir_.File("c");
  ASSERT_TRUE(Write(a, "1").ok());
  ASSERT_TRUE(Write(c, "1").ok());
  ASSERT_TRUE(env_->Link(a, b).ok());
  const FileIdentity before = env_->Identify(a).value();
  EXPECT_EQ(env_->Identify(b).value(), before);
  EXPECT_EQ(before.bytes, 1u);
  EXPECT_FALSE(env_->Identify(c).value().SameFile(before));
  ASSERT_TRUE(Write(a, "12").ok());
  EXPECT_TRUE(env_->Identify(b).value().SameFile(before));
  EXPECT_FALSE(env_->Identify(b).value() == before);
  EXPECT_EQ(env_->Identify(dir_.File("none")).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(env_->Identify(dir_.path()).ok());
}

TEST_F(EnvTest, OddNamesAreOrdinary) {
  for (const char* name : {"with blank", "\xC3\xA4\xE6\x97\xA5", "a\\b", "x\ny", "-f", "%s", "\xFF\xFE"}) {
    const std::string path = dir_.File(name);
    ASSERT_TRUE(WriteFileAtomically(env_, path, name).ok()) << name;
    EXPECT_EQ(Contents(path), name);
  }
  EXPECT_EQ(env_->NewWritableFile("").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(env_->NewWritableFile(std::string("a\0b", 3)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(env_->NewWritableFile(dir_.File(std::string(300, 'n'))).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(EnvTest, RefusedPermissionIsNamed) {
  // Root may write everywhere: become nobody for the call. The test's folder is its owner's alone.
  const uid_t self = geteuid();
  if (self == 0) {
    ASSERT_EQ(seteuid(65534), 0);
  } else {
    std::filesystem::permissions(dir_.path(), std::filesystem::perms::none);
  }
  const Status status = env_->NewWritableFile(dir_.File("a")).status();
  if (self == 0) {
    ASSERT_EQ(seteuid(self), 0);
  } else {
    std::filesystem::permissions(dir_.path(), std::filesystem::perms::owner_all);
  }
  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(status.message(), dir_.File("a") + ": cannot create: Permission denied");
}

TEST_F(EnvTest, AFullDiskIsResourceExhausted) {
  if (!env_->FileExists("/dev/full")) GTEST_SKIP() << "this machine has no /dev/full";
  auto file = std::move(env_->NewWritableFile("/dev/full")).value();
  const Status status = file->Append("x");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "/dev/full: cannot write at offset 0: No space left on device");
}

TEST_F(EnvTest, AtomicWriteReplacesAndLeavesNothingBehind) {
  const std::string path = dir_.File("m");
  ASSERT_TRUE(WriteFileAtomically(env_, path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(env_, path, "two").ok());
  EXPECT_EQ(Contents(path), "two");
  EXPECT_THAT(*env_->ListDir(dir_.path()), ElementsAre("m"));
  ASSERT_TRUE(env_->CreateDirs(dir_.File("d/e")).ok());
  EXPECT_FALSE(WriteFileAtomically(env_, dir_.File("d"), "x").ok());  // a folder is in the way
  EXPECT_THAT(*env_->ListDir(dir_.path()), ElementsAre("d", "m"));
}

TEST_F(EnvTest, ReadWholeFileHasALimit) {
  ASSERT_TRUE(Write(dir_.File("a"), "12345").ok());
  EXPECT_EQ(*ReadWholeFile(env_, dir_.File("a"), 5), "12345");
  const Status status = ReadWholeFile(env_, dir_.File("a"), 4).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 5 bytes, expected at most 4"));
}

TEST(PathTest, PartsOfPaths) {
  EXPECT_EQ(JoinPath("a/b", "c"), "a/b/c");
  EXPECT_EQ(JoinPath("a/", "c"), "a/c");
  EXPECT_EQ(JoinPath("", "c"), "c");
  EXPECT_EQ(JoinPath("/", "c"), "/c");
  EXPECT_EQ(DirName("a/b"), "a");
  EXPECT_EQ(DirName("a"), ".");
  EXPECT_EQ(DirName("/a"), "/");
  EXPECT_EQ(DirName("/"), "/");
  EXPECT_EQ(DirName("a//b/"), "a");
  EXPECT_EQ(DirName(""), ".");
  EXPECT_EQ(BaseName("a/b"), "b");
  EXPECT_EQ(BaseName("a/b/"), "b");
  EXPECT_EQ(BaseName("a"), "a");
  EXPECT_EQ(BaseName("/"), "/");
}

}  // namespace
}  // namespace mxrec
