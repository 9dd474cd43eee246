// Directories of checkpoints: order of writing, crashes, full disks, keeping, latest.
#include "mxrec/ckpt/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>

#include "gmock/gmock.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/ckpt/ckpt_test_util.h"
#include "mxrec/io/faulty_env.h"

namespace mxrec {
namespace {

using testing::Contains;
using testing::Contents;
using testing::ContentsOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::KeysOf;
using testing::MakeTable;
using testing::OptionsOf;
using testing::ReadBytes;
using testing::Shape;
using testing::TempDir;
using testing::WriteBytes;

const Shape kUser{.dim = 3, .slots = 1, .candidates = 4};
const Shape kItem{.dim = 2, .slots = 0, .counts = false, .times = false};

// Two tables whose contents follow from a salt.
struct Model {
  std::unique_ptr<Table> user, item;
  static Model Make(uint64_t salt, size_t rows = 40) {
    return {MakeTable(kUser, KeysOf(rows), "user", salt), MakeTable(kItem, KeysOf(rows / 2), "item", salt)};
  }
  static Model Empty() {
    return {Table::Create(OptionsOf(kUser, "user")).value(), Table::Create(OptionsOf(kItem, "item")).value()};
  }
  Status Save(const CheckpointIo& io, const std::string& dir, const SaveOptions& options) const {
    const Table* const tables[] = {user.get(), item.get()};
    return SaveCheckpoint(io, dir, tables, options);
  }
  Result<std::vector<LoadReport>> Load(const CheckpointIo& io, const std::string& dir, uint64_t step) {
    Table* const tables[] = {user.get(), item.get()};
    return LoadCheckpoint(io, dir, step, tables, 0);
  }
  std::pair<Contents, Contents> contents() const { return {ContentsOf(*user), ContentsOf(*item)}; }
};

std::vector<std::string> Tree(const std::string& dir) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    if (!entry.is_directory()) files.push_back(std::filesystem::relative(entry.path(), dir).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(CheckpointTest, SaveAndLoadTwoTables) {
  TempDir temp;
  ThreadPool pool(3);
  const CheckpointIo io{.executor = &pool};
  for (const char* name : {"plain", "with blanks in it", "größe/数据", "a/b/c/"}) {
    const std::string dir = temp.Join(name);
    const Model saved = Model::Make(1);
    ASSERT_EQ(saved.Save(io, dir, {.step = 7}), OkStatus());
    Model loaded = Model::Empty();
    const auto reports = loaded.Load(io, dir, 7);
    ASSERT_TRUE(reports.ok()) << reports.status();
    EXPECT_EQ((*reports)[0].rows, 40u);
    EXPECT_EQ((*reports)[1].rows, 20u);
    EXPECT_EQ(loaded.contents(), saved.contents());
    EXPECT_EQ(VerifyCheckpoint(io, dir, 7).value().size(), 2u);
    EXPECT_EQ(LatestCheckpoint(io, dir).value(), 7u);
    EXPECT_THAT(ListCheckpoints(io, dir).value(), ElementsAre(7u));
    EXPECT_EQ(Tree(dir).size(), 4u);
  }
}

TEST(CheckpointTest, ARelativePathWorks) {
  TempDir temp;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(temp.path());
  const Model model = Model::Make(1);
  for (const char* dir : {"rel", ".", "./x/../y"}) {
    EXPECT_EQ(model.Save({}, dir, {.step = 1}), dir == std::string("./x/../y") ? model.Save({}, "y", {.step = 1}) : OkStatus());
    EXPECT_EQ(LatestCheckpoint({}, dir == std::string("./x/../y") ? "y" : dir).value(), 1u);
  }
  std::filesystem::current_path(before);
}

TEST(CheckpointTest, D51_OddTableNamesAreSavedAndLoaded) {
  TempDir temp;
  const std::vector<std::string> names = {"a b", "a%20b", "用户", "../up", std::string(300, 'x'), "dot.dot", ".hidden"};
  std::vector<std::unique_ptr<Table>> tables;
  std::vector<const Table*> saved;
  for (size_t i = 0; i < names.size(); ++i) {
    tables.push_back(MakeTable(kUser, KeysOf(i + 1), names[i], i));
    saved.push_back(tables.back().get());
  }
  ASSERT_EQ(SaveCheckpoint({}, temp.path(), saved, {.step = 1}), OkStatus());
  for (size_t i = 0; i < names.size(); ++i) {
    const auto loaded = Table::Create(OptionsOf(kUser, names[i])).value();
    Table* const one[] = {loaded.get()};
    ASSERT_TRUE(LoadCheckpoint({}, temp.path(), 1, one, 0).ok()) << names[i];
    EXPECT_EQ(ContentsOf(*loaded), ContentsOf(*saved[i]));
  }
  EXPECT_EQ(Tree(temp.path()).size(), names.size() + 2);
}

TEST(CheckpointTest, D31_TwoTablesOfOneNameAreRefused) {
  TempDir temp;
  const auto a = MakeTable(kUser, KeysOf(1)), b = MakeTable(kUser, KeysOf(2));
  const Table* const tables[] = {a.get(), b.get()};
  const Status status = SaveCheckpoint({}, temp.Join("d"), tables, {.step = 1});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"user\""));
}

TEST(CheckpointTest, HundredsOfTablesAndNoTables) {
  TempDir temp;
  ThreadPool pool(4);
  std::vector<std::unique_ptr<Table>> tables;
  std::vector<const Table*> saved;
  for (int i = 0; i < 200; ++i) {
    const std::string number = std::to_string(i);
    tables.push_back(MakeTable(kItem, KeysOf(3, i), "t" + number));
    saved.push_back(tables.back().get());
  }
  ASSERT_EQ(SaveCheckpoint({.executor = &pool}, temp.path(), saved, {.step = 1}), OkStatus());
  EXPECT_EQ(VerifyCheckpoint({}, temp.path(), 1).value().size(), 200u);
  ASSERT_EQ(SaveCheckpoint({}, temp.path(), {}, {.step = 2}), OkStatus());
  EXPECT_TRUE(VerifyCheckpoint({}, temp.path(), 2).value().empty());
}

TEST(CheckpointTest, MissingStepsAndTablesAreListed) {
  TempDir temp;
  const Model model = Model::Make(1);
  ASSERT_EQ(model.Save({}, temp.path(), {.step = 3}), OkStatus());
  ASSERT_EQ(model.Save({}, temp.path(), {.step = 10}), OkStatus());
  Model loaded = Model::Empty();
  const Status no_step = loaded.Load({}, temp.path(), 4).status();
  EXPECT_EQ(no_step.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(no_step.message()), HasSubstr("no checkpoint of step 4; steps there: 3, 10"));
  const auto other = Table::Create(OptionsOf(kUser, "shop")).value();
  Table* const tables[] = {other.get()};
  const Status no_table = LoadCheckpoint({}, temp.path(), 3, tables, 0).status();
  EXPECT_EQ(no_table.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(no_table.message()), HasSubstr("no table \"shop\"; tables there: \"item\", \"user\""));
  EXPECT_EQ(loaded.Load({}, temp.Join("nowhere"), 4).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(ListCheckpoints({}, temp.Join("nowhere")).value().empty());
  EXPECT_EQ(LatestCheckpoint({}, temp.Join("nowhere")).value(), std::nullopt);
}

TEST(CheckpointTest, KeepsTheNewestAndNeverRemovesTheOneJustWritten) {
  TempDir temp;
  const Model model = Model::Make(1);
  for (const uint64_t step : {1, 2, 3, 4, 5}) ASSERT_EQ(model.Save({}, temp.path(), {.step = step, .keep = 3}), OkStatus());
  EXPECT_THAT(ListCheckpoints({}, temp.path()).value(), ElementsAre(3u, 4u, 5u));
  ASSERT_EQ(model.Save({}, temp.path(), {.step = 1, .keep = 2}), OkStatus());  // resumed from an old one
  EXPECT_THAT(ListCheckpoints({}, temp.path()).value(), ElementsAre(1u, 5u));
  EXPECT_EQ(LatestCheckpoint({}, temp.path()).value(), 1u);
  ASSERT_EQ(model.Save({}, temp.path(), {.step = 6, .keep = 1}), OkStatus());
  EXPECT_THAT(ListCheckpoints({}, temp.path()).value(), ElementsAre(6u));
  ASSERT_EQ(model.Save({}, temp.path(), {.step = 7, .keep = 0}), OkStatus());
  EXPECT_THAT(ListCheckpoints({}, temp.path()).value(), ElementsAre(6u, 7u));
  EXPECT_EQ(model.Save({}, temp.path(), {.step = 8, .keep = -1}).code(), StatusCode::kInvalidArgument);
}

TEST(CheckpointTest, OtherPeoplesFilesStay) {
  TempDir temp;
  const Model model = Model::Make(1);
  ASSERT_EQ(model.Save({}, temp.path(), {.step = 1}), OkStatus());
  std::filesystem::create_directories(temp.Join("mxrec-backup"));
  std::filesystem::create_directories(temp.Join("model-3"));
  for (const char* name : {"mxrec-1/notes.txt", "mxrec-backup/x", "model-3/MANIFEST.json", "checkpoint", "model-3.index",
                           "mxrec-1/a.mxt", "latest.bak"}) {
    WriteBytes(temp.Join(name), "mine");
  }
  std::filesystem::create_directories(temp.Join("mxrec-9"));
  WriteBytes(temp.Join("mxrec-9/mine"), "mine");
  ASSERT_EQ(model.Save({}, temp.path(), {.step = 2, .keep = 1}), OkStatus());
  for (const char* name : {"mxrec-1/notes.txt", "mxrec-backup/x", "model-3/MANIFEST.json", "checkpoint", "model-3.index",
                           "mxrec-1/a.mxt", "latest.bak", "mxrec-9/mine"}) {
    EXPECT_EQ(ReadBytes(temp.Join(name)), "mine") << name;
  }
  EXPECT_THAT(ListCheckpoints({}, temp.path()).value(), ElementsAre(2u));
}

TEST(CheckpointTest, LeftoversOfKilledSavesAreRemovedByTheNext) {
  TempDir temp;
  const Model model = Model::Make(1);
  ASSERT_EQ(model.Save({}, temp.path(), {.step = 1}), OkStatus());
  const auto before = Tree(temp.path());
  std::filesystem::create_directories(temp.Join("mxrec-5"));
  for (const char* name : {"mxrec-1/user-00000000000000aa-00000-of-00001.mxt",
                           "mxrec-1/user-0000000000000000-00000-of-00001.mxt.tmp-77-00000000000000aa",
                           "mxrec-1/MANIFEST.json.tmp-77", "mxrec-5/user-00000000000000aa-00000-of-00001.mxt", "latest.tmp-77"}) {
    WriteBytes(temp.Join(name), "x");
  }
  ASSERT_EQ(model.Save({}, temp.path(), {.step = 1}), OkStatus());
  EXPECT_EQ(Tree(temp.path()), before);
  EXPECT_FALSE(std::filesystem::exists(temp.Join("mxrec-5")));
}

TEST(CheckpointTest, TheSameStepAgainReplacesTheOlderOne) {
  TempDir temp;
  ASSERT_EQ(Model::Make(1).Save({}, temp.path(), {.step = 5}), OkStatus());
  const auto first = Tree(temp.path());
  ASSERT_EQ(Model::Make(1).Save({}, temp.path(), {.step = 5}), OkStatus());
  EXPECT_EQ(Tree(temp.path()), first);  // equal contents, equal names
  const Model other = Model::Make(2);
  ASSERT_EQ(other.Save({}, temp.path(), {.step = 5}), OkStatus());
  EXPECT_NE(Tree(temp.path()), first);
  EXPECT_EQ(Tree(temp.path()).size(), first.size());
  Model loaded = Model::Empty();
  ASSERT_TRUE(loaded.Load({}, temp.path(), 5).ok());
  EXPECT_EQ(loaded.contents(), other.contents());
}

TEST(CheckpointTest, TheSameContentsAgainRepairADamagedFile) {
  TempDir temp;
  ASSERT_EQ(Model::Make(1).Save({}, temp.path(), {.step = 5}), OkStatus());
  const std::string file = temp.Join("mxrec-5/" + VerifyCheckpoint({}, temp.path(), 5).value()[0].file);
  std::string bytes = ReadBytes(file);
  bytes[bytes.size() / 2] ^= 1;
  WriteBytes(file, bytes);
  EXPECT_EQ(VerifyCheckpoint({}, temp.path(), 5).status().code(), StatusCode::kDataLoss);
  ASSERT_EQ(Model::Make(1).Save({}, temp.path(), {.step = 5}), OkStatus());
  EXPECT_TRUE(VerifyCheckpoint({}, temp.path(), 5).ok());
}

TEST(CheckpointTest, LatestNamesACompleteStepOrSaysWhatIsWrong) {
  TempDir temp;
  const Model model = Model::Make(1);
  ASSERT_EQ(model.Save({}, temp.path(), {.step = 1}), OkStatus());
  ASSERT_EQ(model.Save({}, temp.path(), {.step = 2}), OkStatus());
  WriteBytes(temp.Join("latest"), "{\"step\": 1}\n");
  EXPECT_EQ(LatestCheckpoint({}, temp.path()).value(), 1u);
  for (const char* text : {"{\"step\": 9}\n", "rubbish", ""}) {
    WriteBytes(temp.Join("latest"), text);
    EXPECT_EQ(LatestCheckpoint({}, temp.path()).value(), 2u) << text;
  }
  std::filesystem::remove(temp.Join("latest"));
  EXPECT_EQ(LatestCheckpoint({}, temp.path()).value(), 2u);
  WriteBytes(temp.Join("latest"), "{\"step\": 2}\n");
  std::string manifest = ReadBytes(temp.Join("mxrec-2/MANIFEST.json"));
  WriteBytes(temp.Join("mxrec-2/MANIFEST.json"), manifest.substr(0, 100));
  EXPECT_THAT(ListCheckpoints({}, temp.path()).value(), ElementsAre(1u));
  const Status status = LatestCheckpoint({}, temp.path()).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("complete steps: 1"));
  manifest.replace(manifest.find("\"version\": 1"), 12, "\"version\": 8");
  WriteBytes(temp.Join("mxrec-2/MANIFEST.json"), manifest);
  EXPECT_EQ(LatestCheckpoint({}, temp.path()).status().code(), StatusCode::kUnimplemented);
  // A save does not remove what a newer version wrote.
  ASSERT_EQ(model.Save({}, temp.path(), {.step = 3, .keep = 1}), OkStatus());
  EXPECT_EQ(ReadBytes(temp.Join("mxrec-2/MANIFEST.json")), manifest);
}

TEST(CheckpointTest, FilesThatTheManifestDoesNotMeanAreRefused) {
  TempDir temp;
  ASSERT_EQ(Model::Make(1).Save({}, temp.path(), {.step = 1}), OkStatus());
  ASSERT_EQ(Model::Make(2).Save({}, temp.path(), {.step = 2}), OkStatus());
  const auto one = VerifyCheckpoint({}, temp.path(), 1).value(), two = VerifyCheckpoint({}, temp.path(), 2).value();
  // A whole, undamaged file of another save under the name of this one.
  std::filesystem::copy_file(temp.Join("mxrec-2/" + two[1].file), temp.Join("mxrec-1/" + one[1].file),
                             std::filesystem::copy_options::overwrite_existing);
  Model loaded = Model::Make(9);
  const auto before = loaded.contents();
  const Status status = loaded.Load({}, temp.path(), 1).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("as the manifest says"));
  EXPECT_EQ(VerifyCheckpoint({}, temp.path(), 1).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(loaded.contents(), before);
  std::filesystem::remove(temp.Join("mxrec-2/" + two[0].file));
  EXPECT_THAT(ListCheckpoints({}, temp.path()).value(), ElementsAre(1u));
  EXPECT_EQ(loaded.Load({}, temp.path(), 2).status().code(), StatusCode::kNotFound);
}

TEST(CheckpointTest, DamageInOneTableTouchesNoTable) {
  TempDir temp;
  ASSERT_EQ(Model::Make(1).Save({}, temp.path(), {.step = 1}), OkStatus());
  const std::vector<TableFileInfo> infos = VerifyCheckpoint({}, temp.path(), 1).value();
  for (const TableFileInfo& info : infos) {
    const std::string file = temp.Join("mxrec-1/" + info.file);
    const std::string good = ReadBytes(file);
    std::string bytes = good;
    bytes[bytes.size() - 60] ^= 4;
    WriteBytes(file, bytes);
    Model filled = Model::Make(9), empty = Model::Empty();
    const auto before = filled.contents();
    const Status status = filled.Load({}, temp.path(), 1).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_TRUE(Contains(status, file)) << status;
    EXPECT_EQ(filled.contents(), before);
    EXPECT_FALSE(empty.Load({}, temp.path(), 1).ok());
    EXPECT_EQ(empty.contents(), Model::Empty().contents());
    // One table filled, the other empty.
    filled.item = Table::Create(OptionsOf(kItem, "item")).value();
    EXPECT_FALSE(filled.Load({}, temp.path(), 1).ok());
    EXPECT_EQ(ContentsOf(*filled.user), before.first);
    EXPECT_EQ(filled.item->size(), 0u);
    WriteBytes(file, good);
  }
}

TEST(CheckpointTest, D35_RanksWriteTheirPartsAndOnePublishes) {
  TempDir temp;
  const auto all = MakeTable(kUser, KeysOf(500));
  const Table* const whole[] = {all.get()};
  ASSERT_EQ(SaveCheckpoint({}, temp.Join("whole"), whole, {.step = 1}), OkStatus());
  const auto load = [&](const std::string& dir, LoadOptions share) {
    auto table = Table::Create(OptionsOf(kUser)).value();
    Table* const one[] = {table.get()};
    EXPECT_TRUE(LoadCheckpoint({}, dir, 1, one, 0, share).ok());
    return table;
  };
  std::vector<TableFileInfo> files;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const auto part = load(temp.Join("whole"), {.rank = rank, .rank_count = 4});
    const Table* const one[] = {part.get()};
    const auto written = WriteCheckpointFiles({}, temp.Join("parts"), one, 1, {.shard = rank, .shard_count = 4}).value();
    files.insert(files.end(), written.begin(), written.end());
    if (rank < 3) {
      EXPECT_FALSE(PublishCheckpoint({}, temp.Join("parts"), files, {.step = 1}).ok());
      EXPECT_TRUE(ListCheckpoints({}, temp.Join("parts")).value().empty());
    }
  }
  ASSERT_EQ(PublishCheckpoint({}, temp.Join("parts"), files, {.step = 1}), OkStatus());
  EXPECT_EQ(Tree(temp.Join("parts")).size(), 6u);
  EXPECT_EQ(ContentsOf(*load(temp.Join("parts"), {})), ContentsOf(*all));
}

