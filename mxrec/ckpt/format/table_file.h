// The bytes of a table file (.mxt): pure encoding and decoding, no files. Byte tables: docs/formats/checkpoint.md.
//
//   header | rows of run 0 in blocks | rows of run 1 ... | candidates of run 0 in blocks | ... | footer
//
// The header fixes the place and length of everything that follows. So blocks can be written and read in any order by
// any number of threads, a reader allocates nothing a damaged length asks for, and a file of the wrong length is refused
// before a block is read. A run is what one thread writes: one per shard of the table.
//
// Failures are kDataLoss (damaged, short, foreign) or kUnimplemented (a newer version) and say what was expected and
// found; the caller adds the path.
#ifndef MXREC_CKPT_FORMAT_TABLE_FILE_H_
#define MXREC_CKPT_FORMAT_TABLE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/base/hash.h"
#include "mxrec/base/status.h"
#include "mxrec/table/initializer.h"
#include "mxrec/table/table.h"

namespace mxrec::format {

inline constexpr std::string_view kTableFileMagic = "MXRECTAB";
inline constexpr std::string_view kTableFooterMagic = "MXRECEND";
// The newest version. A file has the lowest that can say what is in it: 3 when rows have use stamps, else 2 when a slot has one
// float a row, else 1.
inline constexpr uint32_t kTableFileVersion = 3;
inline constexpr uint32_t kByteOrderMark = 0x01020304;
// What must be read to learn the length of the header.
inline constexpr size_t kHeaderStartBytes = 24;
inline constexpr size_t kMaxHeaderBytes = size_t{1} << 20;
inline constexpr size_t kFrameBytes = 40;
inline constexpr size_t kFooterBytes = 48;
inline constexpr size_t kBlockTargetBytes = size_t{1} << 20;
// More than this in one block is refused unless a single row is that long.
inline constexpr size_t kMaxBlockBytes = size_t{16} << 20;
inline constexpr uint32_t kCandidatesPerBlock = 32768;
inline constexpr uint32_t kCandidateBytes = 20;

struct TableHeader {
  std::string table;
  uint32_t dim = 0;
  uint64_t seed = 0;
  InitializerSpec initializer;
  SlotRecord slots;
  bool has_counts = false, has_times = false;
  EvictionState eviction;  // kept: rows have use stamps
  uint32_t shard = 0, shard_count = 1;
  uint64_t rows = 0, candidates = 0;
  uint32_t rows_per_block = 0, candidates_per_block = 0;
  std::vector<uint64_t> run_rows;        // their sum is rows
  std::vector<uint64_t> run_candidates;  // as many; their sum is candidates

  // Bytes of one row: key, time, values, slots, count, stamp.
  uint64_t row_bytes() const;
};

// How many rows of that many bytes make a block of about kBlockTargetBytes; >= 1.
uint32_t RowsPerBlock(uint64_t row_bytes);

// kInvalidArgument when something does not fit (text lengths, dim, counts).
Result<std::string> EncodeTableHeader(const TableHeader& header);
// Checks magic, version and byte order of the first kHeaderStartBytes (or fewer, if the file is that short) bytes and returns
// the length of the header.
Result<uint32_t> DecodeHeaderLength(std::string_view start);
Result<TableHeader> DecodeTableHeader(std::string_view header);

enum class BlockKind : uint32_t { kRows = 0x53574F52, kCandidates = 0x444E4143 };  // "ROWS", "CAND"

// Where a block lies and what it must hold.
struct BlockPlace {
  BlockKind kind = BlockKind::kRows;
  uint64_t index = 0;   // number of the block in the file
  uint64_t offset = 0;  // of its frame
  uint32_t count = 0;   // rows or candidates
  uint32_t record_bytes = 0;
  uint64_t payload_bytes = 0;  // the records, then zero bytes up to a multiple of 8
  uint64_t bytes() const { return kFrameBytes + payload_bytes; }
};

// A sequence of blocks of one kind; all but the last are full.
struct BlockRun {
  BlockKind kind = BlockKind::kRows;
  uint64_t records = 0;
  uint32_t per_block = 1;
  uint32_t record_bytes = 0;
  uint64_t first_index = 0, offset = 0;
  uint64_t block_count() const { return records / per_block + (records % per_block != 0); }
  // i < block_count()
  BlockPlace place(uint64_t i) const;
};

// Places of everything in a file with that header.
struct TableLayout {
  std::vector<BlockRun> runs;  // those of run_rows, then those of run_candidates
  uint64_t block_count = 0;
  uint64_t footer_offset = 0;
  uint64_t file_bytes() const { return footer_offset + kFooterBytes; }
  uint64_t max_block_bytes = 0;  // 0 when there are no blocks
};
// kDataLoss when sizes overflow or a block would be longer than kMaxBlockBytes.
Result<TableLayout> MakeLayout(const TableHeader& header, uint64_t header_bytes);

// The columns of a block of rows inside its payload, which must be aligned to 8 bytes. Absent columns are null.
struct RowColumns {
  uint64_t* keys;
  uint64_t* last_seen_ms;
  float* values;
  float* slots;
  uint32_t* use_counts;
  uint32_t* use_stamps;
};
RowColumns RowColumnsOf(const TableHeader& header, size_t count, char* payload);
struct CandidateColumns {
  uint64_t* keys;
  uint64_t* last_seen_ms;
  uint32_t* counts;
};
CandidateColumns CandidateColumnsOf(size_t count, char* payload);

// What a digest needs to know of a finished block.
struct BlockDigest {
  char frame[kFrameBytes];
  uint64_t payload_bytes = 0;
  uint32_t payload_crc32c = 0;
};
// Zeroes the padding of a block whose columns are filled in, computes its checksums and writes its frame.
BlockDigest SealBlock(const BlockPlace& place, std::span<char> block);
// Checks a block read from disk: frame, place, checksums, padding.
Result<BlockDigest> CheckBlock(const BlockPlace& place, std::span<const char> block);

// Sums up header and blocks, given in the order of the file.
class FileDigest {
 public:
  explicit FileDigest(std::string_view header);
  void Add(const BlockDigest& block);
  uint64_t content_tag() const { return hasher_.digest(); }
  uint32_t crc32c() const { return crc_; }  // of all bytes so far

 private:
  Hasher64 hasher_;
  uint32_t crc_;
};

struct TableFooter {
  uint64_t block_count = 0, rows = 0, candidates = 0;
  uint64_t content_tag = 0;
  uint32_t crc32c = 0;  // of all bytes before the footer
  friend bool operator==(const TableFooter&, const TableFooter&) = default;
};
std::string EncodeTableFooter(const TableFooter& footer);
Result<TableFooter> DecodeTableFooter(std::string_view footer);
// Of the whole file, from the footer's bytes.
uint32_t WholeFileCrc32c(std::string_view footer);

// "1234abcd..." with 16 or 8 digits.
std::string Hex64(uint64_t value);
std::string Hex32(uint32_t value);

}  // namespace mxrec::format

#endif  // MXREC_CKPT_FORMAT_TABLE_FILE_H_
