// One table, one file: round trips, canonical bytes, damage, foreign layouts.
#include "mxrec/ckpt/table_load.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "mxrec/base/process_memory.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/ckpt/ckpt_test_util.h"
#include "mxrec/ckpt/format/names.h"
#include "mxrec/ckpt/format/table_file.h"
#include "mxrec/io/crc32c.h"
#include "mxrec/io/little_endian.h"

namespace mxrec {
namespace {

using testing::Contains;
using testing::ContentsOf;
using testing::KeysOf;
using testing::MakeTable;
using testing::OptionsOf;
using testing::ReadBytes;
using testing::Shape;
using testing::TempDir;

std::string Save(const Table& table, const std::string& path, Executor* executor = nullptr, ShardOf shard = {}) {
  const Result<TableFileInfo> info = WriteTableFile(
      {.executor = executor}, table, [&](uint64_t) { return path; }, shard);
  EXPECT_TRUE(info.ok()) << info.status();
  return path;
}

std::unique_ptr<Table> Load(const Shape& shape, const std::string& path, Executor* executor = nullptr) {
  std::unique_ptr<Table> table = Table::Create(OptionsOf(shape)).value();
  const Result<LoadReport> report = ReadTableFiles({.executor = executor}, {&path, 1}, table.get(), 123);
  EXPECT_TRUE(report.ok()) << report.status();
  return table;
}

TEST(TableFileTest, RoundTripOfEveryCombination) {
  TempDir dir;
  ThreadPool pool(4);
  for (const size_t slots : {0, 1, 2, 3}) {
    for (const bool counts : {false, true}) {
      for (const bool times : {false, true}) {
        for (const size_t candidates : {size_t{0}, size_t{777}}) {
          if (candidates != 0 && !counts) continue;
          for (const size_t rows : {0, 1, 7, 3000}) {
            const Shape shape{
                .dim = 5, .slots = slots, .counts = counts, .times = times, .candidates = candidates, .evicts = rows == 7};
            const auto table = MakeTable(shape, KeysOf(rows));
            const std::string path = Save(*table, dir.Join("a.mxt"), &pool);
            const Result<TableFileInfo> verified = VerifyTableFile({.executor = &pool}, path);
            ASSERT_TRUE(verified.ok()) << verified.status();
            EXPECT_EQ(verified->rows, rows);
            EXPECT_EQ(verified->candidates, candidates);
            EXPECT_EQ(verified->crc32c, Crc32c(ReadBytes(path)));
            const auto loaded = Load(shape, path, &pool);
            EXPECT_EQ(ContentsOf(*loaded), ContentsOf(*table)) << slots << counts << times << candidates << rows;
          }
        }
      }
    }
  }
}

TEST(TableFileTest, RowsOfManyBlocksRoundTrip) {
  TempDir dir;
  ThreadPool pool(3);
  const Shape shape{.dim = 300, .slots = 2};  // 3.6 KB a row: about 290 rows a block
  const auto table = MakeTable(shape, KeysOf(40000));
  const std::string path = Save(*table, dir.Join("a.mxt"), &pool);
  EXPECT_EQ(ContentsOf(*Load(shape, path, &pool)), ContentsOf(*table));
  const auto file = internal::TableFile::Open(Env::Default(), path).value();
  EXPECT_GT(file->layout().block_count, 2u * kShardCount);
  EXPECT_LE(file->layout().max_block_bytes, format::kBlockTargetBytes + 100);
}

TEST(TableFileTest, ManyCandidatesRoundTrip) {
  TempDir dir;
  ThreadPool pool(2);
  const Shape shape{.dim = 1, .slots = 0, .counts = true, .times = false, .candidates = 100000};
  const auto table = MakeTable(shape, {});
  EXPECT_EQ(ContentsOf(*Load(shape, Save(*table, dir.Join("a.mxt"), &pool), &pool)), ContentsOf(*table));
}

TEST(TableFileTest, ARowLongerThanABlockRoundTrips) {
  TempDir dir;
  const Shape shape{.dim = 400000, .slots = 1};
  const auto table = MakeTable(shape, KeysOf(3));
  EXPECT_EQ(ContentsOf(*Load(shape, Save(*table, dir.Join("a.mxt")))), ContentsOf(*table));
}

TEST(TableFileTest, D23_AnEmptyTableIsSavedAndLoaded) {
  TempDir dir;
  const Shape shape;
  const auto table = Table::Create(OptionsOf(shape)).value();
  const auto loaded = Load(shape, Save(*table, dir.Join("empty.mxt")));
  EXPECT_EQ(loaded->size(), 0u);
  EXPECT_EQ(ContentsOf(*loaded), ContentsOf(*table));
}

TEST(TableFileTest, EqualContentsGiveEqualBytesWhateverTheThreadsAndTheOrder) {
  TempDir dir;
  const Shape shape{.candidates = 50};
  std::vector<uint64_t> keys = KeysOf(5000);
  const std::string expected = ReadBytes(Save(*MakeTable(shape, keys), dir.Join("a.mxt")));
  std::mt19937_64 random(7);
  for (const int threads : {1, 2, 4, 16}) {
    std::shuffle(keys.begin(), keys.end(), random);
    const auto table = MakeTable(shape, keys);
    ThreadPool pool(threads);
    EXPECT_EQ(ReadBytes(Save(*table, dir.Join("b.mxt"), &pool)), expected) << threads;
    // Rows that came and went leave no trace.
    const auto loaded = Load(shape, dir.Join("b.mxt"), &pool);
    EXPECT_EQ(ReadBytes(Save(*loaded, dir.Join("c.mxt"), &pool)), expected) << threads;
  }
}

TEST(TableFileTest, TheTagFollowsTheContents) {
  TempDir dir;
  const Shape shape;
  std::vector<uint64_t> tags;
  const auto tag_of = [&](const Table& table) {
    return WriteTableFile({}, table, [&](uint64_t) { return dir.Join("t"); }).value().content_tag;
  };
  const auto table = MakeTable(shape, KeysOf(10));
  EXPECT_EQ(tag_of(*table), tag_of(*MakeTable(shape, KeysOf(10))));
  EXPECT_NE(tag_of(*table), tag_of(*MakeTable(shape, KeysOf(11))));
  EXPECT_NE(tag_of(*table), tag_of(*MakeTable(shape, KeysOf(10), "item")));
  EXPECT_NE(tag_of(*table), tag_of(*MakeTable(shape, KeysOf(10), "user", 1)));
}

TEST(TableFileTest, TheNameIsChosenByTheTagAndNothingElseIsLeft) {
  TempDir dir;
  const auto table = MakeTable({}, KeysOf(10));
  const std::string folder = dir.Join("neu er/Ordner ä");
  const auto info = WriteTableFile({}, *table, [&](uint64_t tag) { return JoinPath(folder, "x-" + format::Hex64(tag)); }).value();
  EXPECT_EQ(info.file, "x-" + format::Hex64(info.content_tag));
  EXPECT_THAT(Env::Default()->ListDir(folder).value(), ::testing::ElementsAre(info.file));
  const TableFileInfo read = ReadTableFileInfo({}, JoinPath(folder, info.file)).value();
  EXPECT_EQ(read.bytes, ReadBytes(JoinPath(folder, info.file)).size());
  EXPECT_EQ(read.content_tag, info.content_tag);
  EXPECT_EQ(read.crc32c, info.crc32c);
  EXPECT_EQ(read.table, "user");
  EXPECT_EQ(read.dim, 4u);
  EXPECT_EQ(read.seed, 77u);
  EXPECT_EQ(read.initializer, InitializerSpec());
  EXPECT_EQ(read.slots.optimizer_kind, "adam");
  EXPECT_EQ(read.slots.step, 41u);
  EXPECT_THAT(read.slots.scalars, ::testing::ElementsAre(0.9f, 0.999f));
}

// --- damage ---

class DamagedFileTest : public ::testing::Test {
 protected:
  // Every way of reading must refuse the bytes and leave an empty and a filled table as they were.
  void ExpectRefused(const std::string& bytes, const std::string& what, StatusCode* code = nullptr) {
    const std::string path = "damaged.mxt";
    testing::OneFileEnv env(path, bytes);
    const CheckpointIo io{.env = &env};
    const Result<TableFileInfo> verified = VerifyTableFile(io, path);
    ASSERT_FALSE(verified.ok()) << what;
    ASSERT_TRUE(verified.status().code() == StatusCode::kDataLoss || verified.status().code() == StatusCode::kUnimplemented)
        << what << ": " << verified.status();
    EXPECT_TRUE(Contains(verified.status(), path)) << verified.status();
    const Result<LoadReport> into_empty = ReadTableFiles(io, {&path, 1}, empty_.get(), 0);
    ASSERT_FALSE(into_empty.ok()) << what;
    ASSERT_EQ(empty_->size(), 0u) << what;
    ASSERT_EQ(empty_->TakeSnapshot()->candidates(), 0u) << what;
    const Result<LoadReport> into_filled = ReadTableFiles(io, {&path, 1}, filled_.get(), 0);
    ASSERT_FALSE(into_filled.ok()) << what;
    ASSERT_EQ(filled_->size(), 3u) << what;
    if (code != nullptr) *code = verified.status().code();
    last_ = verified.status();
  }

