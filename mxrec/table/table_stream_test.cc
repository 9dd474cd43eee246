// Long random streams of table operations: against a plain map (D-10), and with different numbers of threads (D-19).
#include <algorithm>
#include <bit>
#include <limits>
#include <map>

#include "gtest/gtest.h"
#include "mxrec/base/hash.h"
#include "mxrec/base/thread_pool.h"
#include "mxrec/table/table_test_util.h"

namespace mxrec {
namespace {

using testing::Contents;
using testing::CopyInto;
using testing::Found;
using testing::LookUp;
using testing::MakeTable;
using testing::PartOf;
using testing::SeedText;
using testing::SlottedStep;
using testing::SubtractGradient;
using testing::TestSeed;

constexpr uint32_t kDim = 3;

struct ModelRow {
  std::vector<float> values;
  uint32_t count = 0;
  uint64_t seen = 0;
};

// What a table is, said with maps.
struct Model {
  TableOptions options;
  std::map<uint64_t, ModelRow> rows;
  std::map<uint64_t, std::pair<uint32_t, uint64_t>> candidates;  // count, last seen

  std::vector<float> FirstRow(uint64_t key) const {
    std::vector<float> row(kDim);
    GenerateFirstRowsReference(options.initializer, options.seed, &key, 1, kDim, row.data(), kDim);
    return row;
  }
  bool admission() const { return options.min_used_times > 1; }
};

class Stream {
 public:
  Stream(TableOptions options, uint64_t seed, Executor* executor)
      : random_(seed), executor_(executor), table_(MakeTable(options)), model_{options, {}, {}} {
    const uint64_t special[] = {0,
                                ~uint64_t{0},
                                static_cast<uint64_t>(std::numeric_limits<int64_t>::min()),
                                static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
                                1,
                                ~uint64_t{0} - 1};
    keys_.assign(std::begin(special), std::end(special));
    while (keys_.size() < 3000) keys_.push_back(random_());
  }

  uint64_t operations() const { return operations_; }

  void Step() {
    now_ms_ += static_cast<int64_t>(random_() % 700);
    const uint64_t pick = random_() % 100;
    if (pick < 55) {
      Update();
    } else if (pick < 75) {
      Predict();
    } else if (pick < 85) {
      Insert();
    } else if (pick < 95) {
      Erase();
    } else if (pick < 98) {
      Evict();
    } else if (random_() % 6 == 0) {
      table_->Clear();
      model_.rows.clear();
      model_.candidates.clear();
    } else {
      Reload();
    }
  }

  // Every row and candidate of both.
  void CompareAll() {
    const auto snapshot = table_->TakeSnapshot();
    ASSERT_EQ(snapshot->rows(), model_.rows.size());
    ASSERT_EQ(snapshot->candidates(), model_.candidates.size());
    ASSERT_EQ(table_->size(), model_.rows.size());
    size_t seen = 0;
    for (int shard = 0; shard < kShardCount; ++shard) {
      ASSERT_TRUE(snapshot
                      ->ForEachBlock(shard, 100,
                                     [&](const RowBlock& block) {
                                       for (size_t i = 0; i < block.count; ++i, ++seen) {
                                         const auto it = model_.rows.find(block.keys[i]);
                                         if (it == model_.rows.end())
                                           return InternalError("key " + std::to_string(block.keys[i]) + " should not be there");
                                         const bool same =
                                             std::equal(it->second.values.begin(), it->second.values.end(),
                                                        block.values + i * kDim) &&
                                             (block.use_counts == nullptr || block.use_counts[i] == it->second.count) &&
                                             (block.last_seen_ms == nullptr || block.last_seen_ms[i] == it->second.seen);
                                         if (!same) return InternalError("key " + std::to_string(block.keys[i]) + " differs");
                                       }
                                       return OkStatus();
                                     })
                      .ok());
      ASSERT_TRUE(snapshot
                      ->ForEachCandidate(shard,
                                         [&](std::span<const Candidate> block) {
                                           for (const Candidate& c : block) {
                                             const auto it = model_.candidates.find(c.key);
                                             if (it == model_.candidates.end() ||
                                                 it->second != std::make_pair(c.count, c.last_seen_ms)) {
                                               return InternalError("candidate " + std::to_string(c.key) + " differs");
                                             }
                                           }
                                           return OkStatus();
                                         })
                      .ok());
    }
    ASSERT_EQ(seen, model_.rows.size());
  }

