// Checkpoints as version 1 wrote them (tests/golden) load for ever, and the same contents still give the same bytes.
//
// MXREC_WRITE_GOLDEN=1 writes the files anew: only for a new version of the format, beside the old ones.
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "gtest/gtest.h"
#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/ckpt/ckpt_test_util.h"
#include "mxrec/ckpt/format/table_file.h"
#include "mxrec/ckpt/table_file_writer.h"

namespace mxrec {
namespace {

using testing::ReadBytes;

const std::string kGolden = MXREC_SOURCE_DIR "/tests/golden";
const testing::Shape kUser{.dim = 3, .slots = 2, .candidates = 3};
const testing::Shape kItem{.dim = 2, .slots = 0, .counts = false, .times = false};

// The worked example of docs/formats/checkpoint.md: two rows, one candidate, one run.
class TinySource final : public RowSource {
 public:
  int runs() const override { return 1; }
  uint64_t run_rows(int) const override { return 2; }
  uint64_t run_candidates(int) const override { return 1; }
  Status ForEachBlock(int, size_t, const std::function<Status(const RowBlock&)>& block) const override {
    const uint64_t keys[] = {7, static_cast<uint64_t>(-1)}, times[] = {1000, 2000};
    const float values[] = {1.0f, -2.0f}, slots[] = {0.1f, 0.5f};
    const uint32_t counts[] = {3, 4};
    return block({.count = 2, .keys = keys, .values = values, .slots = slots, .use_counts = counts, .last_seen_ms = times});
  }
  Status ForEachCandidate(int, const std::function<Status(std::span<const Candidate>)>& block) const override {
    const Candidate candidate{9, 1, 3000};
    return block({&candidate, 1});
  }
};

std::string WriteTiny(const std::string& path) {
  format::TableHeader header;
  header.table = "t";
  header.dim = 1;
  header.seed = 0x0123456789ABCDEF;
  header.slots = {.optimizer_kind = "adagrad",
                  .slot_names = {"accumulator"},
                  .slot_initial_values = {0.1f},
                  .slot_widths = {},
                  .step = 5,
                  .scalar_names = {},
                  .scalars = {}};
  header.has_counts = header.has_times = true;
  const ProgressFn none;
  internal::Progress progress(none, 0);
  EXPECT_TRUE(internal::WriteTableStream({}, internal::DescribeSource(header, TinySource()), TinySource(), path, &progress).ok());
  return ReadBytes(path);
}

// A table whose last slot has one float a row: version 2.
const testing::Shape kNarrow{.dim = 3, .slots = 2, .candidates = 3, .last_slot_one_float = true};

std::string WriteNarrow(const std::string& path) {
  const auto table = testing::MakeTable(kNarrow, testing::KeysOf(9));
  EXPECT_TRUE(WriteTableFile({}, *table, [&](uint64_t) { return path; }).ok());
  return ReadBytes(path);
}

// A table that evicts by capacity: version 3.
const testing::Shape kEvicting{.dim = 3, .slots = 1, .candidates = 2, .evicts = true};

std::string WriteEvicting(const std::string& path) {
  const auto table = testing::MakeTable(kEvicting, testing::KeysOf(9));
  EXPECT_TRUE(WriteTableFile({}, *table, [&](uint64_t) { return path; }).ok());
  return ReadBytes(path);
}

void WriteCheckpoint(const std::string& dir) {
  const auto user = testing::MakeTable(kUser, testing::KeysOf(20)), item = testing::MakeTable(kItem, testing::KeysOf(7), "item");
  const Table* const tables[] = {user.get(), item.get()};
  ASSERT_EQ(SaveCheckpoint({}, dir, tables, {.step = 100}), OkStatus());
}

std::string Hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const char digits[] = "0123456789abcdef";
    text += digits[static_cast<unsigned char>(c) >> 4];
    text += digits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

TEST(GoldenTest, FilesOfVersion1AreReadAndWrittenAlike) {
  testing::TempDir dir;
  if (std::getenv("MXREC_WRITE_GOLDEN") != nullptr) {
    WriteTiny(kGolden + "/tiny_v1.mxt");
    WriteCheckpoint(kGolden + "/checkpoint_v1");
  }
  EXPECT_EQ(Hex(WriteTiny(dir.Join("tiny"))), Hex(ReadBytes(kGolden + "/tiny_v1.mxt")));

  const std::string golden = kGolden + "/checkpoint_v1";
  ASSERT_EQ(LatestCheckpoint({}, golden).value(), 100u);
  ASSERT_TRUE(VerifyCheckpoint({}, golden, 100).ok());
  const auto user = Table::Create(testing::OptionsOf(kUser)).value(),
             item = Table::Create(testing::OptionsOf(kItem, "item")).value();
  Table* const tables[] = {user.get(), item.get()};
  ASSERT_TRUE(LoadCheckpoint({}, golden, 100, tables, 0).ok());
  EXPECT_EQ(testing::ContentsOf(*user), testing::ContentsOf(*testing::MakeTable(kUser, testing::KeysOf(20))));
  EXPECT_EQ(testing::ContentsOf(*item), testing::ContentsOf(*testing::MakeTable(kItem, testing::KeysOf(7), "item")));

  WriteCheckpoint(dir.Join("again"));
  EXPECT_EQ(ReadBytes(dir.Join("again/mxrec-100/MANIFEST.json")), ReadBytes(golden + "/mxrec-100/MANIFEST.json"));
  const std::vector<TableFileInfo> infos = VerifyCheckpoint({}, golden, 100).value();
  for (const TableFileInfo& info : infos) {
    EXPECT_EQ(Hex(ReadBytes(dir.Join("again/mxrec-100/" + info.file))), Hex(ReadBytes(golden + "/mxrec-100/" + info.file)));
  }
}

TEST(GoldenTest, AFileOfVersion2IsReadAndWrittenAlike) {
  testing::TempDir dir;
  const std::string golden = kGolden + "/narrow_v2.mxt";
  if (std::getenv("MXREC_WRITE_GOLDEN") != nullptr) WriteNarrow(golden);
  EXPECT_EQ(Hex(WriteNarrow(dir.Join("narrow"))), Hex(ReadBytes(golden)));
  const auto table = Table::Create(testing::OptionsOf(kNarrow)).value();
  const auto report = ReadTableFiles({}, {&golden, 1}, table.get(), 0);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(testing::ContentsOf(*table), testing::ContentsOf(*testing::MakeTable(kNarrow, testing::KeysOf(9))));
}

TEST(GoldenTest, AFileOfVersion3IsReadAndWrittenAlike) {
  testing::TempDir dir;
  const std::string golden = kGolden + "/evicting_v3.mxt";
  if (std::getenv("MXREC_WRITE_GOLDEN") != nullptr) WriteEvicting(golden);
  EXPECT_EQ(Hex(WriteEvicting(dir.Join("evicting"))), Hex(ReadBytes(golden)));
  const auto table = Table::Create(testing::OptionsOf(kEvicting)).value();
  const auto report = ReadTableFiles({}, {&golden, 1}, table.get(), 0);
  ASSERT_TRUE(report.ok()) << report.status();
  const testing::Contents contents = testing::ContentsOf(*table);
  EXPECT_EQ(contents, testing::ContentsOf(*testing::MakeTable(kEvicting, testing::KeysOf(9))));
  EXPECT_EQ(contents.rows.at(0).stamp, 70000u);
  EXPECT_EQ(contents.eviction_time, uint64_t{99} << 32);
}

TEST(GoldenTest, TheTinyFileHoldsWhatTheDocsSay) {
  TableOptions options;
  options.name = "t";
  options.dim = 1;
  options.keep_counts = true;
  options.min_used_times = 2;
  options.max_cold_secs = 1;
  const auto table = Table::Create(options).value();
  const std::string path = kGolden + "/tiny_v1.mxt";
  const auto report = ReadTableFiles({}, {&path, 1}, table.get(), 0);
  ASSERT_TRUE(report.ok()) << report.status();
  const testing::Contents contents = testing::ContentsOf(*table);
  ASSERT_EQ(contents.rows.size(), 2u);
  EXPECT_EQ(contents.rows.at(7).values[0], std::bit_cast<uint32_t>(1.0f));
  EXPECT_EQ(contents.rows.at(7).slots[0], std::bit_cast<uint32_t>(0.1f));
  EXPECT_EQ(contents.rows.at(7).count, 3u);
  EXPECT_EQ(contents.rows.at(7).time, 1000u);
  EXPECT_EQ(contents.rows.at(static_cast<uint64_t>(-1)).values[0], std::bit_cast<uint32_t>(-2.0f));
  EXPECT_EQ(contents.candidates.at(9), (std::pair<uint32_t, uint64_t>(1, 3000)));
  EXPECT_EQ(contents.step, 5u);
}

// The lines "0000  xx xx ..." of the docs are the golden file.
TEST(GoldenTest, TheHexOfTheDocsIsTheGoldenFile) {
  std::istringstream docs(ReadBytes(MXREC_SOURCE_DIR "/docs/formats/checkpoint.md"));
  std::string line, hex;
  while (std::getline(docs, line)) {
    if (line.size() < 8 || line.compare(4, 2, "  ") != 0) continue;
    if (line.find_first_not_of("0123456789abcdef") != 4) continue;
    EXPECT_EQ(std::stoul(line.substr(0, 4), nullptr, 16) * 2, hex.size()) << line;
    for (size_t i = 6; i + 1 < line.size() && std::isxdigit(line[i]) && std::isxdigit(line[i + 1]); i += 3)
      hex += line.substr(i, 2);
  }
  EXPECT_EQ(hex, Hex(ReadBytes(kGolden + "/tiny_v1.mxt")));
}

}  // namespace
}  // namespace mxrec