  TempDir dir_;
  const Shape shape_{.dim = 2, .slots = 1, .candidates = 2};
  std::unique_ptr<Table> empty_ = Table::Create(OptionsOf(shape_)).value();
  std::unique_ptr<Table> filled_ = MakeTable(shape_, KeysOf(3, 500));
  const testing::Contents filled_before_ = ContentsOf(*filled_);
  const std::string good_ = ReadBytes(Save(*MakeTable(shape_, KeysOf(6)), dir_.Join("good.mxt")));
  Status last_;
};

TEST_F(DamagedFileTest, EveryFlippedBitIsRefused) {
  for (size_t i = 0; i < good_.size(); ++i) {
    std::string bytes = good_;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
    ExpectRefused(bytes, "byte " + std::to_string(i));
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(ContentsOf(*filled_), filled_before_);
  EXPECT_TRUE(empty_->slots().optimizer_kind.empty());
}

TEST_F(DamagedFileTest, EveryReplacedByteIsRefused) {
  for (size_t i = 0; i < good_.size(); ++i) {
    for (const int with : {0x00, 0xFF, 0x20}) {
      std::string bytes = good_;
      if (bytes[i] == static_cast<char>(with)) continue;
      bytes[i] = static_cast<char>(with);
      testing::OneFileEnv env("damaged.mxt", bytes);
      ASSERT_FALSE(VerifyTableFile({.env = &env}, "damaged.mxt").ok()) << i;
    }
  }
}

TEST_F(DamagedFileTest, EveryTruncationIsRefused) {
  for (size_t length = 0; length < good_.size(); ++length) {
    StatusCode code{};
    ExpectRefused(good_.substr(0, length), "length " + std::to_string(length), &code);
    if (HasFatalFailure()) return;
    ASSERT_EQ(code, StatusCode::kDataLoss) << length;
  }
  EXPECT_EQ(ContentsOf(*filled_), filled_before_);
}

TEST_F(DamagedFileTest, BytesAppendedAreRefused) {
  ExpectRefused(good_ + '\0', "one more byte");
  EXPECT_TRUE(Contains(last_, "length of the file: expected " + std::to_string(good_.size()))) << last_;
  ExpectRefused(good_ + good_, "twice");
}

TEST_F(DamagedFileTest, AForeignFileIsRefusedByItsFirstBytes) {
  StatusCode code{};
  ExpectRefused("PK\x03\x04 and so on, long enough to hold a header of ours", "zip", &code);
  EXPECT_EQ(code, StatusCode::kDataLoss);
  EXPECT_TRUE(Contains(last_, "expected \"MXRECTAB\", found \"PK\\x03\\x04 and\"")) << last_;
  ExpectRefused(std::string(100000, '\0'), "zeros");
}

TEST_F(DamagedFileTest, ANewerVersionIsRefusedByItsNumbers) {
  std::string bytes = good_;
  StoreLittleEndian<uint32_t>(7, bytes.data() + 8);
  StatusCode code{};
  ExpectRefused(bytes, "version 7", &code);
  EXPECT_EQ(code, StatusCode::kUnimplemented);
  EXPECT_TRUE(Contains(last_, "version 7; this build reads up to version 3")) << last_;
}

TEST_F(DamagedFileTest, TheMessageNamesTheBlock) {
  std::string bytes = good_;
  const auto file = internal::TableFile::Open(Env::Default(), dir_.Join("good.mxt")).value();
  const auto& runs = file->layout().runs;
  const auto run = std::find_if(runs.begin(), runs.end(), [](const auto& r) { return r.records != 0; });
  bytes[run->offset + format::kFrameBytes] ^= 1;
  ExpectRefused(bytes, "payload");
  EXPECT_TRUE(Contains(last_, "block 0 at offset " + std::to_string(run->offset) + ", CRC32C: expected ")) << last_;
}

TEST_F(DamagedFileTest, SwappedBlocksAreRefused) {
  const auto file = internal::TableFile::Open(Env::Default(), dir_.Join("good.mxt")).value();
  std::vector<format::BlockPlace> places;
  for (const auto& run : file->layout().runs) {
    for (uint64_t i = 0; i < run.block_count(); ++i) places.push_back(run.place(i));
  }
  bool tried = false;
  for (size_t i = 0; i + 1 < places.size() && !tried; ++i) {
    if (places[i].bytes() != places[i + 1].bytes() || places[i].kind != places[i + 1].kind) continue;
    std::string bytes = good_;
    std::swap_ranges(bytes.begin() + places[i].offset, bytes.begin() + places[i].offset + places[i].bytes(),
                     bytes.begin() + places[i + 1].offset);
    ExpectRefused(bytes, "swapped");
    EXPECT_TRUE(Contains(last_, "number: expected ")) << last_;
    tried = true;
  }
  EXPECT_TRUE(tried);
}

TEST_F(DamagedFileTest, ADirectoryOrNoFileIsNoTableFile) {
  const std::string none = dir_.Join("none");
  EXPECT_EQ(ReadTableFiles({}, {&none, 1}, filled_.get(), 0).status().code(), StatusCode::kNotFound);
  const std::string folder = dir_.path();
  EXPECT_FALSE(ReadTableFiles({}, {&folder, 1}, filled_.get(), 0).ok());
  EXPECT_EQ(ContentsOf(*filled_), filled_before_);
}

// --- loading into what is there ---

TEST(LoadTest, AFilledTableIsReplaced) {
  TempDir dir;
  const Shape shape{.candidates = 5};
  const auto saved = MakeTable(shape, KeysOf(100));
  const std::string path = Save(*saved, dir.Join("a.mxt"));
  const auto table = MakeTable(shape, KeysOf(300, 50));
  const LoadReport report = ReadTableFiles({}, {&path, 1}, table.get(), 0).value();
  EXPECT_EQ(report.rows, 100u);
  EXPECT_EQ(report.candidates, 5u);
  EXPECT_FALSE(report.slots_fresh);
  EXPECT_FALSE(report.seed_differs);
  EXPECT_EQ(ContentsOf(*table), ContentsOf(*saved));
}

TEST(LoadTest, AnotherDimIsRefusedNamingBoth) {
  TempDir dir;
  const std::string path = Save(*MakeTable({.dim = 8}, KeysOf(10)), dir.Join("a.mxt"));
  const auto table = MakeTable({.dim = 4}, KeysOf(3));
  const auto before = ContentsOf(*table);
  const Status status = ReadTableFiles({}, {&path, 1}, table.get(), 0).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Contains(status, "dim 4") && Contains(status, "dim 8") && Contains(status, path)) << status;
  EXPECT_EQ(ContentsOf(*table), before);
}

TEST(LoadTest, SlotsOfAnotherOptimizerStartAfresh) {
  TempDir dir;
  const auto saved = MakeTable({.slots = 2}, KeysOf(100));
  const std::string path = Save(*saved, dir.Join("a.mxt"));
  const auto table = MakeTable({.slots = 1}, KeysOf(3));
  const LoadReport report = ReadTableFiles({}, {&path, 1}, table.get(), 0).value();
  EXPECT_TRUE(report.slots_fresh);
  EXPECT_EQ(report.file_optimizer_kind, "adam");
  EXPECT_EQ(table->slots().optimizer_kind, "");
  const auto expected = ContentsOf(*saved), found = ContentsOf(*table);
  ASSERT_EQ(found.rows.size(), 100u);
  for (const auto& [key, row] : expected.rows) {
    EXPECT_EQ(found.rows.at(key).values, row.values);
    EXPECT_EQ(found.rows.at(key).count, row.count);
    EXPECT_TRUE(found.rows.at(key).slots.empty());
  }
}

TEST(LoadTest, RowsOnlyLeavesTheOptimizerOut) {
  TempDir dir;
  const auto saved = MakeTable({.slots = 2}, KeysOf(100));
  const std::string path = Save(*saved, dir.Join("a.mxt"));
  // An empty table, one with the same optimizer, and one that holds just what the file does.
  for (const auto& table :
       {Table::Create(OptionsOf({.slots = 2})).value(), MakeTable({.slots = 2}, KeysOf(3)), MakeTable({.slots = 2}, KeysOf(100))}) {
    const LoadReport report = ReadTableFiles({}, {&path, 1}, table.get(), 0, {.rows_only = true}).value();
    EXPECT_FALSE(report.slots_fresh);
    EXPECT_EQ(report.file_optimizer_kind, "adam");
    EXPECT_EQ(table->slots().optimizer_kind, "");
    EXPECT_EQ(table->slots().step, 0u);
    const auto expected = ContentsOf(*saved), found = ContentsOf(*table);
    ASSERT_EQ(found.rows.size(), 100u);
    for (const auto& [key, row] : expected.rows) {
      EXPECT_EQ(found.rows.at(key).values, row.values);
      EXPECT_EQ(found.rows.at(key).count, row.count);
      EXPECT_TRUE(found.rows.at(key).slots.empty());
    }
  }
}

TEST(LoadTest, TheRunningOptimizersStartValuesStay) {
  TempDir dir;
  const Shape shape{.slots = 1};
  const std::string path = Save(*MakeTable(shape, KeysOf(10)), dir.Join("a.mxt"));
  const auto table = Table::Create(OptionsOf(shape)).value();
  SlotRecord record = testing::RecordOf(shape);
  record.slot_initial_values = {0.75f};
  record.step = 2;
  table->BeginLoad(record, 0, 0).value()->Commit();
  ASSERT_TRUE(ReadTableFiles({}, {&path, 1}, table.get(), 0).ok());
  EXPECT_THAT(table->slots().slot_initial_values, ::testing::ElementsAre(0.75f));
  EXPECT_EQ(table->slots().step, 41u);
}

TEST(LoadTest, CountsAndTimesThatOneSideLacksAreFilledInOrDropped) {
  TempDir dir;
  const auto full = MakeTable({}, KeysOf(20));
  const std::string with = Save(*full, dir.Join("with.mxt"));
  const std::string without = Save(*MakeTable({.counts = false, .times = false}, KeysOf(20)), dir.Join("without.mxt"));
  const auto dropped = ContentsOf(*Load({.counts = false, .times = false}, with));
  const auto filled = ContentsOf(*Load({}, without));
  ASSERT_EQ(dropped.rows.size(), 20u);
  ASSERT_EQ(filled.rows.size(), 20u);
  for (const auto& [key, row] : filled.rows) {
    EXPECT_EQ(row.count, 0u);
    EXPECT_EQ(row.time, 123u);
    EXPECT_EQ(row.values, dropped.rows.at(key).values);
  }
}

TEST(LoadTest, AnotherSeedIsReported) {
  TempDir dir;
  const std::string path = Save(*MakeTable({}, KeysOf(5)), dir.Join("a.mxt"));
  TableOptions options = OptionsOf({});
  options.seed = 78;
  const auto table = Table::Create(options).value();
  EXPECT_TRUE(ReadTableFiles({}, {&path, 1}, table.get(), 0).value().seed_differs);
}

TEST(LoadTest, MoreRowsThanAFixedCapacityAreRefusedBeforeAnythingIsTouched) {
  TempDir dir;
  const std::string path = Save(*MakeTable({}, KeysOf(50)), dir.Join("a.mxt"));
  TableOptions options = OptionsOf({});
  options.capacity_policy = CapacityPolicy::kError;
  options.capacity_rows = 49;
  const auto table = Table::Create(options).value();
  const uint64_t key = 5;
  ASSERT_EQ(table->Insert({&key, 1}, nullptr, 0, nullptr, nullptr), OkStatus());
  const Status status = ReadTableFiles({}, {&path, 1}, table.get(), 0).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Contains(status, "50 rows") && Contains(status, "49 rows")) << status;
  EXPECT_EQ(table->size(), 1u);
}

TEST(LoadTest, EvictionByCapacityGoesOnAfterALoadAsIfNothingHadHappened) {
  for (const EvictBy by : {EvictBy::kLru, EvictBy::kLfu}) {
    TempDir dir;
    TableOptions options = OptionsOf({.counts = false, .times = false});
    options.capacity_policy = CapacityPolicy::kEvict;
    options.capacity_rows = 3000;
    options.max_bytes = 150'000;
    options.evict_by = by;
    const auto table = Table::Create(options).value();
    const auto train = [](Table* trained, uint64_t step) {
      std::vector<uint64_t> keys;
      for (uint64_t i = 0; i < 100; ++i)
        keys.push_back(Mix64(i % 2 == 0 ? step * 100 + i : (step * 37 + i * i) % (step * 100 + 1)));
      ASSERT_EQ(trained->Insert(keys, nullptr, 0, nullptr, nullptr), OkStatus());
    };
    for (uint64_t step = 0; step < 150; ++step) train(table.get(), step);
    EXPECT_GT(table->stats().evictions, 1000u);
    const std::string path = Save(*table, dir.Join("a.mxt"));
    const auto loaded = Table::Create(options).value();
    ASSERT_TRUE(ReadTableFiles({}, {&path, 1}, loaded.get(), 0).ok());
    EXPECT_EQ(ContentsOf(*loaded), ContentsOf(*table));
    for (uint64_t step = 150; step < 200; ++step) {
      train(table.get(), step);
      train(loaded.get(), step);
    }
    EXPECT_EQ(ContentsOf(*loaded), ContentsOf(*table));
    EXPECT_EQ(ReadBytes(Save(*loaded, dir.Join("b.mxt"))), ReadBytes(Save(*table, dir.Join("c.mxt"))));

    // Tables that do not evict read it; those that do read older files.
    options.capacity_policy = CapacityPolicy::kGrow;
    const auto growing = Table::Create(options).value();
    ASSERT_TRUE(ReadTableFiles({}, {&path, 1}, growing.get(), 0).ok());
    EXPECT_GT(growing->size(), 1000u);
    const std::string older = Save(*growing, dir.Join("d.mxt"));
    options.capacity_policy = CapacityPolicy::kEvict;
    options.capacity_rows = growing->size() / 2;
    const auto smaller = Table::Create(options).value();
    ASSERT_TRUE(ReadTableFiles({}, {&older, 1}, smaller.get(), 0).ok());
    EXPECT_EQ(smaller->size(), options.capacity_rows);
    // A file of more than it holds is not taken for its contents.
    const std::string kept = Save(*smaller, dir.Join("e.mxt"));
    EXPECT_NE(ReadBytes(kept), ReadBytes(older));
  }
}

TEST(LoadTest, EveryRankKeepsTheStampsOfItsRows) {
  TempDir dir;
  const Shape shape{.evicts = true};
  const auto table = MakeTable(shape, KeysOf(500));
  const std::string path = Save(*table, dir.Join("a.mxt"));
  const auto whole = ContentsOf(*table);
  size_t rows = 0;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const auto part = Table::Create(OptionsOf(shape)).value();
    ASSERT_TRUE(ReadTableFiles({}, {&path, 1}, part.get(), 0, {.rank = rank, .rank_count = 3}).ok());
    const auto contents = ContentsOf(*part);
    rows += contents.rows.size();
    for (const auto& [key, row] : contents.rows) EXPECT_EQ(row, whole.rows.at(key));
  }
  EXPECT_EQ(rows, 500u);
}

