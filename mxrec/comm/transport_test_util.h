// RunRanks: runs a body once per rank, each on a thread of its own. For tests only.
#ifndef MXREC_COMM_TRANSPORT_TEST_UTIL_H_
#define MXREC_COMM_TRANSPORT_TEST_UTIL_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "mxrec/comm/transport.h"

namespace mxrec {

inline Deadline In(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

// Bytes that depend on the seed alone.
inline std::string Noise(size_t bytes, uint64_t seed) {
  std::string noise(bytes, '\0');
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (char& c : noise) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    c = static_cast<char>(state >> 56);
  }
  return noise;
}

// A rank's transport lives until all bodies have returned.
inline void RunRanks(std::vector<std::unique_ptr<Transport>> transports, const std::function<void(Transport&)>& body) {
  std::vector<std::thread> threads;
  for (auto& transport : transports) threads.emplace_back([&body, &transport] { body(*transport); });
  for (auto& thread : threads) thread.join();
}

}  // namespace mxrec

#endif  // MXREC_COMM_TRANSPORT_TEST_UTIL_H_
