// A real file system that gets full during a save: a tmpfs of a few megabytes, mounted where this process alone sees it.
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "gmock/gmock.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/ckpt/ckpt_test_util.h"

namespace mxrec {
namespace {

using testing::Contains;
using testing::ContentsOf;
using testing::KeysOf;
using testing::MakeTable;

const testing::Shape kShape{.dim = 16, .slots = 1};
constexpr size_t kDiskBytes = size_t{4} << 20;

class SmallDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // A mount namespace of our own: nobody else sees the disk, and it goes with this process.
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      GTEST_SKIP() << "this system allows no mount namespace: " << std::strerror(errno);
    }
    const std::string options = "size=" + std::to_string(kDiskBytes);
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", temp_.path().c_str(), "tmpfs", 0, options.c_str()) != 0) {
      GTEST_SKIP() << "this system allows no mount of a tmpfs: " << std::strerror(errno);
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) umount2(temp_.path().c_str(), MNT_DETACH);
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(temp_.path())) {
      if (!entry.is_directory()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  testing::TempDir temp_;
  bool mounted_ = false;
};

TEST_F(SmallDiskTest, ASaveThatFillsTheDiskFailsClearlyAndThePreviousCheckpointStays) {
  const auto old_table = MakeTable(kShape, KeysOf(2000)), large = MakeTable(kShape, KeysOf(60000), "user", 1);
  const auto medium = MakeTable(kShape, KeysOf(3000), "user", 2);
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const CheckpointIo io{.executor = &pool};
    const std::string dir = temp_.Join("checkpoints");
    const Table* tables[] = {old_table.get()};
    ASSERT_EQ(SaveCheckpoint(io, dir, tables, {.step = 1}), OkStatus());
    const auto before = Files();

    tables[0] = large.get();
    const Status status = SaveCheckpoint(io, dir, tables, {.step = 2});
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
    EXPECT_TRUE(Contains(status, dir + "/mxrec-2/user-")) << status;
    EXPECT_TRUE(Contains(status, "No space left on device")) << status;
    EXPECT_EQ(Files(), before) << "half a file is left";

    const std::string side = temp_.Join("model-2.data-00000-of-mxrec");
    const auto beside = WriteTableFile(io, *large, [&](uint64_t) { return side; });
    EXPECT_EQ(beside.status().code(), StatusCode::kResourceExhausted) << beside.status();
    EXPECT_TRUE(Contains(beside.status(), side)) << beside.status();
    EXPECT_EQ(Files(), before) << "half a file is left";

    EXPECT_EQ(LatestCheckpoint(io, dir).value(), 1u);
    const auto loaded = Table::Create(testing::OptionsOf(kShape)).value();
    Table* const into[] = {loaded.get()};
    const auto report = LoadCheckpoint(io, dir, 1, into, 0);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(ContentsOf(*loaded) == ContentsOf(*old_table));

    // The room of the failed save is free again.
    tables[0] = medium.get();
    EXPECT_EQ(SaveCheckpoint(io, dir, tables, {.step = 2}), OkStatus());
    EXPECT_TRUE(VerifyCheckpoint(io, dir, 2).ok());
    std::filesystem::remove_all(dir);
  }
}

TEST_F(SmallDiskTest, ADiskWithoutRoomForEvenTheManifestKeepsThePreviousCheckpoint) {
  const auto table = MakeTable(kShape, KeysOf(100)), changed = MakeTable(kShape, KeysOf(100), "user", 1);
  const Table* tables[] = {table.get()};
  const std::string dir = temp_.Join("checkpoints");
  ASSERT_EQ(SaveCheckpoint({}, dir, tables, {.step = 1}), OkStatus());
  // Fills the disk up to the last page, then gives back one page at a time until a save fits.
  std::vector<std::string> pages;
  for (;;) {
    pages.push_back(temp_.Join("page-" + std::to_string(pages.size())));
    const auto file = Env::Default()->NewWritableFile(pages.back());
    if (!file.ok() || !(*file)->Append(std::string(4096, 'x')).ok()) break;
  }
  tables[0] = changed.get();
  int failures = 0;
  for (;;) {
    const Status status = SaveCheckpoint({}, dir, tables, {.step = 2});
    const auto loaded = Table::Create(testing::OptionsOf(kShape)).value();
    Table* const into[] = {loaded.get()};
    const auto latest = LatestCheckpoint({}, dir).value();
    ASSERT_TRUE(latest.has_value());
    ASSERT_TRUE(LoadCheckpoint({}, dir, *latest, into, 0).ok());
    ASSERT_TRUE(ContentsOf(*loaded) == ContentsOf(*latest == 1 ? *table : *changed));
    if (status.ok()) {
      ASSERT_EQ(*latest, 2u);
      break;
    }
    ++failures;
    ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
    ASSERT_FALSE(pages.empty());
    ASSERT_EQ(Env::Default()->RemoveFile(pages.back()), OkStatus());
    pages.pop_back();
  }
  EXPECT_GT(failures, 2);
  for (const std::string& file : Files()) EXPECT_EQ(file.find(".tmp-"), std::string::npos) << file;
}

}  // namespace
}  // namespace mxrec