 private:
  std::vector<uint64_t> Draw(size_t most) {
    std::vector<uint64_t> ids(random_() % (most + 1));
    // Squared, so that some keys come often.
    for (uint64_t& id : ids) {
      const double u = static_cast<double>(random_() >> 11) * 0x1.0p-53;
      id = keys_[static_cast<size_t>(u * u * static_cast<double>(keys_.size()))];
    }
    operations_ += ids.size();
    return ids;
  }

  // A training lookup, checked against the model.
  Found Checked(const std::vector<uint64_t>& ids) {
    const Found found = LookUp(*table_, ids, {}, executor_);
    std::map<uint64_t, uint32_t> counts;
    for (const uint64_t id : ids) ++counts[id];
    EXPECT_EQ(found.keys.size(), counts.size());
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(found.keys[found.inverse[i]], ids[i]);
    for (size_t u = 0; u < found.keys.size(); ++u) {
      const uint64_t key = found.keys[u];
      EXPECT_EQ(found.counts[u], counts[key]);
      std::vector<float> expected(kDim, 0.0f);
      if (const auto it = model_.rows.find(key); it != model_.rows.end()) {
        expected = it->second.values;
        EXPECT_LT(found.handles[u], 0x80000000u);
      } else {
        const auto candidate = model_.candidates.find(key);
        const uint64_t before = candidate == model_.candidates.end() ? 0 : candidate->second.first;
        const bool admitted = !model_.admission() || before + counts[key] >= model_.options.min_used_times;
        if (admitted) expected = model_.FirstRow(key);
        EXPECT_EQ(found.handles[u], admitted ? kUnseen : kNotAdmitted);
      }
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), found.rows.begin() + static_cast<ptrdiff_t>(u * kDim))) << key;
    }
    return found;
  }

  void Update() {
    const size_t part_count = 1 + random_() % 3;
    std::vector<std::vector<uint64_t>> ids(part_count);
    std::vector<Found> found(part_count);
    std::vector<std::vector<float>> gradients(part_count);
    std::vector<UpdatePart> parts(part_count);
    std::map<uint64_t, uint64_t> counts;
    std::map<uint64_t, std::vector<const float*>> of_key;
    for (size_t p = 0; p < part_count; ++p) {
      ids[p] = Draw(60);
      found[p] = Checked(ids[p]);
      // Now and then something is erased between the lookup and the update, and its place given to others.
      if (random_() % 20 == 0) {
        Erase();
        Insert();
      }
    }
    for (size_t p = 0; p < part_count; ++p) {
      const bool dense = random_() % 4 == 0;
      gradients[p].resize((dense ? found[p].keys.size() : ids[p].size()) * kDim);
      for (float& g : gradients[p]) g = static_cast<float>(static_cast<int>(random_() % 9) - 4) * 0.25f;
      parts[p] = PartOf(found[p], gradients[p]);
      if (random_() % 3 == 0) parts[p].first_rows = nullptr;
      if (dense) {
        parts[p].index = {};
        parts[p].dense = true;
      }
      for (size_t u = 0; u < found[p].keys.size(); ++u) counts[found[p].keys[u]] += found[p].counts[u];
      const size_t rows = gradients[p].size() / kDim;
      for (size_t j = 0; j < rows; ++j) {
        const size_t u = dense ? j : static_cast<size_t>(found[p].inverse[j]);
        if (found[p].handles[u] != kNotAdmitted) of_key[found[p].keys[u]].push_back(gradients[p].data() + j * kDim);
      }
    }
    SubtractGradient updater(kDim);
    UpdateOptions options;
    options.now_ms = now_ms_;
    UpdateReport report;
    const Status status = table_->Update(parts, &updater, options, executor_, &report);
    ASSERT_TRUE(status.ok()) << status;
    uint64_t inserted = 0, admitted = 0, updated = 0;
    for (const auto& [key, count] : counts) {
      auto it = model_.rows.find(key);
      if (it == model_.rows.end()) {
        const auto candidate = model_.candidates.find(key);
        const uint64_t before = candidate == model_.candidates.end() ? 0 : candidate->second.first;
        if (model_.admission() && before + count < model_.options.min_used_times) {
          model_.candidates[key] = {static_cast<uint32_t>(before + count), now_ms_};
          continue;
        }
        if (candidate != model_.candidates.end()) {
          ++admitted;
          model_.candidates.erase(candidate);
        }
        it = model_.rows.insert({key, {model_.FirstRow(key), static_cast<uint32_t>(before), 0}}).first;
        ++inserted;
      }
      it->second.count += static_cast<uint32_t>(count);
      it->second.seen = static_cast<uint64_t>(now_ms_);
      const auto grads = of_key.find(key);
      if (grads == of_key.end()) continue;
      ++updated;
      for (size_t d = 0; d < kDim; ++d) {
        float sum = grads->second[0][d];
        for (size_t g = 1; g < grads->second.size(); ++g) sum += grads->second[g][d];
        it->second.values[d] -= sum;
      }
    }
    EXPECT_EQ(report.inserted, inserted);
    EXPECT_EQ(report.admitted, admitted);
    EXPECT_EQ(report.updated, updated);
  }

  void Predict() {
    const std::vector<uint64_t> ids = Draw(100);
    const std::vector<float> otherwise = {7.0f, 8.0f, 9.0f};
    LookupOptions options;
    options.mode = LookupMode::kPredict;
    options.default_row = otherwise;
    std::vector<float> expanded(ids.size() * kDim);
    ASSERT_TRUE(table_
                    ->Lookup(
                        ids, options, nullptr, expanded.data(), [](size_t) -> Result<UniqueOutputs> { return UniqueOutputs(); },
                        nullptr, executor_)
                    .ok());
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto it = model_.rows.find(ids[i]);
      const std::vector<float>& expected = it == model_.rows.end() ? otherwise : it->second.values;
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), expanded.begin() + static_cast<ptrdiff_t>(i * kDim))) << ids[i];
    }
    const auto found = std::make_unique<bool[]>(ids.size() + 1);
    table_->Find(ids, expanded.data(), found.get(), executor_);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto it = model_.rows.find(ids[i]);
      ASSERT_EQ(found[i], it != model_.rows.end());
      const std::vector<float> expected = it == model_.rows.end() ? model_.FirstRow(ids[i]) : it->second.values;
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), expanded.begin() + static_cast<ptrdiff_t>(i * kDim))) << ids[i];
    }
  }

  void Insert() {
    const std::vector<uint64_t> keys = Draw(30);
    const bool with_values = random_() % 2 == 0;
    std::vector<float> values(keys.size() * kDim);
    for (float& v : values) v = static_cast<float>(random_() % 1000);
    uint64_t inserted = 0, expected_inserted = 0;
    const Status status = table_->Insert(keys, with_values ? values.data() : nullptr, now_ms_, executor_, &inserted);
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < keys.size(); ++i) {
      auto it = model_.rows.find(keys[i]);
      if (it == model_.rows.end()) {
        uint32_t count = 0;
        if (const auto candidate = model_.candidates.find(keys[i]); candidate != model_.candidates.end()) {
          count = candidate->second.first;
          model_.candidates.erase(candidate);
        }
        it = model_.rows.insert({keys[i], {model_.FirstRow(keys[i]), count, 0}}).first;
        ++expected_inserted;
      }
      it->second.seen = static_cast<uint64_t>(now_ms_);
      if (with_values)
        it->second.values.assign(values.begin() + static_cast<ptrdiff_t>(i * kDim),
                                 values.begin() + static_cast<ptrdiff_t>((i + 1) * kDim));
    }
    ASSERT_EQ(inserted, expected_inserted);
  }

  void Erase() {
    const std::vector<uint64_t> keys = Draw(40);
    uint64_t expected = 0;
    for (const uint64_t key : keys) {
      expected += model_.rows.erase(key);
      model_.candidates.erase(key);
    }
    ASSERT_EQ(table_->Erase(keys), expected);
  }

  void Evict() {
    uint64_t expected = 0;
    const auto is_cold = [this](uint64_t seen) {
      return (static_cast<uint64_t>(now_ms_) - seen) / 1000 > model_.options.max_cold_secs;
    };
    if (model_.options.max_cold_secs > 0) {
      expected = std::erase_if(model_.rows, [&](const auto& row) { return is_cold(row.second.seen); });
      std::erase_if(model_.candidates, [&](const auto& candidate) { return is_cold(candidate.second.second); });
    }
    ASSERT_EQ(table_->EvictCold(now_ms_, executor_), expected);
  }

  void Reload() {
    auto other = MakeTable(model_.options);
    ASSERT_TRUE(CopyInto(*table_, other.get()).ok());
    ASSERT_EQ(Contents(*table_), Contents(*other));
    table_ = std::move(other);
  }

  std::mt19937_64 random_;
  Executor* executor_;
  std::unique_ptr<Table> table_;
  Model model_;
  std::vector<uint64_t> keys_;
  int64_t now_ms_ = 1'700'000'000'000;
  uint64_t operations_ = 0;
};

