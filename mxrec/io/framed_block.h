// Framed blocks: how stored data is cut up so that damage is found and named. All numbers little-endian.
//
//   offset size  header
//        0    4  magic           chosen by the format; foreign files differ here
//        4    4  type            chosen by the format
//        8    8  payload bytes
//       16    4  CRC32C of the payload
//       20    4  CRC32C of the 20 bytes above
//       24       payload
//
// A reader first checks the header (so that a damaged length is never believed), then reads and checks the payload.
// Failures are kDataLoss and name file, block number, what was expected and what was found.
#ifndef MXREC_IO_FRAMED_BLOCK_H_
#define MXREC_IO_FRAMED_BLOCK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "mxrec/base/status.h"
#include "mxrec/io/env.h"

namespace mxrec {

inline constexpr size_t kBlockHeaderBytes = 24;

struct BlockHeader {
  uint32_t magic = 0;
  uint32_t type = 0;
  uint64_t payload_bytes = 0;
  uint32_t payload_crc32c = 0;
  friend bool operator==(const BlockHeader&, const BlockHeader&) = default;
};

// Where a block is, for messages.
struct BlockPlace {
  std::string_view file;
  uint64_t block = 0;   // number within the file
  uint64_t offset = 0;  // of its header
};

// "<file>: block <n> at offset <o>: <what>: expected <expected>, found <found>" as kDataLoss. Formats use it for their own checks.
Status BlockError(const BlockPlace& place, std::string_view what, std::string_view expected, std::string_view found);

std::array<char, kBlockHeaderBytes> EncodeBlockHeader(const BlockHeader& header);
// The header of a payload.
BlockHeader DescribeBlock(uint32_t magic, uint32_t type, std::string_view payload);
// Appends header and payload.
void AppendBlock(uint32_t magic, uint32_t type, std::string_view payload, std::string* out);

// Reads a header from the front of bytes. Checked in this order: enough bytes, magic, checksum of the header, payload bytes
// <= max_payload_bytes.
Result<BlockHeader> DecodeBlockHeader(std::string_view bytes, uint32_t magic, uint64_t max_payload_bytes, const BlockPlace& place);
// Checks length and checksum of a payload.
Status CheckBlockPayload(const BlockHeader& header, std::string_view payload, const BlockPlace& place);

// Reads and checks the block at place.offset (place.file is for messages only): the payload replaces *payload, whose memory is
// reused. Nothing beyond the file's end is allocated: a length that does not fit the file is kDataLoss.
Result<BlockHeader> ReadBlock(const RandomAccessFile& file, uint32_t magic, uint64_t max_payload_bytes, const BlockPlace& place,
                              std::string* payload);

}  // namespace mxrec

#endif  // MXREC_IO_FRAMED_BLOCK_H_
