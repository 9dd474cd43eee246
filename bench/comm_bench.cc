// Allreduce of float32 sums between two ranks of this machine: ours over shared memory, Gloo and Open MPI, beside MPI_Allreduce and
// beside the algorithms of Gloo (over TCP on the loopback). All in one run, taking turns; a figure is the median over turns of the
// ratio to the raw engine within a turn.
//
// usage: comm_bench [--turns N] [--json FILE]   (starts itself twice through mpirun; MXREC_MPIRUN_FLAGS: more flags for it)
#include <gloo/algorithm.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "mxrec/comm/collectives.h"
#include "mxrec/comm/store.h"
#include "mxrec/comm/transport.h"
#include "mxrec/comm/transport/plugin_transport.h"
#include "mxrec/comm/transport/shm/shm_transport.h"

namespace mxrec::bench {
namespace {

constexpr int kRanks = 2;

struct System {
  std::string name;
  std::function<void(float* data, size_t count)> run;
  std::vector<double> seconds = {};  // one a turn
};

Deadline InAMinute() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

void Fail(const std::string& what) {
  std::fprintf(stderr, "comm_bench: %s\n", what.c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// The slower rank's time: a collective operation ends when all have ended it.
double SecondsOfAll(double mine) {
  double slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

System Ours(std::string name, Transport* transport, const std::vector<int>& ranks) {
  return {std::move(name), [=, &ranks](float* data, size_t count) {
            const Status status = AllReduce(*transport, {ranks, transport->rank()}, data, count, DType::kFloat32, ReduceOp::kSum,
                                            Algorithm::kAuto, InAMinute());
            if (!status.ok()) Fail(status.ToString());
          }};
}

const System* Find(const std::vector<System>& systems, const std::string& name) {
  for (const System& system : systems) {
    if (system.name == name) return &system;
  }
  return nullptr;
}

// Median over turns of ours / the best of the others within the turn.
double RatioTo(const std::vector<System>& systems, const std::string& ours, const std::vector<std::string>& others) {
  const System* const mine = Find(systems, ours);
  std::vector<double> ratios;
  for (size_t turn = 0; turn < mine->seconds.size(); ++turn) {
    double best = 1e9;
    for (const std::string& name : others) best = std::min(best, Find(systems, name)->seconds[turn]);
    ratios.push_back(mine->seconds[turn] / best);
  }
  return Median(ratios);
}

std::string SizeName(size_t bytes) {
  return bytes >= (1 << 20) ? std::to_string(bytes >> 20) + " MiB" : std::to_string(bytes >> 10) + " KiB";
}

void Run(int turns, const std::string& json) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != kRanks) Fail("expected 2 ranks");
  char folder[] = "/tmp/mxrec-comm-bench-XXXXXX";
  if (rank == 0 && mkdtemp(folder) == nullptr) Fail("no temporary folder");
  MPI_Bcast(folder, sizeof(folder), MPI_CHAR, 0, MPI_COMM_WORLD);

  auto store = MakeFileStore(folder).value();
  const std::vector<int> ranks = {0, 1};
  auto shm = std::move(MakeShmTransport({rank, size}, *store, InAMinute())).value();
  const PluginTransportOptions options{rank, size, "127.0.0.1", MXREC_PLUGIN_FOLDER};
  auto gloo_transport = std::move(MakePluginTransport("gloo", options, *store, InAMinute())).value();
  auto mpi_transport = std::move(MakePluginTransport("mpi", options, *store, InAMinute())).value();

  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  const std::string gloo_folder = std::string(folder) + "/gloo";
  if (rank == 0) std::filesystem::create_directory(gloo_folder);
  MPI_Barrier(MPI_COMM_WORLD);
  gloo::rendezvous::FileStore gloo_store(gloo_folder);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->connectFullMesh(gloo_store, device);
  uint32_t tag = 0;

  Report report("comm");
  for (const size_t bytes : {size_t{1} << 10, size_t{1} << 20, size_t{64} << 20}) {
    const size_t count = bytes / sizeof(float);
    const int repeats = bytes <= 1024 ? 1000 : bytes <= (1 << 20) ? 40 : 2;
    std::vector<float> data(count), result(count);
    gloo::AllreduceRingChunked<float> ring_chunked(context, {data.data()}, static_cast<int>(count));
    gloo::AllreduceHalvingDoubling<float> halving(context, {data.data()}, static_cast<int>(count));
    std::vector<System> systems;
    systems.push_back(Ours("ours, shared memory", shm.get(), ranks));
    systems.push_back(Ours("ours, Open MPI", mpi_transport.get(), ranks));
    systems.push_back(Ours("ours, Gloo", gloo_transport.get(), ranks));
    systems.push_back({"MPI_Allreduce", [](float* in, size_t n) {
                         MPI_Allreduce(MPI_IN_PLACE, in, static_cast<int>(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                       }});
    systems.push_back({"Gloo ring", [&](float* in, size_t n) {
                         gloo::AllreduceOptions ring(context);
                         ring.setOutput(in, n);
                         ring.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
                         ring.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
                         ring.setTag(tag++);
                         gloo::allreduce(ring);
                       }});
    systems.push_back({"Gloo ring_chunked", [&](float*, size_t) { ring_chunked.run(); }});
    systems.push_back({"Gloo halving_doubling", [&](float*, size_t) { halving.run(); }});
    for (int turn = -1; turn < turns; ++turn) {
      for (System& system : systems) {
        std::fill(data.begin(), data.end(), static_cast<float>(rank + 1));
        MPI_Barrier(MPI_COMM_WORLD);
        system.run(data.data(), count);
        if (data.front() != 3 || data.back() != 3) Fail(system.name + " is wrong");
        std::fill(data.begin(), data.end(), 0.0f);
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = Now();
        for (int i = 0; i < repeats; ++i) system.run(data.data(), count);
        const double seconds = SecondsOfAll((Now() - begin) / repeats);
        if (turn >= 0) system.seconds.push_back(seconds);
      }
    }
    if (rank != 0) continue;
    const std::string what = "allreduce " + SizeName(bytes) + ", 2 ranks: ";
    for (const System& system : systems) report.Note(what + system.name, Median(system.seconds) * 1e6, "us");
    // What one message costs has no counterpart to be held against below a few microseconds.
    const bool small = bytes <= 1024;
    report.Add(what + "shared memory / MPI_Allreduce", RatioTo(systems, "ours, shared memory", {"MPI_Allreduce"}), small ? 4 : 1.1,
               false);
    report.Add(what + "ours over Open MPI / MPI_Allreduce", RatioTo(systems, "ours, Open MPI", {"MPI_Allreduce"}), small ? 4 : 1.5,
               false);
    report.Add(what + "ours over Gloo / Gloo's best",
               RatioTo(systems, "ours, Gloo", {"Gloo ring", "Gloo ring_chunked", "Gloo halving_doubling"}), small ? 2 : 1.1, false);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank != 0) return;
  report.Finish(json);
  std::filesystem::remove_all(folder);
}

// Does not come back where mpirun is there.
void StartThroughMpirun(int argc, char** argv) {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  char path[4096] = {};
  if (readlink("/proc/self/exe", path, sizeof(path) - 1) < 0) return;
  std::string command = "exec mpirun --bind-to none -np 2 ";
  if (const char* const flags = std::getenv("MXREC_MPIRUN_FLAGS")) command += std::string(flags) + " ";
  command += std::string("'") + path + "'";
  for (int i = 1; i < argc; ++i) command += std::string(" '") + argv[i] + "'";
  execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
}

}  // namespace
}  // namespace mxrec::bench

int main(int argc, char** argv) {
  int turns = 7;
  std::string json;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--turns") == 0) turns = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
  }
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
    mxrec::bench::StartThroughMpirun(argc, argv);
    std::fprintf(stderr, "comm_bench: mpirun (package openmpi-bin) cannot be started\n");
    return 2;
  }
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  mxrec::bench::Run(turns, json);
  MPI_Finalize();
  return 0;
}
