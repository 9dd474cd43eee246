// One rank of the raw engines, as a contestant of run.py (channel.py has the protocol). Started by mpirun: raw_worker FOLDER NAME.
// Cases: SYSTEM:BYTES, such as "mpi:1024"; systems: mpi, ring, ring_chunked, halving_doubling.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "bench/harness.h"
#include "bench/raw_collectives.h"

namespace mxrec::bench {
namespace {

struct Case {
  std::vector<float> data;
  System system;
};

int Serve(const std::string& folder, const std::string& name) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const std::string path = folder + "/" + name + "." + std::to_string(rank);
  std::ifstream in(path + ".in");
  std::ofstream out(path + ".out");
  if (rank == 0) std::filesystem::create_directory(folder + "/gloo");
  MPI_Barrier(MPI_COMM_WORLD);
  RawEngines engines(rank, size, folder + "/gloo");
  std::map<std::string, Case> cases;
  const auto say = [&](const nlohmann::json& message) { out << message.dump() << std::endl; };
  say({{"ready", {{"pid", getpid()}}}});
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string verb, name;
    int steps = 1;
    words >> verb >> name >> steps;
    if (verb == "prepare") {
      const size_t colon = name.find(':');
      const size_t count = std::stoul(name.substr(colon + 1)) / sizeof(float);
      Case& made = cases[name];
      made.data.resize(count);
      const std::map<std::string, std::string> names = {{"mpi", "MPI_Allreduce"},
                                                        {"ring", "Gloo ring"},
                                                        {"ring_chunked", "Gloo ring_chunked"},
                                                        {"halving_doubling", "Gloo halving_doubling"}};
      for (System& system : engines.Systems(made.data.data(), count)) {
        if (system.name == names.at(name.substr(0, colon))) made.system = system;
      }
      std::fill(made.data.begin(), made.data.end(), static_cast<float>(rank + 1));
      made.system.run(made.data.data(), count);
      if (made.data.front() != 3 || made.data.back() != 3) {
        say({{"error", name + " is wrong"}});
        continue;
      }
      std::fill(made.data.begin(), made.data.end(), 0.0f);
      say({{"answer", nullptr}});
    } else {
      Case& of = cases.at(name);
      const double begin = Now();
      for (int i = 0; i < steps; ++i) of.system.run(of.data.data(), of.data.size());
      say({{"answer", Now() - begin}});
    }
  }
  return 0;
}

}  // namespace
}  // namespace mxrec::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc < 3) {
    std::fprintf(stderr, "usage: raw_worker FOLDER NAME\n");
    return 2;
  }
  return mxrec::bench::Serve(argv[1], argv[2]);
}
