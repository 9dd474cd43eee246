// MxrecSave, MxrecLoad, MxrecSaverSave, MxrecSaverRestore.
//
// Files take long, so these kernels run on threads of their own and leave the session's threads to other work. When the run is
// cancelled (session closed, time-out, another op failed) the next block stops with kCancelled and nothing is published; so it
// does on Ctrl-C, for saves (interrupt.h): a load may be past the point where the table was as before.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/base/json_text.h"
#include "mxrec/base/log.h"
#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/ckpt/format/names.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/env.h"
#include "tf/interrupt.h"
#include "tf/kernels/gather_texts.h"
#include "tf/kernels/hcom_groups.h"
#include "tf/kernels/pool_executor.h"
#include "tf/kernels/shard_tables.h"
#include "tf/kernels/side_file.h"
#include "tf/kernels/table_resource.h"
#include "tf/progress_line.h"

namespace mxrec {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Learns of the cancellation of a run for as long as it lives.
class CancelWatch {
 public:
  explicit CancelWatch(OpKernelContext* ctx) : manager_(ctx->cancellation_manager()) {
    if (manager_ == nullptr) return;
    token_ = manager_->get_cancellation_token();
    if (!manager_->RegisterCallback(token_, [this] { cancelled_.store(true, std::memory_order_relaxed); })) {
      cancelled_ = true;
      manager_ = nullptr;
    }
  }
  ~CancelWatch() {
    // Waits for a callback that is running.
    if (manager_ != nullptr) manager_->DeregisterCallback(token_);
  }
  CancelWatch(const CancelWatch&) = delete;
  CancelWatch& operator=(const CancelWatch&) = delete;
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

 private:
  tensorflow::CancellationManager* manager_;
  tensorflow::CancellationToken token_ = 0;
  std::atomic<bool> cancelled_{false};
};

// A kernel that moves tables between memory and files. Input 0 ... N-1: tables.
class FileOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) final {
    auto tables = std::make_shared<std::vector<TableRef>>();
    for (int i = 0; i < ctx->num_inputs() && ctx->input_dtype(i) == tensorflow::DT_RESOURCE; ++i) {
      TableRef table;
      OP_REQUIRES_OK_ASYNC(ctx, FindTable(ctx, i, &table), done);
      for (const TableRef& other : *tables) {
        OP_REQUIRES_ASYNC(ctx, other.get() != table.get(),
                          ToTf(InvalidArgumentError("table \"" + table->table().name() + "\" is given twice to " + name())), done);
      }
      tables->push_back(std::move(table));
    }
    for (int i = static_cast<int>(tables->size()); i < ctx->num_inputs(); ++i) {
      OP_REQUIRES_ASYNC(ctx, ctx->input(i).NumElements() == 1,
                        ToTf(InvalidArgumentError(name() + ": input " + std::to_string(i) + " must be a scalar, found shape " +
                                                  ShapeText(ctx->input(i)))),
                        done);
    }
    ctx->env()->SchedClosure([this, ctx, done = std::move(done), tables]() mutable {
      {
        CancelWatch watch(ctx);
        PoolExecutor executor(ctx);
        CheckpointIo io;
        io.executor = &executor;
        std::optional<InterruptWatch> interrupt;
        if (saves()) interrupt.emplace();
        ProgressLine line(name());
        io.progress = [&watch, &line, &interrupt](uint64_t done_bytes, uint64_t total_bytes) {
          line.Show(done_bytes, total_bytes);
          return !watch.cancelled() && !(interrupt.has_value() && interrupt->interrupted());
        };
        TfStatus status = watch.cancelled() ? ToTf(CancelledError(name() + ": the run was cancelled")) : Run(ctx, io, *tables);
        if (!status.ok()) {
          ctx->SetStatus(status);
        } else {
          line.Done();
        }
      }
      // done may end the session: let go of the tables before.
      tables.reset();
      done();
    });
  }

  virtual TfStatus Run(OpKernelContext* ctx, const CheckpointIo& io, const std::vector<TableRef>& tables) = 0;
  virtual bool saves() const { return false; }

 protected:
  static std::string Text(const Tensor& tensor) { return std::string(tensor.flat<tensorflow::tstring>()(0)); }
  static int64_t Number(const Tensor& tensor) { return *DataSpan<int64_t>(tensor).data(); }
};

// SaveCheckpoint takes one save at a time into one folder; ops of one run, or of several sessions, may come together.
std::mutex& SaveMutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}

