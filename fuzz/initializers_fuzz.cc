// Initializers with any name and parameters: refused with kInvalidArgument, or rows that equal the scalar reference to the bit on
// every instruction set of this machine and keep their bounds.
#include <algorithm>
#include <cstring>

#include "fuzz/fuzz.h"
#include "mxrec/base/check.h"
#include "mxrec/kernels/simd_targets.h"
#include "mxrec/table/initializer.h"

namespace {

constexpr const char* kNames[] = {
    "zeros",      "ones",         "constant",         "random_uniform",       "random_normal", "truncated_normal", "glorot_normal",
    "he_uniform", "lecun_normal", "variance_scaling", "uniform_unit_scaling", "identity",      "orthogonal",       "no_such_name"};
constexpr const char* kParams[] = {"value",  "minval", "maxval", "mean",         "stddev",
                                   "factor", "scale",  "mode",   "distribution", "no_such_param"};
constexpr const char* kTexts[] = {"", "fan_in", "fan_out", "fan_avg", "uniform", "normal", "truncated_normal", "untruncated_normal",
                                  "x"};

// Takes numbers off the front of the input; zeros when it has ended.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  template <typename T>
  T Take() {
    T value{};
    const size_t n = std::min(left_, sizeof(T));
    std::memcpy(&value, data_, n);
    data_ += n;
    left_ -= n;
    return value;
  }
  template <size_t kN>
  const char* Choose(const char* const (&from)[kN]) {
    return from[Take<uint8_t>() % kN];
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const std::string name = input.Choose(kNames);
  std::vector<mxrec::InitializerParam> params(input.Take<uint8_t>() % 4);
  for (mxrec::InitializerParam& param : params) {
    param.name = input.Choose(kParams);
    param.text = input.Choose(kTexts);
    param.value = input.Take<uint8_t>() % 2 == 0 ? input.Take<double>() : input.Take<float>();
  }
  const auto spec = mxrec::ResolveInitializer(name, params, input.Take<uint64_t>(), input.Take<uint64_t>());
  if (!spec.ok()) {
    MXREC_CHECK(spec.status().code() == mxrec::StatusCode::kInvalidArgument) << spec.status();
    MXREC_CHECK(spec.status().message().find(name) != std::string_view::npos) << spec.status();
    return 0;
  }

  const uint64_t seed = input.Take<uint64_t>();
  const size_t dim = 1 + input.Take<uint8_t>(), stride = dim + input.Take<uint8_t>() % 3;
  std::vector<uint64_t> keys(1 + input.Take<uint8_t>() % 7);
  for (uint64_t& key : keys) key = input.Take<uint64_t>();
  std::vector<float> expected(keys.size() * stride, -7.0f);
  const std::vector<float> untouched = expected;
  mxrec::GenerateFirstRowsReference(*spec, seed, keys.data(), keys.size(), dim, expected.data(), stride);
  mxrec::ForEachSimdTarget([&](const char* target) {
    std::vector<float> rows = untouched;
    mxrec::GenerateFirstRows(*spec, seed, keys.data(), keys.size(), dim, rows.data(), stride);
    MXREC_CHECK(std::memcmp(rows.data(), expected.data(), rows.size() * sizeof(float)) == 0)
        << name << " on " << target << ", dim " << dim;
  });
  if (spec->kind == mxrec::InitializerSpec::Kind::kUniform) {
    const float low = static_cast<float>(spec->a), high = static_cast<float>(spec->b);
    for (size_t i = 0; i < keys.size(); ++i) {
      for (size_t c = 0; c < dim; ++c) {
        const float x = expected[i * stride + c];
        MXREC_CHECK(x >= low && (x < high || low == high)) << x << " outside [" << low << ", " << high << ")";
      }
    }
  }
  return 0;
}

std::vector<std::string> mxrec::FuzzSeeds() {
  std::vector<std::string> seeds;
  for (char name = 0; name < 14; ++name) seeds.push_back(std::string{name, 0} + std::string(80, '\x35'));
  return seeds;
}
