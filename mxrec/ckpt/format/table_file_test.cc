#include "mxrec/ckpt/format/table_file.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/io/crc32c.h"
#include "mxrec/io/little_endian.h"

namespace mxrec::format {
namespace {

TableHeader Sample() {
  TableHeader header;
  header.table = "user";
  header.dim = 3;
  header.seed = 0xFEDCBA9876543210u;
  header.initializer = {InitializerSpec::Kind::kUniform, -0.5, 0.5};
  header.slots = {.optimizer_kind = "adagrad",
                  .slot_names = {"accumulator"},
                  .slot_initial_values = {0.1f},
                  .slot_widths = {},
                  .step = 12,
                  .scalar_names = {"p"},
                  .scalars = {0.5f}};
  header.has_counts = true;
  header.has_times = true;
  header.shard = 1;
  header.shard_count = 2;
  header.rows = 10;
  header.candidates = 4;
  header.rows_per_block = 4;
  header.candidates_per_block = 2;
  header.run_rows = {0, 9, 1};
  header.run_candidates = {3, 0, 1};
  return header;
}

// With a right checksum under changed bytes.
std::string WithChecksum(std::string header) {
  StoreLittleEndian(Crc32c({header.data(), header.size() - 4}), header.data() + header.size() - 4);
  return header;
}

TEST(HeaderTest, RoundTrip) {
  const std::string bytes = EncodeTableHeader(Sample()).value();
  EXPECT_EQ(bytes.size() % 8, 0u);
  EXPECT_EQ(DecodeHeaderLength(std::string_view(bytes).substr(0, kHeaderStartBytes)).value(), bytes.size());
  const TableHeader read = DecodeTableHeader(bytes).value();
  EXPECT_EQ(EncodeTableHeader(read).value(), bytes);
  EXPECT_EQ(read.table, "user");
  EXPECT_EQ(read.slots.slot_names, Sample().slots.slot_names);
  EXPECT_EQ(read.run_rows, Sample().run_rows);
  EXPECT_EQ(read.run_candidates, Sample().run_candidates);
  EXPECT_EQ(read.initializer, Sample().initializer);
}

TEST(HeaderTest, SlotsOfOneFloatMakeVersion2AndShorterRows) {
  TableHeader header = Sample();
  header.slots.slot_names.push_back("of the row");
  header.slots.slot_initial_values.push_back(2.0f);
  const auto version = [](const std::string& bytes) { return LoadLittleEndian<uint32_t>(bytes.data() + 8); };
  EXPECT_EQ(version(EncodeTableHeader(header).value()), 1u);
  header.slots.slot_widths = {3, 3};
  EXPECT_EQ(version(EncodeTableHeader(header).value()), 1u);
  EXPECT_EQ(header.row_bytes(), 8u + 8 + 4 * 9 + 4);
  header.slots.slot_widths = {3, 1};
  EXPECT_EQ(header.row_bytes(), 8u + 8 + 4 * 7 + 4);
  const std::string bytes = EncodeTableHeader(header).value();
  EXPECT_EQ(version(bytes), 2u);
  const TableHeader read = DecodeTableHeader(bytes).value();
  EXPECT_EQ(read.slots.slot_widths, header.slots.slot_widths);
  EXPECT_EQ(read.slots.scalars, header.slots.scalars);
  EXPECT_EQ(EncodeTableHeader(read).value(), bytes);

  // Behind two counts of 3 runs, 2 start values and 1 scalar: the widths.
  for (const auto& [width, message] : std::vector<std::pair<uint32_t, const char*>>{
           {2, "width of a slot: expected 1 or the dim 3, found 2"}, {3, "version for its flags and slots: expected 1, found 2"}}) {
    std::string changed = bytes;
    StoreLittleEndian(width, changed.data() + 120 + 48 + 8 + 4 + 4);
    const Status status = DecodeTableHeader(WithChecksum(changed)).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(message));
  }
  header.slots.slot_widths = {1};
  EXPECT_EQ(EncodeTableHeader(header).status().code(), StatusCode::kInvalidArgument);
}

TEST(HeaderTest, ANewerVersionIsRefusedByItsNumber) {
  std::string bytes = EncodeTableHeader(Sample()).value();
  StoreLittleEndian(uint32_t{4}, bytes.data() + 8);
  const Status status = DecodeTableHeader(WithChecksum(bytes)).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), "table file version 4; this build reads up to version 3");
}

