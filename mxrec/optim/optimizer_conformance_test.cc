// What every optimizer of the registry must do, alone and with the common options. A new kind is tested here by being
// registered; inside a table, with duplicates and checkpoints, by engine/embedding_table_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "mxrec/kernels/simd_targets.h"
#include "mxrec/optim/optimizer.h"
#include "mxrec/optim/optimizer_test_util.h"

namespace mxrec {
namespace {

using ::mxrec::testing::HyperValues;

constexpr float kGuard = 12345.678f;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Rows one after the other in one array, `gap` guard floats before, between and after them.
class Rows {
 public:
  Rows(const Optimizer& optimizer, size_t count, size_t dim, size_t gap, uint32_t seed)
      : width_(optimizer.row_floats(dim)), gap_(gap) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    floats_.assign(gap + count * (width_ + gap), kGuard);
    const std::vector<float> start = optimizer.slot_initial_values();
    const std::vector<uint32_t> widths = optimizer.slot_widths(dim);
    for (size_t i = 0; i < count; ++i) {
      float* const row = floats_.data() + gap + i * (width_ + gap);
      for (size_t c = 0; c < dim; ++c) row[c] = normal(random);
      float* slot = row + dim;
      for (size_t s = 0; s < start.size(); ++s) slot = std::fill_n(slot, widths[s], start[s]);
      places_.push_back(gap + i * (width_ + gap));
    }
  }

  std::vector<float*> pointers() {
    std::vector<float*> rows;
    for (const size_t place : places_) rows.push_back(floats_.data() + place);
    return rows;
  }
  const std::vector<float>& floats() const { return floats_; }
  float* row(size_t i) { return floats_.data() + places_[i]; }

  bool GuardsAreWhole() const {
    for (size_t i = 0; i <= places_.size(); ++i) {
      for (size_t j = 0; j < gap_; ++j) {
        if (floats_[i * (width_ + gap_) + j] != kGuard) return false;
      }
    }
    return true;
  }

 private:
  size_t width_, gap_;
  std::vector<float> floats_;
  std::vector<size_t> places_;
};

// Gradients at odd distances, so that no alignment is given by accident.
class Gradients {
 public:
  Gradients(size_t count, size_t dim, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const size_t stride = dim + 3;
    floats_.resize(count * stride + 1);
    for (float& g : floats_) g = normal(random);
    for (size_t i = 0; i < count; ++i) pointers_.push_back(floats_.data() + 1 + i * stride);
  }
  std::vector<const float*>& pointers() { return pointers_; }
  float* row(size_t i) { return const_cast<float*>(pointers_[i]); }

 private:
  std::vector<float> floats_;
  std::vector<const float*> pointers_;
};

// Equal to the bit; any NaN equals any NaN (which operand's payload survives is left to the processor).
::testing::AssertionResult SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
      return ::testing::AssertionFailure() << "float " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

struct Case {
  std::string kind;
  std::vector<OptimizerOption> options;
  std::string name;
};

// Every kind as it is, with its gradients clipped by row, and with everything that it takes.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const std::string& kind : OptimizerKinds()) {
    cases.push_back({kind, {}, kind});
    cases.push_back({kind, {{"row_clip_norm", 2.0}}, kind + "_clipped"});
    std::vector<OptimizerOption> all = {{"row_clip_norm", 2.0}};
    for (const OptimizerOption& more : {OptimizerOption{"l2_regularization", 0.01}, OptimizerOption{"weight_decay", 0.1}}) {
      if (MakeOptimizer(kind, {{more}}).ok()) all.push_back(more);
    }
    if (all.size() > 1) cases.push_back({kind, all, kind + "_clipped_and_decayed"});
  }
  cases.push_back({"momentum", {{"nesterov", 1}}, "momentum_nesterov"});
  return cases;
}

class OptimizerConformanceTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    optimizer_ = MakeOptimizer(GetParam().kind, GetParam().options).value();
    state_.scalars = optimizer_->scalar_initial_values();
    hyper_ = HyperValues(*optimizer_);
  }

  StepConstants Begin() {
    StepConstants constants{};
    const Status status = optimizer_->BeginStep(hyper_, &state_, &constants);
    EXPECT_TRUE(status.ok()) << status;
    return constants;
  }

  std::shared_ptr<const Optimizer> optimizer_;
  OptimizerState state_;
  std::vector<float> hyper_;
};

TEST_P(OptimizerConformanceTest, EveryTargetEqualsTheReferenceToTheBitForManyWidthsAndDistances) {
  const StepConstants constants[3] = {Begin(), Begin(), Begin()};
  for (size_t dim = 1; dim <= 130; ++dim) {
    for (const size_t gap : {size_t{0}, size_t{1}, size_t{3}}) {
      const size_t count = 5;
      Rows expected(*optimizer_, count, dim, gap, 11);
      for (uint32_t step = 0; step < 3; ++step) {
        Gradients gradients(count, dim, step);
        optimizer_->UpdateRowsReference(constants[step], {expected.pointers().data(), gradients.pointers().data(), count, dim});
      }
      ForEachSimdTarget([&](const char* target) {
        Rows rows(*optimizer_, count, dim, gap, 11);
        for (uint32_t step = 0; step < 3; ++step) {
          Gradients gradients(count, dim, step);
          EXPECT_EQ(optimizer_->UpdateRows(constants[step], {rows.pointers().data(), gradients.pointers().data(), count, dim}), 0u);
        }
        ASSERT_TRUE(SameBits(rows.floats(), expected.floats())) << target << " dim " << dim << " gap " << gap;
        ASSERT_TRUE(rows.GuardsAreWhole()) << target << " dim " << dim << " gap " << gap;
      });
    }
  }
}

TEST_P(OptimizerConformanceTest, ExtremeNumbersGiveTheSameBitsOnEveryTarget) {
  const float extremes[] = {0.0f,  -0.0f,  1e-45f, -1e-45f, 1e-38f, -1e-30f, 1e-20f, 1.0f, -1.0f,
                            1e10f, -1e18f, 1e20f,  3e38f,   -3e38f, kInf,    -kInf,  kNaN, 1.17549435e-38f};
  const size_t dim = std::size(extremes), count = std::size(extremes);
  const StepConstants constants = Begin();
  const auto train = [&](Rows& rows, bool reference) {
    Gradients gradients(count, dim, 0);
    for (size_t i = 0; i < count; ++i) {
      for (size_t c = 0; c < dim; ++c) {
        gradients.row(i)[c] = extremes[c];
        rows.row(i)[c] = extremes[i];
      }
    }
    std::vector<float*> pointers = rows.pointers();
    const RowBatch batch{pointers.data(), gradients.pointers().data(), count, dim};
    return reference ? optimizer_->UpdateRowsReference(constants, batch) : optimizer_->UpdateRows(constants, batch);
  };
  Rows expected(*optimizer_, count, dim, 1, 1);
  const size_t expected_non_finite = train(expected, true);
  ForEachSimdTarget([&](const char* target) {
    Rows rows(*optimizer_, count, dim, 1, 1);
    EXPECT_EQ(train(rows, false), expected_non_finite) << target;
    EXPECT_TRUE(SameBits(rows.floats(), expected.floats())) << target;
  });
}

TEST_P(OptimizerConformanceTest, RowsWithNaNOrInfAreCountedOnceWhereverTheyAre) {
  const StepConstants constants = Begin();
  ForEachSimdTarget([&](const char* target) {
    for (const size_t dim : {1, 3, 4, 7, 8, 15, 16, 17, 33, 64, 65, 127}) {
      for (size_t c = 0; c < dim; ++c) {
        const size_t count = 3;
        Rows rows(*optimizer_, count, dim, 1, 2);
        Gradients gradients(count, dim, 2);
        gradients.row(1)[c] = kNaN;
        rows.row(2)[c] = c % 2 == 0 ? kInf : -kInf;
        rows.row(2)[dim - 1] = kInf;
        std::vector<float*> pointers = rows.pointers();
        ASSERT_EQ(optimizer_->UpdateRows(constants, {pointers.data(), gradients.pointers().data(), count, dim}), 2u)
            << target << " dim " << dim << " column " << c;
        ASSERT_TRUE(rows.GuardsAreWhole());
      }
    }
  });
}

