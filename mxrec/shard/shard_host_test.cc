#include "mxrec/shard/shard_host.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/ckpt/one_file_env.h"
#include "mxrec/comm/controller/comm_test_util.h"
#include "mxrec/engine/clock.h"
#include "mxrec/io/test_dir.h"
#include "mxrec/optim/optimizer_test_util.h"
#include "mxrec/shard/row_wire.h"
#include "mxrec/table/owner.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

using std::chrono::milliseconds;
using testing::Contents;
using ::testing::HasSubstr;
using testing::ThreadWorld;

class FixedClock {
 public:
  explicit FixedClock(int64_t ms) { SetClockForTesting(ms); }
  ~FixedClock() { SetClockForTesting(-1); }
};

// Admission, times and slots; so files hold candidates too.
EmbeddingTableConfig Config(const std::string& distribution = "MP", const std::string& more = "") {
  const std::string json = R"({"name": "user", "dim": 3, "vocabulary": 100000, "min_used_times": 2, "max_cold_secs": 1000)" +
                           (distribution.empty() ? "" : R"(, "distribution": ")" + distribution + "\"") + more + "}";
  return EmbeddingTableConfig::FromJson(json).value();
}

float GradientAt(uint64_t id, uint64_t step, size_t column) {
  return 0.25f * static_cast<float>((id * 7 + step * 3 + column) % 9) - 1.0f;
}

// One update with those of the ids that the rank owns; the step's number is the table's.
void Train(EmbeddingTable& table, const std::vector<uint64_t>& ids, int rank = 0, int ranks = 1) {
  const auto optimizer = MakeOptimizer("adam").value();
  std::vector<uint64_t> own;
  for (const uint64_t id : ids) {
    if (OwnerOf(id, static_cast<uint32_t>(ranks), table.config().owner) == static_cast<uint32_t>(rank)) own.push_back(id);
  }
  const testing::Found found = testing::LookUp(table.table(), own);
  std::vector<float> gradients;
  for (const uint64_t id : own) {
    for (size_t c = 0; c < table.dim(); ++c) gradients.push_back(GradientAt(id, table.table().slots().step, c));
  }
  const UpdatePart part = testing::PartOf(found, gradients);
  ASSERT_EQ(table.Apply(*optimizer, testing::HyperValues(*optimizer), {&part, 1}, nullptr), OkStatus());
}

// Ids of a step: most come again in a later one and are admitted then, some only once.
std::vector<uint64_t> Ids(size_t count, uint64_t step) {
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(Mix64(i % 7 == 0 ? 1000 * step + i : i) >> (i % 3 == 0 ? 50 : 0));
  return ids;
}

// The file that one process writes.
std::string FileOf(const EmbeddingTable& table) {
  const TestDir dir;
  const std::string path = dir.File("one");
  EXPECT_TRUE(WriteTableFile({}, table.table(), [&](uint64_t) { return path; }).ok());
  return ReadWholeFile(Env::Default(), path, 1 << 30).value();
}

