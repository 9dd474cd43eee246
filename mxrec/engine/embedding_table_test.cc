#include "mxrec/engine/embedding_table.h"

#include <cmath>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/base/log.h"
#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/io/test_dir.h"
#include "mxrec/optim/optimizer_test_util.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

using ::testing::AllOf;
using testing::Contents;
using ::testing::ElementsAre;
using testing::Found;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LookUp;
using testing::PartOf;
using ::testing::SizeIs;

std::mutex g_mutex;
std::vector<std::string> g_lines;

// Collects what is logged while it lives.
class LogLines {
 public:
  LogLines() {
    g_lines.clear();
    before_ = SetLogSink([](const LogRecord& record) {
      std::lock_guard lock(g_mutex);
      g_lines.push_back(std::string(LogLevelName(record.level)) + " " + std::string(record.text));
    });
  }
  ~LogLines() { SetLogSink(before_); }
  std::vector<std::string> Take() {
    std::lock_guard lock(g_mutex);
    return std::exchange(g_lines, {});
  }

 private:
  LogSink before_;
};

class FixedClock {
 public:
  explicit FixedClock(int64_t ms) { SetClockForTesting(ms); }
  ~FixedClock() { SetClockForTesting(-1); }
};

std::shared_ptr<EmbeddingTable> Make(const std::string& more = "", uint32_t dim = 2) {
  const std::string json = R"({"name": "user", "dim": )" + std::to_string(dim) + R"(, "vocabulary": 1000)" + more + "}";
  return EmbeddingTable::Create(EmbeddingTableConfig::FromJson(json).value()).value();
}

std::vector<float> Hyper(const Optimizer& optimizer) { return testing::HyperValues(optimizer); }

Status Step(EmbeddingTable* table, const Optimizer& optimizer, const std::vector<uint64_t>& ids, float gradient,
            UpdateReport* report = nullptr) {
  const Found found = LookUp(table->table(), ids);
  const std::vector<float> gradients(ids.size() * table->dim(), gradient);
  const UpdatePart part = PartOf(found, gradients);
  return table->Apply(optimizer, Hyper(optimizer), {&part, 1}, nullptr, report);
}

class EveryOptimizer : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryOptimizer, TrainsRowsAsItsReferenceDoesOnPlainArrays) {
  const auto optimizer = MakeOptimizer(GetParam()).value();
  const std::vector<float> hyper = Hyper(*optimizer);
  const uint32_t dim = 5;
  const auto table = Make("", dim);
  // The same on plain arrays.
  const std::vector<uint64_t> ids = {11, 22, 33};
  std::vector<std::vector<float>> rows(3);
  for (size_t i = 0; i < 3; ++i) {
    rows[i].resize(dim);
    table->table().Find({&ids[i], 1}, rows[i].data(), nullptr, nullptr);
    for (size_t s = 0; s < optimizer->slot_count(); ++s) {
      rows[i].insert(rows[i].end(), optimizer->slot_widths(dim)[s], optimizer->slot_initial_values()[s]);
    }
  }
  OptimizerState state{0, optimizer->scalar_initial_values()};
  StepConstants constants{};
  for (int step = 1; step <= 5; ++step) {
    // Id 22 comes twice, id 33 only in odd steps.
    std::vector<uint64_t> batch = {22, 11, 22};
    if (step % 2 == 1) batch.push_back(33);
    const Found found = LookUp(table->table(), batch);
    std::vector<float> gradients;
    for (size_t j = 0; j < batch.size() * dim; ++j)
      gradients.push_back(0.25f * static_cast<float>((j * 7 + static_cast<size_t>(step)) % 5) - 0.5f);
    const UpdatePart part = PartOf(found, gradients);
    UpdateReport report;
    const Status status = table->Apply(*optimizer, hyper, {&part, 1}, nullptr, &report);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(report.updated, step % 2 == 1 ? 3u : 2u);
    ASSERT_TRUE(optimizer->BeginStep(hyper, &state, &constants).ok());
    for (size_t i = 0; i < 3; ++i) {
      std::vector<float> sum(dim, 0.0f);
      bool any = false;
      for (size_t j = 0; j < batch.size(); ++j) {
        if (batch[j] != ids[i]) continue;
        for (size_t d = 0; d < dim; ++d) sum[d] = any ? sum[d] + gradients[j * dim + d] : gradients[j * dim + d];
        any = true;
      }
      if (!any) continue;
      float* row = rows[i].data();
      const float* gradient = sum.data();
      optimizer->UpdateRowsReference(constants, {&row, &gradient, 1, dim});
    }
  }
  EXPECT_EQ(table->table().slots().optimizer_kind, GetParam());
  EXPECT_EQ(table->table().slots().step, 5u);
  EXPECT_EQ(table->table().slots().scalars, state.scalars);
  const auto snapshot = table->table().TakeSnapshot();
  size_t seen = 0;
  for (int s = 0; s < kShardCount; ++s) {
    ASSERT_TRUE(snapshot
                    ->ForEachBlock(s, 10,
                                   [&](const RowBlock& block) {
                                     for (size_t r = 0; r < block.count; ++r, ++seen) {
                                       const size_t i = block.keys[r] / 11 - 1;
                                       EXPECT_TRUE(std::equal(rows[i].begin(), rows[i].begin() + dim, block.values + r * dim))
                                           << block.keys[r];
                                       EXPECT_TRUE(std::equal(rows[i].begin() + dim, rows[i].end(),
                                                              block.slots + r * (optimizer->row_floats(dim) - dim)))
                                           << block.keys[r];
                                     }
                                     return OkStatus();
                                   })
                    .ok());
  }
  EXPECT_EQ(seen, 3u);
}

