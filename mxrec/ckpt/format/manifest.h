// MANIFEST.json and `latest`: pure encoding and decoding. Schema: docs/formats/checkpoint.md.
//
// The manifest is JSON whose last member is the CRC32C of all bytes before it, so a reader refuses any changed byte. Every
// member must be there with its type and range, and no other.
// Failures: kDataLoss names the member, what was expected and found; kUnimplemented names the versions. Without the path.
#ifndef MXREC_CKPT_FORMAT_MANIFEST_H_
#define MXREC_CKPT_FORMAT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/ckpt/checkpoint.h"

namespace mxrec::format {

inline constexpr uint32_t kManifestVersion = 1;
inline constexpr uint64_t kMaxManifestBytes = uint64_t{64} << 20;

struct Manifest {
  uint64_t step = 0;
  // Sorted by table, then shard; the shards of a table agree in all that belongs to the table.
  std::vector<TableFileInfo> files;
};

// Sorts the files. kInvalidArgument when shards are missing, doubled or do not agree.
Result<std::string> EncodeManifest(Manifest manifest);
Result<Manifest> DecodeManifest(std::string_view text);

std::string EncodeLatest(uint64_t step);
Result<uint64_t> DecodeLatest(std::string_view text);

// Fails, naming both files, unless the files are all shards of one table: dim, seed, optimizer, step, columns alike, each
// shard once. `files` sorted by shard.
Status CheckShards(const std::vector<TableFileInfo>& files);

}  // namespace mxrec::format

#endif  // MXREC_CKPT_FORMAT_MANIFEST_H_
