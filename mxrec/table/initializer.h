// Initializer: the first row of a key as a pure function of (table seed, key).
//
// first_row(seed, key)[column] uses a counter-based generator (Philox 4x32-10, Salmon et al. 2011) keyed by the table seed
// with the key and the column as counter. So it depends neither on the order in which keys arrive nor on the number of
// ranks or threads, and a lookup can answer an unseen key without inserting it. Only +, -, *, /, sqrt in float32/float64 in a
// fixed order are used (own log and inverse normal distribution), so every CPU gives the same bits.
#ifndef MXREC_TABLE_INITIALIZER_H_
#define MXREC_TABLE_INITIALIZER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/base/status.h"

namespace mxrec {

// A resolved distribution. What the TensorFlow names mean in terms of it:
//   zeros, ones, constant(value)              kConstant a = value
//   random_uniform(minval, maxval)            kUniform a = minval, b = maxval           values in [a, b)
//   uniform_unit_scaling(factor)              kUniform  max = sqrt(3 / vocabulary) * factor; a = -max, b = max
//   random_normal(mean, stddev)               kNormal a = mean, b = stddev
//   truncated_normal(mean, stddev)            kTruncatedNormal a = mean, b = stddev    values within a +- 2 b
//   variance_scaling(scale, mode, distribution), glorot_*, he_*, lecun_*   fan_in = vocabulary, fan_out = dim
struct InitializerSpec {
  enum class Kind : uint8_t { kConstant = 0, kUniform = 1, kNormal = 2, kTruncatedNormal = 3 };
  Kind kind = Kind::kNormal;
  double a = 0.0;
  double b = 1.0;
  friend bool operator==(const InitializerSpec&, const InitializerSpec&) = default;
};

struct InitializerParam {
  std::string name;
  double value = 0.0;
  std::string text;  // for mode = "fan_avg", distribution = "truncated_normal"; else empty
};

// Resolves a TensorFlow initializer by its snake_case name ("random_normal", "variance_scaling", "glorot_uniform",
// "glorot_normal", "he_uniform", "he_normal", "lecun_uniform", "lecun_normal", "uniform_unit_scaling", "zeros", "ones",
// "constant", "truncated_normal", "random_uniform") for a table of [vocabulary, dim]. Params not given take TensorFlow's v1
// defaults. "identity" and "orthogonal" depend on the whole matrix: kInvalidArgument says so. Unknown names and
// parameters, stddev < 0, maxval < minval, non-finite numbers: kInvalidArgument naming them.
Result<InitializerSpec> ResolveInitializer(std::string_view name, std::span<const InitializerParam> params, uint64_t vocabulary,
                                           uint64_t dim);

// Writes the first rows of keys: row i at out + i * stride (floats), dim floats each. stride >= dim. SIMD.
void GenerateFirstRows(const InitializerSpec& spec, uint64_t table_seed, const uint64_t* keys, size_t count, size_t dim, float* out,
                       size_t stride);
// Scalar reference of the same; equal to the bit.
void GenerateFirstRowsReference(const InitializerSpec& spec, uint64_t table_seed, const uint64_t* keys, size_t count, size_t dim,
                                float* out, size_t stride);

// Table seed = 64-bit hash of (table name, initializer seed, graph seed); absent seeds are 0. Written in every checkpoint.
uint64_t TableSeed(std::string_view table_name, int64_t initializer_seed, int64_t graph_seed);

}  // namespace mxrec

#endif  // MXREC_TABLE_INITIALIZER_H_
