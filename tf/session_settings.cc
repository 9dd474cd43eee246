#include "tf/session_settings.h"

#include <atomic>
#include <mutex>
#include <utility>

namespace mxrec {
namespace {

constexpr int64_t kUnset = -1;
std::atomic<int64_t> collective_timeout{kUnset};
std::atomic<int64_t> optimizer_runs{0};

struct Algorithm {
  std::mutex mutex;
  std::string text;
};

Algorithm& TheAlgorithm() {
  static Algorithm* algorithm = new Algorithm;
  return *algorithm;
}

}  // namespace

void SetCollectiveTimeout(int64_t seconds) { collective_timeout = seconds; }

std::optional<int64_t> CollectiveTimeout() {
  const int64_t seconds = collective_timeout;
  return seconds == kUnset ? std::nullopt : std::optional<int64_t>(seconds);
}

void SetCollectiveAlgorithm(std::string text) {
  Algorithm& algorithm = TheAlgorithm();
  const std::lock_guard lock(algorithm.mutex);
  algorithm.text = std::move(text);
}

std::string CollectiveAlgorithm() {
  Algorithm& algorithm = TheAlgorithm();
  const std::lock_guard lock(algorithm.mutex);
  return algorithm.text;
}

void CountOptimizerRun() { ++optimizer_runs; }

int64_t OptimizerRuns() { return optimizer_runs; }

}  // namespace mxrec
