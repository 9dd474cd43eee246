#include "tools/mxrec-ckpt/commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/ckpt/format/names.h"
#include "mxrec/ckpt/format/table_file.h"

namespace mxrec {
namespace {

int ExitOf(const Status& status) {
  if (status.ok()) return kExitFine;
  return status.code() == StatusCode::kDataLoss ? kExitDamaged : kExitCouldNotCheck;
}

struct StepPath {
  std::string dir;
  uint64_t step;
};

class Command {
 public:
  Command(Executor* executor, std::ostream& out, std::ostream& err) : io_{.executor = executor}, out_(out), err_(err) {}

  int List(const std::string& dir) {
    const Result<std::vector<std::string>> names = Env::Default()->ListDir(dir);
    if (!names.ok()) return Fail(names.status());
    const Result<std::vector<uint64_t>> complete = ListCheckpoints(io_, dir);
    if (!complete.ok()) return Fail(complete.status());
    const Result<std::optional<uint64_t>> latest = LatestCheckpoint(io_, dir);
    const std::set<uint64_t> fine(complete->begin(), complete->end());
    std::set<uint64_t> steps;
    for (const std::string& name : *names) {
      if (const std::optional<uint64_t> step = format::ParseStepDirName(name)) steps.insert(*step);
    }
    int code = kExitFine;
    out_ << "step\ttables\trows\tbytes\tstate\n";
    for (const uint64_t step : steps) {
      const Result<std::vector<TableFileInfo>> files = ReadCheckpointInfo(io_, dir, step);
      if (!files.ok()) {
        const bool unfinished = files.status().code() == StatusCode::kNotFound;
        out_ << step << "\t-\t-\t-\t" << (unfinished ? "unfinished" : "unreadable") << "\n";
        if (!unfinished) code = std::max(code, Fail(files.status()));
        continue;
      }
      uint64_t rows = 0, bytes = 0, tables = 0;
      for (const TableFileInfo& info : *files) {
        rows += info.rows;
        bytes += info.bytes;
        tables += info.shard == 0;
      }
      const bool whole = fine.contains(step);
      out_ << step << "\t" << tables << "\t" << rows << "\t" << bytes << "\t" << (whole ? "complete" : "files missing")
           << (latest.ok() && *latest == step ? ", latest" : "") << "\n";
      if (!whole) code = std::max(code, kExitDamaged);
    }
    return code;
  }

  int Show(const std::string& path) {
    std::optional<StepPath> at = AsStep(path);
    if (!at && IsFolder(path)) {
      const Result<std::optional<uint64_t>> latest = LatestCheckpoint(io_, path);
      if (!latest.ok()) return Fail(latest.status());
      if (!latest->has_value()) return Fail(NotFoundError(path + ": no checkpoints there"));
      at = StepPath{path, **latest};
    }
    if (!at) {
      const Result<TableFileInfo> info = ReadTableFileInfo(io_, path);
      if (!info.ok()) return Fail(info.status());
      Print(*info);
      return kExitFine;
    }
    const Result<std::vector<TableFileInfo>> files = ReadCheckpointInfo(io_, at->dir, at->step);
    if (!files.ok()) return Fail(files.status());
    out_ << "step " << at->step << "\n";
    for (const TableFileInfo& info : *files) Print(info);
    return kExitFine;
  }

  int Verify(const std::string& path) {
    if (const std::optional<StepPath> at = AsStep(path)) return VerifyStep(*at);
    if (!IsFolder(path)) {
      const Result<TableFileInfo> info = VerifyTableFile(io_, path);
      if (!info.ok()) return Fail(info.status());
      out_ << path << ": fine, " << info->rows << " rows, " << info->bytes << " bytes\n";
      return kExitFine;
    }
    const Result<std::vector<std::string>> names = Env::Default()->ListDir(path);
    if (!names.ok()) return Fail(names.status());
    int code = kExitFine;
    bool any = false;
    for (const std::string& name : *names) {
      const std::optional<uint64_t> step = format::ParseStepDirName(name);
      // A folder without a manifest is a save that did not finish: nothing was promised.
      if (!step || !Env::Default()->FileExists(JoinPath(JoinPath(path, name), format::kManifestName))) continue;
      any = true;
      code = Worse(code, VerifyStep({path, *step}));
    }
    return any ? code : Fail(NotFoundError(path + ": no checkpoints there"));
  }