// --- faults ---

// Fails at operation n = 1, 2, 3, ... until a save gets through; after each failure the directory must hold the old or the
// new checkpoint, complete, and a save after the restart must leave exactly what an undisturbed one leaves.
void CrashEverywhere(bool power_cut, NameLoss names, uint64_t old_step, uint64_t new_step, int threads) {
  const Model old_model = Model::Make(1), new_model = Model::Make(2);
  const auto old_contents = old_model.contents(), new_contents = new_model.contents();
  ThreadPool pool(threads);
  TempDir clean;
  ASSERT_EQ(old_model.Save({}, clean.path(), {.step = old_step, .keep = 1}), OkStatus());
  ASSERT_EQ(new_model.Save({}, clean.path(), {.step = new_step, .keep = 1}), OkStatus());
  const auto clean_tree = Tree(clean.path());
  int crashes = 0, saw_old = 0, saw_new = 0;
  for (uint64_t n = 1;; ++n) {
    TempDir temp, scratch;
    FaultyEnv env(Env::Default(), scratch.path());
    const std::string dir = temp.Join("ckpt");
    const CheckpointIo io{.env = &env, .executor = &pool};
    ASSERT_EQ(old_model.Save(io, dir, {.step = old_step, .keep = 1}), OkStatus());
    env.CrashAt(n);
    const Status saved = new_model.Save(io, dir, {.step = new_step, .keep = 1});
    const bool crashed = env.crashed();
    const std::string at = crashed && !env.operations().empty() ? env.operations().back() : "";
    if (power_cut) env.DropUnsynced(names);
    env.Restart();
    if (!crashed) {
      ASSERT_EQ(saved, OkStatus());
      break;
    }
    ++crashes;
    const Result<std::optional<uint64_t>> latest = LatestCheckpoint(io, dir);
    ASSERT_TRUE(latest.ok()) << at << latest.status();
    ASSERT_TRUE(latest->has_value()) << at;
    ASSERT_TRUE(**latest == old_step || **latest == new_step) << at;
    Model loaded = Model::Empty();
    const auto reports = loaded.Load(io, dir, **latest);
    ASSERT_TRUE(reports.ok()) << "operation " << n << " (" << at << "): " << reports.status();
    const auto found = loaded.contents();
    ASSERT_TRUE(found == old_contents || found == new_contents) << at;
    if (old_step != new_step) {
      ASSERT_EQ(found == new_contents, **latest == new_step) << at;
    }
    // A save that said it succeeded is there.
    if (saved.ok()) {
      ASSERT_TRUE(found == new_contents) << at;
    }
    ++(found == new_contents ? saw_new : saw_old);
    const std::vector<uint64_t> steps = ListCheckpoints(io, dir).value();
    for (const uint64_t step : steps) ASSERT_TRUE(VerifyCheckpoint(io, dir, step).ok()) << at;
    ASSERT_EQ(new_model.Save(io, dir, {.step = new_step, .keep = 1}), OkStatus()) << at;
    ASSERT_EQ(Tree(dir), clean_tree) << "operation " << n << " (" << at << ")";
  }
  EXPECT_GT(crashes, 20);
  EXPECT_GT(saw_old, 10);
  EXPECT_GT(saw_new, 3);
  std::printf("%d crashes: %d times the old checkpoint, %d times the new one\n", crashes, saw_old, saw_new);
}