TEST(HeaderTest, UseStampsMakeVersion3WithTheClockAndTheHands) {
  TableHeader header = Sample();
  const uint64_t bytes_before = header.row_bytes();
  header.eviction = {.kept = true, .by = EvictBy::kLfu, .time = uint64_t{77} << 32, .row_hand = 5, .candidate_hand = 6};
  EXPECT_EQ(header.row_bytes(), bytes_before + 4);
  const std::string bytes = EncodeTableHeader(header).value();
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data() + 8), 3u);
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data() + 20), 15u);
  const TableHeader read = DecodeTableHeader(bytes).value();
  EXPECT_TRUE(read.eviction.kept);
  EXPECT_EQ(read.eviction.by, EvictBy::kLfu);
  EXPECT_EQ(read.eviction.time, uint64_t{77} << 32);
  EXPECT_EQ(read.eviction.row_hand, 5u);
  EXPECT_EQ(read.eviction.candidate_hand, 6u);
  EXPECT_EQ(EncodeTableHeader(read).value(), bytes);
  for (const auto& [flags, message] :
       std::vector<std::pair<uint32_t, const char*>>{{3, "version for its flags and slots: expected 1, found 3"},
                                                     {11, "flags: expected 4 with 8, found 11"},
                                                     {31, "flags: expected 0 to 15, found 31"}}) {
    std::string changed = bytes;
    StoreLittleEndian(flags, changed.data() + 20);
    const Status status = DecodeTableHeader(WithChecksum(changed)).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(message));
  }
}

TEST(HeaderTest, FieldsOutOfRangeAreRefusedAlsoUnderARightChecksum) {
  const std::string good = EncodeTableHeader(Sample()).value();
  const auto refused = [&](size_t offset, auto value, const char* message) {
    std::string bytes = good;
    StoreLittleEndian(value, bytes.data() + offset);
    const Status status = DecodeTableHeader(WithChecksum(bytes)).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << message;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(message));
  };
  refused(8, uint32_t{0}, "version: expected 1 to 3, found 0");
  refused(12, uint32_t{0x04030201}, "byte order mark: expected 01020304, found 04030201");
  refused(20, uint32_t{4}, "flags: expected 0 to 3, found 4");
  refused(24, uint64_t{11}, "rows of all runs: expected 11, found 10");
  refused(32, uint64_t{5}, "candidates of all runs: expected 5, found 4");
  refused(72, uint32_t{4}, "initializer kind");
  refused(76, uint32_t{0}, "dim: expected at least 1, found 0");
  refused(76, uint32_t{4}, "bytes of a row");
  refused(80, uint32_t{2}, "shard: expected less than the shard count 2, found 2");
  refused(88, uint32_t{0}, "rows per block");
  refused(92, uint32_t{0}, "candidates per block");
  refused(96, uint32_t{70000}, "runs: expected at most 65536");
  refused(96, uint32_t{65536}, "it ends inside a field");
  refused(100, uint32_t{65}, "slots: expected at most 64");
  refused(104, uint32_t{1025}, "scalars: expected at most 1024");
  refused(108, uint32_t{24}, "bytes of a candidate: expected 20, found 24");
  refused(120, ~uint64_t{0}, "rows of all runs: expected 10, found more than 64 bits hold");
}

TEST(HeaderTest, NamesThatDoNotFitAreRefusedWhenWritten) {
  TableHeader header = Sample();
  header.table = std::string(kMaxHeaderBytes, 'x');
  EXPECT_EQ(EncodeTableHeader(header).status().code(), StatusCode::kInvalidArgument);
  header = Sample();
  header.slots.slot_names.push_back("one without a start value");
  EXPECT_EQ(EncodeTableHeader(header).status().code(), StatusCode::kInvalidArgument);
}

TEST(LayoutTest, BlocksFollowEachOtherUpToTheFooter) {
  const TableHeader header = Sample();
  const TableLayout layout = MakeLayout(header, 256).value();
  EXPECT_EQ(header.row_bytes(), 8u + 8 + 4 * 3 * 2 + 4);
  ASSERT_EQ(layout.runs.size(), 6u);
  uint64_t offset = 256, index = 0, rows = 0, candidates = 0, longest = 0;
  for (const BlockRun& run : layout.runs) {
    for (uint64_t i = 0; i < run.block_count(); ++i) {
      const BlockPlace place = run.place(i);
      EXPECT_EQ(place.offset, offset);
      EXPECT_EQ(place.index, index++);
      EXPECT_EQ(place.payload_bytes % 8, 0u);
      (place.kind == BlockKind::kRows ? rows : candidates) += place.count;
      longest = std::max(longest, place.bytes());
      offset += place.bytes();
    }
  }
  EXPECT_EQ(rows, 10u);
  EXPECT_EQ(candidates, 4u);
  EXPECT_EQ(layout.block_count, index);
  EXPECT_EQ(layout.footer_offset, offset);
  EXPECT_EQ(layout.max_block_bytes, longest);
}

