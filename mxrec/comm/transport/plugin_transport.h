// A transport of a plug-in (plugin.h), as a Transport.
#ifndef MXREC_COMM_TRANSPORT_PLUGIN_TRANSPORT_H_
#define MXREC_COMM_TRANSPORT_PLUGIN_TRANSPORT_H_

#include <cstddef>
#include <memory>
#include <string>

#include "mxrec/base/status.h"
#include "mxrec/comm/store.h"
#include "mxrec/comm/transport.h"

namespace mxrec {

struct PluginTransportOptions {
  int rank = 0;
  int size = 1;
  std::string bind_host;
  // Where the plug-ins are; empty: beside the library that holds this code.
  std::string folder;
  // The longest message that the engine gets; small values are for tests.
  size_t piece_bytes = 1 << 20;
};

// Whether the plug-in of an engine stands in `folder`. (Its engine may be missing all the same.)
bool PluginIsThere(const std::string& engine, const std::string& folder);

// engine: "gloo" or "mpi". Collective. NotFound: there is no such plug-in here; FailedPrecondition: the engine's own library is
// missing (named, with its package) or does not fit; else what the plug-in reports.
Result<std::unique_ptr<Transport>> MakePluginTransport(const std::string& engine, const PluginTransportOptions& options,
                                                       Store& store, Deadline deadline);

}  // namespace mxrec

#endif  // MXREC_COMM_TRANSPORT_PLUGIN_TRANSPORT_H_
