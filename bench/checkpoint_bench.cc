// Speed of checkpoints against plain sequential I/O of the same bytes, and the memory a save or load takes beside the table.
//
//   checkpoint_bench [--keys 4000000] [--dir FOLDER] [--repeats 5] [--json FILE]
//
// Plain write: 4 MiB writes of ready bytes, then fsync. Plain read: 4 MiB reads into one buffer. A resume reads from the disk,
// so the page cache of the files is dropped before each reading turn; the figures with a warm cache are notes.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "bench/harness.h"
#include "bench/keys.h"
#include "mxrec/base/process_memory.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/engine/embedding_table.h"

namespace mxrec::bench {
namespace {

namespace fs = std::filesystem;

// Largest resident size while work runs, minus the larger of those before and after, in MiB: what is needed beside the table.
double ExtraMib(const std::function<void()>& work) {
  ResetPeakResident();
  const uint64_t before = ResidentBytes();
  work();
  const uint64_t beside = std::max(before, ResidentBytes());
  return static_cast<double>(std::max(PeakResidentBytes(), beside) - beside) / 1048576.0;
}

void Check(const Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::exit(2);
}

void PlainWrite(const std::string& path, const std::vector<char>& bytes, uint64_t total) {
  const int fd = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
  for (uint64_t done = 0; done < total;) {
    const ssize_t n = write(fd, bytes.data(), std::min<uint64_t>(bytes.size(), total - done));
    if (n <= 0) std::exit(2);
    done += static_cast<uint64_t>(n);
  }
  fsync(fd);
  close(fd);
}

// Forgets the page cache of every file below dir, so that the next read comes from the disk.
void DropCache(const std::string& dir) {
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    if (!entry.is_regular_file()) continue;
    const int fd = open(entry.path().c_str(), O_RDONLY);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
  }
}

void PlainRead(const std::string& path, std::vector<char>* buffer) {
  const int fd = open(path.c_str(), O_RDONLY);
  while (read(fd, buffer->data(), buffer->size()) > 0) {
  }
  close(fd);
}

}  // namespace
}  // namespace mxrec::bench

int main(int argc, char** argv) {
  using namespace mxrec::bench;
  using namespace mxrec;
  size_t count = 4'000'000;
  int repeats = 5;
  std::string json, dir = (fs::temp_directory_path() / "mxrec-checkpoint-bench").string();
  CLI::App app("Speed and memory of mxrec checkpoints");
  app.add_option("--keys", count, "rows in the table")->capture_default_str();
  app.add_option("--dir", dir, "folder to write to")->capture_default_str();
  app.add_option("--repeats", repeats, "turns that count")->capture_default_str();
  app.add_option("--json", json, "file for the figures");
  CLI11_PARSE(app, argc, argv);
  Report report("checkpoint");
  ThreadPool pool(2);
  EmbeddingTableConfig config;
  config.table.name = "checkpoint";
  config.table.dim = 16;
  auto table = EmbeddingTable::Create(config).value();
  const auto adagrad = MakeOptimizer("adagrad").value();
  Check(table->Apply(*adagrad, std::vector<float>(adagrad->hyper_names().size(), 0.01f), {}, &pool));
  const std::vector<uint64_t> keys = Keys(count);
  for (size_t at = 0; at < count; at += kBatch) {
    Check(table->Insert({keys.data() + at, std::min(kBatch, count - at)}, nullptr, &pool));
  }
  fs::remove_all(dir);
  fs::create_directories(dir);
  const CheckpointIo io{nullptr, &pool, nullptr};
  const Table* tables[] = {&table->table()};
  Table* loading[] = {&table->table()};
  const std::string plain = dir + "/plain";
  const auto save = [&] { Check(SaveCheckpoint(io, dir, tables, {.step = 1})); };
  const auto load = [&] { Check(LoadCheckpoint(io, dir, 1, loading, 0).status()); };
  save();
  uint64_t bytes = 0;
  for (const auto& file : fs::directory_iterator(dir + "/mxrec-1")) bytes += file.file_size();
  std::vector<char> buffer(size_t{4} << 20, 'x');
  std::vector<Contestant> writers = {
      {"plain write + fsync", static_cast<double>(bytes), [&](int) { PlainWrite(plain, buffer, bytes); }, {}},
      {"save", static_cast<double>(bytes), [&](int) { fs::remove_all(dir + "/mxrec-1"), save(); }, {}},
  };
  TakeTurns(&writers, repeats, 1);
  std::vector<Contestant> readers = {
      {"plain read", static_cast<double>(bytes), [&](int) { PlainRead(plain, &buffer); }, {}},
      {"load", static_cast<double>(bytes), [&](int) { table->Reset(), load(); }, {}},
  };
  std::vector<Contestant> warm = readers;
  TakeTurns(&warm, repeats, 1);
  for (Contestant& c : readers) {
    c.work = [&dir, work = c.work](int b) {
      DropCache(dir);
      work(b);
    };
  }
  TakeTurns(&readers, repeats, 1);
  for (const auto* side : {&writers, &readers}) {
    for (const Contestant& c : *side) report.Note(c.name, Median(c.rates) / 1e9, "GB/s");
  }
  report.Add("save / plain sequential write + fsync", Median(Ratios(writers[1].rates, writers[0].rates)), 0.8);
  for (const Contestant& c : warm) report.Note(c.name + ", page cache warm", Median(c.rates) / 1e9, "GB/s");
  report.Add("load / plain sequential read", Median(Ratios(readers[1].rates, readers[0].rates)), 0.8);
  fs::remove_all(dir + "/mxrec-1");  // else the file that is there would do
  report.Add("extra memory of a save, MiB", ExtraMib(save), 64, false);
  table->Reset();
  report.Add("extra memory of a load, MiB", ExtraMib(load), 64, false);
  fs::remove_all(dir);
  const int missed = report.Finish(json);
  std::cout << (missed == 0 ? "all bars met" : std::to_string(missed) + " bars missed") << std::endl;
  return 0;
}