TEST(LoadTest, ProgressEndsAtTheTotalAndCanCancel) {
  TempDir dir;
  const auto table = MakeTable({.dim = 64}, KeysOf(20000));
  std::mutex mutex;
  uint64_t last = 0, total = 0;
  CheckpointIo io;
  io.progress = [&](uint64_t done, uint64_t of) {
    const std::lock_guard<std::mutex> lock(mutex);
    last = std::max(last, done);
    total = of;
    return true;
  };
  const std::string path = dir.Join("a.mxt");
  ASSERT_TRUE(WriteTableFile(io, *table, [&](uint64_t) { return path; }).ok());
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, std::filesystem::file_size(path));
  last = 0;
  const auto loaded = Table::Create(OptionsOf({.dim = 64})).value();
  ASSERT_TRUE(ReadTableFiles(io, {&path, 1}, loaded.get(), 0).ok());
  EXPECT_EQ(last, total);

  io.progress = [](uint64_t done, uint64_t) { return done < 3000000; };
  const auto other = MakeTable({.dim = 64}, KeysOf(20000), "user", /*salt=*/1);
  const auto status = WriteTableFile(io, *other, [&](uint64_t) { return dir.Join("b.mxt"); }).status();
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_THAT(Env::Default()->ListDir(dir.path()).value(), ::testing::ElementsAre("a.mxt"));
  const auto half = Table::Create(OptionsOf({.dim = 64})).value();
  EXPECT_EQ(ReadTableFiles(io, {&path, 1}, half.get(), 0).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(half->size(), 0u);

  // A file that need not be written again is no way around it.
  io.progress = [](uint64_t, uint64_t) { return false; };
  EXPECT_EQ(WriteTableFile(io, *table, [&](uint64_t) { return dir.Join("c.mxt"); }).status().code(), StatusCode::kCancelled);
  EXPECT_THAT(Env::Default()->ListDir(dir.path()).value(), ::testing::ElementsAre("a.mxt"));
}

