// Allreduce of float32 sums between two ranks of this machine: ours over shared memory, Gloo and Open MPI, beside MPI_Allreduce and
// beside the algorithms of Gloo (over TCP on the loopback). All in one run, taking turns; a figure is the median over turns of the
// ratio to the raw engine within a turn.
//
// usage: comm_bench [--turns N] [--json FILE] [--only agreement]   (starts itself twice through mpirun; MXREC_MPIRUN_FLAGS: more
// flags for it)
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/harness.h"
#include "bench/raw_collectives.h"
#include "mxrec/comm/collectives.h"
#include "mxrec/comm/communicator.h"
#include "mxrec/comm/controller/executor.h"
#include "mxrec/comm/store.h"
#include "mxrec/comm/transport.h"
#include "mxrec/comm/transport/plugin_transport.h"
#include "mxrec/comm/transport/shm/shm_transport.h"

namespace mxrec::bench {
namespace {

constexpr int kRanks = 2;

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

// A thread that runs what it is handed, as a communicator's progress thread does.
class Runner {
 public:
  Runner() : thread_([this] { Loop(); }) {}
  ~Runner() {
    Hand([this] { stop_ = true; });
    thread_.join();
  }
  void Hand(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_ = std::move(work);
    changed_.notify_one();
  }

 private:
  void Loop() {
    while (!stop_) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return work_ != nullptr; });
        work = std::exchange(work_, nullptr);
      }
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool stop_ = false;
  std::thread thread_;
};

// Sums of `tensors` tensors of `count` numbers, under names that the ranks know already; returns when all are there.
class Named {
 public:
  Named(Communicator* communicator, size_t tensors, size_t count)
      : communicator_(communicator), data_(tensors, std::vector<float>(count)) {}

  void Run() {
    communicator_->Submit(Requests());
    Wait();
  }

  // The same without names that anybody agrees on: as the one packed reduction that they become, on `runner` or, when it is null,
  // here.
  void RunPacked(Runner* runner, Executor* executor, const std::vector<int>& ranks, int rank) {
    auto work = [requests = Requests(), executor, &ranks, rank] { Execute(requests, executor, ranks, rank); };
    if (runner == nullptr) return work();
    runner->Hand(std::move(work));
    Wait();
  }

 private:
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return left_ == 0; });
  }

  static void Execute(const std::vector<CommRequest>& requests, Executor* executor, const std::vector<int>& ranks, int rank) {
    Job job;
    job.ranks = ranks;
    job.me = rank;
    for (const CommRequest& request : requests) job.tensors.emplace_back().request = &request;
    if (const Status status = executor->Run(job, InAMinute()); !status.ok()) Fail(status.ToString());
    for (size_t i = 0; i < requests.size(); ++i) requests[i].done(job.tensors[i].status, job.tensors[i].agreed);
  }

  std::vector<CommRequest> Requests() {
    left_ = data_.size();
    std::vector<CommRequest> requests;
    requests.reserve(data_.size());
    for (size_t i = 0; i < data_.size(); ++i) {
      CommRequest request;
      request.name = "gradients/layer_" + std::to_string(i) + "/kernel";
      request.shape = {static_cast<int64_t>(data_[i].size())};
      request.input = data_[i].data();
      request.allocate = [this, i](const Agreed&) -> Result<void*> { return data_[i].data(); };
      request.done = [this](const Status& status, const Agreed&) {
        if (!status.ok()) Fail(status.ToString());
        const std::lock_guard lock(mutex_);
        if (--left_ == 0) changed_.notify_one();
      };
      requests.push_back(std::move(request));
    }
    return requests;
  }

  Communicator* const communicator_;
  std::vector<std::vector<float>> data_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t left_ = 0;
};