TEST_P(EveryOptimizer, CountsStepsThatHaveNoKeys) {
  const auto optimizer = MakeOptimizer(GetParam()).value();
  const auto table = Make();
  ASSERT_TRUE(table->Apply(*optimizer, Hyper(*optimizer), {}, nullptr).ok());
  const UpdatePart empty;
  ASSERT_TRUE(table->Apply(*optimizer, Hyper(*optimizer), {&empty, 1}, nullptr).ok());
  EXPECT_EQ(table->table().slots().step, 2u);
  EXPECT_EQ(table->table().slots().optimizer_kind, GetParam());
}

TEST_P(EveryOptimizer, RefusesAWrongNumberOfHyperparametersNamingTheTable) {
  const auto optimizer = MakeOptimizer(GetParam()).value();
  const auto table = Make();
  const std::string before = Contents(table->table());
  std::vector<float> hyper = Hyper(*optimizer);
  hyper.push_back(1.0f);
  const Status status = table->Apply(*optimizer, hyper, {}, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("table user"));
  EXPECT_EQ(Contents(table->table()), before);
}

// The gradient of the step and of the id.
float GradientAt(uint64_t id, int step, size_t column) {
  return 0.25f * static_cast<float>((id * 7 + static_cast<uint64_t>(step) * 3 + column) % 9) - 1.0f;
}

Status TrainStep(EmbeddingTable* table, const Optimizer& optimizer, const std::vector<uint64_t>& ids, int step) {
  const Found found = LookUp(table->table(), ids);
  std::vector<float> gradients;
  for (const uint64_t id : ids) {
    for (size_t c = 0; c < table->dim(); ++c) gradients.push_back(GradientAt(id, step, c));
  }
  const UpdatePart part = PartOf(found, gradients);
  return table->Apply(optimizer, Hyper(optimizer), {&part, 1}, nullptr);
}

TEST_P(EveryOptimizer, DuplicatesOfAStepAreOneUpdateWithTheirSum) {
  const auto optimizer = MakeOptimizer(GetParam()).value();
  const auto apart = Make("", 3), summed = Make("", 3);
  for (int step = 1; step <= 3; ++step) {
    const std::vector<uint64_t> ids = {5, 5, 5, 5};
    const Found found = LookUp(apart->table(), ids);
    const std::vector<float> gradients(ids.size() * 3, 0.25f);
    const UpdatePart part = PartOf(found, gradients);
    ASSERT_TRUE(apart->Apply(*optimizer, Hyper(*optimizer), {&part, 1}, nullptr).ok());
    ASSERT_TRUE(Step(summed.get(), *optimizer, {5}, 1.0f).ok());
  }
  EXPECT_EQ(Contents(apart->table()), Contents(summed->table()));
}

