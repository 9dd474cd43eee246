#include "mxrec/ckpt/format/manifest.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/ckpt/format/names.h"
#include "mxrec/ckpt/format/table_file.h"
#include "mxrec/io/crc32c.h"

namespace mxrec::format {
namespace {

TableFileInfo Info(const std::string& table, uint32_t shard = 0, uint32_t shard_count = 1) {
  TableFileInfo info;
  info.table = table;
  info.dim = 16;
  info.seed = 0xFEDCBA9876543210u;
  info.initializer = {InitializerSpec::Kind::kTruncatedNormal, 0.1, -0.0};
  info.slots = {.optimizer_kind = "adam",
                .slot_names = {"m", "v"},
                .slot_initial_values = {0.0f, 0.1f},
                .slot_widths = {},
                .step = 9007199254740993u,  // no double holds it
                .scalar_names = {"beta1_power"},
                .scalars = {0.729f}};
  info.has_counts = true;
  info.rows = 10 + shard;
  info.candidates = 3;
  info.bytes = 1234;
  info.crc32c = 0xE3069283;
  info.content_tag = 0x0123456789ABCDEFu + shard;
  info.shard = shard;
  info.shard_count = shard_count;
  info.file = TableFileName(table, info.content_tag, shard, shard_count);
  return info;
}

Manifest Sample() { return {.step = 300, .files = {Info("user", 1, 2), Info("item"), Info("user", 0, 2)}}; }

void ExpectSame(const TableFileInfo& a, const TableFileInfo& b) {
  EXPECT_EQ(a.file, b.file);
  EXPECT_EQ(a.table, b.table);
  EXPECT_EQ(a.dim, b.dim);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(a.initializer, b.initializer);
  EXPECT_EQ(a.slots.optimizer_kind, b.slots.optimizer_kind);
  EXPECT_EQ(a.slots.slot_names, b.slots.slot_names);
  EXPECT_EQ(a.slots.slot_initial_values, b.slots.slot_initial_values);
  EXPECT_EQ(a.slots.step, b.slots.step);
  EXPECT_EQ(a.slots.scalar_names, b.slots.scalar_names);
  EXPECT_EQ(a.slots.scalars, b.slots.scalars);
  EXPECT_EQ(a.has_counts, b.has_counts);
  EXPECT_EQ(a.has_times, b.has_times);
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.candidates, b.candidates);
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_EQ(a.crc32c, b.crc32c);
  EXPECT_EQ(a.content_tag, b.content_tag);
  EXPECT_EQ(a.shard, b.shard);
  EXPECT_EQ(a.shard_count, b.shard_count);
}

// Puts a right checksum under a changed text, as a program that writes manifests of its own would.
std::string WithChecksum(std::string text) {
  const size_t end = text.rfind(",\n  \"crc32c\"");
  text.resize(end);
  return text + ",\n  \"crc32c\": \"" + Hex32(Crc32c(text)) + "\"\n}\n";
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return WithChecksum(text.replace(at, from.size(), to));
}

TEST(ManifestTest, RoundTripSortsByTableAndShard) {
  const std::string text = EncodeManifest(Sample()).value();
  const Result<Manifest> read = DecodeManifest(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, 300u);
  ASSERT_EQ(read->files.size(), 3u);
  ExpectSame(read->files[0], Info("item"));
  ExpectSame(read->files[1], Info("user", 0, 2));
  ExpectSame(read->files[2], Info("user", 1, 2));
  EXPECT_EQ(EncodeManifest(*read).value(), text);
}

TEST(ManifestTest, NoTablesAndOddNumbersRoundTrip) {
  EXPECT_TRUE(DecodeManifest(EncodeManifest({.step = ~uint64_t{0}, .files = {}}).value()).value().files.empty());
  Manifest manifest{.step = 1, .files = {Info("用户 \"x\" \\ \n")}};
  manifest.files[0].slots.scalars = {std::numeric_limits<float>::infinity()};
  manifest.files[0].slots.slot_initial_values = {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::denorm_min()};
  const Manifest read = DecodeManifest(EncodeManifest(manifest).value()).value();
  ExpectSame(read.files[0], manifest.files[0]);
  manifest.files[0].slots.scalars = {std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(std::isnan(DecodeManifest(EncodeManifest(manifest).value()).value().files[0].slots.scalars[0]));
}

TEST(ManifestTest, EveryFlippedBitAndEveryTruncationIsRefused) {
  const std::string text = EncodeManifest(Sample()).value();
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      const Result<Manifest> read = DecodeManifest(damaged);
      ASSERT_FALSE(read.ok()) << "byte " << i << " bit " << bit;
      ASSERT_TRUE(read.status().code() == StatusCode::kDataLoss || read.status().code() == StatusCode::kUnimplemented)
          << read.status();
    }
    ASSERT_EQ(DecodeManifest(text.substr(0, i)).status().code(), StatusCode::kDataLoss) << i;
  }
  EXPECT_FALSE(DecodeManifest(text + "\n").ok());
}

