// A contestant of bench/peers/run.py: whole training steps of the engine, without TensorFlow. The protocol is that of
// bench/peers/worker.py: says `{"ready": ...}` on standard output, then answers each line `run MODE/STREAM FIRST COUNT` with
// `{"seconds": ...}`; ends with its standard input. Modes: dense and pooled (steps), find (and copy), unique (dedupe, find, copy),
// insert. Streams: uniform, zipf, fresh (new keys, those of the last such request are erased before).
//
//   engine_worker --keys FOLDER [--dim 16] [--optimizer adagrad] [--threads 1]     (FOLDER: from bench/peers/keys.py)
//
// For a profile of a single set: start it, ask for some batches, then attach a profiler and ask for more.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "bench/harness.h"
#include "bench/keys.h"
#include "bench/steps.h"
#include "mxrec/base/thread_pool.h"

namespace mxrec::bench {
namespace {

std::vector<uint64_t> ReadKeys(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name + "_keys.bin";
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<uint64_t> keys(file ? static_cast<size_t>(file.tellg()) / sizeof(uint64_t) : 0);
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(keys.data()), static_cast<std::streamsize>(keys.size() * sizeof(uint64_t)))) {
    std::cerr << path << ": cannot be read\n";
    std::exit(2);
  }
  return keys;
}

int Serve(const std::string& folder, size_t dim, const std::string& kind, int threads) {
  std::map<std::string, KeyStream> streams;
  for (const char* name : {"uniform", "zipf"}) streams[name] = {name, ReadKeys(folder, name)};
  InlineExecutor one;
  std::optional<ThreadPool> pool;
  if (threads > 1) pool.emplace(threads);
  Executor* const executor = threads > 1 ? static_cast<Executor*>(&*pool) : &one;
  const OptimizerUnderTest optimizer = Make(kind);
  const auto table = MakeTable(dim, "engine");
  Fill(table.get(), ReadKeys(folder, "all"), &optimizer);
  StepBuffers buffers(dim);
  const std::vector<int32_t> offsets = BagOffsets();
  const std::unique_ptr<bool[]> found(new bool[kBatch]);
  std::vector<uint64_t> fresh;  // what the last request inserted
  const std::map<std::string, std::function<void(const uint64_t*)>> modes = {
      {"dense", [&](const uint64_t* ids) { TrainStep(table.get(), optimizer, ids, &buffers, executor); }},
      {"pooled", [&](const uint64_t* ids) { PooledStep(table.get(), optimizer, ids, offsets, &buffers, executor); }},
      {"find",
       [&](const uint64_t* ids) {
         table->table().Find({ids, kBatch}, buffers.expanded.data(), found.get(), executor);
       }},
      {"unique", [&](const uint64_t* ids) { LookupUnique(table.get(), ids, &buffers, executor); }},
      {"insert",
       [&](const uint64_t* ids) {
         Check(table->Insert({ids, kBatch}, nullptr, executor));
       }},
  };
  std::cout << nlohmann::json{{"ready", {{"machine", MachineName()}, {"rows", table->table().size()}}}} << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb, set;
    int first = 0, count = 0;
    words >> verb >> set >> first >> count;
    const size_t slash = set.find('/');
    const auto mode = modes.find(set.substr(0, slash));
    const std::string name = slash == std::string::npos ? "" : set.substr(slash + 1);
    if (name == "fresh" && count > 0) {  // keys that the table has not: those of the last request go, so it does not grow
      table->Erase(fresh);
      fresh = Keys(static_cast<size_t>(count) * kBatch, 40'000'000 + static_cast<uint64_t>(first) * 3 * kBatch);
      streams[name] = {name, fresh};
    }
    const auto stream = streams.find(name);
    if (verb != "run" || !words || stream == streams.end() || mode == modes.end()) {
      std::cerr << "expected 'run dense|pooled|find|unique|insert/uniform|zipf|fresh FIRST COUNT', got '" << line << "'\n";
      return 2;
    }
    if (name == "fresh") first = 0;
    const double begin = Now();
    for (int b = first; b < first + count; ++b) mode->second(stream->second.batch(b));
    std::cout << nlohmann::json{{"seconds", Now() - begin}} << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace mxrec::bench

int main(int argc, char** argv) {
  std::string folder;
  size_t dim = 16;
  int threads = 1;
  std::string optimizer = "adagrad";
  CLI::App app("Training steps of the engine, told by lines on standard input");
  app.add_option("--keys", folder, "folder of key files")->required();
  app.add_option("--dim", dim, "row length")->capture_default_str();
  app.add_option("--optimizer", optimizer, "adagrad, adam, ...")->capture_default_str();
  app.add_option("--threads", threads, "of the engine")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return mxrec::bench::Serve(folder, dim, optimizer, threads);
}