TEST_P(EveryOptimizer, RowsThatAreNotInTheStepDoNotMove) {
  const auto optimizer = MakeOptimizer(GetParam()).value();
  const auto table = Make("", 17);
  ASSERT_TRUE(TrainStep(table.get(), *optimizer, {1, 2, 3}, 1).ok());
  std::vector<float> before(2 * 17), after(2 * 17);
  const std::vector<uint64_t> others = {1, 3};
  table->table().Find(others, before.data(), nullptr, nullptr);
  for (int step = 2; step < 10; ++step) ASSERT_TRUE(TrainStep(table.get(), *optimizer, {2, 4}, step).ok());
  table->table().Find(others, after.data(), nullptr, nullptr);
  EXPECT_EQ(before, after);
}

TEST_P(EveryOptimizer, SavedAndLoadedItGoesOnWithTheSameBits) {
  const auto optimizer = MakeOptimizer(GetParam()).value();
  for (const uint32_t dim : {1, 5, 16}) {
    const auto going = Make("", dim), loaded = Make("", dim);
    const TestDir folder;
    const std::vector<uint64_t> ids = {1, 2, 3, 2};
    for (int step = 1; step <= 4; ++step) ASSERT_TRUE(TrainStep(going.get(), *optimizer, ids, step).ok());
    const Table* const saved[] = {&going->table()};
    Table* const to[] = {&loaded->table()};
    ASSERT_EQ(SaveCheckpoint({}, folder.path(), saved, {.step = 4}), OkStatus());
    ASSERT_TRUE(LoadCheckpoint({}, folder.path(), 4, to, 0).ok());
    ASSERT_EQ(Contents(loaded->table()), Contents(going->table()));
    for (int step = 5; step <= 8; ++step) {
      for (EmbeddingTable* const table : {going.get(), loaded.get()}) {
        ASSERT_TRUE(TrainStep(table, *optimizer, {2, 9, 3}, step).ok());
      }
    }
    EXPECT_EQ(Contents(loaded->table()), Contents(going->table())) << "dim " << dim;
  }
}

TEST_P(EveryOptimizer, TablesOfSeveralWidthsTrainAsEachAlone) {
  const auto optimizer = MakeOptimizer(GetParam()).value();
  const auto train = [&](bool interleaved) {
    std::vector<std::shared_ptr<EmbeddingTable>> tables = {Make("", 1), Make("", 8), Make("", 33)};
    for (int i = 0; i < 15; ++i) {
      const auto& table = interleaved ? tables[i % 3] : tables[i / 5];
      EXPECT_TRUE(TrainStep(table.get(), *optimizer, {1, 2, 3}, interleaved ? i / 3 : i % 5).ok());
    }
    std::string contents;
    for (const auto& table : tables) contents += Contents(table->table());
    return contents;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(EmbeddingTableTest, ASlotOfOneFloatCostsOneFloatARow) {
  const auto rowwise = MakeOptimizer("rowwise_adagrad").value(), adagrad = MakeOptimizer("adagrad").value();
  const auto narrow = Make("", 16), wide = Make("", 16);
  ASSERT_TRUE(Step(narrow.get(), *rowwise, {1, 2, 3}, 1.0f).ok());
  ASSERT_TRUE(Step(wide.get(), *adagrad, {1, 2, 3}, 1.0f).ok());
  EXPECT_EQ(narrow->table().stats().bytes_slots, 3u * 4);
  EXPECT_EQ(wide->table().stats().bytes_slots, 3u * 16 * 4);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryOptimizer, ::testing::ValuesIn(OptimizerKinds()), [](const auto& info) { return info.param; });

TEST(EmbeddingTableTest, AnotherKindOfOptimizerIsRefusedUntilTheTableIsReset) {
  const auto adam = MakeOptimizer("adam").value(), sgd = MakeOptimizer("sgd").value();
  const auto table = Make();
  ASSERT_TRUE(Step(table.get(), *adam, {1, 2}, 1.0f).ok());
  const Status status = Step(table.get(), *sgd, {1}, 1.0f);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("user"), HasSubstr("adam"), HasSubstr("sgd")));
  table->Reset();
  EXPECT_EQ(table->table().size(), 0u);
  EXPECT_TRUE(Step(table.get(), *sgd, {1}, 1.0f).ok());
}