// --- ranks ---

TEST(OwnerTest, D4_EveryKeyHasOneOwnerByFloorModulo) {
  EXPECT_EQ(OwnerOf(static_cast<uint64_t>(-1), 3), 2u);
  EXPECT_EQ(OwnerOf(static_cast<uint64_t>(-7), 3), 2u);
  EXPECT_EQ(OwnerOf(uint64_t{1} << 63, 3), 1u);
  EXPECT_EQ(OwnerOf(7, 3), 1u);
  EXPECT_EQ(OwnerOf(static_cast<uint64_t>(-6), 3), 0u);
  EXPECT_EQ(OwnerOf(~uint64_t{0}, 1), 0u);
  EXPECT_EQ(OwnerOf((uint64_t{1} << 63) + 1, 0x80000000u), 1u);
}

TEST(ShardsTest, D33_ThreeFilesLoadOnOneTwoFourAndSevenRanks) {
  TempDir dir;
  const Shape shape{.candidates = 300};
  const auto all = MakeTable(shape, KeysOf(2000));
  // Three ranks, each with its own part of the rows and candidates.
  const std::string whole = Save(*all, dir.Join("whole.mxt"));
  std::vector<std::string> paths;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const auto part = Table::Create(OptionsOf(shape)).value();
    ASSERT_TRUE(ReadTableFiles({}, {&whole, 1}, part.get(), 0, {.rank = rank, .rank_count = 3}).ok());
    for (const auto& [key, row] : ContentsOf(*part).rows) ASSERT_EQ(OwnerOf(key, 3), rank);
    paths.push_back(Save(*part, dir.Join("part" + std::to_string(rank)), nullptr, {.shard = rank, .shard_count = 3}));
  }
  std::rotate(paths.begin(), paths.begin() + 1, paths.end());  // in any order
  ThreadPool pool(3);
  for (const uint32_t ranks : {1u, 2u, 4u, 7u}) {
    testing::Contents sum;
    uint64_t rows = 0, candidates = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const auto table = Table::Create(OptionsOf(shape)).value();
      const LoadReport report =
          ReadTableFiles({.executor = &pool}, paths, table.get(), 0, {.rank = rank, .rank_count = ranks}).value();
      const auto contents = ContentsOf(*table);
      EXPECT_EQ(report.rows, contents.rows.size());
      EXPECT_EQ(report.candidates, contents.candidates.size());
      for (const auto& [key, row] : contents.rows) ASSERT_EQ(OwnerOf(key, ranks), rank);
      for (const auto& [key, row] : contents.candidates) ASSERT_EQ(OwnerOf(key, ranks), rank);
      rows += report.rows;
      candidates += report.candidates;
      auto parts = contents;
      sum.rows.merge(parts.rows);
      sum.candidates.merge(parts.candidates);
      parts.rows = sum.rows;
      parts.candidates = sum.candidates;
      sum = parts;
    }
    EXPECT_EQ(rows, 2000u);
    EXPECT_EQ(candidates, 300u);
    EXPECT_EQ(sum, ContentsOf(*all)) << ranks;
  }
}