// Ranks that are threads, each with a host and, once opened, a table.
class Ranks {
 public:
  explicit Ranks(int size, milliseconds patience = milliseconds(20'000)) : world_(size) {
    for (int rank = 0; rank < size; ++rank) {
      ShardHostOptions options;
      options.rank = rank;
      options.size = size;
      options.patience = patience;
      options.call = [this, rank](int to, std::string_view request, Deadline deadline) {
        return world_[rank].Call(to, ShardHost::kService, request, deadline);
      };
      hosts_.push_back(std::make_unique<ShardHost>(options));
      tables_.emplace_back();
      world_[rank].Serve(ShardHost::kService,
                         [host = hosts_.back().get()](int from, std::string_view request) { return host->Answer(from, request); });
    }
  }
  int size() const { return static_cast<int>(hosts_.size()); }
  ShardHost& host(int rank) { return *hosts_[static_cast<size_t>(rank)]; }
  EmbeddingTable& table(int rank) { return *tables_[static_cast<size_t>(rank)]; }

  void Open(int rank, const EmbeddingTableConfig& config = Config()) {
    tables_[static_cast<size_t>(rank)] = host(rank).Open(config).value();
  }
  void OpenAll(const EmbeddingTableConfig& config = Config()) {
    for (int rank = 0; rank < size(); ++rank) Open(rank, config);
  }
  void TrainAll(const std::vector<uint64_t>& ids) {
    for (int rank = 0; rank < size(); ++rank) Train(table(rank), ids, rank, size());
  }
  // What rank `rank` writes to the path; its bytes.
  std::string Save(int rank, const std::string& path) {
    const Result<TableFileInfo> info = host(rank).WriteTable({}, table(rank), [&](uint64_t) { return path; });
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? ReadWholeFile(Env::Default(), path, 1 << 30).value() : "";
  }
  // What the ranks hold must be their shares of this table.
  void ExpectSharesOf(const EmbeddingTable& whole) {
    const TestDir dir;
    const std::string path = dir.File("whole");
    ASSERT_TRUE(WriteTableFile({}, whole.table(), [&](uint64_t) { return path; }).ok());
    uint64_t rows = 0;
    for (int rank = 0; rank < size(); ++rank) {
      const auto share = EmbeddingTable::Create(Config()).value();
      const LoadOptions options{.rank = static_cast<uint32_t>(rank), .rank_count = static_cast<uint32_t>(size())};
      ASSERT_TRUE(ReadTableFiles({}, {&path, 1}, &share->table(), 0, options).ok());
      EXPECT_TRUE(Contents(table(rank).table()) == Contents(share->table())) << "rank " << rank << " of " << size();
      rows += table(rank).table().size();
    }
    EXPECT_EQ(rows, whole.table().size());
  }

 private:
  std::vector<std::shared_ptr<EmbeddingTable>> tables_;
  std::vector<std::unique_ptr<ShardHost>> hosts_;
  ThreadWorld world_;  // ends first: then nobody asks any more
};

struct Resharding {
  int from, to;
  size_t ids;
};
class ReshardTest : public ::testing::TestWithParam<Resharding> {};

// Fact 24: rows, slots, counts, times, candidates, and what the next step makes of them.
TEST_P(ReshardTest, OneRankSavesTheFileOfOneProcessAndOneRankLoadsItForAny) {
  const auto [from, to, ids] = GetParam();
  const FixedClock clock(1'700'000'000'000);
  const TestDir dir;
  const std::string path = dir.File("saved");
  const auto alone = EmbeddingTable::Create(Config("")).value();
  {
    Ranks ranks(from);
    ranks.OpenAll();
    for (uint64_t step = 1; step <= 3; ++step) {
      ranks.TrainAll(Ids(ids, step));
      Train(*alone, Ids(ids, step));
    }
    EXPECT_TRUE(ranks.Save(from - 1, path) == FileOf(*alone));
  }
  Ranks ranks(to);
  ranks.OpenAll();
  const Result<LoadReport> report = ranks.host(0).ReadTable({}, ranks.table(0), path, false);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->file_optimizer_kind, "adam");
  ranks.ExpectSharesOf(*alone);
  ranks.TrainAll(Ids(ids, 4));
  Train(*alone, Ids(ids, 4));
  ranks.ExpectSharesOf(*alone);
  EXPECT_TRUE(ranks.Save(0, dir.File("again")) == FileOf(*alone));
}

std::vector<Resharding> Matrix() {
  std::vector<Resharding> all;
  for (int from = 1; from <= 4; ++from) {
    for (int to = 1; to <= 4; ++to) {
      // 3 ids leave ranks of 4 without rows.
      for (const size_t ids : {size_t{3}, size_t{500}}) all.push_back({from, to, ids});
    }
  }
  all.push_back({3, 2, 0});
  return all;
}
INSTANTIATE_TEST_SUITE_P(, ReshardTest, ::testing::ValuesIn(Matrix()), [](const auto& info) {
  return std::to_string(info.param.from) + "To" + std::to_string(info.param.to) + "With" + std::to_string(info.param.ids) + "Ids";
});

TEST(ShardHostTest, ManyBlocksARunAreMergedInOrder) {
  Ranks ranks(3);
  const EmbeddingTableConfig config =
      EmbeddingTableConfig::FromJson(R"({"name": "user", "dim": 512, "vocabulary": 9, "distribution": "MP"})").value();
  ranks.OpenAll(config);
  EmbeddingTableConfig one = config;
  one.distribution = Distribution::kNone;
  const auto alone = EmbeddingTable::Create(one).value();
  std::vector<uint64_t> ids(60'000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<uint64_t> own;
    for (const uint64_t id : ids) {
      if (id % 3 == static_cast<uint64_t>(rank)) own.push_back(id);
    }
    ASSERT_EQ(ranks.table(rank).Insert(own, nullptr, nullptr), OkStatus());
  }
  ASSERT_EQ(alone->Insert(ids, nullptr, nullptr), OkStatus());
  const TestDir dir;
  EXPECT_TRUE(ranks.Save(2, dir.File("x")) == FileOf(*alone));
}

