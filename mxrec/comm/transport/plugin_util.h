// Small things that the plug-ins share. They include nothing else of this library: a plug-in is linked with its engine alone.
#ifndef MXREC_COMM_TRANSPORT_PLUGIN_UTIL_H_
#define MXREC_COMM_TRANSPORT_PLUGIN_UTIL_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>

#include "mxrec/comm/transport/plugin.h"

namespace mxrec::plugin {

// Numbers of mxrec::StatusCode.
enum Code : int32_t {
  kCancelled = 1,
  kFailedPrecondition = 9,
  kAborted = 10,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

inline void Fail(MxrecPluginError* error, int32_t code, const std::string& message) {
  error->code = code;
  std::snprintf(error->message, sizeof(error->message), "%s", message.c_str());
}

inline int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void FailGone(MxrecPluginError* error, int peer, const std::string& why) {
  Fail(error, kUnavailable, "rank " + std::to_string(peer) + " is gone: " + why);
}

inline void FailLate(MxrecPluginError* error, int rank, const std::set<int>& peers) {
  std::string names;
  for (int peer : peers) names += (names.empty() ? "" : ", ") + std::to_string(peer);
  Fail(error, kCancelled, "rank " + std::to_string(rank) + " waited in vain for rank " + names);
}

}  // namespace mxrec::plugin

#endif  // MXREC_COMM_TRANSPORT_PLUGIN_UTIL_H_