// What names and agreement add to a step of 200 tensors: 200 named sums of one number beside the one packed reduction that they
// become, with the same requests, copies, callbacks and a thread of its own; and beside that reduction on the calling thread.
void MeasureAgreement(int rank, int turns, Transport* shm, const std::vector<int>& ranks, const std::string& folder,
                      Report* report) {
  constexpr size_t kTensors = 200;
  constexpr int kRepeats = 100;
  CommOptions options;
  options.rank = rank;
  options.size = kRanks;
  options.store_path = folder + "/agreement";
  options.transport = "shm";
  auto made = Communicator::Create(options);
  if (!made.ok()) Fail(made.status().ToString());
  Communicator& communicator = **made;
  Named named(&communicator, kTensors, 1);
  Executor executor(*shm, Algorithm::kAuto);
  Runner runner;
  enum Way { kAgreed, kHanded, kHere };
  std::vector<double> times[3];
  for (int turn = -1; turn < turns; ++turn) {
    for (const Way way : {kAgreed, kHanded, kHere}) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double begin = Now();
      for (int i = 0; i < kRepeats; ++i) {
        way == kAgreed ? named.Run() : named.RunPacked(way == kHanded ? &runner : nullptr, &executor, ranks, rank);
      }
      const double seconds = SecondsOfAll((Now() - begin) / kRepeats);
      if (turn >= 0) times[way].push_back(seconds * 1e6);
    }
  }
  const CommStats before = communicator.stats();
  for (int i = 0; i < kRepeats; ++i) named.Run();
  const CommStats after = communicator.stats();
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    const auto added_to = [&](Way way) {
      std::vector<double> difference;
      for (size_t i = 0; i < times[way].size(); ++i) difference.push_back(times[kAgreed][i] - times[way][i]);
      return Median(difference);
    };
    const auto a_step = [](uint64_t from, uint64_t to) { return static_cast<double>(to - from) / kRepeats; };
    report->Note("200 cached names, one number each: reductions a step", a_step(before.operations, after.operations), "");
    report->Note("200 cached names, one number each: messages from rank 0", a_step(before.agreements, after.agreements), "");
    report->Note("200 cached names, one number each: a step", Median(times[kAgreed]), "us");
    report->Note("the same packed by hand, without agreement: a step", Median(times[kHanded]), "us");
    report->Note("that on the calling thread: a step", Median(times[kHere]), "us");
    report->Note("agreement and threads on 200 cached names, shared memory", added_to(kHere), "us");
    report->Add("agreement on 200 cached names, shared memory, us", added_to(kHanded), 50, false);
  }
  const Status left = communicator.Shutdown();
  if (!left.ok()) Fail(left.ToString());
}

void Run(int turns, const std::string& json, bool agreement_only) {
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

  const std::string gloo_folder = std::string(folder) + "/gloo";
  if (rank == 0) std::filesystem::create_directory(gloo_folder);
  MPI_Barrier(MPI_COMM_WORLD);
  RawEngines engines(rank, size, gloo_folder);

  Report report("comm");
  MeasureAgreement(rank, turns, shm.get(), ranks, folder, &report);
  for (const size_t bytes : {size_t{1} << 10, size_t{1} << 20, size_t{64} << 20}) {
    if (agreement_only) break;
    const size_t count = bytes / sizeof(float);
    const int repeats = bytes <= 1024 ? 1000 : bytes <= (1 << 20) ? 40 : 2;
    std::vector<float> data(count);
    std::vector<System> systems;
    systems.push_back(Ours("ours, shared memory", shm.get(), ranks));
    systems.push_back(Ours("ours, Open MPI", mpi_transport.get(), ranks));
    systems.push_back(Ours("ours, Gloo", gloo_transport.get(), ranks));
    for (System& raw : engines.Systems(data.data(), count)) systems.push_back(std::move(raw));
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
    report.Add(what + "ours over Gloo / Gloo's best", RatioTo(systems, "ours, Gloo", kGlooSystems), small ? 2 : 1.1, false);
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
  bool agreement_only = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--turns") == 0) turns = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
    if (std::strcmp(argv[i], "--only") == 0) agreement_only = std::strcmp(argv[i + 1], "agreement") == 0;
  }
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
    mxrec::bench::StartThroughMpirun(argc, argv);
    std::fprintf(stderr, "comm_bench: mpirun (package openmpi-bin) cannot be started\n");
    return 2;
  }
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  mxrec::bench::Run(turns, json, agreement_only);
  MPI_Finalize();
  return 0;
}