 private:
  // What is damaged is worse than what could not be looked at.
  static int Worse(int a, int b) { return a == kExitDamaged || b == kExitDamaged ? kExitDamaged : std::max(a, b); }

  static bool IsFolder(const std::string& path) { return Env::Default()->ListDir(path).ok(); }

  static std::optional<StepPath> AsStep(const std::string& path) {
    const std::optional<uint64_t> step = format::ParseStepDirName(BaseName(path));
    if (!step || !IsFolder(path)) return std::nullopt;
    return StepPath{DirName(path), *step};
  }

  int VerifyStep(const StepPath& at) {
    const Result<std::vector<TableFileInfo>> files = VerifyCheckpoint(io_, at.dir, at.step);
    if (!files.ok()) return Fail(files.status());
    uint64_t bytes = 0;
    for (const TableFileInfo& info : *files) bytes += info.bytes;
    out_ << JoinPath(at.dir, format::StepDirName(at.step)) << ": fine, " << files->size() << " files, " << bytes << " bytes\n";
    return kExitFine;
  }

  void Print(const TableFileInfo& info) {
    out_ << "table " << info.table << "\n  file " << info.file << ", shard " << info.shard << " of " << info.shard_count << ", "
         << info.bytes << " bytes, crc32c " << format::Hex32(info.crc32c) << ", tag " << format::Hex64(info.content_tag)
         << "\n  dim " << info.dim << ", rows " << info.rows << ", candidates " << info.candidates << ", seed "
         << format::Hex64(info.seed) << (info.has_counts ? ", counts" : "") << (info.has_times ? ", times" : "") << "\n";
    if (info.slots.optimizer_kind.empty()) {
      out_ << "  no optimizer\n";
      return;
    }
    out_ << "  optimizer " << info.slots.optimizer_kind << ", step " << info.slots.step << ", slots";
    for (const std::string& name : info.slots.slot_names) out_ << " " << name;
    for (size_t i = 0; i < info.slots.scalars.size(); ++i)
      out_ << ", " << info.slots.scalar_names[i] << " " << info.slots.scalars[i];
    out_ << "\n";
  }

  int Fail(const Status& status) {
    err_ << "mxrec-ckpt: " << status.ToString() << "\n";
    return ExitOf(status);
  }

  const CheckpointIo io_;
  std::ostream& out_;
  std::ostream& err_;
};

}  // namespace

int RunCkptCommand(const std::vector<std::string>& arguments, Executor* executor, std::ostream& out, std::ostream& err) {
  CLI::App app("Looks into mxrec checkpoints. Exit codes: 0 fine, 1 damaged, 2 could not check.", "mxrec-ckpt");
  app.require_subcommand(1);
  Command command(executor, out, err);
  std::string path;
  int code = kExitFine;
  const auto add = [&](const char* name, const char* text, const char* operand, int (Command::*run)(const std::string&)) {
    CLI::App* sub = app.add_subcommand(name, text);
    sub->add_option("path", path, operand)->required();
    sub->callback([&command, &path, &code, run] { code = (command.*run)(path); });
  };
  add("list", "List the checkpoints of a directory", "the directory", &Command::List);
  add("show", "Show what a checkpoint holds", "a table file, a step's folder, or a directory (its latest)", &Command::Show);
  add("verify", "Read every byte and check it", "a table file, a step's folder, or a directory (all steps)", &Command::Verify);
  try {
    // CLI11 takes arguments from the back.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    return app.exit(error, out, err) == 0 ? kExitFine : kExitCouldNotCheck;
  }
  return code;
}

}  // namespace mxrec
