// Memory of this process as the system counts it, for tests and benchmarks. Linux: 0 where /proc is not there.
#ifndef MXREC_BASE_PROCESS_MEMORY_H_
#define MXREC_BASE_PROCESS_MEMORY_H_

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace mxrec {

// Whether a sanitizer's own memory counts too.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Resident now. Uses no C++ stream: those take memory of their own.
inline uint64_t ResidentBytes() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  unsigned long size = 0, resident = 0;
  const int read = std::fscanf(file, "%lu %lu", &size, &resident);
  std::fclose(file);
  return read == 2 ? uint64_t{resident} * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

// The largest that it was since the start or the last ResetPeakResident().
inline uint64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
  }
  return 0;
}

// Has no effect where the system does not let a process do that.
inline void ResetPeakResident() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace mxrec

#endif  // MXREC_BASE_PROCESS_MEMORY_H_
