#include "mxrec/engine/table_config.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace mxrec {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Reads the fields of one object; the first mistake is kept, with the table's name.
class FieldReader {
 public:
  FieldReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const Status& status() const { return status_; }
  void Fail(const std::string& field, const std::string& expected, const Json& found) {
    if (status_.ok()) {
      status_ = InvalidArgumentError(where_ + ": field \"" + field + "\": expected " + expected + ", found " + found.dump());
    }
  }

  // Null and absent are the same.
  const Json* Find(const std::string& field) {
    known_.push_back(field);
    const auto it = object_.find(field);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  std::optional<uint64_t> Unsigned(const std::string& field, uint64_t least, uint64_t most) {
    const Json* value = Find(field);
    if (value == nullptr) return std::nullopt;
    const bool negative = value->is_number_integer() && !value->is_number_unsigned() && value->get<int64_t>() < 0;
    if (!value->is_number_integer() || negative || value->get<uint64_t>() < least || value->get<uint64_t>() > most) {
      Fail(field, "an integer from " + std::to_string(least) + " to " + std::to_string(most), *value);
      return std::nullopt;
    }
    return value->get<uint64_t>();
  }
  std::optional<int64_t> Signed(const std::string& field) {
    const Json* value = Find(field);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_integer()) {
      Fail(field, "an integer", *value);
      return std::nullopt;
    }
    return value->is_number_unsigned() ? static_cast<int64_t>(value->get<uint64_t>()) : value->get<int64_t>();
  }
  std::optional<std::string> Text(const std::string& field) {
    const Json* value = Find(field);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) {
      Fail(field, "a string", *value);
      return std::nullopt;
    }
    return value->get<std::string>();
  }
  std::optional<bool> Boolean(const std::string& field) {
    const Json* value = Find(field);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) {
      Fail(field, "true or false", *value);
      return std::nullopt;
    }
    return value->get<bool>();
  }
  void RefuseOthers() {
    for (const auto& [field, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), field) == known_.end()) Fail(field, "no such field", value);
    }
  }

 private:
  const Json& object_;
  std::string where_;
  std::vector<std::string> known_;
  Status status_;
};

Result<InitializerSpec> ReadInitializer(const Json& json, const std::string& where, uint64_t vocabulary, uint64_t dim) {
  if (!json.is_object()) return InvalidArgumentError(where + ": field \"initializer\": expected an object, found " + json.dump());
  FieldReader reader(json, where + ", initializer");
  const std::string name = reader.Text("name").value_or("random_normal");
  std::vector<InitializerParam> params;
  if (const Json* values = reader.Find("params"); values != nullptr) {
    if (!values->is_object()) reader.Fail("params", "an object", *values);
    for (const auto& [param, value] : values->items()) {
      if (value.is_number()) {
        params.push_back({param, value.get<double>(), ""});
      } else if (value.is_string()) {
        params.push_back({param, 0.0, value.get<std::string>()});
      } else {
        reader.Fail(param, "a number or a string", value);
      }
    }
  }
  reader.RefuseOthers();
  MXREC_RETURN_IF_ERROR(reader.status());
  Result<InitializerSpec> spec = ResolveInitializer(name, params, vocabulary, dim);
  if (!spec.ok()) return Status(spec.status().code(), where + ": " + std::string(spec.status().message()));
  return spec;
}

const char* const kPolicies[] = {"apply", "skip", "error"};
const char* const kCapacityPolicies[] = {"grow", "error", "evict"};

}  // namespace