void RunStream(TableOptions options, uint64_t default_seed) {
  const uint64_t seed = TestSeed(default_seed);
  SCOPED_TRACE(SeedText(seed));
  options.dim = kDim;
  ThreadPool pool(2);
  Stream stream(options, seed, &pool);
  for (int step = 0; stream.operations() < 150'000; ++step) {
    stream.Step();
    if (step % 50 == 0) stream.CompareAll();
    if (::testing::Test::HasFailure()) FAIL() << "at step " << step;
  }
  stream.CompareAll();
}

TEST(TableStreamTest, D10AStreamOfOperationsAgreesWithAPlainMap) { RunStream(testing::SmallOptions(kDim), 1); }

TEST(TableStreamTest, D10SoItDoesWithCountsAndTimesAndEviction) {
  TableOptions options = testing::SmallOptions(kDim);
  options.keep_counts = true;
  options.max_cold_secs = 20;
  RunStream(options, 2);
}

TEST(TableStreamTest, D10SoItDoesWithAdmissionAndEviction) {
  TableOptions options = testing::SmallOptions(kDim);
  options.keep_counts = true;
  options.min_used_times = 4;
  options.max_cold_secs = 30;
  RunStream(options, 3);
}

// A stream of training steps on one table; returns all it holds in the end.
std::string Trained(int threads, uint64_t seed) {
  TableOptions options = testing::SmallOptions(8);
  options.keep_counts = true;
  options.min_used_times = 2;
  options.max_cold_secs = 1000;
  auto table = MakeTable(options);
  ThreadPool pool(threads);
  std::mt19937_64 random(seed);
  SlottedStep updater("slotted", 8, 2);
  for (int step = 0; step < 6; ++step) {
    Found found[2];
    std::vector<float> gradients[2];
    std::vector<UpdatePart> parts;
    for (int p = 0; p < 2; ++p) {
      std::vector<uint64_t> ids(p == 0 ? 40'000 : 7'000);
      for (uint64_t& id : ids) id = Mix64(random() % (random() % 20'000 + 1));
      found[p] = LookUp(*table, ids, {}, &pool);
      gradients[p].resize(ids.size() * 8);
      for (float& g : gradients[p]) g = static_cast<float>(static_cast<int32_t>(random())) * 0x1.0p-31f;
      parts.push_back(PartOf(found[p], gradients[p]));
    }
    UpdateOptions update;
    update.now_ms = 1000 * (step + 1);
    const Status status = table->Update(parts, &updater, update, &pool, nullptr);
    EXPECT_TRUE(status.ok()) << status;
    std::vector<uint64_t> erased(500);
    for (uint64_t& id : erased) id = Mix64(random() % 20'000);
    table->Erase(erased);
  }
  return Contents(*table);
}

TEST(TableStreamTest, D19EqualContentsForAnyNumberOfThreadsAndEveryRun) {
  const uint64_t seed = TestSeed(19);
  SCOPED_TRACE(SeedText(seed));
  const std::string one = Trained(1, seed);
  EXPECT_GT(one.size(), 1'000'000u);
  for (const int threads : {1, 2, 4, 16, 16}) EXPECT_TRUE(one == Trained(threads, seed)) << threads << " threads";
}

}  // namespace
}  // namespace mxrec