TEST(ShardsTest, MissingDoubledOrForeignShardsAreRefused) {
  TempDir dir;
  const auto table = MakeTable({}, KeysOf(10));
  const std::string a = Save(*table, dir.Join("a"), nullptr, {.shard = 0, .shard_count = 2});
  const std::string b = Save(*MakeTable({}, {}), dir.Join("b"), nullptr, {.shard = 1, .shard_count = 2});
  const std::string other = Save(*MakeTable({}, {}, "item"), dir.Join("other"), nullptr, {.shard = 1, .shard_count = 2});
  const auto target = Table::Create(OptionsOf({})).value();
  const auto load = [&](std::vector<std::string> paths) { return ReadTableFiles({}, paths, target.get(), 0).status(); };
  EXPECT_EQ(load({a, b}), OkStatus());
  EXPECT_EQ(load({a}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(load({b}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(load({a, a}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(load({a, b, b}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(load({a, other}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(load({}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Contains(load({a}), "expected 2 shards, found 1")) << load({a});
  EXPECT_EQ(target->size(), 10u);
}

TEST(ShardsTest, AnIdInTwoFilesIsRefused) {
  TempDir dir;
  const auto table = MakeTable({}, KeysOf(10));
  const std::vector<std::string> paths = {Save(*table, dir.Join("a"), nullptr, {.shard = 0, .shard_count = 2}),
                                          Save(*table, dir.Join("b"), nullptr, {.shard = 1, .shard_count = 2})};
  const auto target = Table::Create(OptionsOf({})).value();
  EXPECT_EQ(ReadTableFiles({}, paths, target.get(), 0).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(target->size(), 0u);
}

// --- faults that others had ---

TEST(RestoreTest, D22_ASaveDuringInsertsHoldsWholeRows) {
  TempDir dir;
  const Shape shape{.dim = 16, .slots = 2};
  const auto table = MakeTable(shape, KeysOf(1000));
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t next = 0; !stop; next += 64) {
      std::vector<uint64_t> keys;
      for (uint64_t k = 0; k < 64; ++k) keys.push_back(Mix64(5000000 + (next + k) % 5000));
      ASSERT_EQ(table->Insert(keys, nullptr, 1, nullptr, nullptr), OkStatus());
    }
  });
  ThreadPool pool(2);
  for (int i = 0; i < 5; ++i) {
    const std::string path = Save(*table, dir.Join("a.mxt"), &pool);
    const auto loaded = Load(shape, path, &pool);
    const auto contents = ContentsOf(*loaded);
    EXPECT_EQ(contents.rows.size(), ReadTableFileInfo({}, path).value().rows);
    for (const auto& [key, row] : contents.rows) {
      ASSERT_EQ(row.values.size(), 16u);
      ASSERT_EQ(row.slots.size(), 32u);
      for (const uint32_t bits : row.values) ASSERT_TRUE(std::isfinite(std::bit_cast<float>(bits)));
      for (const uint32_t bits : row.slots) ASSERT_TRUE(std::isfinite(std::bit_cast<float>(bits)));
    }
  }
  stop = true;
  writer.join();
}

TEST(RestoreTest, D28_MemoryStaysFlatOverFiftyRestores) {
  TempDir dir;
  const Shape shape{.dim = 32, .slots = 1};
  const auto table = MakeTable(shape, KeysOf(20000));
  const std::string path = Save(*table, dir.Join("a.mxt"));
  uint64_t after_second = 0;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(ReadTableFiles({}, {&path, 1}, table.get(), 0).ok());
    if (i == 1) after_second = ResidentBytes();
  }
  EXPECT_LE(ResidentBytes(), after_second + after_second / 20 + (2u << 20));
}

TEST(RestoreTest, D29_EveryRowKeepsItsOwnValues) {
  TempDir dir;
  const Shape shape{.dim = 3, .slots = 0};
  const std::vector<uint64_t> keys = KeysOf(1000);
  const auto loaded = Load(shape, Save(*MakeTable(shape, keys), dir.Join("a.mxt")));
  std::vector<float> values(keys.size() * 3);
  const auto found = std::make_unique<bool[]>(keys.size());
  InlineExecutor inline_executor;
  loaded->Find(keys, values.data(), found.get(), &inline_executor);
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_TRUE(found[i]);
    for (size_t c = 0; c < 3; ++c) ASSERT_EQ(values[i * 3 + c], testing::ValueOf(keys[i], c, 0)) << keys[i];
  }
}

TEST(RestoreTest, D30_CountsAndTimesSurviveSoEvictionGoesOn) {
  TempDir dir;
  const Shape shape{.candidates = 10};
  const auto table = MakeTable(shape, KeysOf(1000));
  const auto loaded = Load(shape, Save(*table, dir.Join("a.mxt")));
  const int64_t now = 5000 + 500 + 101000;  // some are cold by then
  const uint64_t gone = table->EvictCold(now, nullptr);
  EXPECT_GT(gone, 100u);
  EXPECT_LT(gone, 900u);
  EXPECT_EQ(loaded->EvictCold(now, nullptr), gone);
  EXPECT_EQ(ContentsOf(*loaded), ContentsOf(*table));
}

TEST(RestoreTest, TemporariesOfKilledProcessesAreRemovedByTheNextWrite) {
  TempDir dir;
  const auto table = MakeTable({}, KeysOf(10));
  const std::string mine = format::TemporaryName(dir.Join("model-1.data-00000-of-mxrec"));
  const size_t at = mine.rfind(".tmp-") + 5;
  testing::WriteBytes(mine.substr(0, at) + "2147483646" + mine.substr(mine.find('-', at)), "half");
  testing::WriteBytes(dir.Join("model-1.tmp-12"), "not ours");
  Save(*table, dir.Join("model-2"));
  EXPECT_THAT(Env::Default()->ListDir(dir.path()).value(), ::testing::ElementsAre("model-1.tmp-12", "model-2"));
}

TEST(RestoreTest, AWriteThatFailsLeavesNoFile) {
  const auto table = MakeTable({}, KeysOf(10));
  const Status status = WriteTableFile({}, *table, [](uint64_t) { return std::string("/proc/nowhere/a.mxt"); }).status();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(Contains(status, "/proc/nowhere")) << status;
}

}  // namespace
}  // namespace mxrec
