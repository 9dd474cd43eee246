#include "mxrec/ckpt/table_file_reader.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "mxrec/ckpt/table_file_writer.h"
#include "mxrec/table/owner.h"

namespace mxrec::internal {
namespace {

using format::BlockDigest;
using format::BlockKind;
using format::BlockPlace;
using format::BlockRun;

Status Damaged(const std::string& path, std::string_view what, const std::string& expected, const std::string& found) {
  return DataLossError(path + ": " + std::string(what) + ": expected " + expected + ", found " + found);
}

template <typename T>
void KeepColumn(T* column, const std::vector<uint32_t>& kept, size_t width) {
  if (column == nullptr) return;
  for (size_t to = 0; to < kept.size(); ++to) {
    if (kept[to] != to) std::memcpy(column + to * width, column + kept[to] * width, width * sizeof(T));
  }
}

class Reading {
 public:
  Reading(std::span<const std::unique_ptr<TableFile>> files, const ReadOptions& options, RowSink* sink, Progress* progress)
      : options_(options), sink_(sink), progress_(progress), digests_(files.size()) {
    for (size_t f = 0; f < files.size(); ++f) {
      digests_[f].resize(files[f]->layout().block_count);
      buffer_bytes_ = std::max(buffer_bytes_, files[f]->layout().max_block_bytes);
    }
  }

  uint64_t buffer_bytes() const { return buffer_bytes_; }
  const std::vector<BlockDigest>& digests(size_t file) const { return digests_[file]; }

  Status ReadRun(size_t number, const TableFile& file, const BlockRun& run, char* buffer) {
    for (uint64_t i = 0; i < run.block_count(); ++i) {
      const BlockPlace place = run.place(i);
      const std::span<char> block(buffer, place.bytes());
      MXREC_RETURN_IF_ERROR(WithPath(file.path(), file.file().ReadAt(place.offset, block)));
      Result<BlockDigest> digest = CheckBlock(place, block);
      if (!digest.ok()) return WithPath(file.path(), digest.status());
      digests_[number][place.index] = *digest;
      if (sink_ != nullptr) {
        char* const payload = buffer + format::kFrameBytes;
        Status status =
            place.kind == BlockKind::kRows ? GiveRows(file.header(), place.count, payload) : GiveCandidates(place.count, payload);
        MXREC_RETURN_IF_ERROR(WithPath(file.path(), std::move(status)));
      }
      MXREC_RETURN_IF_ERROR(progress_->Add(place.bytes()));
    }
    return OkStatus();
  }

 private:
  bool Owns(uint64_t key) const { return OwnerOf(key, options_.share.rank_count, options_.share.owner_rule) == options_.share.rank; }

  Status GiveRows(const format::TableHeader& header, size_t count, char* payload) {
    const format::RowColumns columns = RowColumnsOf(header, count, payload);
    if (options_.share.rank_count > 1) {
      std::vector<uint32_t> kept;
      for (size_t i = 0; i < count; ++i) {
        if (Owns(columns.keys[i])) kept.push_back(static_cast<uint32_t>(i));
      }
      KeepColumn(columns.keys, kept, 1);
      KeepColumn(columns.last_seen_ms, kept, 1);
      KeepColumn(columns.values, kept, header.dim);
      KeepColumn(columns.slots, kept, header.slots.slot_floats(header.dim));
      KeepColumn(columns.use_counts, kept, 1);
      KeepColumn(columns.use_stamps, kept, 1);
      count = kept.size();
    }
    if (count == 0) return OkStatus();
    return sink_->AddRows({.count = count,
                           .keys = columns.keys,
                           .values = columns.values,
                           .slots = options_.with_slots ? columns.slots : nullptr,
                           .use_counts = columns.use_counts,
                           .last_seen_ms = columns.last_seen_ms,
                           .use_stamps = columns.use_stamps});
  }

  Status GiveCandidates(size_t count, char* payload) {
    const format::CandidateColumns columns = format::CandidateColumnsOf(count, payload);
    std::vector<Candidate> candidates;
    candidates.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      if (Owns(columns.keys[i])) candidates.push_back({columns.keys[i], columns.counts[i], columns.last_seen_ms[i]});
    }
    return candidates.empty() ? OkStatus() : sink_->AddCandidates(candidates);
  }

