// Tables without memory: what fails leaves no half state. And the number that names contents.
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "mxrec/base/hash.h"
#include "mxrec/table/memory.h"
#include "mxrec/table/table.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

using testing::Contents;
using testing::Found;
using testing::LookUp;
using testing::MakeTable;
using testing::PartOf;
using testing::SlottedStep;
using testing::SmallOptions;
using testing::Spread;
using testing::Train;

// Allocations that fail, for the scope.
class ScarceMemory {
 public:
  explicit ScarceMemory(int64_t successes) { FailAllocationsForTesting(successes); }
  ~ScarceMemory() { FailAllocationsForTesting(-1); }
};

TEST(TableScarcityTest, AFirstUpdateThatRunsOutOfMemoryAnywhereLeavesTheTableAsItWas) {
  for (const bool filled : {false, true}) {
    const auto make = [filled] {
      auto table = MakeTable(SmallOptions(16));
      const Status status = table->Insert(Spread(0, filled ? 3000 : 0), nullptr, 0, nullptr, nullptr);
      EXPECT_TRUE(status.ok()) << status;
      return table;
    };
    SlottedStep updater("slotted", 16, 2);
    const std::vector<uint64_t> ids = Spread(2500, 9000);
    const auto undisturbed = make();
    ASSERT_TRUE(Train(undisturbed.get(), ids, 1.0f, &updater).ok());
    int failures = 0;
    for (int64_t n = 0;; ++n) {
      const auto table = make();
      const std::string before = Contents(*table);
      const Found found = LookUp(*table, ids);
      const std::vector<float> gradients(ids.size() * 16, 1.0f);
      const UpdatePart part = PartOf(found, gradients);
      const Status status = [&] {
        const ScarceMemory scarce(n);
        return table->Update({&part, 1}, &updater, {}, nullptr, nullptr);
      }();
      if (!status.ok()) {
        ++failures;
        ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
        ASSERT_EQ(table->slots().step, 0u) << "allocation " << n;
        ASSERT_TRUE(table->slots().optimizer_kind.empty()) << "allocation " << n;
        ASSERT_TRUE(Contents(*table) == before) << "allocation " << n;
        ASSERT_TRUE(Train(table.get(), ids, 1.0f, &updater).ok()) << "allocation " << n;
      }
      ASSERT_TRUE(Contents(*table) == Contents(*undisturbed)) << "allocation " << n;
      if (status.ok()) break;
    }
    EXPECT_GT(failures, 3);
  }
}

TEST(TableScarcityTest, ClearNeedsNoMemory) {
  auto table = MakeTable(SmallOptions(16));
  SlottedStep updater("slotted", 16, 3), other("other", 16, 1);
  ASSERT_TRUE(Train(table.get(), Spread(0, 5000), 1.0f, &updater).ok());
  {
    const ScarceMemory scarce(0);
    table->Clear();
    table->Clear();
  }
  EXPECT_EQ(table->size(), 0u);
  EXPECT_TRUE(table->slots().optimizer_kind.empty());
  EXPECT_EQ(LookUp(*table, {Mix64(1)}).handles[0], kUnseen);
  const auto fresh = MakeTable(SmallOptions(16));
  for (Table* each : {table.get(), fresh.get()}) ASSERT_TRUE(Train(each, Spread(0, 5000), 1.0f, &other).ok());
  EXPECT_TRUE(Contents(*table) == Contents(*fresh)) << "another optimizer starts on a cleared table as on a new one";
}

TEST(TableScarcityTest, ALoadThatFindsNoMemoryAnywhereLeavesAnEmptyTable) {
  auto from = MakeTable(SmallOptions(16));
  SlottedStep updater("slotted", 16, 2);
  ASSERT_TRUE(Train(from.get(), Spread(0, 3000), 1.0f, &updater).ok());
  for (int64_t n = 0;; ++n) {
    auto table = MakeTable(SmallOptions(16));
    ASSERT_TRUE(table->Insert(Spread(0, 10), nullptr, 0, nullptr, nullptr).ok());
    const Status status = [&] {
      const ScarceMemory scarce(n);
      return testing::CopyInto(*from, table.get());
    }();
    if (status.ok()) break;
    ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
    ASSERT_EQ(table->size(), 0u);
    ASSERT_TRUE(table->slots().optimizer_kind.empty());
    ASSERT_TRUE(testing::CopyInto(*from, table.get()).ok());
    ASSERT_TRUE(Contents(*table) == Contents(*from)) << "allocation " << n;
  }
}

TEST(TableContentTest, TheContentIdChangesWithEveryChangeAndWithNothingElse) {
  TableOptions options = SmallOptions(4);
  options.max_cold_secs = 10;
  auto table = MakeTable(options);
  uint64_t last = table->content_id();
  EXPECT_NE(MakeTable(options)->content_id(), last);
  const auto changed = [&] { return std::exchange(last, table->content_id()) != last; };
  SlottedStep updater("slotted", 4, 1);
  EXPECT_FALSE(changed());
  ASSERT_TRUE(Train(table.get(), {1, 2}, 1.0f, &updater).ok());
  EXPECT_TRUE(changed());
  ASSERT_TRUE(Train(table.get(), {}, 1.0f, &updater).ok());
  EXPECT_TRUE(changed()) << "the optimizer's step advanced";
  static_cast<void>(LookUp(*table, {1, 2, 3}));
  EXPECT_EQ(table->EvictCold(1000, nullptr), 0u);
  const uint64_t absent = 9, present = 1;
  EXPECT_EQ(table->Erase({&absent, 1}), 0u);
  SlottedStep foreign("foreign", 4, 2);
  EXPECT_FALSE(Train(table.get(), {1}, 1.0f, &foreign).ok());
  EXPECT_FALSE(changed());
  EXPECT_TRUE(table->ConfirmLoaded(last));
  EXPECT_FALSE(table->ConfirmLoaded(last + 1000));
  EXPECT_FALSE(changed());
  ASSERT_TRUE(Train(table.get(), {1}, 1.0f, &foreign).ok()) << "what counts as loaded may change its optimizer";
  EXPECT_TRUE(changed());
  EXPECT_EQ(table->Erase({&present, 1}), 1u);
  EXPECT_TRUE(changed());
  EXPECT_EQ(table->EvictCold(1'000'000, nullptr), 1u);
  EXPECT_TRUE(changed());
  table->Clear();
  EXPECT_TRUE(changed());
  ASSERT_TRUE(testing::CopyInto(*MakeTable(options), table.get()).ok());
  EXPECT_TRUE(changed());
}

}  // namespace
}  // namespace mxrec
