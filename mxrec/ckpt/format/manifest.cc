#include "mxrec/ckpt/format/manifest.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "mxrec/ckpt/format/names.h"
#include "mxrec/ckpt/format/table_file.h"
#include "mxrec/io/crc32c.h"

namespace mxrec::format {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormatName = "mxrec-checkpoint";
constexpr std::string_view kCrcLead = ",\n  \"crc32c\": \"";
constexpr std::string_view kCrcTail = "\"\n}\n";
constexpr size_t kEndBytes = kCrcLead.size() + 8 + kCrcTail.size();
constexpr const char* kInitializerNames[] = {"constant", "uniform", "normal", "truncated_normal"};

bool IsUtf8(std::string_view text) {
  const Json quoted = std::string(text);
  return quoted.dump(-1, ' ', false, Json::error_handler_t::ignore) == quoted.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// ---- encoding ----

Json FromFloat(double value) {
  if (std::isfinite(value)) return value;
  // JSON has no such numbers. The bits are in the table file.
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

Json TableToJson(const TableFileInfo& first) {
  Json slots = Json::array();
  for (size_t i = 0; i < first.slots.slot_names.size(); ++i) {
    slots.push_back({{"name", first.slots.slot_names[i]}, {"initial", FromFloat(first.slots.slot_initial_values[i])}});
  }
  Json scalars = Json::array();
  for (size_t i = 0; i < first.slots.scalars.size(); ++i) {
    scalars.push_back({{"name", first.slots.scalar_names[i]}, {"value", FromFloat(first.slots.scalars[i])}});
  }
  Json table;
  table["name"] = first.table;
  table["key_type"] = "int64";
  table["value_type"] = "float32";
  table["dim"] = first.dim;
  table["seed"] = Hex64(first.seed);
  table["initializer"] = {{"kind", kInitializerNames[static_cast<size_t>(first.initializer.kind)]},
                          {"a", FromFloat(first.initializer.a)},
                          {"b", FromFloat(first.initializer.b)}};
  table["optimizer"] = {{"kind", first.slots.optimizer_kind}, {"step", first.slots.step}, {"slots", slots}, {"scalars", scalars}};
  table["counts"] = first.has_counts;
  table["times"] = first.has_times;
  table["files"] = Json::array();
  return table;
}

Json FileToJson(const TableFileInfo& info) {
  Json file;
  file["file"] = info.file;
  file["rows"] = info.rows;
  file["candidates"] = info.candidates;
  file["bytes"] = info.bytes;
  file["crc32c"] = Hex32(info.crc32c);
  file["content_tag"] = Hex64(info.content_tag);
  return file;
}

// ---- decoding ----

// One object of the JSON text with the path that leads to it; remembers the first failure.
class Reader {
 public:
  Reader(const Json& json, std::string path, Status* status, std::initializer_list<const char*> members)
      : json_(json), path_(std::move(path)), status_(status) {
    if (!json.is_object()) {
      Fail("", "an object", json);
      return;
    }
    for (const auto& [key, value] : json.items()) {
      if (std::none_of(members.begin(), members.end(), [&](const char* m) { return key == m; })) {
        Note(path_ + ": expected no member " + Json(key).dump(-1, ' ', true, Json::error_handler_t::replace));
      }
    }
  }

  const Json* Member(const char* name, bool (*is)(const Json&), const char* expected) {
    if (!status_->ok()) return nullptr;
    const auto found = json_.find(name);
    if (found == json_.end()) {
      Note(path_ + "." + name + ": expected " + expected + ", found nothing");
      return nullptr;
    }
    if (!is(*found)) {
      Fail(name, expected, *found);
      return nullptr;
    }
    return &*found;
  }

  std::string Text(const char* name) {
    const Json* value = Member(
        name, [](const Json& j) { return j.is_string(); }, "a string");
    return value != nullptr ? value->get<std::string>() : std::string();
  }
  bool Bool(const char* name) {
    const Json* value = Member(
        name, [](const Json& j) { return j.is_boolean(); }, "true or false");
    return value != nullptr && value->get<bool>();
  }
  uint64_t Unsigned(const char* name, uint64_t low = 0, uint64_t high = std::numeric_limits<uint64_t>::max()) {
    const Json* value = Member(
        name, [](const Json& j) { return j.is_number_unsigned(); }, "a whole number");
    if (value == nullptr) return 0;
    const uint64_t number = value->get<uint64_t>();
    if (number < low || number > high) {
      Note(path_ + "." + name + ": expected " + std::to_string(low) + " to " + std::to_string(high) + ", found " +
           std::to_string(number));
    }
    return number;
  }
  uint64_t Hex(const char* name, size_t digits) {
    const std::string text = Text(name);
    if (!status_->ok()) return 0;
    if (text.size() != digits || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
      Note(path_ + "." + name + ": expected " + std::to_string(digits) + " hexadecimal digits, found \"" + text.substr(0, 40) +
           "\"");
      return 0;
    }
    return std::stoull(text, nullptr, 16);
  }
  double Float(const char* name) {
    const Json* value = Member(
        name, [](const Json& j) { return j.is_number() || (j.is_string() && (j == "nan" || j == "inf" || j == "-inf")); },
        "a number, \"nan\", \"inf\" or \"-inf\"");
    if (value == nullptr) return 0;
    if (value->is_number()) return value->get<double>();
    if (*value == "nan") return std::numeric_limits<double>::quiet_NaN();
    return *value == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
  }
  const Json* Array(const char* name) {
    return Member(
        name, [](const Json& j) { return j.is_array(); }, "an array");
  }
  const Json* Object(const char* name) {
    return Member(
        name, [](const Json& j) { return j.is_object(); }, "an object");
  }
  void Equals(const char* name, std::string_view expected) {
    const std::string found = Text(name);
    if (status_->ok() && found != expected) {
      Note(path_ + "." + name + ": expected \"" + std::string(expected) + "\", found \"" + found.substr(0, 40) + "\"");
    }
  }
  void Note(std::string text) {
    if (status_->ok()) *status_ = DataLossError("manifest, " + std::move(text));
  }
  const std::string& path() const { return path_; }

 private:
  void Fail(const std::string& name, const std::string& expected, const Json& found) {
    std::string text = found.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    Note(path_ + (name.empty() ? "" : "." + name) + ": expected " + expected + ", found " + text);
  }
  const Json& json_;
  const std::string path_;
  Status* const status_;
};

void ReadTable(const Json& json, const std::string& path, Status* status, std::vector<TableFileInfo>* files) {
  Reader in(json, path, status,
            {"name", "key_type", "value_type", "dim", "seed", "initializer", "optimizer", "counts", "times", "files"});
  TableFileInfo info;
  info.table = in.Text("name");
  in.Equals("key_type", "int64");
  in.Equals("value_type", "float32");
  info.dim = static_cast<uint32_t>(in.Unsigned("dim", 1, std::numeric_limits<uint32_t>::max()));
  info.seed = in.Hex("seed", 16);
  info.has_counts = in.Bool("counts");
  info.has_times = in.Bool("times");
  if (const Json* initializer = in.Object("initializer")) {
    Reader inner(*initializer, path + ".initializer", status, {"kind", "a", "b"});
    const std::string kind = inner.Text("kind");
    const auto* found = std::find(std::begin(kInitializerNames), std::end(kInitializerNames), kind);
    if (found == std::end(kInitializerNames)) {
      inner.Note(inner.path() + ".kind: expected constant, uniform, normal or truncated_normal, found \"" + kind.substr(0, 40) +
                 "\"");
    } else {
      info.initializer.kind = static_cast<InitializerSpec::Kind>(found - std::begin(kInitializerNames));
    }
    info.initializer.a = inner.Float("a");
    info.initializer.b = inner.Float("b");
  }
  if (const Json* optimizer = in.Object("optimizer")) {
    Reader inner(*optimizer, path + ".optimizer", status, {"kind", "step", "slots", "scalars"});
    info.slots.optimizer_kind = inner.Text("kind");
    info.slots.step = inner.Unsigned("step");
    if (const Json* slots = inner.Array("slots")) {
      for (size_t i = 0; i < slots->size() && status->ok(); ++i) {
        Reader slot((*slots)[i], path + ".optimizer.slots[" + std::to_string(i) + "]", status, {"name", "initial"});
        info.slots.slot_names.push_back(slot.Text("name"));
        info.slots.slot_initial_values.push_back(static_cast<float>(slot.Float("initial")));
      }
    }
    if (const Json* scalars = inner.Array("scalars")) {
      for (size_t i = 0; i < scalars->size() && status->ok(); ++i) {
        Reader scalar((*scalars)[i], path + ".optimizer.scalars[" + std::to_string(i) + "]", status, {"name", "value"});
        info.slots.scalar_names.push_back(scalar.Text("name"));
        info.slots.scalars.push_back(static_cast<float>(scalar.Float("value")));
      }
    }
  }
  const Json* list = in.Array("files");
  if (list == nullptr || !status->ok()) return;
  if (list->empty()) return in.Note(path + ".files: expected at least one file, found none");
  info.shard_count = static_cast<uint32_t>(list->size());
  for (size_t i = 0; i < list->size() && status->ok(); ++i) {
    Reader file((*list)[i], path + ".files[" + std::to_string(i) + "]", status,
                {"file", "rows", "candidates", "bytes", "crc32c", "content_tag"});
    info.shard = static_cast<uint32_t>(i);
    info.file = file.Text("file");
    info.rows = file.Unsigned("rows");
    info.candidates = file.Unsigned("candidates");
    info.bytes = file.Unsigned("bytes");
    info.crc32c = static_cast<uint32_t>(file.Hex("crc32c", 8));
    info.content_tag = file.Hex("content_tag", 16);
    if (!status->ok()) return;
    const std::string expected = TableFileName(info.table, info.content_tag, info.shard, info.shard_count);
    if (info.file != expected) {
      file.Note(file.path() + ".file: expected \"" + expected + "\", found \"" + info.file.substr(0, 200) + "\"");
    }
    files->push_back(info);
  }
}

auto SharedPart(const TableFileInfo& f) {
  // Bits, so that a NaN equals itself.
  const auto bits = [](const std::vector<float>& values) {
    std::vector<uint32_t> result;
    for (const float v : values) result.push_back(std::bit_cast<uint32_t>(v));
    return result;
  };
  return std::make_tuple(f.table, f.dim, f.seed, f.initializer, f.has_counts, f.has_times, f.shard_count, f.slots.optimizer_kind,
                         f.slots.slot_names, f.slots.slot_widths, bits(f.slots.slot_initial_values), f.slots.step,
                         f.slots.scalar_names, bits(f.slots.scalars));
}

Result<Json> Parse(std::string_view text, std::string_view what) {
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return DataLossError(std::string(what) + ": expected JSON, found something else");
  return json;
}

}  // namespace

Status CheckShards(const std::vector<TableFileInfo>& files) {
  if (files.empty()) return InvalidArgumentError("expected the files of a table, found none");
  const TableFileInfo& first = files[0];
  for (size_t i = 0; i < files.size(); ++i) {
    if (SharedPart(files[i]) != SharedPart(first)) {
      return InvalidArgumentError("\"" + files[i].file + "\" and \"" + first.file +
                                  "\" are not shards of one save: table, dim, seed, optimizer state or columns differ");
    }
    if (files[i].shard != i) {
      return InvalidArgumentError("table \"" + first.table + "\": expected shard " + std::to_string(i) + " of " +
                                  std::to_string(first.shard_count) + ", found shard " + std::to_string(files[i].shard) + " (\"" +
                                  files[i].file + "\")");
    }
  }
  if (files.size() != first.shard_count) {
    return InvalidArgumentError("table \"" + first.table + "\": expected " + std::to_string(first.shard_count) + " shards, found " +
                                std::to_string(files.size()));
  }
  return OkStatus();
}

Result<std::string> EncodeManifest(Manifest manifest) {
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const TableFileInfo& a, const TableFileInfo& b) { return std::tie(a.table, a.shard) < std::tie(b.table, b.shard); });
  Json tables = Json::array();
  for (size_t begin = 0; begin < manifest.files.size();) {
    size_t end = begin + 1;
    while (end < manifest.files.size() && manifest.files[end].table == manifest.files[begin].table) ++end;
    const std::vector<TableFileInfo> shards(manifest.files.begin() + begin, manifest.files.begin() + end);
    MXREC_RETURN_IF_ERROR(CheckShards(shards));
    const SlotRecord& slots = shards[0].slots;
    bool utf8 = IsUtf8(shards[0].table) && IsUtf8(slots.optimizer_kind);
    for (const std::string& name : slots.slot_names) utf8 = utf8 && IsUtf8(name);
    for (const std::string& name : slots.scalar_names) utf8 = utf8 && IsUtf8(name);
    if (!utf8) return InvalidArgumentError("table \"" + shards[0].table + "\": its name or a name of its optimizer is not UTF-8");
    Json table = TableToJson(shards[0]);
    for (const TableFileInfo& info : shards) table["files"].push_back(FileToJson(info));
    tables.push_back(std::move(table));
    begin = end;
  }
  Json json;
  json["format"] = kFormatName;
  json["version"] = kManifestVersion;
  json["step"] = manifest.step;
  json["tables"] = std::move(tables);
  std::string text = json.dump(2);
  text.resize(text.size() - 2);  // "\n}"
  const uint32_t crc = Crc32c(text);
  text.append(kCrcLead).append(Hex32(crc)).append(kCrcTail);
  return text;
}

