// A contestant of bench/peers/run.py: whole training steps of the engine, without TensorFlow. The protocol is that of
// bench/peers/worker.py: says `{"ready": ...}` on standard output, then answers each line `run MODE/STREAM FIRST COUNT` with
// `{"seconds": ...}`; ends with its standard input.
//
//   engine_worker --keys FOLDER --dim 16     (FOLDER: from bench/peers/keys.py; one thread)
#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
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

int Serve(const std::string& folder, size_t dim) {
  std::map<std::string, KeyStream> streams;
  for (const char* name : {"uniform", "zipf"}) streams[name] = {name, ReadKeys(folder, name)};
  InlineExecutor executor;
  const OptimizerUnderTest adagrad = Make("adagrad");
  const auto table = MakeTable(dim, "engine");
  Fill(table.get(), ReadKeys(folder, "all"), &adagrad);
  StepBuffers buffers(dim);
  const std::vector<int32_t> offsets = BagOffsets();
  std::cout << nlohmann::json{{"ready", {{"machine", MachineName()}, {"rows", table->table().size()}}}} << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb, set;
    int first = 0, count = 0;
    words >> verb >> set >> first >> count;
    const size_t slash = set.find('/');
    const std::string mode = set.substr(0, slash);
    const auto stream = streams.find(slash == std::string::npos ? "" : set.substr(slash + 1));
    if (verb != "run" || !words || stream == streams.end() || (mode != "dense" && mode != "pooled")) {
      std::cerr << "expected 'run dense|pooled/uniform|zipf FIRST COUNT', got '" << line << "'\n";
      return 2;
    }
    const double begin = Now();
    for (int b = first; b < first + count; ++b) {
      const uint64_t* ids = stream->second.batch(b);
      if (mode == "dense")
        TrainStep(table.get(), adagrad, ids, &buffers, &executor);
      else
        PooledStep(table.get(), adagrad, ids, offsets, &buffers, &executor);
    }
    std::cout << nlohmann::json{{"seconds", Now() - begin}} << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace mxrec::bench

int main(int argc, char** argv) {
  std::string folder;
  size_t dim = 16;
  CLI::App app("Training steps of the engine, told by lines on standard input");
  app.add_option("--keys", folder, "folder of key files")->required();
  app.add_option("--dim", dim, "row length")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return mxrec::bench::Serve(folder, dim);
}
