// MANIFEST.json and `latest`, also under a right checksum: refused, or written again with the same meaning.
#include "fuzz/fuzz.h"
#include "mxrec/base/check.h"
#include "mxrec/ckpt/format/manifest.h"
#include "mxrec/ckpt/format/names.h"
#include "mxrec/ckpt/format/table_file.h"
#include "mxrec/io/crc32c.h"

namespace {

void Decode(std::string_view text) {
  const mxrec::Result<mxrec::format::Manifest> manifest = mxrec::format::DecodeManifest(text);
  if (!manifest.ok()) {
    MXREC_CHECK(manifest.status().code() == mxrec::StatusCode::kDataLoss ||
                manifest.status().code() == mxrec::StatusCode::kUnimplemented);
    return;
  }
  for (const mxrec::TableFileInfo& info : manifest->files) MXREC_CHECK(mxrec::format::IsTableFileName(info.file));
  const mxrec::Result<std::string> again = mxrec::format::EncodeManifest(*manifest);
  MXREC_CHECK(again.ok()) << again.status();
  MXREC_CHECK(mxrec::format::EncodeManifest(mxrec::format::DecodeManifest(*again).value()).value() == *again);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  Decode(input);
  std::string text(input.substr(0, input.rfind(",\n  \"crc32c\"")));
  text += ",\n  \"crc32c\": \"" + mxrec::format::Hex32(mxrec::Crc32c(text)) + "\"\n}\n";
  Decode(text);
  if (const mxrec::Result<uint64_t> step = mxrec::format::DecodeLatest(input); step.ok()) {
    MXREC_CHECK(mxrec::format::DecodeLatest(mxrec::format::EncodeLatest(*step)).value() == *step);
  }
  static_cast<void>(mxrec::format::ParseStepDirName(input));
  static_cast<void>(mxrec::format::IsTemporaryName(input));
  MXREC_CHECK(mxrec::format::IsTableFileName(mxrec::format::TableFileName(input, size, 0, 1)));
  return 0;
}

std::vector<std::string> mxrec::FuzzSeeds() {
  format::Manifest manifest;
  manifest.step = 12;
  for (uint32_t shard = 0; shard < 2; ++shard) {
    TableFileInfo info;
    info.table = "user";
    info.dim = 4;
    info.slots = {.optimizer_kind = "adam",
                  .slot_names = {"m", "v"},
                  .slot_initial_values = {0.0f, 0.5f},
                  .slot_widths = {},
                  .step = 3,
                  .scalar_names = {"beta1_power"},
                  .scalars = {0.9f}};
    info.shard = shard;
    info.shard_count = 2;
    info.content_tag = 7 + shard;
    info.file = format::TableFileName(info.table, info.content_tag, shard, 2);
    manifest.files.push_back(info);
  }
  return {format::EncodeManifest(manifest).value(), format::EncodeManifest({}).value(), format::EncodeLatest(12), "mxrec-12"};
}
