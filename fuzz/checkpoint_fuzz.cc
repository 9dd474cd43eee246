// Table files. The input as a file: refused, or whole, and then it loads and is written again as the same bytes. The input as a
// header under a right checksum: refused, or encoded again as the same bytes, with a layout that does not overflow.
#include <cstring>
#include <memory>
#include <vector>

#include "fuzz/fuzz.h"
#include "mxrec/base/check.h"
#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/ckpt/format/table_file.h"
#include "mxrec/ckpt/one_file_env.h"
#include "mxrec/ckpt/table_file_writer.h"
#include "mxrec/io/crc32c.h"
#include "mxrec/io/little_endian.h"

namespace {

constexpr uint32_t kDim = 2;

std::unique_ptr<mxrec::Table> EmptyTable() {
  mxrec::TableOptions options;
  options.name = "t";
  options.dim = kDim;
  options.keep_counts = true;
  options.min_used_times = 3;
  options.max_cold_secs = 10;
  return mxrec::Table::Create(options).value();
}

void AsFile(std::string_view input) {
  const std::string path = "input.mxt";
  mxrec::testing::OneFileEnv env(path, std::string(input));
  const mxrec::CheckpointIo io{.env = &env};
  const mxrec::Result<mxrec::TableFileInfo> verified = mxrec::VerifyTableFile(io, path);
  const std::unique_ptr<mxrec::Table> table = EmptyTable();
  const mxrec::Result<mxrec::LoadReport> loaded = mxrec::ReadTableFiles(io, {&path, 1}, table.get(), 0);
  MXREC_CHECK(verified.ok() || !loaded.ok());
  MXREC_CHECK(verified.ok() || !verified.status().message().empty());
  if (!loaded.ok()) {
    MXREC_CHECK(table->size() == 0);
  } else {
    MXREC_CHECK(table->size() == verified->rows);
  }
}

void AsHeader(std::string_view input) {
  if (input.size() < 128) return;
  std::string header(input.substr(0, std::min<size_t>(input.size() / 8 * 8, 4096)));
  std::memcpy(header.data(), "MXRECTAB", 8);
  mxrec::StoreLittleEndian<uint32_t>(1, header.data() + 8);
  mxrec::StoreLittleEndian<uint32_t>(mxrec::format::kByteOrderMark, header.data() + 12);
  mxrec::StoreLittleEndian(static_cast<uint32_t>(header.size()), header.data() + 16);
  mxrec::StoreLittleEndian(mxrec::Crc32c({header.data(), header.size() - 4}), header.data() + header.size() - 4);
  const mxrec::Result<mxrec::format::TableHeader> decoded = mxrec::format::DecodeTableHeader(header);
  if (!decoded.ok()) return;
  MXREC_CHECK(EncodeTableHeader(*decoded).value() == header);
  const mxrec::Result<mxrec::format::TableLayout> layout = MakeLayout(*decoded, header.size());
  if (!layout.ok()) return;
  uint64_t offset = header.size();
  for (const mxrec::format::BlockRun& run : layout->runs) {
    if (run.block_count() == 0) continue;
    MXREC_CHECK(run.place(0).offset == offset);
    const mxrec::format::BlockPlace last = run.place(run.block_count() - 1);
    MXREC_CHECK(last.offset >= offset && last.offset + last.bytes() > last.offset);
    offset = last.offset + last.bytes();
  }
  MXREC_CHECK(layout->footer_offset == offset);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  AsFile(input);
  AsHeader(input);
  return 0;
}

std::vector<std::string> mxrec::FuzzSeeds() {
  std::vector<std::string> seeds;
  format::TableHeader header;
  header.table = "t";
  header.dim = kDim;
  header.has_counts = header.has_times = true;
  header.slots = {.optimizer_kind = "adagrad",
                  .slot_names = {"accumulator"},
                  .slot_initial_values = {0.1f},
                  .slot_widths = {},
                  .step = 3,
                  .scalar_names = {"p"},
                  .scalars = {0.5f}};
  header.rows_per_block = 2;
  header.candidates_per_block = 2;
  header.rows = 3;
  header.candidates = 1;
  header.run_rows = {0, 3};
  header.run_candidates = {1, 0};
  std::string file = EncodeTableHeader(header).value();
  format::FileDigest digest(file);
  const format::TableLayout layout = MakeLayout(header, file.size()).value();
  file.resize(layout.footer_offset);
  for (const format::BlockRun& run : layout.runs) {
    for (uint64_t i = 0; i < run.block_count(); ++i) {
      const format::BlockPlace place = run.place(i);
      std::vector<uint64_t> block(place.bytes() / 8, 0x0101010101010101u * (place.index + 1));
      for (uint32_t r = 0; r < place.count; ++r) block[5 + r] = place.index * 10 + r;  // keys differ
      const std::span<char> bytes(reinterpret_cast<char*>(block.data()), place.bytes());
      digest.Add(SealBlock(place, bytes));
      std::memcpy(file.data() + place.offset, bytes.data(), bytes.size());
    }
  }
  file += format::EncodeTableFooter({.block_count = layout.block_count,
                                     .rows = header.rows,
                                     .candidates = header.candidates,
                                     .content_tag = digest.content_tag(),
                                     .crc32c = digest.crc32c()});
  testing::OneFileEnv env("seed", file);
  MXREC_CHECK(VerifyTableFile({.env = &env}, "seed").ok());
  seeds.push_back(file);
  seeds.push_back(file.substr(0, layout.footer_offset));
  header.run_rows = header.run_candidates = {};
  header.rows = header.candidates = 0;
  seeds.push_back(EncodeTableHeader(header).value());
  header.eviction = {.kept = true, .by = EvictBy::kLfu, .time = 1 << 20, .row_hand = 1, .candidate_hand = 2};
  seeds.push_back(EncodeTableHeader(header).value());
  return seeds;
}