Result<Manifest> DecodeManifest(std::string_view text) {
  MXREC_ASSIGN_OR_RETURN(const Json json, Parse(text, "manifest"));
  Status status;
  // Another program's file and a newer version are told apart from damage before anything else is looked at.
  if (!json.is_object() || json.value("format", Json()) != Json(kFormatName)) {
    return DataLossError("manifest: expected a member \"format\" of \"" + std::string(kFormatName) + "\", found another file");
  }
  const Json version = json.value("version", Json());
  if (version.is_number_unsigned() && version.get<uint64_t>() > kManifestVersion) {
    return UnimplementedError("manifest version " + version.dump() + "; this build reads up to version " +
                              std::to_string(kManifestVersion));
  }
  if (text.size() < kEndBytes || text.substr(text.size() - kEndBytes, kCrcLead.size()) != kCrcLead || !text.ends_with(kCrcTail)) {
    return DataLossError("manifest: expected the CRC32C as its last member, found no such end");
  }
  const std::string_view stored = text.substr(text.size() - kCrcTail.size() - 8, 8);
  const std::string computed = Hex32(Crc32c(text.substr(0, text.size() - kEndBytes)));
  if (stored != computed) {
    return DataLossError("manifest, CRC32C: expected " + std::string(stored) + ", found " + computed);
  }
  Reader in(json, "top", &status, {"format", "version", "step", "tables", "crc32c"});
  in.Unsigned("version", 1, kManifestVersion);
  Manifest manifest;
  manifest.step = in.Unsigned("step");
  if (const Json* tables = in.Array("tables")) {
    for (size_t i = 0; i < tables->size() && status.ok(); ++i) {
      const size_t before = manifest.files.size();
      ReadTable((*tables)[i], "tables[" + std::to_string(i) + "]", &status, &manifest.files);
      if (status.ok() && before != 0 && !(manifest.files[before - 1].table < manifest.files[before].table)) {
        return DataLossError("manifest, tables[" + std::to_string(i) + "].name: expected a name after \"" +
                             manifest.files[before - 1].table + "\", found \"" + manifest.files[before].table + "\"");
      }
    }
  }
  if (!status.ok()) return status;
  return manifest;
}

std::string EncodeLatest(uint64_t step) { return "{\"step\": " + std::to_string(step) + "}\n"; }

Result<uint64_t> DecodeLatest(std::string_view text) {
  MXREC_ASSIGN_OR_RETURN(const Json json, Parse(text, "latest"));
  if (!json.is_object() || json.size() != 1 || !json.contains("step") || !json["step"].is_number_unsigned()) {
    return DataLossError("latest: expected {\"step\": <whole number>}, found " + std::string(text.substr(0, 60)));
  }
  return json["step"].get<uint64_t>();
}

}  // namespace mxrec::format