TEST(ShardHostTest, ASaveWaitsForTheUpdateOfARankThatIsBehind) {
  Ranks ranks(2);
  ranks.OpenAll();
  Train(ranks.table(0), Ids(50, 1), 0, 2);
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(200));
    Train(ranks.table(1), Ids(50, 1), 1, 2);
  });
  const TestDir dir;
  const std::string saved = ranks.Save(0, dir.File("x"));
  late.join();
  const auto alone = EmbeddingTable::Create(Config("")).value();
  Train(*alone, Ids(50, 1));
  EXPECT_EQ(TableFileInfo(VerifyTableFile({}, dir.File("x")).value()).slots.step, 1u);
  EXPECT_FALSE(saved.empty());
}

TEST(ShardHostTest, ASaveOfARankThatIsBehindIsOfTheLaterUpdate) {
  Ranks ranks(2);
  ranks.OpenAll();
  Train(ranks.table(1), Ids(50, 1), 1, 2);
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(200));
    Train(ranks.table(0), Ids(50, 1), 0, 2);
  });
  const TestDir dir;
  ranks.Save(0, dir.File("x"));
  late.join();
  EXPECT_EQ(VerifyTableFile({}, dir.File("x"))->slots.step, 1u);
}

TEST(ShardHostTest, RanksThatNeverMeetAtAnUpdateAreNamedWithTheirUpdates) {
  Ranks ranks(3, milliseconds(300));
  ranks.OpenAll();
  for (int step = 0; step < 3; ++step) {
    Train(ranks.table(0), {1, 2, 3}, 0, 3);
    Train(ranks.table(1), {1, 2, 3}, 1, 3);
  }
  Train(ranks.table(2), {1, 2, 3}, 2, 3);
  const TestDir dir;
  Status status = ranks.host(0).WriteTable({}, ranks.table(0), [&](uint64_t) { return dir.File("x"); }).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("table \"user\": rank 2 has made 1 update of it, rank 0, which saves, has made 3 updates, still so after"));
  status = ranks.host(2).WriteTable({}, ranks.table(2), [&](uint64_t) { return dir.File("x"); }).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0 has made 3 updates of it, rank 2, which saves, has made 1 update, still so after"));
  EXPECT_FALSE(Env::Default()->FileExists(dir.File("x")));
  EXPECT_TRUE(Env::Default()->ListDir(dir.path())->empty());
}

TEST(ShardHostTest, ATableThatARankDoesNotHaveYetIsEmptyThereOrWaitedFor) {
  Ranks ranks(2, milliseconds(300));
  ranks.Open(0);
  const TestDir dir;
  ranks.Save(0, dir.File("new"));
  EXPECT_EQ(VerifyTableFile({}, dir.File("new"))->rows, 0u);
  Train(ranks.table(0), {2, 4, 2, 4}, 0, 2);
  const Status status = ranks.host(0).WriteTable({}, ranks.table(0), [&](uint64_t) { return dir.File("x"); }).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 has no such table in a session"));
}

TEST(ShardHostTest, ARankWithoutTheTableKeepsItsRowsForTheOneToCome) {
  const FixedClock clock(1'700'000'000'000);
  const TestDir dir;
  const std::string path = dir.File("saved");
  const auto alone = EmbeddingTable::Create(Config("")).value();
  for (uint64_t step = 1; step <= 2; ++step) Train(*alone, Ids(100, step));
  ASSERT_TRUE(WriteTableFile({}, alone->table(), [&](uint64_t) { return path; }).ok());
  Ranks ranks(2);
  ranks.Open(0);
  ASSERT_TRUE(ranks.host(0).ReadTable({}, ranks.table(0), path, false).ok());
  // It can be saved before rank 1 has a session.
  EXPECT_TRUE(ranks.Save(0, dir.File("at once")) == FileOf(*alone));
  EXPECT_THAT(std::string(ranks.host(1).Open(Config("MP", R"(, "non_finite": "skip")")).status().message()),
              HasSubstr("rank 0 has loaded rows for it, with another config than here (rank 1)"));
  ranks.Open(1);
  ranks.ExpectSharesOf(*alone);
}

