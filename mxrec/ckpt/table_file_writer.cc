#include "mxrec/ckpt/table_file_writer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "mxrec/base/check.h"

namespace mxrec::internal {
namespace {

using format::BlockDigest;
using format::BlockPlace;
using format::BlockRun;
using format::TableHeader;

Status ChangedSource(const std::string& what, uint64_t expected, uint64_t found) {
  return InternalError("the table gave other " + what + " than it announced: expected " + std::to_string(expected) + ", found " +
                       std::to_string(found));
}

template <typename T>
void CopyColumn(T* to, const T* from, size_t position, size_t first, size_t count, size_t width) {
  std::memcpy(to + position * width, from + first * width, count * width * sizeof(T));
}

// One write in progress. Blocks of different runs are filled by different threads.
class Writing {
 public:
  Writing(const TableHeader& header, const format::TableLayout& layout, const RowSource& source, WritableFile* file,
          Progress* progress)
      : header_(header), layout_(layout), source_(source), file_(file), progress_(progress), digests_(layout.block_count) {}

  Status WriteRun(size_t number, char* buffer) {
    const BlockRun& run = layout_.runs[number];
    const size_t row_runs = header_.run_rows.size();
    return number < row_runs ? WriteRows(run, static_cast<int>(number), buffer)
                             : WriteCandidates(run, static_cast<int>(number - row_runs), buffer);
  }

  const std::vector<BlockDigest>& digests() const { return digests_; }

 private:
  Status Finish(const BlockPlace& place, char* buffer) {
    digests_[place.index] = SealBlock(place, {buffer, place.bytes()});
    MXREC_RETURN_IF_ERROR(file_->WriteAt(place.offset, {buffer, place.bytes()}));
    return progress_->Add(place.bytes());
  }

  // The source hands out rows in pieces of its own size; a block is written when it is full.
  Status WriteRows(const BlockRun& run, int number, char* buffer) {
    uint64_t done = 0, block = 0;
    BlockPlace place;
    format::RowColumns to{};
    size_t filled = 0;
    const auto begin_block = [&] {
      place = run.place(block);
      to = RowColumnsOf(header_, place.count, buffer + format::kFrameBytes);
      filled = 0;
    };
    if (run.records != 0) begin_block();
    MXREC_RETURN_IF_ERROR(source_.ForEachBlock(number, run.per_block, [&](const RowBlock& rows) -> Status {
      if (rows.count > run.records - done) return ChangedSource("rows", run.records, done + rows.count);
      if ((rows.slots == nullptr && to.slots != nullptr) || (rows.use_counts == nullptr && to.use_counts != nullptr) ||
          (rows.last_seen_ms == nullptr && to.last_seen_ms != nullptr) ||
          (rows.use_stamps == nullptr && to.use_stamps != nullptr)) {
        return InternalError("the table gave rows without slots, counts, times or stamps that it announced");
      }
      for (size_t first = 0; first < rows.count;) {
        const size_t count = std::min<size_t>(rows.count - first, place.count - filled);
        CopyColumn(to.keys, rows.keys, filled, first, count, 1);
        CopyColumn(to.values, rows.values, filled, first, count, header_.dim);
        if (to.slots != nullptr) {
          CopyColumn(to.slots, rows.slots, filled, first, count, header_.slots.slot_floats(header_.dim));
        }
        if (to.use_counts != nullptr) CopyColumn(to.use_counts, rows.use_counts, filled, first, count, 1);
        if (to.last_seen_ms != nullptr) CopyColumn(to.last_seen_ms, rows.last_seen_ms, filled, first, count, 1);
        if (to.use_stamps != nullptr) CopyColumn(to.use_stamps, rows.use_stamps, filled, first, count, 1);
        filled += count;
        first += count;
        done += count;
        if (filled < place.count) continue;
        MXREC_RETURN_IF_ERROR(Finish(place, buffer));
        if (++block < run.block_count()) begin_block();
      }
      return OkStatus();
    }));
    return done == run.records ? OkStatus() : ChangedSource("rows", run.records, done);
  }

  Status WriteCandidates(const BlockRun& run, int number, char* buffer) {
    uint64_t done = 0, block = 0;
    BlockPlace place;
    format::CandidateColumns to{};
    size_t filled = 0;
    const auto begin_block = [&] {
      place = run.place(block);
      to = format::CandidateColumnsOf(place.count, buffer + format::kFrameBytes);
      filled = 0;
    };
    if (run.records != 0) begin_block();
    MXREC_RETURN_IF_ERROR(source_.ForEachCandidate(number, [&](std::span<const Candidate> candidates) -> Status {
      if (candidates.size() > run.records - done) return ChangedSource("candidates", run.records, done + candidates.size());
      for (const Candidate& candidate : candidates) {
        to.keys[filled] = candidate.key;
        to.last_seen_ms[filled] = candidate.last_seen_ms;
        to.counts[filled] = candidate.count;
        ++done;
        if (++filled < place.count) continue;
        MXREC_RETURN_IF_ERROR(Finish(place, buffer));
        if (++block < run.block_count()) begin_block();
      }
      return OkStatus();
    }));
    return done == run.records ? OkStatus() : ChangedSource("candidates", run.records, done);
  }