TEST(EmbeddingTableTest, SlotsFromAnotherOptimizersCheckpointAreReplacedWithOneWarning) {
  const auto adam = MakeOptimizer("adam").value(), sgd = MakeOptimizer("sgd").value();
  const auto table = Make(), loaded = Make();
  ASSERT_TRUE(Step(table.get(), *adam, {1, 2}, 1.0f).ok());
  ASSERT_TRUE(testing::CopyInto(table->table(), &loaded->table()).ok());
  LogLines log;
  ASSERT_TRUE(Step(loaded.get(), *sgd, {1}, 1.0f).ok());
  ASSERT_TRUE(Step(loaded.get(), *sgd, {1}, 1.0f).ok());
  const auto lines = log.Take();
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], AllOf(HasSubstr("WARNING"), HasSubstr("user"), HasSubstr("adam"), HasSubstr("sgd")));
  EXPECT_EQ(loaded->table().size(), 2u);
}

TEST(EmbeddingTableTest, ANaNGradientIsAppliedWithOneWarningATable) {
  const auto sgd = MakeOptimizer("sgd").value();
  const auto table = Make();
  LogLines log;
  UpdateReport report;
  ASSERT_TRUE(Step(table.get(), *sgd, {1}, 1.0f).ok());
  EXPECT_THAT(log.Take(), IsEmpty());
  ASSERT_TRUE(Step(table.get(), *sgd, {static_cast<uint64_t>(-7), 1}, std::numeric_limits<float>::quiet_NaN(), &report).ok());
  ASSERT_TRUE(Step(table.get(), *sgd, {1}, std::numeric_limits<float>::quiet_NaN()).ok());
  EXPECT_EQ(report.non_finite_rows, 2u);
  const auto lines = log.Take();
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], AllOf(HasSubstr("WARNING"), HasSubstr("user"), HasSubstr("id 1 "), HasSubstr("2 such rows")));
}

TEST(EmbeddingTableTest, ANaNGradientIsSkippedWithOneWarningUnderSkip) {
  const auto adagrad = MakeOptimizer("adagrad").value();
  const auto table = Make(R"(, "non_finite": "skip")");
  ASSERT_TRUE(Step(table.get(), *adagrad, {1, 2}, 1.0f).ok());
  const Found before = LookUp(table->table(), {1, 2});
  LogLines log;
  UpdateReport report;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Step(table.get(), *adagrad, {1}, std::numeric_limits<float>::infinity(), &report).ok());
  EXPECT_EQ(report.skipped, 1u);
  EXPECT_EQ(LookUp(table->table(), {1, 2}).rows, before.rows);
  const auto lines = log.Take();
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], AllOf(HasSubstr("gradient of id 1 "), HasSubstr("skipped")));
}