// Whether a table of these is trained by several ranks now.
bool SeveralRanks(const HcomWorld& world, const std::vector<TableRef>& tables) {
  return world.size > 1 && std::any_of(tables.begin(), tables.end(), [](const TableRef& table) {
           return table->table().config().distribution != Distribution::kNone;
         });
}

std::function<bool()> CancelledBy(const CheckpointIo& io) {
  return [&io] { return !io.progress(0, 0); };
}

class SaveOp : public FileOp {
 public:
  using FileOp::FileOp;
  bool saves() const override { return true; }
  TfStatus Run(OpKernelContext* ctx, const CheckpointIo& io, const std::vector<TableRef>& tables) override {
    const int n = static_cast<int>(tables.size());
    const std::string directory = Text(ctx->input(n));
    const int64_t step = Number(ctx->input(n + 1));
    const int64_t keep = Number(ctx->input(n + 2));
    if (directory.empty()) return ToTf(InvalidArgumentError("save: directory is empty"));
    if (step < 0) return ToTf(InvalidArgumentError("save: expected step >= 0, found " + std::to_string(step)));
    if (keep < 0 || keep > INT32_MAX) {
      return ToTf(InvalidArgumentError("save: expected 0 <= keep <= 2147483647, found " + std::to_string(keep)));
    }
    const SaveOptions options{.step = static_cast<uint64_t>(step), .keep = static_cast<int>(keep)};
    // The largest total seen is what was written.
    std::atomic<uint64_t> bytes{0};
    CheckpointIo counting = io;
    counting.progress = [&](uint64_t done, uint64_t total) {
      for (uint64_t seen = bytes; done > seen && !bytes.compare_exchange_weak(seen, done);) {
      }
      return io.progress(done, total);
    };
    MXREC_TF_RETURN_IF_ERROR(ToTf(Save(counting, directory, tables, options)));
    return SetScalar(ctx, 0, static_cast<int64_t>(bytes.load()));
  }

 private:
  Status Save(const CheckpointIo& io, const std::string& directory, const std::vector<TableRef>& tables,
              const SaveOptions& options) const {
    const HcomWorld world = GetHcomWorld();
    if (!SeveralRanks(world, tables)) {
      const std::lock_guard<std::mutex> one_at_a_time(SaveMutex());
      return SaveCheckpoint(io, directory, Contents(io, tables, [](const EmbeddingTable&) { return true; }), options);
    }
    // The first rank alone decides which of several saves comes first: were it each of them, they might wait for each other.
    std::unique_lock<std::mutex> one_at_a_time(SaveMutex(), std::defer_lock);
    if (world.rank == 0) one_at_a_time.lock();
    const auto cancelled = CancelledBy(io);
    MXREC_RETURN_IF_ERROR(AgreeOnStatus(name() + "/begin", OkStatus(), cancelled));
    const Result<std::string> written = WritePart(io, directory, tables, options, world);
    MXREC_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                           GatherTexts(name() + "/files", written.ok() ? *written : "", cancelled));
    MXREC_RETURN_IF_ERROR(AgreeOnStatus(name() + "/written", written.status(), cancelled));
    const Status published = world.rank == 0 ? Publish(io, directory, files, options) : OkStatus();
    return AgreeOnStatus(name() + "/published", published, cancelled);
  }

  // The tables that `wanted` chooses, without their cold rows.
  template <typename Wanted>
  static std::vector<const Table*> Contents(const CheckpointIo& io, const std::vector<TableRef>& tables, Wanted wanted) {
    std::vector<const Table*> contents;
    for (const TableRef& table : tables) {
      if (!wanted(table->table())) continue;
      table->table().EvictCold(io.executor);
      contents.push_back(&table->table().table());
    }
    return contents;
  }

  // What this rank has to write: its rows of the tables that are spread, and at the first rank the tables that all have. Returns a
  // line
  // "<checksum> <file>" for each file.
  static Result<std::string> WritePart(const CheckpointIo& io, const std::string& directory, const std::vector<TableRef>& tables,
                                       const SaveOptions& options, const HcomWorld& world) {
    const auto spread = [](const EmbeddingTable& table) { return table.config().distribution == Distribution::kSharded; };
    const ShardOf shard{.shard = static_cast<uint32_t>(world.rank), .shard_count = static_cast<uint32_t>(world.size)};
    MXREC_ASSIGN_OR_RETURN(std::vector<TableFileInfo> files,
                           WriteCheckpointFiles(io, directory, Contents(io, tables, spread), options.step, shard));
    const std::vector<const Table*> whole = Contents(io, tables, [&](const EmbeddingTable& table) { return !spread(table); });
    if (world.rank == 0) {
      MXREC_ASSIGN_OR_RETURN(const std::vector<TableFileInfo> more, WriteCheckpointFiles(io, directory, whole, options.step));
      files.insert(files.end(), more.begin(), more.end());
    }
    std::string lines;
    for (const TableFileInfo& info : files) lines += std::to_string(info.crc32c) + ' ' + info.file + '\n';
    return lines;
  }

  static Status Publish(const CheckpointIo& io, const std::string& directory, const std::vector<std::string>& by_rank,
                        const SaveOptions& options) {
    std::vector<TableFileInfo> files;
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      std::istringstream lines(by_rank[rank]);
      uint32_t crc = 0;
      for (std::string file; lines >> crc >> file;) {
        const std::string path = JoinPath(JoinPath(directory, format::StepDirName(options.step)), file);
        Result<TableFileInfo> info = ReadTableFileInfo(io, path);
        if (!info.ok()) {
          return Status(info.status().code(), std::string(info.status().message()) + "; rank " + std::to_string(rank) +
                                                  " wrote it: all ranks must be given one folder that all of them see");
        }
        info->file = file;
        info->crc32c = crc;
        files.push_back(*std::move(info));
      }
    }
    return PublishCheckpoint(io, directory, files, options);
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecSave").Device(tensorflow::DEVICE_CPU), SaveOp);