TEST(CrashTest, D32_AKillAtEveryOperationLeavesTheOldOrTheNew) { CrashEverywhere(false, NameLoss::kNone, 1, 2, 1); }
TEST(CrashTest, APowerCutThatLosesNamesLeavesTheOldOrTheNew) { CrashEverywhere(true, NameLoss::kUnsynced, 1, 2, 1); }
TEST(CrashTest, APowerCutThatKeepsNamesLeavesTheOldOrTheNew) { CrashEverywhere(true, NameLoss::kNone, 1, 2, 1); }
TEST(CrashTest, AKillWhileTheSameStepIsSavedAgain) { CrashEverywhere(false, NameLoss::kNone, 5, 5, 1); }
TEST(CrashTest, APowerCutWhileTheSameStepIsSavedAgain) { CrashEverywhere(true, NameLoss::kUnsynced, 5, 5, 1); }
TEST(CrashTest, AKillWithSeveralThreads) { CrashEverywhere(false, NameLoss::kNone, 5, 5, 3); }

TEST(CrashTest, ACrashDuringTheVeryFirstSaveLeavesNothingThatLoads) {
  const Model model = Model::Make(1);
  for (uint64_t n = 1;; ++n) {
    TempDir temp, scratch;
    FaultyEnv env(Env::Default(), scratch.path());
    const CheckpointIo io{.env = &env};
    env.CrashAt(n);
    const Status saved = model.Save(io, temp.Join("ckpt"), {.step = 1});
    const bool crashed = env.crashed();
    env.DropUnsynced(NameLoss::kUnsynced);
    env.Restart();
    if (!crashed) break;
    const auto latest = LatestCheckpoint(io, temp.Join("ckpt"));
    ASSERT_TRUE(latest.ok()) << latest.status();
    if (latest->has_value()) {
      Model loaded = Model::Empty();
      ASSERT_TRUE(loaded.Load(io, temp.Join("ckpt"), 1).ok());
      ASSERT_EQ(loaded.contents(), model.contents());
    } else {
      ASSERT_FALSE(saved.ok());
    }
  }
}