TEST_P(OptimizerConformanceTest, AnEmptyBatchChangesNothing) {
  const StepConstants constants = Begin();
  EXPECT_EQ(optimizer_->UpdateRows(constants, {nullptr, nullptr, 0, 16}), 0u);
  EXPECT_EQ(optimizer_->UpdateRowsReference(constants, {nullptr, nullptr, 0, 16}), 0u);
}

TEST_P(OptimizerConformanceTest, RowsDoNotInfluenceEachOther) {
  const StepConstants constants = Begin();
  const size_t count = 9, dim = 20;
  Rows together(*optimizer_, count, dim, 2, 3), alone(*optimizer_, count, dim, 2, 3);
  Gradients gradients(count, dim, 3);
  std::vector<float*> pointers = together.pointers();
  optimizer_->UpdateRows(constants, {pointers.data(), gradients.pointers().data(), count, dim});
  pointers = alone.pointers();
  for (size_t i = count; i-- > 0;) {
    optimizer_->UpdateRows(constants, {pointers.data() + i, gradients.pointers().data() + i, 1, dim});
  }
  EXPECT_TRUE(SameBits(together.floats(), alone.floats()));
}

TEST_P(OptimizerConformanceTest, TheWidestRowIsUpdatedWhole) {
  const StepConstants constants = Begin();
  const size_t dim = 8192;
  Rows rows(*optimizer_, 1, dim, 1, 4), expected(*optimizer_, 1, dim, 1, 4);
  Gradients gradients(1, dim, 4);
  std::vector<float*> pointers = rows.pointers();
  optimizer_->UpdateRows(constants, {pointers.data(), gradients.pointers().data(), 1, dim});
  std::vector<float*> expected_pointers = expected.pointers();
  optimizer_->UpdateRowsReference(constants, {expected_pointers.data(), gradients.pointers().data(), 1, dim});
  EXPECT_TRUE(SameBits(rows.floats(), expected.floats()));
  EXPECT_TRUE(rows.GuardsAreWhole());
}

TEST_P(OptimizerConformanceTest, TheGradientMovesValuesAgainstItself) {
  const StepConstants constants = Begin();
  const size_t dim = 16;
  Rows rows(*optimizer_, 1, dim, 0, 5);
  Gradients gradients(1, dim, 5);
  std::fill_n(rows.row(0), dim, 0.0f);  // so that nothing decays, and for FTRL, which forgets where a row started
  std::vector<float*> pointers = rows.pointers();
  optimizer_->UpdateRows(constants, {pointers.data(), gradients.pointers().data(), 1, dim});
  for (size_t c = 0; c < dim; ++c) {
    if (std::fabs(gradients.row(0)[c]) < 0.01f) continue;
    EXPECT_LT(rows.row(0)[c] * gradients.row(0)[c], 0) << c;
  }
}

TEST_P(OptimizerConformanceTest, EachStepAdvancesTheCounterAndKeepsTheNumberOfScalars) {
  EXPECT_EQ(state_.step, 0u);
  for (uint64_t step = 1; step <= 3; ++step) {
    Begin();
    EXPECT_EQ(state_.step, step);
    EXPECT_EQ(state_.scalars.size(), optimizer_->scalar_names().size());
  }
}

TEST_P(OptimizerConformanceTest, AWrongNumberOfHyperparametersIsRefusedAndStateIsUntouched) {
  Begin();
  const OptimizerState before = state_;
  for (const size_t wrong : {hyper_.size() + 1, hyper_.size() - 1}) {
    std::vector<float> hyper(wrong, 0.5f);
    StepConstants constants{};
    const Status status = optimizer_->BeginStep(hyper, &state_, &constants);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(GetParam().kind), std::string_view::npos) << status;
    EXPECT_NE(status.message().find("learning_rate"), std::string_view::npos) << status;
  }
  EXPECT_EQ(state_.step, before.step);
  EXPECT_EQ(state_.scalars, before.scalars);
}

