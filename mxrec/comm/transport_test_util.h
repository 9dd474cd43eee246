// RunRanks: runs a body once per rank, each on a thread of its own. For tests only.
#ifndef MXREC_COMM_TRANSPORT_TEST_UTIL_H_
#define MXREC_COMM_TRANSPORT_TEST_UTIL_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
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
  for (size_t i = 0; i < bytes; i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t word = state ^ (state >> 32);
    std::memcpy(&noise[i], &word, std::min<size_t>(8, bytes - i));
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
