// Resident bytes a key beyond the rows' own values and slots, at several table sizes, each in a process of its own.
//
//   memory_bench [--keys 10000000] [--json FILE]
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/harness.h"
#include "bench/keys.h"
#include "mxrec/base/process_memory.h"
#include "mxrec/engine/embedding_table.h"

namespace mxrec::bench {
namespace {

struct Measured {
  double beyond = -1;  // bytes a key, resident, beyond values and slots
  double index = -1;   // bytes a key of the index, as the table counts them
};

// Runs in a child process, so that the heap starts clean; the figures come back through a pipe.
Measured Measure(size_t count, uint32_t dim, bool metadata) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    InlineExecutor executor;
    EmbeddingTableConfig config;
    config.table.name = "memory";
    config.table.dim = dim;
    config.table.keep_counts = metadata;
    config.table.max_cold_secs = metadata ? 3600 : 0;
    auto table = EmbeddingTable::Create(config).value();
    const auto adagrad = MakeOptimizer("adagrad").value();
    const std::vector<float> hyper(adagrad->hyper_names().size(), 0.01f);
    (void)table->Apply(*adagrad, hyper, {}, &executor).ok();
    const std::vector<uint64_t> keys = Keys(count);
    // Scratch of one batch is there before the first measurement.
    const std::vector<uint64_t> warm(keys.begin(), keys.begin() + 1024);
    if (!table->Insert(warm, nullptr, &executor).ok()) _exit(1);
    const uint64_t before = ResidentBytes();
    for (size_t at = 0; at < keys.size(); at += 8192) {
      if (!table->Insert({keys.data() + at, std::min<size_t>(8192, keys.size() - at)}, nullptr, &executor).ok()) _exit(1);
    }
    const double rows = static_cast<double>(count - 1024) * dim * 2 * sizeof(float);
    const Measured result{(static_cast<double>(ResidentBytes() - before) - rows) / static_cast<double>(count),
                          static_cast<double>(table->table().stats().bytes_index) / static_cast<double>(count)};
    if (write(ends[1], &result, sizeof(result)) != sizeof(result)) _exit(1);
    _exit(0);
  }
  close(ends[1]);
  Measured result;
  if (read(ends[0], &result, sizeof(result)) != sizeof(result)) result = {};
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return result;
}

}  // namespace
}  // namespace mxrec::bench

int main(int argc, char** argv) {
  using namespace mxrec::bench;
  size_t largest = 10'000'000;
  std::string json;
  CLI::App app("Resident bytes a key of mxrec tables");
  app.add_option("--keys", largest, "largest table")->capture_default_str();
  app.add_option("--json", json, "file for the figures");
  CLI11_PARSE(app, argc, argv);
  Report report("memory");
  for (double share = 0.1; share < 1.01; share *= 1.25) {
    const size_t count = static_cast<size_t>(static_cast<double>(largest) * std::min(share, 1.0));
    const Measured plain = Measure(count, 16, false);
    const std::string tag = ", " + std::to_string(count) + " keys, dim 16";
    report.Add("index bytes a key" + tag, plain.index, 20, false);
    report.Add("resident bytes a key beyond values and slots" + tag, plain.beyond, 24, false);
  }
  const Measured metadata = Measure(largest, 16, true);
  report.Add("the same with counts and times, " + std::to_string(largest) + " keys, dim 16", metadata.beyond, 32, false);
  const int missed = report.Finish(json);
  std::cout << (missed == 0 ? "all bars met" : std::to_string(missed) + " bars missed") << std::endl;
  return 0;
}