TEST(LayoutTest, SizesThatOverflowAreRefused) {
  TableHeader header = Sample();
  header.run_rows = {uint64_t{1} << 62};
  header.run_candidates = {0};
  EXPECT_EQ(MakeLayout(header, 256).status().code(), StatusCode::kDataLoss);
  header.run_rows = {uint64_t{1} << 58, uint64_t{1} << 58, uint64_t{1} << 58, uint64_t{1} << 58};
  EXPECT_EQ(MakeLayout(header, 256).status().code(), StatusCode::kDataLoss);
  header = Sample();
  header.rows_per_block = 1u << 30;
  EXPECT_EQ(MakeLayout(header, 256).status().code(), StatusCode::kDataLoss);
  header = Sample();
  header.dim = ~0u;
  EXPECT_EQ(MakeLayout(header, 256).status().code(), StatusCode::kDataLoss);
}

TEST(LayoutTest, BlocksAreAboutAMegabyte) {
  EXPECT_EQ(RowsPerBlock(kBlockTargetBytes / 4), 4u);
  EXPECT_EQ(RowsPerBlock(uint64_t{1} << 40), 1u);
  EXPECT_EQ(RowsPerBlock(72), kBlockTargetBytes / 72);
}

class BlockTest : public ::testing::Test {
 protected:
  BlockTest() : block_(place_.bytes() / 8) {
    for (size_t i = 0; i < bytes().size(); ++i) bytes()[i] = static_cast<char>(i);
    digest_ = SealBlock(place_, bytes());
  }
  std::span<char> bytes() { return {reinterpret_cast<char*>(block_.data()), place_.bytes()}; }
  // Rewrites the frame's checksum.
  void Reseal() { StoreLittleEndian(Crc32c({bytes().data(), kFrameBytes - 4}), bytes().data() + kFrameBytes - 4); }
  std::string Message() { return std::string(CheckBlock(place_, bytes()).status().message()); }

  const BlockPlace place_{
      .kind = BlockKind::kRows, .index = 5, .offset = 4000, .count = 3, .record_bytes = 12, .payload_bytes = 40};
  std::vector<uint64_t> block_;
  BlockDigest digest_;
};

TEST_F(BlockTest, ASealedBlockIsAcceptedAndDigestsAlike) {
  const BlockDigest checked = CheckBlock(place_, bytes()).value();
  FileDigest a("header"), b("header");
  a.Add(digest_);
  b.Add(checked);
  EXPECT_EQ(a.content_tag(), b.content_tag());
  EXPECT_EQ(a.crc32c(), b.crc32c());
  EXPECT_EQ(a.crc32c(), Crc32c({bytes().data(), bytes().size()}, Crc32c("header")));
}

TEST_F(BlockTest, EveryFlippedBitIsRefused) {
  for (size_t i = 0; i < bytes().size() * 8; ++i) {
    bytes()[i / 8] = static_cast<char>(bytes()[i / 8] ^ (1 << (i % 8)));
    ASSERT_EQ(CheckBlock(place_, bytes()).status().code(), StatusCode::kDataLoss) << i;
    bytes()[i / 8] = static_cast<char>(bytes()[i / 8] ^ (1 << (i % 8)));
  }
  EXPECT_TRUE(CheckBlock(place_, bytes()).ok());
}

TEST_F(BlockTest, ABlockOfAnotherPlaceIsRefused) {
  StoreLittleEndian(static_cast<uint32_t>(BlockKind::kCandidates), bytes().data());
  Reseal();
  EXPECT_EQ(Message(), "block 5 at offset 4000, kind: expected ROWS, found \"CAND\"");
  StoreLittleEndian(static_cast<uint32_t>(BlockKind::kRows), bytes().data());
  StoreLittleEndian(uint64_t{6}, bytes().data() + 8);
  Reseal();
  EXPECT_EQ(Message(), "block 5 at offset 4000, number: expected 5, found 6");
}

TEST_F(BlockTest, PaddingMustBeZero) {
  bytes()[kFrameBytes + 36] = 1;
  const std::string_view payload(bytes().data() + kFrameBytes, 40);
  StoreLittleEndian(Hash64(payload), bytes().data() + 24);
  StoreLittleEndian(Crc32c(payload), bytes().data() + 32);
  Reseal();
  EXPECT_THAT(Message(), ::testing::HasSubstr("padding"));
}

TEST(FooterTest, RoundTripAndEveryFlippedBitRefused) {
  const TableFooter footer{.block_count = 5, .rows = 10, .candidates = 4, .content_tag = 0xABCDEF, .crc32c = 0x1234};
  std::string bytes = EncodeTableFooter(footer);
  EXPECT_EQ(bytes.size(), kFooterBytes);
  EXPECT_EQ(DecodeTableFooter(bytes).value(), footer);
  EXPECT_EQ(WholeFileCrc32c(bytes), Crc32c(bytes, 0x1234));
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ (1 << (i % 8)));
    ASSERT_EQ(DecodeTableFooter(bytes).status().code(), StatusCode::kDataLoss) << i;
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ (1 << (i % 8)));
  }
  EXPECT_FALSE(DecodeTableFooter(bytes.substr(1)).ok());
}

}  // namespace
}  // namespace mxrec::format