TEST(ManifestTest, ANewerVersionIsNamed) {
  std::string text = EncodeManifest(Sample()).value();
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
  const Status status = DecodeManifest(text).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), "manifest version 2; this build reads up to version 1");
}

TEST(ManifestTest, OtherPeoplesFilesAreRefused) {
  for (const char* text : {"", "{}", "[]", "null", "7", "{\"format\": \"other\"}", "not json", "{\"format\": \"mxrec-checkpoint\"}",
                           "{\"format\": \"mxrec-checkpoint\", \"version\": 1}"}) {
    EXPECT_EQ(DecodeManifest(text).status().code(), StatusCode::kDataLoss) << text;
  }
  EXPECT_EQ(DecodeManifest(std::string(1000000, '[')).status().code(), StatusCode::kDataLoss);
}

TEST(ManifestTest, EveryMemberIsCheckedAndNamed) {
  const std::string text = EncodeManifest(Sample()).value();
  const struct {
    const char *from, *to, *message;
  } kCases[] = {
      {"\"version\": 1", "\"version\": 0", "top.version: expected 1 to 1, found 0"},
      {"\"version\": 1", "\"version\": \"1\"", "top.version: expected a whole number, found \"1\""},
      {"\"step\": 300", "\"step\": -3", "top.step: expected a whole number, found -3"},
      {"\"step\": 300", "\"step\": 3.5", "top.step: expected a whole number, found 3.5"},
      {"\"step\": 300", "\"steps\": 300", "top: expected no member \"steps\""},
      {"\"step\": 300", "\"step\": 300, \"parent\": 1", "top: expected no member \"parent\""},
      {"\"name\": \"item\"", "\"name\": 5", "tables[0].name: expected a string, found 5"},
      {"\"name\": \"item\"", "\"name\": \"zebra\"", "tables[0].files[0].file: expected \"zebra-"},
      {"\"value_type\": \"float32\"", "\"value_type\": \"float64\"",
       "tables[0].value_type: expected \"float32\", found \"float64\""},
      {"\"key_type\": \"int64\"", "\"key_type\": \"int32\"", "tables[0].key_type: expected \"int64\", found \"int32\""},
      {"\"dim\": 16", "\"dim\": 0", "tables[0].dim: expected 1 to 4294967295, found 0"},
      {"\"dim\": 16", "\"dim\": 4294967296", "tables[0].dim: expected 1 to 4294967295, found 4294967296"},
      {"\"seed\": \"fedc", "\"seed\": \"FEDC", "tables[0].seed: expected 16 hexadecimal digits"},
      {"truncated_normal", "orthogonal", "tables[0].initializer.kind: expected constant"},
      {"\"counts\": true", "\"counts\": 1", "tables[0].counts: expected true or false, found 1"},
      {"\"initial\": 0.0", "\"initial\": null", "tables[0].optimizer.slots[0].initial: expected a number"},
      {"\"optimizer\": {", "\"optimizer\": 3, \"x\": {", "expected no member \"x\""},
      {"\"rows\": 10", "\"rows\": true", "tables[0].files[0].rows: expected a whole number, found true"},
      {"\"file\": \"item-", "\"file\": \"../item-", "tables[0].files[0].file: expected \"item-"},
      {"\"crc32c\": \"e3069283\"", "\"crc32c\": \"e306928\"", "tables[0].files[0].crc32c: expected 8 hexadecimal digits"},
      {"\"bytes\": 1234", "\"bytes\": 18446744073709551616", "tables[0].files[0].bytes: expected a whole number"},
  };
  for (const auto& c : kCases) {
    const Status status = DecodeManifest(Replaced(text, c.from, c.to)).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << c.to;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(c.message));
  }
}

TEST(ManifestTest, ShardsThatDoNotBelongTogetherAreNotWritten) {
  const auto code = [](std::vector<TableFileInfo> files) {
    return EncodeManifest({.step = 1, .files = std::move(files)}).status().code();
  };
  EXPECT_EQ(code({Info("user", 0, 2)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({Info("user", 1, 2), Info("user", 1, 2)}), StatusCode::kInvalidArgument);
  TableFileInfo other_step = Info("user", 1, 2);
  other_step.slots.step = 1;
  EXPECT_EQ(code({Info("user", 0, 2), other_step}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({Info("\xFF\xFE")}), StatusCode::kInvalidArgument);
}

TEST(LatestTest, RoundTripAndRefusal) {
  EXPECT_EQ(EncodeLatest(12), "{\"step\": 12}\n");
  EXPECT_EQ(DecodeLatest(EncodeLatest(~uint64_t{0})).value(), ~uint64_t{0});
  for (const char* text : {"", "12", "{}", "{\"step\": -1}", "{\"step\": \"12\"}", "{\"step\": 1, \"x\": 2}", "[1]"}) {
    EXPECT_EQ(DecodeLatest(text).status().code(), StatusCode::kDataLoss) << text;
  }
}

}  // namespace
}  // namespace mxrec::format