TEST(EmbeddingTableTest, ANaNGradientIsRefusedUnderErrorAndNothingChanges) {
  const auto adam = MakeOptimizer("adam").value();
  const auto table = Make(R"(, "non_finite": "error")");
  const std::string empty = Contents(table->table());
  EXPECT_EQ(Step(table.get(), *adam, {1}, std::numeric_limits<float>::quiet_NaN()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Contents(table->table()), empty);
  ASSERT_TRUE(Step(table.get(), *adam, {1}, 1.0f).ok());
  const std::string before = Contents(table->table());
  EXPECT_EQ(Step(table.get(), *adam, {2, 1}, std::numeric_limits<float>::quiet_NaN()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Contents(table->table()), before);
}

TEST(EmbeddingTableTest, CheckedLookupsReportANonFiniteRowByIdAndColumn) {
  const float bad[] = {1.0f, std::numeric_limits<float>::quiet_NaN()};
  const std::vector<uint64_t> bad_id = {5}, ids = {3, 5};
  for (const bool error : {false, true}) {
    for (const bool by_row : {false, true}) {
      const auto table = Make(std::string(R"(, "check_lookups": true)") + (error ? R"(, "non_finite": "error")" : ""));
      ASSERT_TRUE(table->Insert(bad_id, bad, nullptr).ok());
      LogLines log;
      std::vector<float> rows(4), expanded(4);
      std::vector<uint64_t> keys(2);
      Status status;
      for (int i = 0; i < 2; ++i) {
        status = table->Lookup(
            ids, {}, nullptr, by_row ? nullptr : expanded.data(),
            [&](size_t) -> Result<UniqueOutputs> {
              return by_row ? UniqueOutputs{.rows = rows.data(), .keys = keys.data()} : UniqueOutputs();
            },
            nullptr, nullptr);
      }
      const auto lines = log.Take();
      const auto says = AllOf(HasSubstr("user"), HasSubstr("id 5 "), HasSubstr("column 1"));
      if (error) {
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(std::string(status.message()), says);
        EXPECT_THAT(lines, IsEmpty());
      } else {
        EXPECT_TRUE(status.ok());
        ASSERT_THAT(lines, SizeIs(1));
        EXPECT_THAT(lines[0], says);
      }
    }
  }
}

TEST(EmbeddingTableTest, LookupsAreNotCheckedUnlessAsked) {
  const float bad[] = {1.0f, std::numeric_limits<float>::quiet_NaN()};
  const std::vector<uint64_t> ids = {5};
  const auto table = Make();
  ASSERT_TRUE(table->Insert(ids, bad, nullptr).ok());
  LogLines log;
  std::vector<float> expanded(2);
  EXPECT_TRUE(
      table
          ->Lookup(
              ids, {}, nullptr, expanded.data(), [](size_t) -> Result<UniqueOutputs> { return UniqueOutputs(); }, nullptr, nullptr)
          .ok());
  EXPECT_THAT(log.Take(), IsEmpty());
}

TEST(EmbeddingTableTest, TheClockDecidesWhatIsCold) {
  const auto sgd = MakeOptimizer("sgd").value();
  const auto table = Make(R"(, "max_cold_secs": 10)");
  FixedClock clock(100'000);
  ASSERT_TRUE(Step(table.get(), *sgd, {1, 2}, 0.0f).ok());
  SetClockForTesting(105'000);
  ASSERT_TRUE(Step(table.get(), *sgd, {2}, 0.0f).ok());
  SetClockForTesting(110'999);
  EXPECT_EQ(table->EvictCold(nullptr), 0u);
  SetClockForTesting(111'000);
  EXPECT_EQ(table->EvictCold(nullptr), 1u);
  SetClockForTesting(116'000);
  EXPECT_EQ(table->EvictCold(nullptr), 1u);
  EXPECT_EQ(table->table().size(), 0u);
}

TEST(EmbeddingTableTest, TheSystemClockIsBackAfterATest) {
  {
    FixedClock clock(5);
    EXPECT_EQ(NowMs(), 5);
  }
  EXPECT_GT(NowMs(), 1'700'000'000'000);
}

TEST(EmbeddingTableTest, StatsAreOneJsonObject) {
  const auto adam = MakeOptimizer("adam").value();
  const auto table = Make();
  ASSERT_TRUE(Step(table.get(), *adam, {1, 2, 2}, 1.0f).ok());
  const std::vector<uint64_t> keys = {1, 99};
  EXPECT_EQ(table->Erase(keys), 1u);
  const auto json = nlohmann::json::parse(table->StatsJson(), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["name"], "user");
  EXPECT_EQ(json["dim"], 2);
  EXPECT_EQ(json["optimizer"], "adam");
  EXPECT_EQ(json["optimizer_step"], 1);
  EXPECT_EQ(json["rows"], 1);
  EXPECT_EQ(json["inserts"], 2);
  EXPECT_EQ(json["erases"], 1);
  EXPECT_EQ(json["updates"], 2);
  EXPECT_EQ(json["misses"], 2);
  EXPECT_EQ(json["bytes_slots"], 16);
  for (const char* field : {"candidates", "bytes_index", "bytes_rows", "bytes_candidates", "load", "mean_probe_length",
                            "max_probe_length", "evictions", "admissions", "hits", "generation"}) {
    EXPECT_TRUE(json.contains(field) && json[field].is_number()) << field;
  }
}

TEST(EmbeddingTableTest, StrangeNamesAreNamesToo) {
  for (const std::string& name :
       {std::string("a b.c%d/\"\\"), std::string("\xe4\xb8\xad\xe6\x96\x87"), std::string(300, 'x'), std::string("\xff\xfe")}) {
    EmbeddingTableConfig config;
    config.table.name = name;
    config.table.dim = 1;
    const auto table = EmbeddingTable::Create(config).value();
    EXPECT_TRUE(nlohmann::json::accept(table->StatsJson())) << name;
  }
}

TEST(EmbeddingTableTest, ATableWithoutColumnsIsRefused) {
  EXPECT_EQ(EmbeddingTable::Create({}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace mxrec
