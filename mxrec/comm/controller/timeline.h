// Timeline: when each operation was asked for, agreed on and done, as a Chrome trace (chrome://tracing, Perfetto).
//
// One lane a name. A span NEGOTIATE reaches from the request on this rank to the start of the operation, which all ranks share; a
// span with the operation's kind from there to its end, with rank, bytes and how many tensors were packed together. Written as it
// goes, so the file of a killed process can be read up to its last second (the format allows the closing bracket to be missing).
// Threads: one at a time.
#ifndef MXREC_COMM_CONTROLLER_TIMELINE_H_
#define MXREC_COMM_CONTROLLER_TIMELINE_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "mxrec/base/status.h"

namespace mxrec::internal {

class Timeline {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Replaces the file. PermissionDenied or NotFound and so on name it.
  static Result<std::unique_ptr<Timeline>> Create(const std::string& path, int rank);
  // Completes the file.
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // `tensors`: how many travelled together; `failure`: empty when the operation succeeded.
  void Add(std::string_view name, std::string_view kind, uint64_t bytes, size_t tensors, std::string_view failure, Time asked,
           Time begin, Time end);

 private:
  Timeline(std::FILE* file, int rank);
  int LaneOf(std::string_view name);
  void Span(std::string_view what, int lane, Time begin, Time end, const std::string& arguments);

  std::FILE* const file_;
  const int rank_;
  const Time start_;
  Time next_flush_;
  bool first_ = true;
  std::unordered_map<std::string, int> lanes_;
};

}  // namespace mxrec::internal

#endif  // MXREC_COMM_CONTROLLER_TIMELINE_H_
