#include "mxrec/comm/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "mxrec/io/test_dir.h"

namespace mxrec {
namespace {

using std::chrono::milliseconds;
Deadline In(milliseconds time) { return std::chrono::steady_clock::now() + time; }

class StoreTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { store_ = GetParam() ? MakeFileStore(dir_.path() + "/a/b").value() : MakeMemoryStore(); }
  TestDir dir_;
  std::shared_ptr<Store> store_;
};

TEST_P(StoreTest, AValueThatWasSetIsFoundByEverybody) {
  const std::string value("two\0lines\n", 10);
  ASSERT_TRUE(store_->Set("rank/0 name:%", value).ok());
  EXPECT_EQ(store_->Get("rank/0 name:%", In(milliseconds(0))).value(), value);
  ASSERT_TRUE(store_->Set("empty", "").ok());
  EXPECT_EQ(store_->Get("empty", In(milliseconds(0))).value(), "");
}

TEST_P(StoreTest, GetWaitsForTheValue) {
  std::thread setter([&] {
    std::this_thread::sleep_for(milliseconds(30));
    EXPECT_TRUE(store_->Set("late", "value").ok());
  });
  EXPECT_EQ(store_->Get("late", In(milliseconds(20'000))).value(), "value");
  setter.join();
}

TEST_P(StoreTest, AKeyThatNobodySetsIsNamedWhenTheTimeIsOver) {
  const auto value = store_->Get("rank/7", In(milliseconds(30)));
  EXPECT_EQ(value.status().code(), StatusCode::kCancelled);
  EXPECT_THAT(value.status().message(), testing::HasSubstr("'rank/7'"));
}

TEST_P(StoreTest, AKeyKeepsItsFirstValue) {
  ASSERT_TRUE(store_->Set("key", "one").ok());
  EXPECT_TRUE(store_->Set("key", "one").ok());
  EXPECT_EQ(store_->Set("key", "two").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(store_->Get("key", In(milliseconds(0))).value(), "one");
}

TEST_P(StoreTest, PrefixesKeepWorldsApart) {
  auto first = MakePrefixStore(store_, "world1/"), second = MakePrefixStore(store_, "world2/");
  ASSERT_TRUE(first->Set("key", "one").ok());
  ASSERT_TRUE(second->Set("key", "two").ok());
  EXPECT_EQ(first->Get("key", In(milliseconds(0))).value(), "one");
  EXPECT_EQ(store_->Get("world2/key", In(milliseconds(0))).value(), "two");
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreTest, testing::Bool(), [](const auto& info) { return info.param ? "File" : "Memory"; });

TEST(FileStoreTest, AFolderThatCannotBeMadeIsNamed) {
  EXPECT_THAT(MakeFileStore("/proc/no/such").status().message(), testing::HasSubstr("/proc/no"));
}

}  // namespace
}  // namespace mxrec