// Says so when a load brought less than the run that saved it had.
void WarnOfLoad(const EmbeddingTable& table, const std::string& optimizer_before, const LoadReport& report,
                const std::string& source) {
  if (report.slots_fresh) {
    MXREC_LOG(WARNING) << "table \"" << table.name() << "\": " << source << " was saved with optimizer "
                       << (report.file_optimizer_kind.empty() ? "none" : report.file_optimizer_kind) << ", the table has "
                       << optimizer_before << ": rows are loaded, optimizer slots start anew";
  }
  if (report.seed_differs) {
    MXREC_LOG(WARNING)
        << "table \"" << table.name() << "\": " << source
        << " was saved with another seed: ids that it does not hold start from other rows than in the run that saved it";
  }
}

Result<uint64_t> FindLatest(const CheckpointIo& io, const std::string& directory) {
  MXREC_ASSIGN_OR_RETURN(const std::optional<uint64_t> latest, LatestCheckpoint(io, directory));
  if (!latest.has_value()) return NotFoundError(directory + ": holds no complete checkpoint");
  return *latest;
}

class LoadOp : public FileOp {
 public:
  using FileOp::FileOp;
  TfStatus Run(OpKernelContext* ctx, const CheckpointIo& io, const std::vector<TableRef>& tables) override {
    const int n = static_cast<int>(tables.size());
    const std::string directory = Text(ctx->input(n));
    int64_t step = Number(ctx->input(n + 1));
    if (directory.empty()) return ToTf(InvalidArgumentError("load: directory is empty"));
    if (step < -1)
      return ToTf(InvalidArgumentError("load: expected a step >= 0 or -1 for the latest, found " + std::to_string(step)));
    const HcomWorld world = GetHcomWorld();
    const bool several = SeveralRanks(world, tables);
    const auto cancelled = CancelledBy(io);
    if (step == -1) {
      Result<uint64_t> latest = FindLatest(io, directory);
      if (several) {
        // The first rank's answer counts: another rank may see the folder a moment later.
        MXREC_TF_RETURN_IF_ERROR(
            ToTf(AgreeOnStatus(name() + "/latest", world.rank == 0 ? latest.status() : OkStatus(), cancelled)));
        const Result<std::vector<std::string>> steps =
            GatherTexts(name() + "/step", latest.ok() ? std::to_string(*latest) : "", cancelled);
        MXREC_TF_RETURN_IF_ERROR(ToTf(steps.status()));
        latest = static_cast<uint64_t>(std::strtoull((*steps)[0].c_str(), nullptr, 10));
      }
      MXREC_TF_RETURN_IF_ERROR(ToTf(latest.status()));
      step = static_cast<int64_t>(*latest);
    }
    std::vector<Table*> contents;
    std::vector<std::string> optimizers;
    std::vector<LoadOptions> options;
    for (const TableRef& table : tables) {
      contents.push_back(&table->table().table());
      optimizers.push_back(contents.back()->slots().optimizer_kind);
      LoadOptions& own = options.emplace_back();
      if (!several || table->table().config().distribution != Distribution::kSharded) continue;
      own.rank = static_cast<uint32_t>(world.rank);
      own.rank_count = static_cast<uint32_t>(world.size);
      own.owner_rule = table->table().config().owner;
    }
    const Result<std::vector<LoadReport>> reports =
        LoadCheckpoint(io, directory, static_cast<uint64_t>(step), contents, NowMs(), options);
    if (several) MXREC_TF_RETURN_IF_ERROR(ToTf(AgreeOnStatus(name() + "/loaded", reports.status(), cancelled)));
    MXREC_TF_RETURN_IF_ERROR(ToTf(reports.status()));

    std::string json = "{\"step\": " + std::to_string(step) + ", \"tables\": [";
    for (size_t i = 0; i < tables.size(); ++i) {
      const EmbeddingTable& table = tables[i]->table();
      const LoadReport& report = (*reports)[i];
      WarnOfLoad(table, optimizers[i], report, directory);
      if (TrainedByRanks(table.config())) ShardHostHere().NoteLoaded(table);
      json += i == 0 ? "" : ", ";
      json += "{\"table\": " + JsonText(table.name()) + ", \"rows\": " + std::to_string(report.rows) +
              ", \"candidates\": " + std::to_string(report.candidates) +
              ", \"slots_fresh\": " + (report.slots_fresh ? "true" : "false") +
              ", \"seed_differs\": " + (report.seed_differs ? "true" : "false") +
              ", \"file_optimizer\": " + JsonText(report.file_optimizer_kind) + "}";
    }
    json += "]}";
    Tensor* output = nullptr;
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({}), &output));
    output->scalar<tensorflow::tstring>()() = json;
    return TfStatus();
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecLoad").Device(tensorflow::DEVICE_CPU), LoadOp);

