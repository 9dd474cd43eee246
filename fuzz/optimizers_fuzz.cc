// Every optimizer's SIMD kernels, alone and with the common options, on every instruction set of this machine, against its
// scalar reference: equal to the bit for any floats, any width, and nothing outside the rows written.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "fuzz/fuzz.h"
#include "mxrec/base/check.h"
#include "mxrec/kernels/simd_targets.h"
#include "mxrec/optim/optimizer.h"

namespace {

constexpr size_t kHead = 5;
constexpr float kGuard = 4711.25f;

// Floats from the input, again from the start when it ends; ones when there is none.
class Floats {
 public:
  Floats(const uint8_t* data, size_t size) : data_(data), count_(size / sizeof(float)) {}
  float Next() {
    if (count_ == 0) return 1.0f;
    float value;
    std::memcpy(&value, data_ + (next_++ % count_) * sizeof(float), sizeof(value));
    return value;
  }

 private:
  const uint8_t* data_;
  size_t count_, next_ = 0;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) || (std::isnan(x) && std::isnan(y));
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHead) return 0;
  const std::vector<std::string> kinds = mxrec::OptimizerKinds();
  const std::string& kind = kinds[data[0] % kinds.size()];
  const size_t dim = 1 + (data[1] | (data[2] & 1) << 8), count = data[3] % 5, gap = data[4] % 4;
  Floats floats(data + kHead, size - kHead);

  // Common options by the bits of data[2]; kinds that refuse one go without.
  std::vector<mxrec::OptimizerOption> options;
  int bit = 1;
  for (const char* name : {"row_clip_norm", "l2_regularization", "weight_decay"}) {
    const mxrec::OptimizerOption option{name, std::fabs(static_cast<double>(floats.Next()))};
    if ((data[2] >> bit++ & 1) != 0 && mxrec::MakeOptimizer(kind, {{option}}).ok()) options.push_back(option);
  }
  const auto optimizer = mxrec::MakeOptimizer(kind, options).value();
  mxrec::OptimizerState state;
  state.scalars = optimizer->scalar_initial_values();
  std::vector<float> hyper(optimizer->hyper_names().size());
  for (float& h : hyper) h = floats.Next();
  mxrec::StepConstants constants{};
  const mxrec::Status begun = optimizer->BeginStep(hyper, &state, &constants);
  if (!begun.ok()) {  // A learning rate that the kind cannot step with; nothing else of a hyperparameter is refused.
    MXREC_CHECK(begun.code() == mxrec::StatusCode::kInvalidArgument && !(hyper[0] > 0 && std::isfinite(hyper[0]))) << begun;
    MXREC_CHECK(state.step == 0 && state.scalars == optimizer->scalar_initial_values());
    return 0;
  }
  MXREC_CHECK(state.step == 1 && std::isfinite(hyper[0]));

  const size_t width = optimizer->row_floats(dim);
  std::vector<float> start(gap + count * (width + gap), kGuard), gradients(count * dim);
  std::vector<const float*> grads;
  for (size_t i = 0; i < count; ++i) {
    std::generate_n(start.begin() + static_cast<ptrdiff_t>(gap + i * (width + gap)), width, [&] { return floats.Next(); });
    grads.push_back(gradients.data() + i * dim);
  }
  for (float& g : gradients) g = floats.Next();

  const auto run = [&](std::vector<float>& memory, bool reference) {
    std::vector<float*> rows;
    for (size_t i = 0; i < count; ++i) rows.push_back(memory.data() + gap + i * (width + gap));
    const mxrec::RowBatch batch{rows.data(), grads.data(), count, dim};
    return reference ? optimizer->UpdateRowsReference(constants, batch) : optimizer->UpdateRows(constants, batch);
  };
  std::vector<float> expected = start;
  const size_t non_finite = run(expected, true);
  mxrec::ForEachSimdTarget([&](const char* target) {
    std::vector<float> memory = start;
    MXREC_CHECK(run(memory, false) == non_finite) << kind << " on " << target << ", dim " << dim;
    MXREC_CHECK(SameBits(memory, expected)) << kind << " on " << target << ", dim " << dim;
  });
  return 0;
}

std::vector<std::string> mxrec::FuzzSeeds() {
  std::vector<std::string> seeds;
  for (size_t kind = 0; kind < 2 * mxrec::OptimizerKinds().size(); ++kind) {
    std::string seed = {static_cast<char>(kind), 20, static_cast<char>(kind % 2 == 0 ? 0 : 14), 3, 1};
    for (const float value : {0.05f, 0.9f, 0.999f, 1e-6f, 1.0f, -0.25f, 3e38f, 1e-40f, -0.0f}) {
      seed.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    seeds.push_back(seed);
  }
  return seeds;
}
