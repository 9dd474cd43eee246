#include "mxrec/io/framed_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mxrec/io/crc32c.h"
#include "mxrec/io/little_endian.h"
#include "mxrec/io/test_dir.h"

namespace mxrec {
namespace {

using testing::HasSubstr;

constexpr uint32_t kMagic = 0x54584D42;
constexpr BlockPlace kPlace = {.file = "t.mxt", .block = 2, .offset = 0};

std::string Block(std::string_view payload) {
  std::string bytes;
  AppendBlock(kMagic, 7, payload, &bytes);
  return bytes;
}

class FramedBlockFileTest : public testing::Test {
 protected:
  Result<BlockHeader> Read(std::string_view bytes, uint64_t offset = 0, uint64_t max = 1 << 20) {
    const std::string path = dir_.File("t.mxt");
    MXREC_RETURN_IF_ERROR(WriteFileAtomically(Env::Default(), path, bytes));
    MXREC_ASSIGN_OR_RETURN(const auto file, Env::Default()->NewRandomAccessFile(path));
    return ReadBlock(*file, kMagic, max, {.file = "t.mxt", .block = 2, .offset = offset}, &payload_);
  }
  TestDir dir_;
  std::string payload_;
};

TEST(FramedBlockTest, BytesAreAsDocumented) {
  const std::string bytes = Block("payload");
  ASSERT_EQ(bytes.size(), kBlockHeaderBytes + 7);
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data()), kMagic);
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data() + 4), 7u);
  EXPECT_EQ(LoadLittleEndian<uint64_t>(bytes.data() + 8), 7u);
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data() + 16), Crc32c("payload"));
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data() + 20), Crc32c(std::string_view(bytes).substr(0, 20)));
  EXPECT_EQ(bytes.substr(kBlockHeaderBytes), "payload");
}

TEST(FramedBlockTest, RoundTrips) {
  for (const std::string& payload : {std::string(), std::string("x"), std::string(100000, 'y')}) {
    const std::string bytes = Block(payload);
    const auto header = DecodeBlockHeader(bytes, kMagic, 1 << 20, kPlace);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(*header, DescribeBlock(kMagic, 7, payload));
    EXPECT_TRUE(CheckBlockPayload(*header, std::string_view(bytes).substr(kBlockHeaderBytes), kPlace).ok());
  }
}

TEST(FramedBlockTest, EveryFlippedBitIsFound) {
  const std::string good = Block("some payload");
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    const auto header = DecodeBlockHeader(bad, kMagic, 1 << 20, kPlace);
    const Status status =
        header.ok() ? CheckBlockPayload(*header, std::string_view(bad).substr(kBlockHeaderBytes), kPlace) : header.status();
    ASSERT_EQ(status.code(), StatusCode::kDataLoss) << "bit " << bit;
    ASSERT_THAT(std::string(status.message()), HasSubstr("t.mxt: block 2 at offset 0: ")) << "bit " << bit;
  }
}

TEST(FramedBlockTest, MessagesSayExpectedAndFound) {
  std::string bytes = Block("p");
  EXPECT_EQ(DecodeBlockHeader("short", kMagic, 10, kPlace).status().message(),
            "t.mxt: block 2 at offset 0: the file ends within the header: expected 24 bytes, found 5");
  EXPECT_EQ(DecodeBlockHeader(bytes, 0x1234, 10, kPlace).status().message(),
            "t.mxt: block 2 at offset 0: magic number: expected 0x00001234, found 0x54584d42");
  EXPECT_EQ(DecodeBlockHeader(bytes, kMagic, 0, kPlace).status().message(),
            "t.mxt: block 2 at offset 0: payload bytes: expected at most 0, found 1");
  EXPECT_EQ(CheckBlockPayload(DescribeBlock(kMagic, 7, "ab"), "a", kPlace).message(),
            "t.mxt: block 2 at offset 0: payload bytes: expected 2, found 1");
  EXPECT_THAT(std::string(CheckBlockPayload(DescribeBlock(kMagic, 7, "ab"), "ac", kPlace).message()),
              HasSubstr("checksum of the payload: expected 0x"));
}

TEST_F(FramedBlockFileTest, ReadsAtAnOffset) {
  const auto header = Read("prefix" + Block("payload") + "suffix", 6);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(payload_, "payload");
  EXPECT_EQ(header->type, 7u);
}

TEST_F(FramedBlockFileTest, EveryTruncationIsFound) {
  const std::string good = Block("payload");
  for (size_t size = 0; size < good.size(); ++size) {
    const auto header = Read(good.substr(0, size));
    ASSERT_EQ(header.status().code(), StatusCode::kDataLoss) << "size " << size;
    ASSERT_THAT(std::string(header.status().message()), HasSubstr("the file ends within the")) << "size " << size;
  }
  EXPECT_EQ(Read(good, 1000).status().code(), StatusCode::kDataLoss);
}

TEST_F(FramedBlockFileTest, AHugeLengthIsRefusedWithoutAllocatingIt) {
  const auto header = EncodeBlockHeader({.magic = kMagic, .type = 7, .payload_bytes = uint64_t{1} << 62, .payload_crc32c = 0});
  const auto read = Read(std::string(header.begin(), header.end()) + "few", 0, UINT64_MAX);
  EXPECT_EQ(read.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("expected 4611686018427387904 bytes, found 3"));
}

}  // namespace
}  // namespace mxrec