class SaverSaveOp : public FileOp {
 public:
  using FileOp::FileOp;
  bool saves() const override { return true; }
  TfStatus Run(OpKernelContext* ctx, const CheckpointIo& io, const std::vector<TableRef>& tables) override {
    EmbeddingTable& table = tables[0]->table();
    const std::string prefix = Text(ctx->input(1));
    if (prefix.empty()) return ToTf(InvalidArgumentError("table \"" + table.name() + "\": the saver's prefix is empty"));
    const Result<uint64_t> marker = WriteSideFile(io, prefix, [&](const auto& path_for_tag) -> Result<TableFileInfo> {
      if (TrainedByRanks(table.config())) return ShardHostHere().WriteTable(io, table, path_for_tag);
      table.EvictCold(io.executor);
      return WriteTableFile(io, table.table(), path_for_tag);
    });
    MXREC_TF_RETURN_IF_ERROR(ToTf(marker.status()));
    return SetScalar(ctx, 0, static_cast<int64_t>(*marker));
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecSaverSave").Device(tensorflow::DEVICE_CPU), SaverSaveOp);

class SaverRestoreOp : public FileOp {
 public:
  explicit SaverRestoreOp(OpKernelConstruction* ctx) : FileOp(ctx) { OP_REQUIRES_OK(ctx, ctx->GetAttr("rows_only", &rows_only_)); }
  TfStatus Run(OpKernelContext* ctx, const CheckpointIo& io, const std::vector<TableRef>& tables) override {
    EmbeddingTable& table = tables[0]->table();
    const std::string prefix = Text(ctx->input(1));
    const Result<std::string> path = FindSideFile(io, prefix, static_cast<uint64_t>(Number(ctx->input(2))));
    MXREC_TF_RETURN_IF_ERROR(ToTf(path.status()));
    const std::string optimizer = table.table().slots().optimizer_kind;
    const Result<LoadReport> report =
        TrainedByRanks(table.config())
            ? ShardHostHere().ReadTable(io, table, *path, rows_only_)
            : ReadTableFiles(io, std::span<const std::string>(&*path, 1), &table.table(), NowMs(), {.rows_only = rows_only_});
    MXREC_TF_RETURN_IF_ERROR(ToTf(report.status()));
    WarnOfLoad(table, optimizer, *report, *path);
    return TfStatus();
  }

 private:
  bool rows_only_ = false;
};
REGISTER_KERNEL_BUILDER(Name("MxrecSaverRestore").Device(tensorflow::DEVICE_CPU), SaverRestoreOp);

}  // namespace
}  // namespace mxrec