TEST_P(OptimizerConformanceTest, ALearningRateOfZeroKeepsARowFiniteOrIsRefusedAndStateIsUntouched) {
  const OptimizerState before = state_;
  hyper_[0] = 0;
  StepConstants constants{};
  const Status status = optimizer_->BeginStep(hyper_, &state_, &constants);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("learning_rate"), std::string_view::npos) << status;
    EXPECT_EQ(state_.step, before.step);
    EXPECT_EQ(state_.scalars, before.scalars);
    return;
  }
  Rows rows(*optimizer_, 2, 5, 0, 3);
  Gradients gradients(2, 5, 4);
  std::vector<float*> pointers = rows.pointers();
  EXPECT_EQ(optimizer_->UpdateRows(constants, {pointers.data(), gradients.pointers().data(), 2, 5}), 0u);
}

TEST_P(OptimizerConformanceTest, ALearningRateThatIsNotFiniteIsRefusedAndStateIsUntouched) {
  for (const float rate : {kNaN, kInf, -kInf}) {
    const OptimizerState before = state_;
    hyper_[0] = rate;
    StepConstants constants{};
    const Status status = optimizer_->BeginStep(hyper_, &state_, &constants);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("finite learning_rate"), std::string_view::npos) << status;
    EXPECT_EQ(state_.step, before.step);
    EXPECT_EQ(state_.scalars, before.scalars);
  }
}