  const ReadOptions& options_;
  RowSink* const sink_;
  Progress* const progress_;
  std::vector<std::vector<BlockDigest>> digests_;  // by file and block; each written by one thread
  uint64_t buffer_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<TableFile>> TableFile::Open(Env* env, const std::string& path) {
  auto opened = std::unique_ptr<TableFile>(new TableFile);
  opened->path_ = path;
  if (const Result<FileIdentity> identity = env->Identify(path); identity.ok()) opened->identity_ = *identity;
  MXREC_ASSIGN_OR_RETURN(opened->file_, env->NewRandomAccessFile(path));
  const RandomAccessFile& file = *opened->file_;
  const uint64_t size = file.size();
  std::string& header_bytes = opened->header_bytes_;
  header_bytes.resize(std::min<uint64_t>(size, format::kHeaderStartBytes));
  MXREC_RETURN_IF_ERROR(WithPath(path, file.ReadAt(0, header_bytes)));
  Result<uint32_t> header_length = format::DecodeHeaderLength(header_bytes);
  if (!header_length.ok()) return WithPath(path, header_length.status());
  if (*header_length > size) {
    return Damaged(path, "the file ends inside its header: bytes", "at least " + std::to_string(*header_length),
                   std::to_string(size));
  }
  header_bytes.resize(*header_length);
  MXREC_RETURN_IF_ERROR(WithPath(path, file.ReadAt(0, header_bytes)));
  Result<format::TableHeader> header = format::DecodeTableHeader(header_bytes);
  if (!header.ok()) return WithPath(path, header.status());
  Result<format::TableLayout> layout = MakeLayout(*header, header_bytes.size());
  if (!layout.ok()) return WithPath(path, layout.status());
  if (layout->file_bytes() != size)
    return Damaged(path, "length of the file", std::to_string(layout->file_bytes()), std::to_string(size));

  std::string footer_bytes(format::kFooterBytes, '\0');
  MXREC_RETURN_IF_ERROR(WithPath(path, file.ReadAt(layout->footer_offset, footer_bytes)));
  Result<format::TableFooter> footer = format::DecodeTableFooter(footer_bytes);
  if (!footer.ok()) return WithPath(path, footer.status());
  const auto differ = [&](std::string_view what, uint64_t expected, uint64_t found) {
    return Damaged(path, std::string("footer, ") + std::string(what), std::to_string(expected), std::to_string(found));
  };
  if (footer->block_count != layout->block_count) return differ("blocks", layout->block_count, footer->block_count);
  if (footer->rows != header->rows) return differ("rows", header->rows, footer->rows);
  if (footer->candidates != header->candidates) return differ("candidates", header->candidates, footer->candidates);

  opened->info_ = InfoOf(*header, *footer, size);
  opened->info_.file = BaseName(path);
  opened->info_.crc32c = format::WholeFileCrc32c(footer_bytes);
  opened->header_ = *std::move(header);
  opened->layout_ = *std::move(layout);
  opened->footer_ = *footer;
  return opened;
}

Status ReadBlocks(const CheckpointIo& io, std::span<const std::unique_ptr<TableFile>> files, const ReadOptions& options,
                  RowSink* sink, Progress* progress) {
  Reading reading(files, options, sink, progress);
  std::vector<std::pair<size_t, size_t>> runs;  // file, run
  for (size_t f = 0; f < files.size(); ++f) {
    for (size_t r = 0; r < files[f]->layout().runs.size(); ++r) {
      if (files[f]->layout().runs[r].records != 0) runs.emplace_back(f, r);
    }
  }
  std::vector<std::unique_ptr<char[]>> buffers(WorkerCount(io.executor, runs.size()));
  MXREC_RETURN_IF_ERROR(ParallelStatus(io.executor, runs.size(), [&](size_t worker, size_t i) -> Status {
    std::unique_ptr<char[]>& buffer = buffers[worker];
    if (buffer == nullptr) {
      buffer.reset(new (std::nothrow) char[reading.buffer_bytes()]);
      if (buffer == nullptr)
        return ResourceExhaustedError("no memory for a block of " + std::to_string(reading.buffer_bytes()) + " bytes");
    }
    const auto [f, r] = runs[i];
    return reading.ReadRun(f, *files[f], files[f]->layout().runs[r], buffer.get());
  }));
  for (size_t f = 0; f < files.size(); ++f) {
    format::FileDigest digest(files[f]->header_bytes());
    for (const BlockDigest& block : reading.digests(f)) digest.Add(block);
    const format::TableFooter& footer = files[f]->footer();
    if (digest.crc32c() != footer.crc32c) {
      return Damaged(files[f]->path(), "CRC32C of header and blocks", format::Hex32(footer.crc32c), format::Hex32(digest.crc32c()));
    }
    if (digest.content_tag() != footer.content_tag) {
      return Damaged(files[f]->path(), "content tag", format::Hex64(footer.content_tag), format::Hex64(digest.content_tag()));
    }
    MXREC_RETURN_IF_ERROR(progress->Add(files[f]->header_bytes().size() + format::kFooterBytes));
  }
  return OkStatus();
}

}  // namespace mxrec::internal
