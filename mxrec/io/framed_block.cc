#include "mxrec/io/framed_block.h"

#include <algorithm>
#include <cstdio>
#include <span>

#include "mxrec/io/crc32c.h"
#include "mxrec/io/little_endian.h"

namespace mxrec {
namespace {

constexpr size_t kHeaderCrcOffset = 20;

std::string Hex(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08x", value);
  return text;
}

}  // namespace

Status BlockError(const BlockPlace& place, std::string_view what, std::string_view expected, std::string_view found) {
  std::string text(place.file);
  text.append(": block ").append(std::to_string(place.block));
  text.append(" at offset ").append(std::to_string(place.offset));
  text.append(": ").append(what);
  text.append(": expected ").append(expected);
  text.append(", found ").append(found);
  return DataLossError(std::move(text));
}

std::array<char, kBlockHeaderBytes> EncodeBlockHeader(const BlockHeader& header) {
  std::array<char, kBlockHeaderBytes> bytes;
  StoreLittleEndian<uint32_t>(header.magic, bytes.data());
  StoreLittleEndian<uint32_t>(header.type, bytes.data() + 4);
  StoreLittleEndian<uint64_t>(header.payload_bytes, bytes.data() + 8);
  StoreLittleEndian<uint32_t>(header.payload_crc32c, bytes.data() + 16);
  StoreLittleEndian<uint32_t>(Crc32c({bytes.data(), kHeaderCrcOffset}), bytes.data() + kHeaderCrcOffset);
  return bytes;
}

BlockHeader DescribeBlock(uint32_t magic, uint32_t type, std::string_view payload) {
  return {.magic = magic, .type = type, .payload_bytes = payload.size(), .payload_crc32c = Crc32c(payload)};
}

void AppendBlock(uint32_t magic, uint32_t type, std::string_view payload, std::string* out) {
  const auto header = EncodeBlockHeader(DescribeBlock(magic, type, payload));
  out->append(header.data(), header.size());
  out->append(payload);
}

Result<BlockHeader> DecodeBlockHeader(std::string_view bytes, uint32_t magic, uint64_t max_payload_bytes, const BlockPlace& place) {
  if (bytes.size() < kBlockHeaderBytes) {
    return BlockError(place, "the file ends within the header", std::to_string(kBlockHeaderBytes) + " bytes",
                      std::to_string(bytes.size()));
  }
  const BlockHeader header = {.magic = LoadLittleEndian<uint32_t>(bytes.data()),
                              .type = LoadLittleEndian<uint32_t>(bytes.data() + 4),
                              .payload_bytes = LoadLittleEndian<uint64_t>(bytes.data() + 8),
                              .payload_crc32c = LoadLittleEndian<uint32_t>(bytes.data() + 16)};
  if (header.magic != magic) return BlockError(place, "magic number", Hex(magic), Hex(header.magic));
  const uint32_t stored = LoadLittleEndian<uint32_t>(bytes.data() + kHeaderCrcOffset);
  const uint32_t computed = Crc32c(bytes.substr(0, kHeaderCrcOffset));
  if (stored != computed) return BlockError(place, "checksum of the header", Hex(stored), Hex(computed));
  if (header.payload_bytes > max_payload_bytes) {
    return BlockError(place, "payload bytes", "at most " + std::to_string(max_payload_bytes), std::to_string(header.payload_bytes));
  }
  return header;
}

Status CheckBlockPayload(const BlockHeader& header, std::string_view payload, const BlockPlace& place) {
  if (payload.size() != header.payload_bytes) {
    return BlockError(place, "payload bytes", std::to_string(header.payload_bytes), std::to_string(payload.size()));
  }
  const uint32_t computed = Crc32c(payload);
  if (computed != header.payload_crc32c) {
    return BlockError(place, "checksum of the payload", Hex(header.payload_crc32c), Hex(computed));
  }
  return OkStatus();
}

Result<BlockHeader> ReadBlock(const RandomAccessFile& file, uint32_t magic, uint64_t max_payload_bytes, const BlockPlace& place,
                              std::string* payload) {
  const uint64_t left = file.size() - std::min(file.size(), place.offset);
  std::array<char, kBlockHeaderBytes> bytes;
  const size_t present = static_cast<size_t>(std::min<uint64_t>(left, bytes.size()));
  MXREC_RETURN_IF_ERROR(file.ReadAt(place.offset, std::span(bytes.data(), present)));
  MXREC_ASSIGN_OR_RETURN(const BlockHeader header, DecodeBlockHeader({bytes.data(), present}, magic, max_payload_bytes, place));
  if (header.payload_bytes > left - kBlockHeaderBytes) {
    return BlockError(place, "the file ends within the payload", std::to_string(header.payload_bytes) + " bytes",
                      std::to_string(left - kBlockHeaderBytes));
  }
  payload->resize(header.payload_bytes);
  MXREC_RETURN_IF_ERROR(file.ReadAt(place.offset + kBlockHeaderBytes, *payload));
  MXREC_RETURN_IF_ERROR(CheckBlockPayload(header, *payload, place));
  return header;
}

}  // namespace mxrec