TEST_P(OptimizerConformanceTest, AWrongNumberOfScalarsIsRefusedAndStateIsUntouched) {
  state_.scalars.push_back(1.0f);
  const OptimizerState before = state_;
  StepConstants constants{};
  EXPECT_EQ(optimizer_->BeginStep(hyper_, &state_, &constants).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(state_.step, before.step);
  EXPECT_EQ(state_.scalars, before.scalars);
}

TEST_P(OptimizerConformanceTest, NamesAndStartValuesAgreeInNumber) {
  EXPECT_EQ(optimizer_->kind(), GetParam().kind);
  EXPECT_EQ(optimizer_->slot_initial_values().size(), optimizer_->slot_names().size());
  EXPECT_EQ(optimizer_->slot_count(), optimizer_->slot_names().size());
  EXPECT_EQ(optimizer_->scalar_initial_values().size(), optimizer_->scalar_names().size());
  EXPECT_EQ(optimizer_->slot_widths(7).size(), optimizer_->slot_names().size());
  EXPECT_EQ(optimizer_->hyper_names().front(), "learning_rate");
}

TEST_P(OptimizerConformanceTest, SlotsHaveTheWidthOfTheRowOrOneFloatAndThoseStandLast) {
  bool one_float = false;
  for (const uint32_t width : optimizer_->slot_widths(7)) {
    EXPECT_TRUE(width == 1 || width == 7) << width;
    EXPECT_TRUE(width == 1 || !one_float);
    one_float = one_float || width == 1;
  }
  EXPECT_GE(optimizer_->row_floats(7), 7u);
}

TEST_P(OptimizerConformanceTest, TheSameStepsGiveTheSameBitsWhereverTheRowsLieAndHoweverTheyAreBatched) {
  const size_t dim = 37, count = 200;
  const auto train = [&](size_t gap, size_t batch) {
    OptimizerState state;
    state.scalars = optimizer_->scalar_initial_values();
    Rows rows(*optimizer_, count, dim, gap, 7);
    const std::vector<float*> pointers = rows.pointers();
    for (uint32_t step = 0; step < 5; ++step) {
      StepConstants constants{};
      EXPECT_TRUE(optimizer_->BeginStep(hyper_, &state, &constants).ok());
      Gradients gradients(count, dim, step);
      for (size_t first = 0; first < count; first += batch) {
        const size_t size = std::min(batch, count - first);
        optimizer_->UpdateRows(constants, {pointers.data() + first, gradients.pointers().data() + first, size, dim});
      }
    }
    std::vector<float> contents;
    for (float* const row : pointers) contents.insert(contents.end(), row, row + optimizer_->row_floats(dim));
    return contents;
  };
  const std::vector<float> first = train(0, count);
  EXPECT_TRUE(SameBits(train(0, count), first));
  EXPECT_TRUE(SameBits(train(3, 1), first));
  EXPECT_TRUE(SameBits(train(1, 64), first));
}

TEST_P(OptimizerConformanceTest, GradientsAreReadOnly) {
  const StepConstants constants = Begin();
  const size_t dim = 21, count = 3;
  Rows rows(*optimizer_, count, dim, 0, 8);
  Gradients gradients(count, dim, 8), same(count, dim, 8);
  optimizer_->UpdateRows(constants, {rows.pointers().data(), gradients.pointers().data(), count, dim});
  for (size_t i = 0; i < count; ++i) EXPECT_TRUE(std::equal(gradients.row(i), gradients.row(i) + dim, same.row(i)));
}

TEST_P(OptimizerConformanceTest, AHundredThousandStepsLeaveConstantsAndRowsFinite) {
  const size_t dim = 9;
  Rows rows(*optimizer_, 1, dim, 0, 9);
  Gradients gradients(1, dim, 9);
  std::vector<float*> pointers = rows.pointers();
  for (uint64_t step = 1; step <= 100000; ++step) {
    const StepConstants constants = Begin();
    if (step % 10 == 0 || step > 99990) {
      // Gradients that change their sign, so that no sum of them needs to grow.
      for (size_t c = 0; c < dim; ++c) gradients.row(0)[c] = -gradients.row(0)[c];
      ASSERT_EQ(optimizer_->UpdateRows(constants, {pointers.data(), gradients.pointers().data(), 1, dim}), 0u) << step;
    }
    if (step % 10000 != 0) continue;
    for (const float k : constants) EXPECT_TRUE(std::isfinite(k)) << step;
    for (const float scalar : state_.scalars) EXPECT_TRUE(std::isfinite(scalar)) << step;
  }
  EXPECT_EQ(state_.step, 100000u);
}

TEST_P(OptimizerConformanceTest, ZeroGradientsKeepARowFinite) {
  const size_t dim = 5;
  Rows rows(*optimizer_, 1, dim, 0, 10);
  const std::vector<float> zeros(dim, 0.0f);
  const float* grads[] = {zeros.data()};
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(optimizer_->UpdateRows(Begin(), {rows.pointers().data(), grads, 1, dim}), 0u);
  }
}

TEST_P(OptimizerConformanceTest, DenormalsAreKeptEvenOnAThreadThatFlushesThem) {
#if defined(__x86_64__)
  const StepConstants constants = Begin();
  const size_t dim = 19;
  Rows rows(*optimizer_, 1, dim, 0, 6), flushed(*optimizer_, 1, dim, 0, 6);
  Gradients gradients(1, dim, 6);
  for (size_t c = 0; c < dim; ++c) gradients.row(0)[c] = 1e-38f * static_cast<float>(c);
  for (size_t c = 0; c < dim; ++c) rows.row(0)[c] = flushed.row(0)[c] = 1e-40f;
  std::vector<float*> a = rows.pointers(), b = flushed.pointers();
  optimizer_->UpdateRows(constants, {a.data(), gradients.pointers().data(), 1, dim});
  uint32_t former = 0;
  asm volatile("stmxcsr %0" : "=m"(former));
  const uint32_t flushing = former | 0x8040u;
  asm volatile("ldmxcsr %0" ::"m"(flushing));
  optimizer_->UpdateRows(constants, {b.data(), gradients.pointers().data(), 1, dim});
  asm volatile("ldmxcsr %0" ::"m"(former));
  EXPECT_TRUE(SameBits(rows.floats(), flushed.floats()));
#else
  GTEST_SKIP() << "how to make this thread flush denormals is known for x86-64 only";
#endif
}

INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerConformanceTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace mxrec