TEST(FaultTest, AnyOperationThatFailsOnceFailsTheSaveOrIsHarmless) {
  const Model old_model = Model::Make(1), new_model = Model::Make(2);
  for (uint64_t n = 1;; ++n) {
    TempDir temp, scratch;
    FaultyEnv env(Env::Default(), scratch.path());
    const CheckpointIo io{.env = &env};
    ASSERT_EQ(old_model.Save(io, temp.path(), {.step = 1}), OkStatus());
    const uint64_t before = env.counters().mutations;
    env.FailAt(n, UnavailableError("planned"));
    const Status saved = new_model.Save(io, temp.path(), {.step = 2});
    const bool over = before + n > env.counters().mutations;
    EXPECT_EQ(env.counters().open_writers, 0u);
    env.Restart();
    Model loaded = Model::Empty();
    const uint64_t latest = LatestCheckpoint(io, temp.path()).value().value();
    ASSERT_TRUE(loaded.Load(io, temp.path(), latest).ok()) << n;
    if (saved.ok()) {
      ASSERT_EQ(latest, 2u) << n;
    }
    ASSERT_EQ(loaded.contents(), latest == 1 ? old_model.contents() : new_model.contents()) << n;
    if (over) break;
  }
}

TEST(FaultTest, AFullDiskFailsTheSaveAndTheOldCheckpointStays) {
  const Model old_model = Model::Make(1), new_model = Model::Make(2, 3000);
  for (const uint64_t room : {0, 100, 3000, 20000}) {
    TempDir temp, scratch;
    FaultyEnv env(Env::Default(), scratch.path());
    const CheckpointIo io{.env = &env};
    ASSERT_EQ(old_model.Save(io, temp.path(), {.step = 1}), OkStatus());
    const auto before = Tree(temp.path());
    env.SetQuota(env.counters().bytes_written + room);
    const Status status = new_model.Save(io, temp.path(), {.step = 2});
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
    EXPECT_TRUE(Contains(status, temp.path())) << status;
    EXPECT_EQ(Tree(temp.path()), before) << room;
    Model loaded = Model::Empty();
    EXPECT_EQ(LatestCheckpoint(io, temp.path()).value(), 1u);
    ASSERT_TRUE(loaded.Load(io, temp.path(), 1).ok());
    EXPECT_EQ(loaded.contents(), old_model.contents());
    env.SetQuota(std::nullopt);
    ASSERT_EQ(new_model.Save(io, temp.path(), {.step = 2}), OkStatus());
    EXPECT_EQ(LatestCheckpoint(io, temp.path()).value(), 2u);
  }
}

