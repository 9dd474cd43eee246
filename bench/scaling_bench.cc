// What bench/scaling.py needs to predict the time of collectives: the cost of a message, of a byte and of a reduced byte on this
// machine; the same collectives measured at 2, 3 and 4 ranks, to hold the prediction against; and the work of the coordinator for
// up to 512 ranks, which needs no other machine to be measured.
//
// usage: scaling_bench FILE.json [--quick]     Forks its ranks itself; needs neither MPI nor a network.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "mxrec/comm/collectives.h"
#include "mxrec/comm/controller/coordinator.h"
#include "mxrec/comm/controller/wire.h"
#include "mxrec/comm/store.h"
#include "mxrec/comm/transport/plugin_transport.h"
#include "mxrec/comm/transport/shm/shm_transport.h"

namespace mxrec::bench {
namespace {

using Json = nlohmann::ordered_json;

Deadline InAMinute() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "scaling_bench: %s\n", what.c_str());
  std::_Exit(1);
}

void Check(const Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

// Seconds of one run of `work`, the median of some batches; the ranks begin each together. Ranks that share processors wait for
// the scheduler with every message, so they get fewer runs.
double Seconds(Transport& transport, const GroupView& group, size_t bytes, bool quick, const std::function<void()>& work) {
  const bool alone = static_cast<long>(group.ranks.size()) <= sysconf(_SC_NPROCESSORS_ONLN);
  const int repeats = bytes <= (64 << 10) ? (alone ? 200 : 20) : bytes <= (1 << 20) ? (alone ? 30 : 5) : (alone ? 3 : 1);
  std::vector<double> seconds;
  for (int turn = -1; turn < (quick ? 1 : 5); ++turn) {
    Check(Barrier(transport, group, InAMinute()));
    const double begin = Now();
    for (int i = 0; i < repeats; ++i) work();
    if (turn >= 0) seconds.push_back((Now() - begin) / repeats);
  }
  return Median(seconds);
}

// One rank of a world; rank 0 leaves its figures in `file`.
void BeRank(const std::string& kind, int rank, int size, const std::string& folder, const std::string& file, bool quick) {
  auto store = MakeFileStore(folder).value();
  auto made = kind == "shm" ? MakeShmTransport({rank, size}, *store, InAMinute())
                            : MakePluginTransport("gloo", {rank, size, "127.0.0.1", MXREC_PLUGIN_FOLDER}, *store, InAMinute());
  Check(made.status());
  Transport& transport = **made;
  std::vector<int> ranks(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) ranks[static_cast<size_t>(r)] = r;
  const GroupView group{ranks, rank};
  Json rows = Json::array();
  const auto note = [&](const std::string& what, size_t bytes, double seconds) {
    rows.push_back({{"transport", kind}, {"ranks", size}, {"what", what}, {"bytes", bytes}, {"seconds", seconds}});
  };

  for (const size_t bytes : {size_t{8}, size_t{4} << 10, size_t{64} << 10, size_t{1} << 20, size_t{16} << 20}) {
    std::vector<float> data(bytes / sizeof(float)), other(bytes / sizeof(float));
    const SendPart send{(rank + 1) % size, data.data(), bytes};
    const ReceivePart receive{(rank + size - 1) % size, other.data(), bytes};
    note("message", bytes, Seconds(transport, group, bytes, quick, [&] {
           Check(transport.Exchange({&send, 1}, {&receive, 1}, InAMinute()));
         }));
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kAuto}) {
      if (bytes < 4096) continue;
      note("allreduce " + std::string(algorithm == Algorithm::kAuto ? "auto" : AlgorithmName(algorithm)), bytes,
           Seconds(transport, group, bytes, quick, [&] {
             Check(AllReduce(transport, group, data.data(), data.size(), DType::kFloat32, ReduceOp::kMax, algorithm, InAMinute()));
           }));
    }
    // Of the bytes of a rank every rank gets an equal part, as in an exchange of ids, rows or gradients.
    std::vector<Span> spans;
    const size_t part = bytes / static_cast<size_t>(size) / 8 * 8;
    for (int r = 0; r < size; ++r) spans.push_back({static_cast<size_t>(r) * part, part});
    note("exchange", bytes, Seconds(transport, group, bytes, quick, [&] {
           Check(AllToAll(transport, group, data.data(), spans, other.data(), spans, InAMinute()));
         }));
  }
  // Pieces come warm from the wire and are added to memory that is not.
  std::vector<float> sum(4 << 20), piece(16 << 10);
  note("reduce", sum.size() * sizeof(float), Seconds(transport, group, 16 << 20, quick, [&] {
         for (size_t at = 0; at < sum.size(); at += piece.size()) {
           ReduceInto(sum.data() + at, piece.data(), piece.size(), DType::kFloat32, ReduceOp::kSum);
         }
       }));
  Check(Barrier(transport, group, InAMinute()));
  if (rank == 0) std::ofstream(file) << rows.dump();
}

