// Names of files and folders of a checkpoint directory, and which names are ours.
#ifndef MXREC_CKPT_FORMAT_NAMES_H_
#define MXREC_CKPT_FORMAT_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mxrec::format {

inline constexpr std::string_view kManifestName = "MANIFEST.json";
inline constexpr std::string_view kLatestName = "latest";

// "mxrec-<step>".
std::string StepDirName(uint64_t step);
// The step of such a name; nullopt for any other name (signs, leading zeros, too large numbers included).
std::optional<uint64_t> ParseStepDirName(std::string_view name);

// A table's name as part of a file name: letters, digits, '_' and '.' stay (not a '.' in front), other bytes become %XX. A
// result above 100 bytes is cut and ends in '%' and 16 digits of its hash.
std::string EscapeTableName(std::string_view table);
// "<table>-<tag>-00000-of-00001.mxt".
std::string TableFileName(std::string_view table, uint64_t content_tag, uint32_t shard, uint32_t shard_count);
// A name that TableFileName can give.
bool IsTableFileName(std::string_view name);

// The step that a table file belongs to, as far as its path tells: "mxrec-<step>/<name>" or "<name>-<step>.data-<rest>", as
// tf.train.Saver names what lies beside its checkpoints.
std::optional<uint64_t> StepOfPath(std::string_view path);

// A name beside `name` that no other process and no other call uses: "<name>.tmp-<pid>-<16 digits>"; the first 8 digits stand
// for this machine (and its start and process namespace).
std::string TemporaryName(std::string_view name);
// A name that TemporaryName gave to a process of this machine that is gone: nobody will finish that file.
bool IsDeadTemporary(std::string_view name);
// A name that an unfinished save can leave behind in a checkpoint directory: a temporary of a table file, of the manifest or
// of `latest`.
bool IsTemporaryName(std::string_view name);

}  // namespace mxrec::format

#endif  // MXREC_CKPT_FORMAT_NAMES_H_