TEST(FaultTest, AReadOnlyFolderIsNamed) {
  TempDir temp;
  if (geteuid() == 0) {
    // Root may write anywhere; a folder that nobody can write to is in /proc.
    const Status status = Model::Make(1).Save({}, "/proc/mxrec-test", {.step = 1});
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(Contains(status, "/proc/mxrec-test")) << status;
    return;
  }
  ::chmod(temp.path().c_str(), 0555);
  const Status status = Model::Make(1).Save({}, temp.Join("x"), {.step = 1});
  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  EXPECT_TRUE(Contains(status, temp.path())) << status;
  ::chmod(temp.path().c_str(), 0755);
}

TEST(FaultTest, AFileWhereTheFolderShouldBeIsNamed) {
  TempDir temp;
  WriteBytes(temp.Join("file"), "x");
  const Status status = Model::Make(1).Save({}, temp.Join("file"), {.step = 1});
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(Contains(status, "expected a folder at " + temp.Join("file") + ", found a file")) << status;
  const Status deeper = Model::Make(1).Save({}, temp.Join("file/a/b"), {.step = 1});
  EXPECT_EQ(deeper.code(), StatusCode::kFailedPrecondition) << deeper;
  EXPECT_TRUE(Contains(deeper, "expected a folder at " + temp.Join("file") + ", found a file")) << deeper;
  EXPECT_EQ(ReadBytes(temp.Join("file")), "x");
}