Json MeasureWorld(const std::string& kind, int size, bool quick) {
  char folder[] = "/tmp/mxrec-scaling-XXXXXX";
  if (mkdtemp(folder) == nullptr) Fail("no temporary folder");
  const std::string file = std::string(folder) + "/rows.json";
  std::filesystem::create_directory(std::string(folder) + "/store");
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child < 0) Fail("fork failed");
    if (child == 0) {
      BeRank(kind, rank, size, std::string(folder) + "/store", file, quick);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    good = good && status == 0;
  }
  if (!good) Fail(kind + " with " + std::to_string(size) + " ranks failed");
  Json rows = Json::parse(std::ifstream(file));
  std::filesystem::remove_all(folder);
  return rows;
}

// Seconds that rank 0 computes to agree on a step of 200 reductions with known names: requests of all ranks in, agreements out.
double CoordinatorSeconds(int ranks, bool quick) {
  CoordinatorOptions options;
  options.size = ranks;
  Coordinator coordinator(options);
  constexpr int kNames = 200;
  Requests first, known;
  for (int i = 0; i < kNames; ++i) {
    RequestFields fields;
    fields.name = "gradient " + std::to_string(i);
    fields.shape = {4096};
    first.full.push_back(fields);
  }
  const auto step = [&](const Requests& requests) {
    uint64_t low = UINT64_MAX;
    const std::string text = EncodeRequests(requests);
    for (int rank = 0; rank < ranks; ++rank) Check(coordinator.Take(rank, DecodeRequests(text).value(), {}));
    for (const auto& [rank, agreement] : coordinator.Flush()) {
      const std::string sent = EncodeAgreement(agreement);
      if (rank != 0) continue;
      const Agreement found = DecodeAgreement(sent).value();
      for (const auto& execution : found.executions) {
        for (const auto& tensor : execution->tensors) low = std::min(low, tensor.id);
      }
    }
    return low;
  };
  const uint64_t low = step(first);
  for (int i = 0; i < kNames; ++i) known.ids.push_back(low + static_cast<uint64_t>(i));
  std::vector<double> seconds;
  for (int turn = 0; turn < (quick ? 2 : 15); ++turn) {
    const double begin = Now();
    step(known);
    seconds.push_back(Now() - begin);
  }
  return Median(seconds);
}

int Main(int argc, char** argv) {
  if (argc < 2) Fail("usage: scaling_bench FILE.json [--quick]");
  const bool quick = argc > 2 && std::strcmp(argv[2], "--quick") == 0;
  Json json = {{"machine", MachineName()}, {"processors", sysconf(_SC_NPROCESSORS_ONLN)}, {"quick", quick}};
  const double steal = StealSeconds();
  json["rows"] = Json::array();
  for (const char* kind : {"shm", "tcp"}) {
    if (std::strcmp(kind, "tcp") == 0 && !PluginIsThere("gloo", MXREC_PLUGIN_FOLDER)) {
      std::fprintf(stderr, "scaling_bench: no TCP: built without libgloo-dev\n");
      continue;
    }
    for (int size = 2; size <= 4; ++size) {
      for (auto& row : MeasureWorld(kind, size, quick)) json["rows"].push_back(row);
    }
  }
  for (int ranks = 8; ranks <= 512; ranks *= 2) {
    json["coordinator"].push_back({{"ranks", ranks}, {"names", 200}, {"seconds", CoordinatorSeconds(ranks, quick)}});
  }
  json["steal_seconds"] = StealSeconds() - steal;
  std::ofstream(argv[1]) << json.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace mxrec::bench

int main(int argc, char** argv) { return mxrec::bench::Main(argc, argv); }