Result<EmbeddingTableConfig> EmbeddingTableConfig::FromJson(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return InvalidArgumentError("table config: expected a JSON object, found " + std::string(text.substr(0, 80)));
  const auto name_it = json.find("name");
  const std::string name = name_it != json.end() && name_it->is_string() ? name_it->get<std::string>() : "?";
  const std::string where = "table " + name;
  FieldReader reader(json, where);
  EmbeddingTableConfig config;
  TableOptions& table = config.table;
  table.name = reader.Text("name").value_or("");
  if (table.name.empty() && reader.status().ok()) return InvalidArgumentError("table config: field \"name\" is missing or empty");
  const auto dim = reader.Unsigned("dim", 1, 1 << 20);
  const auto vocabulary = reader.Unsigned("vocabulary", 1, std::numeric_limits<int64_t>::max());
  MXREC_RETURN_IF_ERROR(reader.status());
  if (!dim) return InvalidArgumentError(where + ": field \"dim\" is missing");
  if (!vocabulary) return InvalidArgumentError(where + ": field \"vocabulary\" is missing");
  table.dim = static_cast<uint32_t>(*dim);
  table.capacity_rows = *vocabulary;

  const auto seed_it = json.find("seed");
  if (seed_it != json.end() && seed_it->is_object()) {
    reader.Find("seed");
    FieldReader seeds(*seed_it, where + ", seed");
    const int64_t initializer_seed = seeds.Signed("initializer_seed").value_or(0);
    const int64_t graph_seed = seeds.Signed("graph_seed").value_or(0);
    seeds.RefuseOthers();
    MXREC_RETURN_IF_ERROR(seeds.status());
    table.seed = TableSeed(table.name, initializer_seed, graph_seed);
  } else if (const auto seed = reader.Signed("seed"); seed) {
    table.seed = static_cast<uint64_t>(*seed);
  } else {
    table.seed = TableSeed(table.name, 0, 0);
  }
  if (const Json* initializer = reader.Find("initializer"); initializer != nullptr) {
    MXREC_ASSIGN_OR_RETURN(table.initializer, ReadInitializer(*initializer, where, *vocabulary, *dim));
  }
  if (const auto least = reader.Unsigned("min_used_times", 0, 0x7FFFFFFF); least) {
    table.keep_counts = true;
    table.min_used_times = static_cast<uint32_t>(*least);
  }
  table.max_cold_secs = reader.Unsigned("max_cold_secs", 0, std::numeric_limits<uint64_t>::max()).value_or(0);
  table.max_bytes = reader.Unsigned("max_bytes", 0, std::numeric_limits<int64_t>::max()).value_or(0);
  const std::string capacity = reader.Text("capacity_policy").value_or("grow");
  if (capacity != "grow" && capacity != "error" && capacity != "evict") {
    reader.Fail("capacity_policy", "\"grow\", \"error\" or \"evict\"", capacity);
  }
  table.capacity_policy = capacity == "error"   ? CapacityPolicy::kError
                          : capacity == "evict" ? CapacityPolicy::kEvict
                                                : CapacityPolicy::kGrow;
  if (table.capacity_policy == CapacityPolicy::kEvict) {
    const std::string by = reader.Text("evict_by").value_or("lru");
    if (by != "lru" && by != "lfu") reader.Fail("evict_by", "\"lru\" or \"lfu\"", by);
    table.evict_by = by == "lfu" ? EvictBy::kLfu : EvictBy::kLru;
    table.evict_half_life = reader.Unsigned("evict_half_life", 1, 0xFFFFFFFFu).value_or(table.evict_half_life);
  }
  const std::string policy = reader.Text("non_finite").value_or("apply");
  if (policy != "apply" && policy != "skip" && policy != "error") {
    reader.Fail("non_finite", "\"apply\", \"skip\" or \"error\"", policy);
  }
  config.non_finite = policy == "error"  ? NonFinitePolicy::kError
                      : policy == "skip" ? NonFinitePolicy::kSkip
                                         : NonFinitePolicy::kApply;
  config.check_lookups = reader.Boolean("check_lookups").value_or(false);
  const std::string distribution = reader.Text("distribution").value_or("none");
  if (distribution != "none" && distribution != "MP" && distribution != "DP") {
    reader.Fail("distribution", "\"none\", \"MP\" or \"DP\"", distribution);
  }
  config.distribution = distribution == "MP"   ? Distribution::kSharded
                        : distribution == "DP" ? Distribution::kReplicated
                                               : Distribution::kNone;
  const std::string owner = reader.Text("owner").value_or("mod");
  if (owner != "mod" && owner != "hash") reader.Fail("owner", "\"mod\" or \"hash\"", owner);
  config.owner = owner == "hash" ? OwnerRule::kHash : OwnerRule::kMod;
  // What lookups do; nothing of the table's.
  if (const Json* hot = reader.Find("hot_keys"); hot != nullptr && !hot->is_array()) reader.Fail("hot_keys", "an array", *hot);
  reader.RefuseOthers();
  MXREC_RETURN_IF_ERROR(reader.status());
  return config;
}

std::string EmbeddingTableConfig::ToJson() const {
  OrderedJson json;
  json["name"] = table.name;
  json["dim"] = table.dim;
  json["vocabulary"] = table.capacity_rows;
  json["seed"] = static_cast<int64_t>(table.seed);
  OrderedJson params;
  switch (table.initializer.kind) {
    case InitializerSpec::Kind::kConstant:
      params = {{"value", table.initializer.a}};
      json["initializer"] = {{"name", "constant"}, {"params", params}};
      break;
    case InitializerSpec::Kind::kUniform:
      params = {{"minval", table.initializer.a}, {"maxval", table.initializer.b}};
      json["initializer"] = {{"name", "random_uniform"}, {"params", params}};
      break;
    case InitializerSpec::Kind::kNormal:
    case InitializerSpec::Kind::kTruncatedNormal:
      params = {{"mean", table.initializer.a}, {"stddev", table.initializer.b}};
      json["initializer"] = {
          {"name", table.initializer.kind == InitializerSpec::Kind::kNormal ? "random_normal" : "truncated_normal"},
          {"params", params}};
      break;
  }
  // An admission rule keeps counts, also where a caller set the rule alone.
  json["min_used_times"] = table.keep_counts || table.min_used_times > 1 ? OrderedJson(table.min_used_times) : OrderedJson(nullptr);
  json["max_cold_secs"] = table.max_cold_secs;
  json["capacity_policy"] = kCapacityPolicies[static_cast<int>(table.capacity_policy)];
  if (table.capacity_policy == CapacityPolicy::kEvict) {
    json["evict_by"] = table.evict_by == EvictBy::kLfu ? "lfu" : "lru";
    json["evict_half_life"] = table.evict_half_life;
  }
  json["max_bytes"] = table.max_bytes;
  json["non_finite"] = kPolicies[static_cast<int>(non_finite)];
  json["check_lookups"] = check_lookups;
  if (distribution != Distribution::kNone) json["distribution"] = distribution == Distribution::kSharded ? "MP" : "DP";
  if (owner != OwnerRule::kMod) json["owner"] = "hash";
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);  // a name need not be UTF-8
}

std::string EmbeddingTableConfig::FirstDifference(const EmbeddingTableConfig& other) const {
  const OrderedJson mine = OrderedJson::parse(ToJson()), theirs = OrderedJson::parse(other.ToJson());
  // Some fields are left out where they have their usual value.
  const auto find = [](const OrderedJson& json, const std::string& field) {
    const auto found = json.find(field);
    return found == json.end() ? OrderedJson() : *found;
  };
  for (const auto* json : {&mine, &theirs}) {
    for (const auto& [field, unused] : json->items()) {
      const OrderedJson a = find(mine, field), b = find(theirs, field);
      if (a != b) return field + ": " + a.dump() + " against " + b.dump();
    }
  }
  return "";
}

}  // namespace mxrec
