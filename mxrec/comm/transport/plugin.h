// The border between this library and a transport plug-in, a shared library that carries bytes by an engine of somebody else (Gloo,
// Open MPI). Plain C, so that a plug-in and this library share no C++ runtime state, and loaded on demand, so that an engine that
// is not installed is a message and not a program that does not start.
//
// A plug-in exports one function, mxrec_transport_plugin. It moves bytes between different ranks only: parts of 0 bytes and parts
// from a rank to itself never reach it. Nothing may be thrown across the border. Times are nanoseconds of CLOCK_MONOTONIC.
#ifndef MXREC_COMM_TRANSPORT_PLUGIN_H_
#define MXREC_COMM_TRANSPORT_PLUGIN_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MXREC_TRANSPORT_PLUGIN_VERSION 1u
#define MXREC_TRANSPORT_PLUGIN_SYMBOL "mxrec_transport_plugin"

// code: a number of mxrec::StatusCode, 0 for success.
struct MxrecPluginError {
  int32_t code;
  char message[2048];
};

struct MxrecPluginStore {
  void* context;
  void (*set)(void* context, const char* key, const void* value, uint64_t bytes, struct MxrecPluginError* error);
  // Calls take(to, value, bytes) once when there is a value.
  void (*get)(void* context, const char* key, int64_t deadline, void (*take)(void* to, const void* value, uint64_t bytes), void* to,
              struct MxrecPluginError* error);
};

struct MxrecPluginOptions {
  int32_t rank;
  int32_t size;
  const char* bind_host;  // address to listen at; may be empty
  uint64_t piece_bytes;   // no message of the engine is longer
};

struct MxrecPluginSend {
  int32_t peer;
  const void* data;
  uint64_t bytes;
};

struct MxrecPluginReceive {
  int32_t peer;
  void* data;
  uint64_t bytes;
  // Not null: takes the pieces, in order, instead of `data`.
  void (*take)(void* sink, uint64_t offset, const void* piece, uint64_t bytes);
  void* sink;
};

struct MxrecTransportPlugin {
  uint32_t version;
  const char* name;
  // Collective. Null on failure.
  void* (*open)(const struct MxrecPluginOptions* options, const struct MxrecPluginStore* store, int64_t deadline,
                struct MxrecPluginError* error);
  void (*exchange)(void* transport, const struct MxrecPluginSend* sends, uint64_t send_count,
                   const struct MxrecPluginReceive* receives, uint64_t receive_count, int64_t deadline,
                   struct MxrecPluginError* error);
  // From any thread: a running exchange and all later ones fail.
  void (*abort)(void* transport);
  // clean: nothing failed, and the other ranks close too.
  void (*close)(void* transport, int32_t clean);
};

typedef const struct MxrecTransportPlugin* (*MxrecTransportPluginFunction)(void);

#ifdef __cplusplus
}
#endif

#endif  // MXREC_COMM_TRANSPORT_PLUGIN_H_
