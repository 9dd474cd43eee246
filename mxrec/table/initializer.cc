#include "mxrec/table/initializer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "mxrec/base/hash.h"
#include "mxrec/kernels/first_row.h"

namespace mxrec {
namespace {

// Standard deviation of a normal distribution of deviation 1 cut at +-2, as TensorFlow writes it.
constexpr double kTruncatedDeviation = 0.87962566103423978;

template <typename... Parts>
Status Bad(const Parts&... parts) {
  std::ostringstream text;
  text.precision(17);
  (text << ... << parts);
  return InvalidArgumentError(text.str());
}

// The parameters an initializer was given, checked against those it knows.
class Params {
 public:
  Params(std::string_view initializer, std::span<const InitializerParam> given) : initializer_(initializer), given_(given) {}

  Status CheckNames(std::initializer_list<std::string_view> known) const {
    for (size_t i = 0; i < given_.size(); ++i) {
      const std::string& name = given_[i].name;
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        std::string list;
        for (std::string_view k : known) list += (list.empty() ? "" : ", ") + std::string(k);
        return Bad("initializer ", initializer_, " has no parameter \"", name, "\"; it has ", list.empty() ? "none" : list);
      }
      for (size_t j = 0; j < i; ++j) {
        if (given_[j].name == name) return Bad("initializer ", initializer_, ": parameter \"", name, "\" is given twice");
      }
    }
    return OkStatus();
  }

  Result<double> Number(std::string_view name, double otherwise) const {
    const InitializerParam* param = Find(name);
    if (param == nullptr) return otherwise;
    if (!param->text.empty())
      return Bad("initializer ", initializer_, ": ", name, " must be a number, found \"", param->text, "\"");
    if (!std::isfinite(static_cast<float>(param->value))) {
      return Bad("initializer ", initializer_, ": ", name, " must be a finite float32, found ", param->value);
    }
    return param->value;
  }

  std::string Text(std::string_view name, std::string_view otherwise) const {
    const InitializerParam* param = Find(name);
    return param == nullptr ? std::string(otherwise) : param->text;
  }

 private:
  const InitializerParam* Find(std::string_view name) const {
    for (const InitializerParam& param : given_) {
      if (param.name == name) return &param;
    }
    return nullptr;
  }

  std::string_view initializer_;
  std::span<const InitializerParam> given_;
};

Result<InitializerSpec> Uniform(std::string_view name, double minval, double maxval) {
  if (maxval < minval) return Bad("initializer ", name, ": maxval ", maxval, " is below minval ", minval);
  if (!std::isfinite(static_cast<float>(maxval) - static_cast<float>(minval))) {
    return Bad("initializer ", name, ": maxval - minval must be a finite float32, found minval ", minval, ", maxval ", maxval);
  }
  return InitializerSpec{InitializerSpec::Kind::kUniform, minval, maxval};
}

Result<InitializerSpec> NormalOf(std::string_view name, InitializerSpec::Kind kind, double mean, double stddev) {
  if (stddev < 0) return Bad("initializer ", name, ": stddev must not be negative, found ", stddev);
  return InitializerSpec{kind, mean, stddev};
}

Result<InitializerSpec> VarianceScaling(std::string_view name, double scale, std::string_view mode, std::string_view distribution,
                                        uint64_t vocabulary, uint64_t dim) {
  if (!(scale > 0)) return Bad("initializer ", name, ": scale must be positive, found ", scale);
  const double fan_in = static_cast<double>(vocabulary), fan_out = static_cast<double>(dim);
  double fan = 0;
  if (mode == "fan_in") {
    fan = fan_in;
  } else if (mode == "fan_out") {
    fan = fan_out;
  } else if (mode == "fan_avg") {
    fan = (fan_in + fan_out) / 2.0;
  } else {
    return Bad("initializer ", name, ": mode must be fan_in, fan_out or fan_avg, found \"", mode, "\"");
  }
  scale /= std::max(1.0, fan);
  if (distribution == "uniform") {
    const double limit = std::sqrt(3.0 * scale);
    return Uniform(name, -limit, limit);
  }
  if (distribution == "untruncated_normal") return NormalOf(name, InitializerSpec::Kind::kNormal, 0.0, std::sqrt(scale));
  if (distribution == "truncated_normal" || distribution == "normal") {
    return NormalOf(name, InitializerSpec::Kind::kTruncatedNormal, 0.0, std::sqrt(scale) / kTruncatedDeviation);
  }
  return Bad("initializer ", name, ": distribution must be uniform, normal, truncated_normal or untruncated_normal, found \"",
             distribution, "\"");
}

// variance_scaling under the names that fix its parameters.
struct NamedScaling {
  std::string_view name;
  double scale;
  std::string_view mode, distribution;
};
constexpr NamedScaling kNamedScalings[] = {
    {"glorot_uniform", 1.0, "fan_avg", "uniform"}, {"glorot_normal", 1.0, "fan_avg", "truncated_normal"},
    {"he_uniform", 2.0, "fan_in", "uniform"},      {"he_normal", 2.0, "fan_in", "truncated_normal"},
    {"lecun_uniform", 1.0, "fan_in", "uniform"},   {"lecun_normal", 1.0, "fan_in", "truncated_normal"},
};

// A spec as the kernels take it, or the number that fills every place.
struct Formula {
  bool constant;
  float value;
  FirstRowFormula formula;
};

Formula FormulaOf(const InitializerSpec& spec) {
  const float a = static_cast<float>(spec.a), b = static_cast<float>(spec.b);
  switch (spec.kind) {
    case InitializerSpec::Kind::kConstant:
      break;
    case InitializerSpec::Kind::kUniform:
      if (a < b) return {false, 0, {Distribution::kUniform, a, b}};
      break;
    case InitializerSpec::Kind::kNormal:
      return {false, 0, {Distribution::kNormal, a, b}};
    case InitializerSpec::Kind::kTruncatedNormal:
      return {false, 0, {Distribution::kTruncatedNormal, a, b}};
  }
  return {true, a, {}};
}

void FillRows(float value, size_t count, size_t dim, float* out, size_t stride) {
  for (size_t i = 0; i < count; ++i) std::fill_n(out + i * stride, dim, value);
}

}  // namespace