TEST(FaultTest, AReadThatFailsLeavesAFilledTableAloneWhileItIsChecked) {
  TempDir temp, scratch;
  FaultyEnv env(Env::Default(), scratch.path());
  const CheckpointIo io{.env = &env};
  ASSERT_EQ(Model::Make(1).Save(io, temp.path(), {.step = 1}), OkStatus());
  Model probe = Model::Make(9);
  const uint64_t before_reads = env.counters().reads;
  ASSERT_TRUE(probe.Load(io, temp.path(), 1).ok());
  const uint64_t reads = env.counters().reads - before_reads;
  uint64_t untouched = 0;
  for (uint64_t n = 1; n <= reads; ++n) {
    Model filled = Model::Make(9);
    const auto before = filled.contents();
    env.FailReadAt(n, UnavailableError("planned"));
    const Status status = filled.Load(io, temp.path(), 1).status();
    ASSERT_EQ(status.code(), StatusCode::kUnavailable) << n;
    if (filled.contents() == before) {
      ++untouched;
    } else {
      ASSERT_THAT(std::string(status.message()), HasSubstr("is empty now")) << n;
    }
  }
  EXPECT_GT(untouched, reads / 2);
}

TEST(CheckpointTest, CancellingPublishesNothing) {
  TempDir temp;
  ASSERT_EQ(Model::Make(1).Save({}, temp.path(), {.step = 1}), OkStatus());
  const auto before = Tree(temp.path());
  CheckpointIo io;
  io.progress = [](uint64_t, uint64_t) { return false; };
  EXPECT_EQ(Model::Make(2).Save(io, temp.path(), {.step = 2}).code(), StatusCode::kCancelled);
  EXPECT_EQ(Tree(temp.path()), before);
  Model filled = Model::Make(9);
  const auto contents = filled.contents();
  EXPECT_EQ(filled.Load(io, temp.path(), 1).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(filled.contents(), contents);
}

TEST(CheckpointTest, ProgressOfSavingAndLoadingEndsAtTheTotal) {
  TempDir temp;
  std::mutex mutex;
  uint64_t last = 0, total = 0;
  CheckpointIo io;
  io.progress = [&](uint64_t done, uint64_t of) {
    const std::lock_guard<std::mutex> lock(mutex);
    last = std::max(last, done);
    total = of;
    return true;
  };
  ASSERT_EQ(Model::Make(1).Save(io, temp.path(), {.step = 1}), OkStatus());
  EXPECT_EQ(last, total);
  last = 0;
  Model filled = Model::Make(9);
  ASSERT_TRUE(filled.Load(io, temp.path(), 1).ok());
  EXPECT_EQ(last, total);
}

// --- two savers of one folder ---

uint64_t Inode(const std::string& path) { return Env::Default()->Identify(path).value().inode; }

// A second saver's file in the folder: what tf.train.Saver's side files are.
Result<TableFileInfo> SaveBeside(const CheckpointIo& io, const std::string& dir, const std::string& name, const Table& table) {
  return WriteTableFile(io, table, [&](uint64_t) { return JoinPath(dir, name); });
}

TEST(SharedFolderTest, TheSecondSaverWritesNoBytesAndItsFileStaysWhenTheFirstIsGone) {
  for (const bool side_first : {true, false}) {
    TempDir temp, scratch;
    FaultyEnv env(Env::Default(), scratch.path());
    const CheckpointIo io{.env = &env};
    Model model = Model::Make(1, 3000);
    const auto contents = model.contents();
    const auto save = [&] { ASSERT_EQ(model.Save(io, temp.path(), {.step = 5, .keep = 1}), OkStatus()); };
    const auto side = [&] {
      ASSERT_TRUE(SaveBeside(io, temp.path(), "side-user", *model.user).ok());
      ASSERT_TRUE(SaveBeside(io, temp.path(), "side-item", *model.item).ok());
    };
    side_first ? side() : save();
    const uint64_t written = env.counters().bytes_written;
    side_first ? save() : side();
    EXPECT_LT(env.counters().bytes_written - written, 5000u) << "manifest and `latest` only";
    const auto infos = ReadCheckpointInfo(io, temp.path(), 5).value();
    const std::string item = temp.Join("mxrec-5/" + infos[0].file), user = temp.Join("mxrec-5/" + infos[1].file);
    EXPECT_EQ(Inode(user), Inode(temp.Join("side-user")));
    EXPECT_EQ(Inode(item), Inode(temp.Join("side-item")));
    EXPECT_EQ(Tree(temp.path()).size(), 6u) << "no temporary name is left";
    EXPECT_TRUE(VerifyCheckpoint(io, temp.path(), 5).ok());

    // Another step, other contents: the old step goes by `keep`, the other saver's files stay whole.
    ASSERT_TRUE(model.user->Insert(KeysOf(10, 5000), nullptr, 0, nullptr, nullptr).ok());
    ASSERT_EQ(model.Save(io, temp.path(), {.step = 6, .keep = 1}), OkStatus());
    EXPECT_THAT(ListCheckpoints(io, temp.path()).value(), ElementsAre(6u));
    EXPECT_TRUE(VerifyTableFile(io, temp.Join("side-user")).ok());
    Model loaded = Model::Empty();
    const std::string path = temp.Join("side-user");
    ASSERT_TRUE(ReadTableFiles(io, {&path, 1}, loaded.user.get(), 0).ok());
    EXPECT_EQ(ContentsOf(*loaded.user), contents.first);
    // And the reverse.
    ASSERT_EQ(Env::Default()->RemoveFile(temp.Join("side-item")), OkStatus());
    EXPECT_TRUE(VerifyCheckpoint(io, temp.path(), 6).ok());
  }
}

TEST(SharedFolderTest, AFileThatWasTouchedOrLiesElsewhereOrCannotBeLinkedIsNotShared) {
  TempDir temp, other;
  const Model model = Model::Make(1);
  const std::string a = temp.Join("a");
  ASSERT_TRUE(SaveBeside({}, temp.path(), "a", *model.user).ok());
  ASSERT_TRUE(SaveBeside({}, other.path(), "b", *model.user).ok());
  EXPECT_NE(Inode(other.Join("b")), Inode(a)) << "copies in two folders are two copies";

  std::string bytes = ReadBytes(a);
  bytes[bytes.size() / 2] ^= 1;
  std::filesystem::remove(a);
  WriteBytes(a, bytes);
  ASSERT_TRUE(SaveBeside({}, temp.path(), "c", *model.user).ok());
  EXPECT_NE(Inode(temp.Join("c")), Inode(a));
  EXPECT_TRUE(VerifyTableFile({}, temp.Join("c")).ok());

  TempDir faulty, scratch;
  FaultyEnv env(Env::Default(), scratch.path());
  const CheckpointIo io{.env = &env};
  ASSERT_TRUE(SaveBeside(io, faulty.path(), "a", *model.user).ok());
  env.FailAt(2, InvalidArgumentError("no links here"));  // folder, link
  ASSERT_TRUE(SaveBeside(io, faulty.path(), "b", *model.user).ok());
  EXPECT_THAT(env.operations()[env.operations().size() - 1], HasSubstr("sync folder"));
  EXPECT_NE(Inode(faulty.Join("b")), Inode(faulty.Join("a")));
  EXPECT_TRUE(VerifyTableFile(io, faulty.Join("b")).ok());
  EXPECT_EQ(Tree(faulty.path()).size(), 2u);
}

TEST(SharedFolderTest, AnotherStepIsAnotherCopyAlsoOfAnUnchangedTable) {
  TempDir temp;
  const Model model = Model::Make(1);
  for (const uint64_t step : {5, 6}) ASSERT_EQ(model.Save({}, temp.path(), {.step = step}), OkStatus());
  const auto file = [&](uint64_t step) {
    return temp.Join("mxrec-" + std::to_string(step) + "/" + ReadCheckpointInfo({}, temp.path(), step).value()[1].file);
  };
  EXPECT_NE(Inode(file(5)), Inode(file(6)));
  for (const char* step : {"5", "6", "7"}) {
    ASSERT_TRUE(SaveBeside({}, temp.path(), std::string("model-") + step + ".data-00000-of-mxrec", *model.user).ok());
  }
  EXPECT_EQ(Inode(temp.Join("model-5.data-00000-of-mxrec")), Inode(file(5)));
  EXPECT_EQ(Inode(temp.Join("model-6.data-00000-of-mxrec")), Inode(file(6)));
  EXPECT_NE(Inode(temp.Join("model-7.data-00000-of-mxrec")), Inode(file(5)));
  EXPECT_NE(Inode(temp.Join("model-7.data-00000-of-mxrec")), Inode(file(6)));
  WriteBytes(file(6), "x");
  EXPECT_TRUE(VerifyCheckpoint({}, temp.path(), 5).ok());
}

TEST(SharedFolderTest, EveryKindOfChangeEndsTheSharing) {
  TempDir temp;
  const auto table = MakeTable({.candidates = 4}, KeysOf(20));
  uint64_t last = 0;
  int number = 0;
  const auto save = [&] {
    const std::string name = "f" + std::to_string(number++);
    EXPECT_TRUE(SaveBeside({}, temp.path(), name, *table).ok());
    const uint64_t inode = Inode(temp.Join(name));
    return inode != std::exchange(last, inode);
  };
  EXPECT_TRUE(save());
  EXPECT_FALSE(save());
  const uint64_t absent = Mix64(123456789), present = KeysOf(1)[0];
  EXPECT_EQ(table->Erase({&absent, 1}), 0u);
  EXPECT_EQ(table->EvictCold(0, nullptr), 0u);
  EXPECT_FALSE(save()) << "nothing was erased";
  ASSERT_TRUE(table->Insert({&absent, 1}, nullptr, 0, nullptr, nullptr).ok());
  EXPECT_TRUE(save());
  EXPECT_EQ(table->Erase({&absent, 1}), 1u);
  EXPECT_TRUE(save());
  EXPECT_GT(table->EvictCold(1'000'000'000, nullptr), 0u);
  EXPECT_TRUE(save());
  ASSERT_TRUE(table->Insert({&present, 1}, nullptr, 0, nullptr, nullptr).ok());
  EXPECT_TRUE(save());
  table->Clear();
  EXPECT_TRUE(save());
  EXPECT_FALSE(save());
}

TEST(SharedFolderTest, TheSecondLoadIsSkippedWhenTheTableHoldsThatContent) {
  TempDir temp;
  const Model saved = Model::Make(1, 300);
  ASSERT_EQ(saved.Save({}, temp.path(), {.step = 5}), OkStatus());
  ASSERT_TRUE(SaveBeside({}, temp.path(), "side", *saved.user).ok());
  const std::string side = temp.Join("side");
  Model model = Model::Empty();
  const auto first = model.Load({}, temp.path(), 5);
  ASSERT_TRUE(first.ok()) << first.status();
  const uint64_t generation = model.user->generation(), content = model.user->content_id();
  uint64_t calls = 0;
  const CheckpointIo counting{.progress = [&](uint64_t, uint64_t) { return ++calls != 0; }};
  const auto second = ReadTableFiles(counting, {&side, 1}, model.user.get(), 0);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(calls, 0u) << "nothing was read";
  EXPECT_EQ(model.user->generation(), generation) << "nothing was laid out anew";
  EXPECT_EQ(model.user->content_id(), content);
  EXPECT_EQ(second->rows, (*first)[0].rows);
  EXPECT_EQ(second->candidates, 4u);
  EXPECT_EQ(second->file_optimizer_kind, "adagrad");
  EXPECT_FALSE(second->slots_fresh);
  EXPECT_EQ(model.contents(), saved.contents());

  // After a change it is loaded.
  const uint64_t key = KeysOf(300)[0];
  ASSERT_EQ(model.user->Erase({&key, 1}), 1u);
  ASSERT_TRUE(ReadTableFiles(counting, {&side, 1}, model.user.get(), 0).ok());
  EXPECT_GT(calls, 0u);
  EXPECT_EQ(model.contents(), saved.contents());
}

TEST(SharedFolderTest, ACopyOfTheFileIsCheckedButNotLoadedAndADamagedOneIsRefused) {
  TempDir temp, elsewhere;
  const Model model = Model::Make(1, 300);
  ASSERT_TRUE(SaveBeside({}, temp.path(), "a", *model.user).ok());
  const std::string copy = elsewhere.Join("copy"), bad = elsewhere.Join("bad");
  std::string bytes = ReadBytes(temp.Join("a"));
  WriteBytes(copy, bytes);
  bytes[bytes.size() / 2] ^= 1;
  WriteBytes(bad, bytes);
  const uint64_t generation = model.user->generation();
  uint64_t last = 0, total = 0;
  const CheckpointIo counting{.progress = [&](uint64_t done, uint64_t of) { return last = done, total = of, true; }};
  ASSERT_TRUE(ReadTableFiles(counting, {&copy, 1}, model.user.get(), 0).ok());
  EXPECT_EQ(last, total);
  EXPECT_GE(last, bytes.size());
  EXPECT_EQ(model.user->generation(), generation);
  EXPECT_EQ(ReadTableFiles({}, {&bad, 1}, model.user.get(), 0).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(model.contents(), Model::Make(1, 300).contents());
}

TEST(SharedFolderTest, ALoadThatCannotTakeTheFileAsItIsIsNeverSkipped) {
  TempDir temp;
  const auto saved = MakeTable({.slots = 1, .candidates = 4}, KeysOf(50));
  ASSERT_TRUE(SaveBeside({}, temp.path(), "a", *saved).ok());
  const std::string path = temp.Join("a");
  for (int variant = 0; variant < 3; ++variant) {
    TableOptions options = OptionsOf({.slots = 1, .candidates = 4});
    if (variant == 0) options.seed = 78;
    if (variant == 1) options.keep_counts = false;
    if (variant == 2) options.max_cold_secs = 0;
    const auto table = Table::Create(options).value();
    ASSERT_TRUE(ReadTableFiles({}, {&path, 1}, table.get(), 0).ok());
    const uint64_t generation = table->generation();
    ASSERT_TRUE(ReadTableFiles({}, {&path, 1}, table.get(), 0).ok());
    EXPECT_NE(table->generation(), generation) << variant;
  }
}

TEST(SharedFolderTest, ACrashAtEveryOperationWhileLinkingLeavesTheOldOrTheNew) {
  for (const NameLoss names : {NameLoss::kUnsynced, NameLoss::kNone}) {
    const Model old_model = Model::Make(1), new_model = Model::Make(2);
    for (uint64_t n = 1;; ++n) {
      TempDir temp, scratch;
      FaultyEnv env(Env::Default(), scratch.path());
      const CheckpointIo io{.env = &env};
      ASSERT_EQ(old_model.Save(io, temp.path(), {.step = 1, .keep = 1}), OkStatus());
      ASSERT_TRUE(SaveBeside(io, temp.path(), "side-user", *new_model.user).ok());
      ASSERT_TRUE(SaveBeside(io, temp.path(), "side-item", *new_model.item).ok());
      env.CrashAt(n);
      static_cast<void>(new_model.Save(io, temp.path(), {.step = 2, .keep = 1}));
      const bool crashed = env.crashed();
      env.DropUnsynced(names);
      env.Restart();
      const auto latest = LatestCheckpoint(io, temp.path()).value();
      ASSERT_TRUE(latest.has_value()) << n;
      Model loaded = Model::Empty();
      const auto reports = loaded.Load(io, temp.path(), *latest);
      ASSERT_TRUE(reports.ok()) << n << ": " << reports.status();
      ASSERT_EQ(loaded.contents(), *latest == 1 ? old_model.contents() : new_model.contents()) << n;
      ASSERT_TRUE(VerifyTableFile(io, temp.Join("side-user")).ok()) << n;
      ASSERT_EQ(new_model.Save(io, temp.path(), {.step = 2, .keep = 1}), OkStatus()) << n;
      ASSERT_EQ(Tree(temp.path()).size(), 6u) << n;
      if (!crashed) break;
    }
  }
}

}  // namespace
}  // namespace mxrec
