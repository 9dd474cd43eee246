#include "mxrec/ckpt/format/table_file.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "mxrec/base/check.h"
#include "mxrec/base/checked_math.h"
#include "mxrec/ckpt/format/bytes.h"
#include "mxrec/io/crc32c.h"

namespace mxrec::format {
namespace {

constexpr uint32_t kHasCounts = 1;
constexpr uint32_t kHasTimes = 2;
constexpr uint32_t kHasStamps = 4;
constexpr uint32_t kStampsAreLfu = 8;
constexpr uint32_t kMaxRuns = 65536;
constexpr uint32_t kMaxSlots = 64;
constexpr uint32_t kMaxScalars = 1024;

constexpr uint64_t PadTo8(uint64_t bytes) { return (bytes + 7) & ~uint64_t{7}; }

template <typename A, typename B>
Status Damaged(std::string_view what, const A& expected, const B& found) {
  std::ostringstream text;
  text << what << ": expected " << expected << ", found " << found;
  return DataLossError(text.str());
}

std::string Printable(std::string_view bytes) {
  std::string text = "\"";
  for (const char c : bytes) {
    if (c >= 0x20 && c < 0x7F) {
      text.push_back(c);
    } else {
      constexpr char kDigits[] = "0123456789abcdef";
      text += "\\x";
      text.push_back(kDigits[static_cast<unsigned char>(c) >> 4]);
      text.push_back(kDigits[static_cast<unsigned char>(c) & 15]);
    }
  }
  return text + "\"";
}

// Rules that hold for every header, written or read.
Status CheckHeader(const TableHeader& header) {
  const auto wrong = [](std::string_view what, uint64_t limit, uint64_t found) {
    return Damaged(std::string("header, ") + std::string(what), "at most " + std::to_string(limit), found);
  };
  if (header.dim == 0) return Damaged("header, dim", "at least 1", 0);
  const size_t slots = header.slots.slot_names.size();
  if (slots > kMaxSlots) return wrong("number of slots", kMaxSlots, slots);
  if (header.slots.slot_initial_values.size() != slots) {
    return Damaged("header, start values of slots", slots, header.slots.slot_initial_values.size());
  }
  if (!header.slots.slot_widths.empty() && header.slots.slot_widths.size() != slots) {
    return Damaged("header, widths of slots", slots, header.slots.slot_widths.size());
  }
  for (const uint32_t width : header.slots.slot_widths) {
    if (width != 1 && width != header.dim) {
      return Damaged("header, width of a slot", "1 or the dim " + std::to_string(header.dim), width);
    }
  }
  if (header.slots.scalars.size() > kMaxScalars) return wrong("number of scalars", kMaxScalars, header.slots.scalars.size());
  if (header.slots.scalar_names.size() != header.slots.scalars.size()) {
    return Damaged("header, names of scalars", header.slots.scalars.size(), header.slots.scalar_names.size());
  }
  if (header.initializer.kind > InitializerSpec::Kind::kTruncatedNormal) {
    return wrong("initializer kind", 3, static_cast<uint64_t>(header.initializer.kind));
  }
  if (header.shard >= header.shard_count) {
    return Damaged("header, shard", "less than the shard count " + std::to_string(header.shard_count), header.shard);
  }
  if (header.rows_per_block == 0) return Damaged("header, rows per block", "at least 1", 0);
  if (header.candidates_per_block == 0) return Damaged("header, candidates per block", "at least 1", 0);
  if (header.run_rows.size() > kMaxRuns) return wrong("number of runs", kMaxRuns, header.run_rows.size());
  if (header.run_candidates.size() != header.run_rows.size()) {
    return Damaged("header, runs of candidates", header.run_rows.size(), header.run_candidates.size());
  }
  const auto check_sum = [](std::string_view what, uint64_t expected, const std::vector<uint64_t>& parts) -> Status {
    uint64_t sum = 0;
    for (const uint64_t part : parts) {
      if (__builtin_add_overflow(sum, part, &sum)) return Damaged(what, expected, "more than 64 bits hold");
    }
    return sum == expected ? OkStatus() : Damaged(what, expected, sum);
  };
  MXREC_RETURN_IF_ERROR(check_sum("header, rows of all runs", header.rows, header.run_rows));
  MXREC_RETURN_IF_ERROR(check_sum("header, candidates of all runs", header.candidates, header.run_candidates));
  return OkStatus();
}

// The lowest version that can say what is in the file.
uint32_t VersionOf(const TableHeader& header) {
  if (header.eviction.kept) return 3;
  return header.slots.slot_floats(header.dim) == uint64_t{header.dim} * header.slots.slot_names.size() ? 1 : 2;
}

uint32_t FrameCrc(const char* frame) { return Crc32c({frame, kFrameBytes - 4}); }

}  // namespace

uint64_t TableHeader::row_bytes() const {
  // dim < 2^32 and at most 64 slots: no overflow.
  return 8 + (has_times ? 8 : 0) + uint64_t{4} * (dim + slots.slot_floats(dim)) + (has_counts ? 4 : 0) + (eviction.kept ? 4 : 0);
}

uint32_t RowsPerBlock(uint64_t row_bytes) { return static_cast<uint32_t>(std::max<uint64_t>(1, kBlockTargetBytes / row_bytes)); }

Result<std::string> EncodeTableHeader(const TableHeader& header) {
  if (Status status = CheckHeader(header); !status.ok()) return InvalidArgumentError(std::string(status.message()));
  ByteWriter variable;
  for (const uint64_t rows : header.run_rows) variable.Number(rows);
  for (const uint64_t candidates : header.run_candidates) variable.Number(candidates);
  for (const float value : header.slots.slot_initial_values) variable.Number(value);
  for (const float value : header.slots.scalars) variable.Number(value);
  const uint32_t version = VersionOf(header);
  if (version >= 2) {
    for (size_t s = 0; s < header.slots.slot_names.size(); ++s) {
      variable.Number(static_cast<uint32_t>(header.slots.slot_width(s, header.dim)));
    }
  }
  if (version >= 3) {
    variable.Number(header.eviction.time);
    variable.Number(header.eviction.row_hand);
    variable.Number(header.eviction.candidate_hand);
  }
  variable.Text(header.table);
  variable.Text(header.slots.optimizer_kind);
  for (const std::string& name : header.slots.slot_names) variable.Text(name);
  for (const std::string& name : header.slots.scalar_names) variable.Text(name);
  constexpr uint64_t kFixedBytes = 120;
  const uint64_t total = PadTo8(kFixedBytes + variable.bytes().size() + 4);
  if (total > kMaxHeaderBytes) {
    return InvalidArgumentError("table \"" + header.table.substr(0, 80) + "\": its names make a file header of " +
                                std::to_string(total) + " bytes, expected at most " + std::to_string(kMaxHeaderBytes));
  }
  ByteWriter out;
  out.Raw(kTableFileMagic);
  out.Number(version);
  out.Number(kByteOrderMark);
  out.Number(static_cast<uint32_t>(total));
  const bool lfu = header.eviction.kept && header.eviction.by == EvictBy::kLfu;
  out.Number((header.has_counts ? kHasCounts : 0) | (header.has_times ? kHasTimes : 0) | (header.eviction.kept ? kHasStamps : 0) |
             (lfu ? kStampsAreLfu : 0));
  out.Number(header.rows);
  out.Number(header.candidates);
  out.Number(header.seed);
  out.Number(header.slots.step);
  out.Number(header.initializer.a);
  out.Number(header.initializer.b);
  out.Number(static_cast<uint32_t>(header.initializer.kind));
  out.Number(header.dim);
  out.Number(header.shard);
  out.Number(header.shard_count);
  out.Number(header.rows_per_block);
  out.Number(header.candidates_per_block);
  out.Number(static_cast<uint32_t>(header.run_rows.size()));
  out.Number(static_cast<uint32_t>(header.slots.slot_names.size()));
  out.Number(static_cast<uint32_t>(header.slots.scalars.size()));
  out.Number(kCandidateBytes);
  out.Number(header.row_bytes());
  MXREC_CHECK(out.bytes().size() == kFixedBytes) << out.bytes().size();
  out.Raw(variable.bytes());
  out.Raw(std::string(total - 4 - out.bytes().size(), '\0'));
  out.Number(Crc32c(out.bytes()));
  return out.Take();
}

Result<uint32_t> DecodeHeaderLength(std::string_view start) {
  const std::string_view magic = start.substr(0, kTableFileMagic.size());
  if (magic != kTableFileMagic.substr(0, magic.size()) || start.empty()) {
    return Damaged("not a table file: its first bytes", Printable(kTableFileMagic), Printable(magic));
  }
  if (start.size() < kHeaderStartBytes) {
    return Damaged("the file ends early: bytes", "at least " + std::to_string(kHeaderStartBytes), start.size());
  }
  ByteReader in(start.substr(kTableFileMagic.size()));
  const uint32_t version = in.Number<uint32_t>();
  if (version > kTableFileVersion) {
    return UnimplementedError("table file version " + std::to_string(version) + "; this build reads up to version " +
                              std::to_string(kTableFileVersion));
  }
  if (version == 0) return Damaged("header, version", "1 to " + std::to_string(kTableFileVersion), version);
  const uint32_t order = in.Number<uint32_t>();
  if (order != kByteOrderMark) return Damaged("header, byte order mark", Hex32(kByteOrderMark), Hex32(order));
  const uint32_t length = in.Number<uint32_t>();
  if (length < kHeaderStartBytes || length > kMaxHeaderBytes || length % 8 != 0) {
    return Damaged("header length", "a multiple of 8 up to " + std::to_string(kMaxHeaderBytes), length);
  }
  return length;
}

Result<TableHeader> DecodeTableHeader(std::string_view bytes) {
  MXREC_ASSIGN_OR_RETURN(const uint32_t length, DecodeHeaderLength(bytes));
  if (bytes.size() != length) return Damaged("header, bytes", length, bytes.size());
  const uint32_t stored = LoadLittleEndian<uint32_t>(bytes.data() + length - 4);
  const uint32_t computed = Crc32c(bytes.substr(0, length - 4));
  if (stored != computed) return Damaged("header, CRC32C", Hex32(stored), Hex32(computed));

  ByteReader in(bytes.substr(0, length - 4));
  in.Raw(8);
  const uint32_t version = in.Number<uint32_t>();
  in.Raw(8);
  TableHeader header;
  const uint32_t flags = in.Number<uint32_t>();
  header.rows = in.Number<uint64_t>();
  header.candidates = in.Number<uint64_t>();
  header.seed = in.Number<uint64_t>();
  header.slots.step = in.Number<uint64_t>();
  header.initializer.a = in.Number<double>();
  header.initializer.b = in.Number<double>();
  const uint32_t initializer = in.Number<uint32_t>();
  header.dim = in.Number<uint32_t>();
  header.shard = in.Number<uint32_t>();
  header.shard_count = in.Number<uint32_t>();
  header.rows_per_block = in.Number<uint32_t>();
  header.candidates_per_block = in.Number<uint32_t>();
  const uint32_t runs = in.Number<uint32_t>();
  const uint32_t slots = in.Number<uint32_t>();
  const uint32_t scalars = in.Number<uint32_t>();
  const uint32_t candidate_bytes = in.Number<uint32_t>();
  const uint64_t row_bytes = in.Number<uint64_t>();
  const uint32_t known_flags = kHasCounts | kHasTimes | (version >= 3 ? kHasStamps | kStampsAreLfu : 0);
  if ((flags & ~known_flags) != 0) return Damaged("header, flags", "0 to " + std::to_string(known_flags), flags);
  if ((flags & kStampsAreLfu) != 0 && (flags & kHasStamps) == 0) return Damaged("header, flags", "4 with 8", flags);
  header.has_counts = (flags & kHasCounts) != 0;
  header.has_times = (flags & kHasTimes) != 0;
  header.eviction.kept = (flags & kHasStamps) != 0;
  header.eviction.by = (flags & kStampsAreLfu) != 0 ? EvictBy::kLfu : EvictBy::kLru;
  if (initializer > 3) return Damaged("header, initializer kind", "0 to 3", initializer);
  header.initializer.kind = static_cast<InitializerSpec::Kind>(initializer);
  if (runs > kMaxRuns) return Damaged("header, runs", "at most " + std::to_string(kMaxRuns), runs);
  if (slots > kMaxSlots) return Damaged("header, slots", "at most " + std::to_string(kMaxSlots), slots);
  if (scalars > kMaxScalars) return Damaged("header, scalars", "at most " + std::to_string(kMaxScalars), scalars);
  if (candidate_bytes != kCandidateBytes) return Damaged("header, bytes of a candidate", kCandidateBytes, candidate_bytes);
  for (uint32_t i = 0; i < runs && !in.failed(); ++i) header.run_rows.push_back(in.Number<uint64_t>());
  for (uint32_t i = 0; i < runs && !in.failed(); ++i) header.run_candidates.push_back(in.Number<uint64_t>());
  for (uint32_t i = 0; i < slots; ++i) header.slots.slot_initial_values.push_back(in.Number<float>());
  for (uint32_t i = 0; i < scalars; ++i) header.slots.scalars.push_back(in.Number<float>());
  if (version >= 2) {
    for (uint32_t i = 0; i < slots; ++i) header.slots.slot_widths.push_back(in.Number<uint32_t>());
  }
  if (version >= 3) {
    header.eviction.time = in.Number<uint64_t>();
    header.eviction.row_hand = in.Number<uint32_t>();
    header.eviction.candidate_hand = in.Number<uint32_t>();
  }
  header.table = in.Text();
  header.slots.optimizer_kind = in.Text();
  for (uint32_t i = 0; i < slots; ++i) header.slots.slot_names.emplace_back(in.Text());
  for (uint32_t i = 0; i < scalars; ++i) header.slots.scalar_names.emplace_back(in.Text());
  if (in.failed()) return DataLossError("header: it ends inside a field");
  const std::string_view padding = in.Raw(in.left());
  if (padding.size() > 7 || padding.find_first_not_of('\0') != std::string_view::npos) {
    return Damaged("header, padding", "up to 7 zero bytes", Printable(padding.substr(0, 16)));
  }
  MXREC_RETURN_IF_ERROR(CheckHeader(header));
  if (version != VersionOf(header)) return Damaged("header, version for its flags and slots", VersionOf(header), version);
  if (row_bytes != header.row_bytes()) return Damaged("header, bytes of a row", header.row_bytes(), row_bytes);
  return header;
}

BlockPlace BlockRun::place(uint64_t i) const {
  const uint64_t full = kFrameBytes + PadTo8(uint64_t{per_block} * record_bytes);
  const uint64_t first = i * per_block;
  const uint32_t count = static_cast<uint32_t>(std::min<uint64_t>(per_block, records - first));
  return {.kind = kind,
          .index = first_index + i,
          .offset = offset + i * full,
          .count = count,
          .record_bytes = record_bytes,
          .payload_bytes = PadTo8(uint64_t{count} * record_bytes)};
}

Result<TableLayout> MakeLayout(const TableHeader& header, uint64_t header_bytes) {
  TableLayout layout;
  const uint64_t row_bytes = header.row_bytes();
  if (row_bytes > std::numeric_limits<uint32_t>::max()) {
    return Damaged("header, bytes of a row", "less than 2^32", row_bytes);
  }
  uint64_t offset = header_bytes;
  uint64_t index = 0;
  const auto add_run = [&](BlockKind kind, uint64_t records, uint32_t per_block, uint32_t record_bytes) -> Status {
    if (per_block > 1 && uint64_t{per_block} * record_bytes > kMaxBlockBytes) {
      return Damaged("header, bytes of a block", "at most " + std::to_string(kMaxBlockBytes), uint64_t{per_block} * record_bytes);
    }
    BlockRun run{.kind = kind,
                 .records = records,
                 .per_block = per_block,
                 .record_bytes = record_bytes,
                 .first_index = index,
                 .offset = offset};
    const uint64_t blocks = run.block_count();
    if (blocks != 0) {
      const uint64_t full = kFrameBytes + PadTo8(uint64_t{per_block} * record_bytes);
      Result<uint64_t> before_last = CheckedMul(full, blocks - 1, "bytes of the file");
      if (!before_last.ok()) return DataLossError("header: " + std::string(before_last.status().message()));
      const BlockPlace last = run.place(blocks - 1);
      Result<uint64_t> end = CheckedAdd(offset, *before_last, "bytes of the file");
      if (end.ok()) end = CheckedAdd(*end, last.bytes() + kFooterBytes, "bytes of the file");
      if (!end.ok()) return DataLossError("header: " + std::string(end.status().message()));
      offset = *end - kFooterBytes;
      layout.max_block_bytes = std::max(layout.max_block_bytes, blocks == 1 ? last.bytes() : full);
    }
    index += blocks;
    layout.runs.push_back(run);
    return OkStatus();
  };
  for (const uint64_t rows : header.run_rows) {
    MXREC_RETURN_IF_ERROR(add_run(BlockKind::kRows, rows, header.rows_per_block, static_cast<uint32_t>(row_bytes)));
  }
  for (const uint64_t candidates : header.run_candidates) {
    MXREC_RETURN_IF_ERROR(add_run(BlockKind::kCandidates, candidates, header.candidates_per_block, kCandidateBytes));
  }
  layout.block_count = index;
  layout.footer_offset = offset;
  return layout;
}

RowColumns RowColumnsOf(const TableHeader& header, size_t count, char* payload) {
  RowColumns columns{};
  char* at = payload;
  columns.keys = reinterpret_cast<uint64_t*>(at);
  at += count * 8;
  if (header.has_times) {
    columns.last_seen_ms = reinterpret_cast<uint64_t*>(at);
    at += count * 8;
  }
  columns.values = reinterpret_cast<float*>(at);
  at += count * header.dim * 4;
  if (const uint64_t floats = header.slots.slot_floats(header.dim); floats != 0) {
    columns.slots = reinterpret_cast<float*>(at);
    at += count * floats * 4;
  }
  if (header.has_counts) {
    columns.use_counts = reinterpret_cast<uint32_t*>(at);
    at += count * 4;
  }
  if (header.eviction.kept) columns.use_stamps = reinterpret_cast<uint32_t*>(at);
  return columns;
}

CandidateColumns CandidateColumnsOf(size_t count, char* payload) {
  return {.keys = reinterpret_cast<uint64_t*>(payload),
          .last_seen_ms = reinterpret_cast<uint64_t*>(payload + count * 8),
          .counts = reinterpret_cast<uint32_t*>(payload + count * 16)};
}

BlockDigest SealBlock(const BlockPlace& place, std::span<char> block) {
  MXREC_CHECK(block.size() == place.bytes()) << block.size();
  const uint64_t data_bytes = uint64_t{place.count} * place.record_bytes;
  std::memset(block.data() + kFrameBytes + data_bytes, 0, place.payload_bytes - data_bytes);
  const std::string_view payload(block.data() + kFrameBytes, place.payload_bytes);
  BlockDigest digest;
  digest.payload_bytes = place.payload_bytes;
  digest.payload_crc32c = Crc32c(payload);
  char* frame = digest.frame;
  StoreLittleEndian(static_cast<uint32_t>(place.kind), frame);
  StoreLittleEndian(place.count, frame + 4);
  StoreLittleEndian(place.index, frame + 8);
  StoreLittleEndian(place.payload_bytes, frame + 16);
  StoreLittleEndian(Hash64(payload), frame + 24);
  StoreLittleEndian(digest.payload_crc32c, frame + 32);
  StoreLittleEndian(FrameCrc(frame), frame + 36);
  std::memcpy(block.data(), frame, kFrameBytes);
  return digest;
}

Result<BlockDigest> CheckBlock(const BlockPlace& place, std::span<const char> block) {
  MXREC_CHECK(block.size() == place.bytes()) << block.size();
  const std::string where = "block " + std::to_string(place.index) + " at offset " + std::to_string(place.offset) + ", ";
  BlockDigest digest;
  std::memcpy(digest.frame, block.data(), kFrameBytes);
  const char* frame = digest.frame;
  const uint32_t stored_frame_crc = LoadLittleEndian<uint32_t>(frame + 36);
  if (const uint32_t computed = FrameCrc(frame); stored_frame_crc != computed) {
    return Damaged(where + "CRC32C of its frame", Hex32(stored_frame_crc), Hex32(computed));
  }
  if (const uint32_t kind = LoadLittleEndian<uint32_t>(frame); kind != static_cast<uint32_t>(place.kind)) {
    return Damaged(where + "kind", place.kind == BlockKind::kRows ? "ROWS" : "CAND", Printable({frame, 4}));
  }
  if (const uint32_t count = LoadLittleEndian<uint32_t>(frame + 4); count != place.count) {
    return Damaged(where + "records", place.count, count);
  }
  if (const uint64_t index = LoadLittleEndian<uint64_t>(frame + 8); index != place.index) {
    return Damaged(where + "number", place.index, index);
  }
  if (const uint64_t bytes = LoadLittleEndian<uint64_t>(frame + 16); bytes != place.payload_bytes) {
    return Damaged(where + "bytes", place.payload_bytes, bytes);
  }
  const std::string_view payload(block.data() + kFrameBytes, place.payload_bytes);
  digest.payload_bytes = place.payload_bytes;
  digest.payload_crc32c = LoadLittleEndian<uint32_t>(frame + 32);
  if (const uint32_t computed = Crc32c(payload); digest.payload_crc32c != computed) {
    return Damaged(where + "CRC32C", Hex32(digest.payload_crc32c), Hex32(computed));
  }
  const uint64_t stored_hash = LoadLittleEndian<uint64_t>(frame + 24);
  if (const uint64_t computed = Hash64(payload); stored_hash != computed) {
    return Damaged(where + "hash", Hex64(stored_hash), Hex64(computed));
  }
  const std::string_view padding = payload.substr(uint64_t{place.count} * place.record_bytes);
  if (padding.find_first_not_of('\0') != std::string_view::npos)
    return Damaged(where + "padding", "zero bytes", Printable(padding));
  return digest;
}

FileDigest::FileDigest(std::string_view header) : crc_(Crc32c(header)) { hasher_.Update(header); }

void FileDigest::Add(const BlockDigest& block) {
  const std::string_view frame(block.frame, kFrameBytes);
  hasher_.Update(frame);
  crc_ = Crc32cCombine(Crc32c(frame, crc_), block.payload_crc32c, block.payload_bytes);
}

std::string EncodeTableFooter(const TableFooter& footer) {
  ByteWriter out;
  out.Raw(kTableFooterMagic);
  out.Number(footer.block_count);
  out.Number(footer.rows);
  out.Number(footer.candidates);
  out.Number(footer.content_tag);
  out.Number(footer.crc32c);
  out.Number(Crc32c(out.bytes()));
  MXREC_CHECK(out.bytes().size() == kFooterBytes);
  return out.Take();
}

Result<TableFooter> DecodeTableFooter(std::string_view bytes) {
  if (bytes.size() != kFooterBytes) return Damaged("footer, bytes", kFooterBytes, bytes.size());
  if (bytes.substr(0, 8) != kTableFooterMagic) {
    return Damaged("footer, first bytes", Printable(kTableFooterMagic), Printable(bytes.substr(0, 8)));
  }
  const uint32_t stored = LoadLittleEndian<uint32_t>(bytes.data() + kFooterBytes - 4);
  const uint32_t computed = Crc32c(bytes.substr(0, kFooterBytes - 4));
  if (stored != computed) return Damaged("footer, CRC32C", Hex32(stored), Hex32(computed));
  ByteReader in(bytes.substr(8));
  TableFooter footer;
  footer.block_count = in.Number<uint64_t>();
  footer.rows = in.Number<uint64_t>();
  footer.candidates = in.Number<uint64_t>();
  footer.content_tag = in.Number<uint64_t>();
  footer.crc32c = in.Number<uint32_t>();
  return footer;
}

uint32_t WholeFileCrc32c(std::string_view footer) {
  MXREC_CHECK(footer.size() == kFooterBytes);
  return Crc32c(footer, LoadLittleEndian<uint32_t>(footer.data() + 40));
}

std::string Hex64(uint64_t value) {
  std::string text(16, '0');
  for (size_t i = 16; i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

std::string Hex32(uint32_t value) { return Hex64(value).substr(8); }

}  // namespace mxrec::format
