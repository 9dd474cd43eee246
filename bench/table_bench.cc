// Speed of the engine's tables against the ceiling and against the best single-key maps, all in one process.
//
//   table_bench [--keys 10000000] [--dims 16,64] [--streams uniform,zipf] [--repeats 5] [--batches 24] [--json FILE]
//
// Rows and bars: docs/performance.md. One thread unless a row says two. Every figure is a ratio of contestants that took
// turns; see harness.h.
#include <absl/container/flat_hash_map.h>
#include <CLI/CLI.hpp>
#include <boost/unordered/unordered_flat_map.hpp>
#include <future>
#include <memory>

#include "bench/ceiling.h"
#include "bench/harness.h"
#include "bench/keys.h"
#include "bench/steps.h"
#include "mxrec/base/thread_pool.h"

namespace mxrec::bench {
namespace {

struct Flags {
  size_t keys = 10'000'000;
  std::vector<size_t> dims = {16, 64};
  std::vector<std::string> streams = {"uniform", "zipf"};
  std::vector<std::string> parts = {"speed", "insert", "threads"};
  int repeats = 5, batches = 24;
  std::string json;
};

template <typename Map>
Map FillMap(const std::vector<uint64_t>& keys) {
  Map map;
  for (size_t i = 0; i < keys.size(); ++i) map.emplace(keys[i], static_cast<uint32_t>(i));
  return map;
}

void Speed(const Flags& flags, const std::vector<uint64_t>& keys, size_t dim, const std::vector<KeyStream>& streams,
           Report* report) {
  InlineExecutor executor;
  auto adagrad = Make("adagrad"), adam = Make("adam"), adamw = Make("adamw");
  auto table = MakeTable(dim, "adagrad"), adam_table = MakeTable(dim, "adam"), adamw_table = MakeTable(dim, "adamw");
  Fill(table.get(), keys, &adagrad);
  Fill(adam_table.get(), keys, &adam);
  const bool with_adamw = dim <= 16;  // memory: three tables of dim 64 with slots do not fit
  if (with_adamw) Fill(adamw_table.get(), keys, &adamw);
  boost::unordered_flat_map<uint64_t, uint32_t> boost_map;
  absl::flat_hash_map<uint64_t, uint32_t> absl_map;
  MappedMemory map_rows = MappedMemory::Allocate(keys.size() * dim * sizeof(float), "rows of the maps").value();
  float* map_row_data = static_cast<float*>(map_rows.data());
  std::memset(map_row_data, 1, keys.size() * dim * sizeof(float));
  boost_map = FillMap<decltype(boost_map)>(keys);
  absl_map = FillMap<decltype(absl_map)>(keys);
  StepBuffers buffers(dim);
  const std::vector<int32_t> offsets = BagOffsets();
  const std::string tag_dim = ", dim " + std::to_string(dim);
  for (const KeyStream& stream : streams) {
    const Ceiling ceiling(keys.size(), dim, stream);
    const auto map_copy = [&](const auto& map, int b) {
      const uint64_t* ids = stream.batch(b);
      for (size_t i = 0; i < kBatch; ++i) {
        std::memcpy(buffers.expanded.data() + i * dim, map_row_data + static_cast<size_t>(map.find(ids[i])->second) * dim,
                    dim * sizeof(float));
      }
    };
    const std::unique_ptr<bool[]> found(new bool[kBatch]);
    std::vector<Contestant> c = {
        {"ceiling", kBatch, [&](int b) { ceiling.Run(stream.batch(b), buffers.expanded.data()); }, {}},
        {"find + copy",
         kBatch,
         [&](int b) {
           table->table().Find({stream.batch(b), kBatch}, buffers.expanded.data(), found.get(), &executor);
         },
         {}},
        {"dedupe + find + copy", kBatch, [&](int b) { LookupUnique(table.get(), stream.batch(b), &buffers, &executor); }, {}},
        {"adagrad step", kBatch, [&](int b) { TrainStep(table.get(), adagrad, stream.batch(b), &buffers, &executor); }, {}},
        {"adam step", kBatch, [&](int b) { TrainStep(adam_table.get(), adam, stream.batch(b), &buffers, &executor); }, {}},
        {"boost flat map + copy", kBatch, [&](int b) { map_copy(boost_map, b); }, {}},
        {"abseil flat map + copy", kBatch, [&](int b) { map_copy(absl_map, b); }, {}},
        {"pooled adagrad step",
         kBatch,
         [&](int b) { PooledStep(table.get(), adagrad, stream.batch(b), offsets, &buffers, &executor); },
         {}},
    };
    if (with_adamw)
      c.push_back(
          {"adamw step", kBatch, [&](int b) { TrainStep(adamw_table.get(), adamw, stream.batch(b), &buffers, &executor); }, {}});
    TakeTurns(&c, flags.repeats, flags.batches);
    const std::string tag = tag_dim + ", " + stream.name;
    for (const Contestant& contestant : c) report->Note(contestant.name + tag, Median(contestant.rates) / 1e6, "M ids/s");
    const auto ratio = [&c](int a, int b) { return Median(Ratios(c[a].rates, c[b].rates)); };
    report->Add("find + copy / ceiling" + tag, ratio(1, 0), 0.75);
    report->Add("find + copy / best map + copy" + tag, std::min(ratio(1, 5), ratio(1, 6)), 1.3);
    report->Add("dedupe + find + copy / ceiling" + tag, ratio(2, 0), 0.52);
    report->Add("Adagrad step / ceiling" + tag, ratio(3, 0), dim <= 16 ? 0.25 : 0.14);
    report->Add("Adam step / Adagrad step" + tag, ratio(4, 3), 0.75);
    report->Add("Adagrad step, bags of 8, per id / dense Adagrad step" + tag, ratio(7, 3), 1.5);
    if (with_adamw) report->Add("AdamW step / Adagrad step" + tag, ratio(8, 3), 0.75);
  }
}

void Inserting(const Flags& flags, const std::vector<uint64_t>& keys, Report* report) {
  constexpr size_t kDim = 16, kNewBatches = 20;
  InlineExecutor executor;
  auto adagrad = Make("adagrad");
  auto table = MakeTable(kDim, "insert"), step_table = MakeTable(kDim, "first touch");
  auto boost_map = FillMap<boost::unordered_flat_map<uint64_t, uint32_t>>(keys);
  Fill(table.get(), keys, &adagrad);
  Fill(step_table.get(), keys, &adagrad);
  StepBuffers buffers(kDim);
  std::vector<double> insert_rates, boost_rates, step_rates, call_seconds;
  // Round 0 touches the memory (and is the one with growth); its keys are erased again. Round 1 is timed.
  for (int round = 0; round < 2; ++round) {
    const std::vector<uint64_t> fresh = Keys(kNewBatches * kBatch, 40'000'000 + round * 10'000'000ull);
    insert_rates.clear(), boost_rates.clear(), step_rates.clear();
    for (size_t b = 0; b < kNewBatches; ++b) {
      const uint64_t* batch = fresh.data() + b * kBatch;
      double begin = Now();
      Check(table->Insert({batch, kBatch}, nullptr, &executor));
      insert_rates.push_back(kBatch / (Now() - begin));
      call_seconds.push_back(Now() - begin);
      begin = Now();
      for (size_t i = 0; i < kBatch; ++i) boost_map.emplace(batch[i], static_cast<uint32_t>(i));
      boost_rates.push_back(kBatch / (Now() - begin));
      begin = Now();
      TrainStep(step_table.get(), adagrad, batch, &buffers, &executor);
      step_rates.push_back(kBatch / (Now() - begin));
    }
    if (round == 0) {
      report->Note("insert of new keys, memory first touched", Median(insert_rates) / 1e6, "M ids/s");
      report->Note("boost insert of new keys, memory first touched", Median(boost_rates) / 1e6, "M ids/s");
      table->Erase(fresh);
      step_table->Erase(fresh);
      for (const uint64_t key : fresh) boost_map.erase(key);
    }
  }
  report->Note("insert of new keys", Median(insert_rates) / 1e6, "M ids/s");
  report->Note("boost insert of new keys", Median(boost_rates) / 1e6, "M ids/s");
  report->Note("first-touch Adagrad step", Median(step_rates) / 1e6, "M ids/s");
  report->Add("insert / boost flat map insert", Median(Ratios(insert_rates, boost_rates)), 0.5);
  report->Add("first-touch Adagrad step / boost flat map insert", Median(Ratios(step_rates, boost_rates)), 0.5 / 3);
  report->Add("longest insert call / median call (growth included)",
              *std::max_element(call_seconds.begin(), call_seconds.end()) / Median(call_seconds), 10, false);
  (void)flags;
}

void Threads(const Flags& flags, const std::vector<uint64_t>& keys, const KeyStream& stream, Report* report) {
  constexpr size_t kDim = 16;
  InlineExecutor one;
  ThreadPool two(2);
  auto adagrad = Make("adagrad");
  auto table = MakeTable(kDim, "threads");
  Fill(table.get(), keys, &adagrad);
  const Ceiling ceiling(keys.size(), kDim, stream);
  StepBuffers buffers(kDim);
  std::vector<float> second(kBatch * kDim);
  std::vector<Contestant> c = {
      {"ceiling, 1 thread", kBatch, [&](int b) { ceiling.Run(stream.batch(b), buffers.expanded.data()); }, {}},
      {"ceiling, 2 threads",
       2 * kBatch,
       [&](int b) {
         two.ParallelFor(2, [&](size_t t) {
           // The second thread's batches are not those of the first one a few batches later: that would find them in the cache.
           ceiling.Run(stream.batch(b + static_cast<int>(t) * flags.batches), t == 0 ? buffers.expanded.data() : second.data());
         });
       },
       {}},
      {"lookup, 1 thread", kBatch, [&](int b) { LookupUnique(table.get(), stream.batch(b), &buffers, &one); }, {}},
      {"lookup, 2 threads", kBatch, [&](int b) { LookupUnique(table.get(), stream.batch(b), &buffers, &two); }, {}},
      {"step, 1 thread", kBatch, [&](int b) { TrainStep(table.get(), adagrad, stream.batch(b), &buffers, &one); }, {}},
      {"step, 2 threads", kBatch, [&](int b) { TrainStep(table.get(), adagrad, stream.batch(b), &buffers, &two); }, {}},
  };
  TakeTurns(&c, flags.repeats, flags.batches);
  const auto scaling = [&c](int one_at, int two_at) { return Median(Ratios(c[two_at].rates, c[one_at].rates)); };
  const double of_ceiling = scaling(0, 1);
  report->Note("two threads / one, ceiling, " + stream.name, of_ceiling, "x");
  report->Note("two threads / one, lookup, " + stream.name, scaling(2, 3), "x");
  report->Note("two threads / one, Adagrad step, " + stream.name, scaling(4, 5), "x");
  report->Add("two-thread scaling of lookup / of the ceiling, " + stream.name, scaling(2, 3) / of_ceiling, 0.85);
  report->Add("two-thread scaling of the Adagrad step / of the ceiling, " + stream.name, scaling(4, 5) / of_ceiling, 0.85);
}

}  // namespace
}  // namespace mxrec::bench

