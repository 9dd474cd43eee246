// What every benchmark here shares: interleaved repeats, medians, ratios, a table for people and JSON for machines.
//
// Absolute times on a shared machine say little. So each figure is measured next to what it is compared with, in one
// process, the two taking turns (A B C, A B C, ...), and is reported as the median over turns of the ratio within a turn.
#ifndef MXREC_BENCH_HARNESS_H_
#define MXREC_BENCH_HARNESS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace mxrec::bench {

inline double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

// One thing to time: work(batch number) handles `units` units (ids, bytes).
struct Contestant {
  std::string name;
  double units = 0;
  std::function<void(int batch)> work;
  std::vector<double> rates;  // units a second, one a turn
};

// Lets all contestants take `turns` turns of `batches` batches each, after one turn that does not count. Each contestant of
// each turn gets batch numbers of its own: what one has just brought into the cache must not help the next.
inline void TakeTurns(std::vector<Contestant>* contestants, int turns, int batches) {
  int next = 0;
  for (int turn = -1; turn < turns; ++turn) {
    for (Contestant& c : *contestants) {
      const double begin = Now();
      for (int b = 0; b < batches; ++b) c.work(next + b);
      const double seconds = Now() - begin;
      if (turn >= 0) c.rates.push_back(c.units * batches / seconds);
      next += batches;
    }
  }
}

inline std::vector<double> Ratios(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) ratios.push_back(a[i] / b[i]);
  return ratios;
}

inline std::string MachineName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line, model = "unknown CPU", family, number;
  while (std::getline(cpuinfo, line)) {
    const auto value = [&line] { return line.substr(line.find(':') + 2); };
    if (line.rfind("model name", 0) == 0) model = value();
    if (line.rfind("cpu family", 0) == 0) family = value();
    if (line.rfind("model\t", 0) == 0) number = value();
  }
  return model + " (family " + family + ", model " + number + "), " + std::to_string(std::thread::hardware_concurrency()) +
         " threads";
}

// Seconds stolen by other guests of the host, all CPUs together.
inline double StealSeconds() {
  std::ifstream stat("/proc/stat");
  std::string cpu;
  double field = 0, steal = 0;
  stat >> cpu;
  for (int i = 0; i < 8 && stat >> field; ++i) steal = field;
  return steal / 100.0;
}

class Report {
 public:
  explicit Report(std::string subject) : steal_before_(StealSeconds()) {
    json_["subject"] = std::move(subject);
    json_["machine"] = MachineName();
#ifdef NDEBUG
    json_["build"] = "release";
#else
    json_["build"] = "debug";
    std::cerr << "warning: a debug build; these figures mean nothing\n";
#endif
    json_["rows"] = nlohmann::ordered_json::array();
  }

  // A figure against its bar. `higher_is_better` false: the figure must stay at or below the bar.
  void Add(const std::string& what, double figure, double bar, bool higher_is_better = true, nlohmann::ordered_json more = {}) {
    const bool met = higher_is_better ? figure >= bar : figure <= bar;
    nlohmann::ordered_json row = {{"what", what}, {"figure", figure}, {"bar", bar}, {"met", met}};
    for (auto& [key, value] : more.items()) row[key] = value;
    json_["rows"].push_back(row);
    char text[256];
    std::snprintf(text, sizeof(text), "%-72s %8.3f  %s %6.3f  %s", what.c_str(), figure, higher_is_better ? ">=" : "<=", bar,
                  met ? "met" : "MISSED");
    std::cout << text << std::endl;
    missed_ += !met;
  }
  // A figure without a bar, for orientation.
  void Note(const std::string& what, double figure, const std::string& unit) {
    json_["rows"].push_back({{"what", what}, {"figure", figure}, {"unit", unit}});
    char text[256];
    std::snprintf(text, sizeof(text), "%-72s %8.3f  %s", what.c_str(), figure, unit.c_str());
    std::cout << text << std::endl;
  }
  // Writes the JSON (no file: nothing). Returns how many bars were missed.
  int Finish(const std::string& path) {
    json_["steal_seconds"] = StealSeconds() - steal_before_;
    if (!path.empty()) std::ofstream(path) << json_.dump(1) << "\n";
    return missed_;
  }

 private:
  nlohmann::ordered_json json_;
  double steal_before_;
  int missed_ = 0;
};

}  // namespace mxrec::bench

#endif  // MXREC_BENCH_HARNESS_H_