Result<InitializerSpec> ResolveInitializer(std::string_view name, std::span<const InitializerParam> given, uint64_t vocabulary,
                                           uint64_t dim) {
  using Kind = InitializerSpec::Kind;
  const Params params(name, given);
  if (name == "zeros" || name == "ones") {
    MXREC_RETURN_IF_ERROR(params.CheckNames({}));
    return InitializerSpec{Kind::kConstant, name == "ones" ? 1.0 : 0.0, 0.0};
  }
  if (name == "constant") {
    MXREC_RETURN_IF_ERROR(params.CheckNames({"value"}));
    MXREC_ASSIGN_OR_RETURN(const double value, params.Number("value", 0.0));
    return InitializerSpec{Kind::kConstant, value, 0.0};
  }
  if (name == "random_uniform") {
    MXREC_RETURN_IF_ERROR(params.CheckNames({"minval", "maxval"}));
    MXREC_ASSIGN_OR_RETURN(const double minval, params.Number("minval", 0.0));
    MXREC_ASSIGN_OR_RETURN(const double maxval, params.Number("maxval", 1.0));
    return Uniform(name, minval, maxval);
  }
  if (name == "random_normal" || name == "truncated_normal") {
    MXREC_RETURN_IF_ERROR(params.CheckNames({"mean", "stddev"}));
    MXREC_ASSIGN_OR_RETURN(const double mean, params.Number("mean", 0.0));
    MXREC_ASSIGN_OR_RETURN(const double stddev, params.Number("stddev", 1.0));
    return NormalOf(name, name == "random_normal" ? Kind::kNormal : Kind::kTruncatedNormal, mean, stddev);
  }
  if (name == "uniform_unit_scaling") {
    MXREC_RETURN_IF_ERROR(params.CheckNames({"factor"}));
    MXREC_ASSIGN_OR_RETURN(const double factor, params.Number("factor", 1.0));
    if (factor < 0) return Bad("initializer ", name, ": factor must not be negative, found ", factor);
    const double limit = std::sqrt(3.0 / std::max(1.0, static_cast<double>(vocabulary))) * factor;
    return Uniform(name, -limit, limit);
  }
  if (name == "variance_scaling") {
    MXREC_RETURN_IF_ERROR(params.CheckNames({"scale", "mode", "distribution"}));
    MXREC_ASSIGN_OR_RETURN(const double scale, params.Number("scale", 1.0));
    return VarianceScaling(name, scale, params.Text("mode", "fan_in"), params.Text("distribution", "truncated_normal"), vocabulary,
                           dim);
  }
  for (const NamedScaling& named : kNamedScalings) {
    if (name != named.name) continue;
    MXREC_RETURN_IF_ERROR(params.CheckNames({}));
    return VarianceScaling(name, named.scale, named.mode, named.distribution, vocabulary, dim);
  }
  if (name == "identity" || name == "orthogonal") {
    return Bad("initializer ", name,
               " is not supported: a row of it depends on the whole matrix, and a table makes each row from its key alone");
  }
  return Bad("unknown initializer \"", name,
             "\"; known: constant, glorot_normal, glorot_uniform, he_normal, he_uniform, lecun_normal, lecun_uniform, ones, "
             "random_normal, "
             "random_uniform, truncated_normal, uniform_unit_scaling, variance_scaling, zeros");
}

void GenerateFirstRows(const InitializerSpec& spec, uint64_t table_seed, const uint64_t* keys, size_t count, size_t dim, float* out,
                       size_t stride) {
  const Formula f = FormulaOf(spec);
  if (f.constant) return FillRows(f.value, count, dim, out, stride);
  FirstRows(f.formula, table_seed, keys, count, dim, out, stride);
}

void GenerateFirstRowsReference(const InitializerSpec& spec, uint64_t table_seed, const uint64_t* keys, size_t count, size_t dim,
                                float* out, size_t stride) {
  const Formula f = FormulaOf(spec);
  if (f.constant) return FillRows(f.value, count, dim, out, stride);
  FirstRowsReference(f.formula, table_seed, keys, count, dim, out, stride);
}

uint64_t TableSeed(std::string_view table_name, int64_t initializer_seed, int64_t graph_seed) {
  const uint64_t seeds =
      Mix64(Mix64(static_cast<uint64_t>(initializer_seed) + 0x9E3779B97F4A7C15u) ^ static_cast<uint64_t>(graph_seed));
  return Hash64(table_name, seeds);
}

}  // namespace mxrec