int main(int argc, char** argv) {
  using namespace mxrec::bench;
  Flags flags;
  CLI::App app("Speed of mxrec tables against the memory ceiling and single-key maps");
  app.add_option("--keys", flags.keys, "distinct keys in the table")->capture_default_str();
  app.add_option("--dims", flags.dims, "row lengths")->delimiter(',')->capture_default_str();
  app.add_option("--streams", flags.streams, "uniform, zipf")->delimiter(',')->capture_default_str();
  app.add_option("--parts", flags.parts, "speed, insert, threads")->delimiter(',')->capture_default_str();
  app.add_option("--repeats", flags.repeats, "turns that count")->capture_default_str();
  app.add_option("--batches", flags.batches, "batches of 65,536 ids a turn")->capture_default_str();
  app.add_option("--json", flags.json, "file for the figures");
  CLI11_PARSE(app, argc, argv);
  Report report("table");
  const std::vector<uint64_t> keys = Keys(flags.keys);
  std::vector<KeyStream> streams;
  for (const std::string& name : flags.streams) streams.push_back(name == "zipf" ? Zipf(keys, 48) : Uniform(keys, 48));
  const auto wants = [&flags](const char* part) {
    return std::find(flags.parts.begin(), flags.parts.end(), part) != flags.parts.end();
  };
  if (wants("speed")) {
    for (const size_t dim : flags.dims) Speed(flags, keys, dim, streams, &report);
  }
  if (wants("insert")) Inserting(flags, keys, &report);
  if (wants("threads")) {
    for (const KeyStream& stream : streams) Threads(flags, keys, stream, &report);
  }
  const int missed = report.Finish(flags.json);
  std::cout << (missed == 0 ? "all bars met" : std::to_string(missed) + " bars missed") << std::endl;
  return 0;
}
