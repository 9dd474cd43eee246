// MxrecSave, MxrecLoad, MxrecSaverSave, MxrecSaverRestore.
//
// Files take long, so these kernels run on threads of their own and leave the session's threads to other work. When the run is
// cancelled (session closed, time-out, another op failed) the next block stops with kCancelled and nothing is published; so it
// does on Ctrl-C, for saves (interrupt.h): a load may be past the point where the table was as before.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/base/log.h"
#include "mxrec/ckpt/checkpoint.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/env.h"
#include "tf/interrupt.h"
#include "tf/kernels/pool_executor.h"
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
    const std::lock_guard<std::mutex> one_at_a_time(SaveMutex());
    std::vector<const Table*> contents;
    for (const TableRef& table : tables) {
      table->table().EvictCold(io.executor);
      contents.push_back(&table->table().table());
    }
    // The largest total seen is what was written.
    std::atomic<uint64_t> bytes{0};
    CheckpointIo counting = io;
    counting.progress = [&](uint64_t done, uint64_t total) {
      for (uint64_t seen = bytes; done > seen && !bytes.compare_exchange_weak(seen, done);) {
      }
      return io.progress(done, total);
    };
    MXREC_TF_RETURN_IF_ERROR(
        ToTf(SaveCheckpoint(counting, directory, contents, {.step = static_cast<uint64_t>(step), .keep = static_cast<int>(keep)})));
    return SetScalar(ctx, 0, static_cast<int64_t>(bytes.load()));
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecSave").Device(tensorflow::DEVICE_CPU), SaveOp);

std::string JsonText(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

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
    if (step == -1) {
      const Result<std::optional<uint64_t>> latest = LatestCheckpoint(io, directory);
      MXREC_TF_RETURN_IF_ERROR(ToTf(latest.status()));
      if (!latest->has_value()) return ToTf(NotFoundError(directory + ": holds no complete checkpoint"));
      step = static_cast<int64_t>(**latest);
    }
    std::vector<Table*> contents;
    std::vector<std::string> optimizers;
    for (const TableRef& table : tables) {
      contents.push_back(&table->table().table());
      optimizers.push_back(contents.back()->slots().optimizer_kind);
    }
    const Result<std::vector<LoadReport>> reports = LoadCheckpoint(io, directory, static_cast<uint64_t>(step), contents, NowMs());
    MXREC_TF_RETURN_IF_ERROR(ToTf(reports.status()));

    std::string json = "{\"step\": " + std::to_string(step) + ", \"tables\": [";
    for (size_t i = 0; i < tables.size(); ++i) {
      const EmbeddingTable& table = tables[i]->table();
      const LoadReport& report = (*reports)[i];
      WarnOfLoad(table, optimizers[i], report, directory);
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
    table.EvictCold(io.executor);
    const Result<uint64_t> marker = WriteSideFile(io, table.table(), prefix);
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
        ReadTableFiles(io, std::span<const std::string>(&*path, 1), &table.table(), NowMs(), {.rows_only = rows_only_});
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