TEST(ShardHostTest, AFileThatOnlyTheLoadingRankSeesIsReadThroughIt) {
  const FixedClock clock(1'700'000'000'000);
  const auto alone = EmbeddingTable::Create(Config("")).value();
  for (uint64_t step = 1; step <= 2; ++step) Train(*alone, Ids(3000, step));
  testing::OneFileEnv env("/nowhere/else/saved", FileOf(*alone));
  Ranks ranks(3);
  ranks.OpenAll();
  ranks.TrainAll({5, 6, 7, 5, 6, 7});  // filled: the file is checked before the rows go
  const Result<LoadReport> report = ranks.host(2).ReadTable({.env = &env}, ranks.table(2), "/nowhere/else/saved", false);
  ASSERT_TRUE(report.ok()) << report.status();
  ranks.ExpectSharesOf(*alone);
}

TEST(ShardHostTest, ADamagedFileTouchesNoRank) {
  const TestDir dir;
  const std::string path = dir.File("saved");
  Ranks ranks(2);
  ranks.OpenAll();
  ranks.TrainAll({1, 2, 3, 4, 1, 2, 3, 4});
  std::string bytes = ranks.Save(0, path);
  bytes[bytes.size() / 2] ^= 1;
  ASSERT_EQ(WriteFileAtomically(Env::Default(), path, bytes), OkStatus());
  const std::string before[] = {Contents(ranks.table(0).table()), Contents(ranks.table(1).table())};
  EXPECT_EQ(ranks.host(0).ReadTable({}, ranks.table(0), path, false).status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(Contents(ranks.table(0).table()) == before[0]);
  EXPECT_TRUE(Contents(ranks.table(1).table()) == before[1]);
}

TEST(ShardHostTest, AllRanksMayLoadAndEachReadsItsRowsOnce) {
  const FixedClock clock(1'700'000'000'000);
  const TestDir dir;
  const std::string path = dir.File("saved");
  const auto alone = EmbeddingTable::Create(Config("")).value();
  for (uint64_t step = 1; step <= 2; ++step) Train(*alone, Ids(500, step));
  ASSERT_TRUE(WriteTableFile({}, alone->table(), [&](uint64_t) { return path; }).ok());
  Ranks ranks(3);
  ranks.OpenAll();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] { EXPECT_TRUE(ranks.host(rank).ReadTable({}, ranks.table(rank), path, false).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  ranks.ExpectSharesOf(*alone);
  const uint64_t content = ranks.table(1).table().content_id();
  ASSERT_TRUE(ranks.host(0).ReadTable({}, ranks.table(0), path, false).ok());
  EXPECT_EQ(ranks.table(1).table().content_id(), content);
}

// A common mistake: every rank saves, all into one folder.
TEST(ShardHostTest, WhereAllRanksSaveUnderOnePathOneFileIsWritten) {
  const FixedClock clock(1'700'000'000'000);
  for (const char* distribution : {"MP", "DP"}) {
    const TestDir dir;
    const std::string path = dir.File("saved");
    const EmbeddingTableConfig config =
        EmbeddingTableConfig::FromJson(R"({"name": "user", "dim": 3, "vocabulary": 9, "max_cold_secs": 10, "distribution": ")" +
                                       std::string(distribution) + "\"}")
            .value();
    Ranks ranks(3);
    ranks.OpenAll(config);
    for (int rank = 0; rank < 3; ++rank)
      Train(ranks.table(rank), Ids(300, 1), distribution[0] == 'D' ? 0 : rank, distribution[0] == 'D' ? 1 : 3);
    std::vector<std::thread> threads;
    std::vector<uint64_t> tags(3);
    std::atomic<int> names{0};
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const Result<TableFileInfo> info = ranks.host(rank).WriteTable({}, ranks.table(rank), [&](uint64_t tag) {
          if (tag != 0) ++names;
          return path;
        });
        ASSERT_TRUE(info.ok()) << info.status();
        tags[static_cast<size_t>(rank)] = info->content_tag;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(tags, std::vector<uint64_t>(3, VerifyTableFile({}, path)->content_tag));
    EXPECT_EQ(names, 3);  // a name each: one was written, the others were found
  }
}

TEST(ShardHostTest, AReplicatedTableIsSavedAsTheSavingRankHasItAndLoadedByAll) {
  const FixedClock clock(1'700'000'000'000);
  const EmbeddingTableConfig config = Config("DP");
  const TestDir dir;
  Ranks ranks(2);
  ranks.OpenAll(config);
  for (int rank = 0; rank < 2; ++rank) Train(ranks.table(rank), {1, 2, 3, 1, 2, 3});
  const std::string saved = ranks.Save(1, dir.File("x"));
  EXPECT_TRUE(saved == FileOf(ranks.table(0)));
  for (int rank = 0; rank < 2; ++rank) Train(ranks.table(rank), {1, 2, 5});
  ASSERT_TRUE(ranks.host(0).ReadTable({}, ranks.table(0), dir.File("x"), false).ok());
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(FileOf(ranks.table(rank)) == saved);
}

// Another session of the process has a table of the same name, say for evaluation.
TEST(ShardHostTest, TheTableThatIsTrainedIsNotTakenForOneThatIsNot) {
  const FixedClock clock(1'700'000'000'000);
  const TestDir dir;
  Ranks ranks(2);
  ranks.OpenAll();
  ranks.TrainAll(Ids(40, 1));
  ranks.TrainAll(Ids(40, 2));
  const std::string saved = ranks.Save(0, dir.File("x"));
  ranks.TrainAll(Ids(40, 3));
  const std::string trained = Contents(ranks.table(1).table());
  const auto evaluated = ranks.host(0).Open(Config()).value();
  ASSERT_TRUE(ranks.host(0).ReadTable({}, *evaluated, dir.File("x"), false).ok());
  EXPECT_TRUE(Contents(ranks.table(1).table()) == trained);
  const auto other = ranks.host(1).Open(Config()).value();  // what rank 0 loaded for it
  EXPECT_EQ(other->table().slots().step, 2u);
  ranks.Save(0, dir.File("y"));
  EXPECT_EQ(VerifyTableFile({}, dir.File("y"))->slots.step, 3u);
}

TEST(ShardHostTest, TheRowsOfAClosedTableCanStillBeSavedAndTheirRankStaysForIt) {
  const FixedClock clock(1'700'000'000'000);
  const TestDir dir;
  Ranks ranks(2);
  ranks.OpenAll();
  ranks.TrainAll(Ids(40, 1));
  const std::string saved = ranks.Save(0, dir.File("x"));
  ranks.host(1).Close(&ranks.table(1));
  std::atomic<bool> left{false};
  std::thread leaving([&] {
    ranks.host(1).Leave();
    left = true;
  });
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_FALSE(left);
  EXPECT_TRUE(ranks.Save(0, dir.File("y")) == saved);
  ranks.host(0).Close(&ranks.table(0));
  leaving.join();
}

TEST(ShardHostTest, RowsForASessionThatIsClosedAgainAreGivenToNobody) {
  const TestDir dir;
  const std::string path = dir.File("saved");
  const auto alone = EmbeddingTable::Create(Config("")).value();
  Train(*alone, {1, 2, 3, 4, 1, 2, 3, 4});
  ASSERT_TRUE(WriteTableFile({}, alone->table(), [&](uint64_t) { return path; }).ok());
  Ranks ranks(2);
  const auto looked_at = ranks.host(0).Open(Config()).value();
  ASSERT_TRUE(ranks.host(0).ReadTable({}, *looked_at, path, false).ok());
  ranks.host(0).Close(looked_at.get());
  ranks.Open(1);
  EXPECT_EQ(ranks.table(1).table().size(), 0u);
}

TEST(ShardHostTest, TheRowsOfAClosedTableGoWhenNoRankNeedsThem) {
  Ranks ranks(2);
  ranks.OpenAll();
  ranks.TrainAll({1, 2, 3, 4});
  std::weak_ptr<EmbeddingTable> rows;
  {
    const auto other = ranks.host(1).Open(Config()).value();
    rows = other;
    Train(*other, {1, 3}, 1, 2);
    Train(*other, {1, 3}, 1, 2);
    ranks.host(1).Close(other.get());
  }
  for (int tries = 0; tries < 100 && !rows.expired(); ++tries) std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(rows.expired());
}

TEST(RowWireTest, WhatIsNoRowIsRefused) {
  const uint64_t keys[] = {1, 2};
  const float values[] = {1, 2, 3, 4};
  const std::string bytes = internal::EncodeRows({.count = 2, .keys = keys, .values = values}, 2, 0);
  EXPECT_EQ(internal::DecodeRows(bytes, 2, 0)->values.size(), 4u);
  EXPECT_FALSE(internal::DecodeRows(bytes, 3, 0).ok());
  EXPECT_FALSE(internal::DecodeRows(bytes.substr(0, bytes.size() - 1), 2, 0).ok());
  EXPECT_FALSE(internal::DecodeRows("", 2, 0).ok());
  EXPECT_FALSE(internal::DecodeCandidates("x").ok());
}

}  // namespace
}  // namespace mxrec