  const TableHeader& header_;
  const format::TableLayout& layout_;
  const RowSource& source_;
  WritableFile* const file_;
  Progress* const progress_;
  std::vector<BlockDigest> digests_;  // by block number; each written by one thread
};

Result<TableFileInfo> WriteOpened(const CheckpointIo& io, const TableHeader& header, const RowSource& source, WritableFile* file,
                                  Progress* progress) {
  MXREC_ASSIGN_OR_RETURN(const std::string header_bytes, EncodeTableHeader(header));
  MXREC_ASSIGN_OR_RETURN(const format::TableLayout layout, MakeLayout(header, header_bytes.size()));
  const size_t runs = layout.runs.size();
  std::vector<std::unique_ptr<char[]>> buffers(WorkerCount(io.executor, runs));
  Writing writing(header, layout, source, file, progress);
  MXREC_RETURN_IF_ERROR(file->WriteAt(0, header_bytes));
  MXREC_RETURN_IF_ERROR(ParallelStatus(io.executor, runs, [&](size_t worker, size_t i) -> Status {
    std::unique_ptr<char[]>& buffer = buffers[worker];
    if (buffer == nullptr && layout.max_block_bytes != 0) {
      buffer.reset(new (std::nothrow) char[layout.max_block_bytes]);
      if (buffer == nullptr)
        return ResourceExhaustedError("no memory for a block of " + std::to_string(layout.max_block_bytes) + " bytes");
    }
    return writing.WriteRun(i, buffer.get());
  }));
  format::FileDigest digest(header_bytes);
  for (const BlockDigest& block : writing.digests()) digest.Add(block);
  const format::TableFooter footer{.block_count = layout.block_count,
                                   .rows = header.rows,
                                   .candidates = header.candidates,
                                   .content_tag = digest.content_tag(),
                                   .crc32c = digest.crc32c()};
  const std::string footer_bytes = EncodeTableFooter(footer);
  MXREC_RETURN_IF_ERROR(file->WriteAt(layout.footer_offset, footer_bytes));
  MXREC_RETURN_IF_ERROR(progress->Add(header_bytes.size() + footer_bytes.size()));
  MXREC_RETURN_IF_ERROR(file->Sync());
  MXREC_RETURN_IF_ERROR(file->Close());
  TableFileInfo info = InfoOf(header, footer, layout.file_bytes());
  info.crc32c = format::WholeFileCrc32c(footer_bytes);
  return info;
}

}  // namespace

TableHeader DescribeSource(TableHeader header, const RowSource& source) {
  header.rows = header.candidates = 0;
  header.run_rows.clear();
  header.run_candidates.clear();
  for (int run = 0; run < source.runs(); ++run) {
    header.run_rows.push_back(source.run_rows(run));
    header.rows += header.run_rows.back();
    header.run_candidates.push_back(source.run_candidates(run));
    header.candidates += header.run_candidates.back();
  }
  header.rows_per_block = format::RowsPerBlock(header.row_bytes());
  header.candidates_per_block = format::kCandidatesPerBlock;
  return header;
}

Result<uint64_t> FileBytes(const TableHeader& header) {
  MXREC_ASSIGN_OR_RETURN(const std::string header_bytes, EncodeTableHeader(header));
  MXREC_ASSIGN_OR_RETURN(const format::TableLayout layout, MakeLayout(header, header_bytes.size()));
  return layout.file_bytes();
}

TableFileInfo InfoOf(const TableHeader& header, const format::TableFooter& footer, uint64_t bytes) {
  TableFileInfo info;
  info.table = header.table;
  info.dim = header.dim;
  info.seed = header.seed;
  info.initializer = header.initializer;
  info.slots = header.slots;
  info.has_counts = header.has_counts;
  info.has_times = header.has_times;
  info.rows = header.rows;
  info.candidates = header.candidates;
  info.bytes = bytes;
  info.content_tag = footer.content_tag;
  info.shard = header.shard;
  info.shard_count = header.shard_count;
  return info;
}

Result<TableFileInfo> WriteTableStream(const CheckpointIo& io, const TableHeader& header, const RowSource& source,
                                       const std::string& path, Progress* progress) {
  Env* const env = EnvOf(io);
  MXREC_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, env->NewWritableFile(path));
  Result<TableFileInfo> info = WriteOpened(io, header, source, file.get(), progress);
  if (!info.ok()) {
    file.reset();
    static_cast<void>(env->RemoveFile(path));  // the first failure is the one to report
  }
  return info;
}

}  // namespace mxrec::internal
