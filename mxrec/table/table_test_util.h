// What the tests of tables share: a lookup with its arrays, small updaters, the contents of a table as one string.
#ifndef MXREC_TABLE_TABLE_TEST_UTIL_H_
#define MXREC_TABLE_TABLE_TEST_UTIL_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "mxrec/base/executor.h"
#include "mxrec/base/hash.h"
#include "mxrec/table/table.h"

namespace mxrec::testing {

// The seed of a random test: MXREC_TEST_SEED, else `otherwise`. Print it with SCOPED_TRACE.
inline uint64_t TestSeed(uint64_t otherwise) {
  const char* given = std::getenv("MXREC_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : otherwise;
}
inline std::string SeedText(uint64_t seed) { return "replay with MXREC_TEST_SEED=" + std::to_string(seed); }

inline TableOptions SmallOptions(uint32_t dim, const std::string& name = "user") {
  TableOptions options;
  options.name = name;
  options.dim = dim;
  options.seed = 77;
  return options;
}

inline std::unique_ptr<Table> MakeTable(TableOptions options) { return Table::Create(std::move(options)).value(); }

// The keys begin .. end - 1.
inline std::vector<uint64_t> Range(uint64_t begin, uint64_t end) {
  std::vector<uint64_t> ids;
  for (uint64_t id = begin; id < end; ++id) ids.push_back(id);
  return ids;
}

// What Find says of one key.
inline std::vector<float> RowOf(const Table& table, uint64_t key) {
  std::vector<float> row(table.options().dim);
  table.Find({&key, 1}, row.data(), nullptr, nullptr);
  return row;
}
inline bool Has(const Table& table, uint64_t key) {
  bool found = false;
  table.Find({&key, 1}, nullptr, &found, nullptr);
  return found;
}

// w -= g, no slots, nothing attached.
class SubtractGradient final : public RowUpdater {
 public:
  explicit SubtractGradient(size_t dim) : dim_(dim) {}
  Status Begin(SlotRecord*) override { return OkStatus(); }
  size_t UpdateRows(float* const* rows, const float* const* grads, size_t count) const override {
    size_t bad = 0;
    for (size_t i = 0; i < count; ++i) {
      bool finite = true;
      for (size_t d = 0; d < dim_; ++d) {
        rows[i][d] -= grads[i][d];
        finite = finite && rows[i][d] - rows[i][d] == 0.0f;
      }
      bad += !finite;
    }
    return bad;
  }

 private:
  size_t dim_;
};

// w -= g; slot s += g * g + s; attaches `kind`, counts steps.
class SlottedStep final : public RowUpdater {
 public:
  SlottedStep(std::string kind, size_t dim, size_t slots, float initial = 0.5f)
      : kind_(std::move(kind)), dim_(dim), slots_(slots), initial_(initial) {}
  Status Begin(SlotRecord* record) override {
    if (record->optimizer_kind != kind_) *record = SlotRecord();
    record->optimizer_kind = kind_;
    record->slot_names.clear();
    for (size_t s = 0; s < slots_; ++s) record->slot_names.push_back("slot" + std::to_string(s));
    record->slot_initial_values.assign(slots_, initial_);
    ++record->step;
    record->scalar_names = {"power"};
    record->scalars = {1.0f / static_cast<float>(1 + record->step)};
    return OkStatus();
  }
  void OnSlotsReplaced(const std::string& kind_before) override { replaced_ = kind_before; }
  size_t UpdateRows(float* const* rows, const float* const* grads, size_t count) const override {
    for (size_t i = 0; i < count; ++i) {
      for (size_t d = 0; d < dim_; ++d) {
        rows[i][d] -= grads[i][d];
        for (size_t s = 0; s < slots_; ++s) rows[i][(1 + s) * dim_ + d] += grads[i][d] * grads[i][d] + static_cast<float>(s);
      }
    }
    return 0;
  }
  const std::string& replaced() const { return replaced_; }

 private:
  std::string kind_;
  size_t dim_, slots_;
  float initial_;
  std::string replaced_;
};

// A lookup and the arrays it filled.
struct Found {
  std::vector<float> rows;
  std::vector<uint64_t> keys;
  std::vector<uint32_t> handles, counts;
  std::vector<int32_t> inverse;
  uint64_t generation = 0;

  std::span<const float> row_of(size_t occurrence, size_t dim) const {
    return std::span<const float>(rows).subspan(static_cast<size_t>(inverse[occurrence]) * dim, dim);
  }
};

inline Found LookUp(const Table& table, const std::vector<uint64_t>& ids, const LookupOptions& options = {},
                    Executor* executor = nullptr) {
  Found found;
  found.inverse.resize(ids.size());
  const auto outputs = [&](size_t unique) -> Result<UniqueOutputs> {
    found.rows.resize(unique * table.options().dim);
    found.keys.resize(unique);
    found.handles.resize(unique);
    found.counts.resize(unique);
    return UniqueOutputs{found.rows.data(), found.keys.data(), found.handles.data(), found.counts.data()};
  };
  const Status status = table.Lookup(ids, options, found.inverse.data(), nullptr, outputs, &found.generation, executor);
  EXPECT_TRUE(status.ok()) << status;
  return found;
}

// The part of an update that a lookup gives, with one gradient row an occurrence. Points into both arguments.
inline UpdatePart PartOf(const Found& found, const std::vector<float>& gradients) {
  UpdatePart part;
  part.keys = found.keys;
  part.handles = found.handles;
  part.counts = found.counts;
  part.generation = found.generation;
  part.first_rows = found.rows.data();
  part.index = found.inverse;
  part.values = gradients.data();
  return part;
}

inline std::vector<uint64_t> Spread(uint64_t begin, uint64_t end) {
  std::vector<uint64_t> ids;
  for (uint64_t id = begin; id < end; ++id) ids.push_back(Mix64(id));
  return ids;
}

// One training step: look up, apply one gradient to every occurrence.
inline Status Train(Table* table, const std::vector<uint64_t>& ids, float gradient, RowUpdater* updater,
                    const UpdateOptions& options = {}, Executor* executor = nullptr, UpdateReport* report = nullptr) {
  const Found found = LookUp(*table, ids, {}, executor);
  const std::vector<float> gradients(ids.size() * table->options().dim, gradient);
  const UpdatePart part = PartOf(found, gradients);
  return table->Update({&part, 1}, updater, options, executor, report);
}

// Everything a snapshot shows, as bytes: equal contents give equal strings.
inline std::string Contents(const Table& table) {
  std::string out;
  const auto put = [&out](const void* data, size_t bytes) { out.append(static_cast<const char*>(data), bytes); };
  const auto snapshot = table.TakeSnapshot();
  const SlotRecord slots = snapshot->slots();
  out += slots.optimizer_kind + "/" + std::to_string(slots.step) + "/" + std::to_string(slots.slot_names.size()) + "/";
  for (const std::string& name : slots.slot_names) out += name + ",";
  put(slots.slot_initial_values.data(), slots.slot_initial_values.size() * 4);
  put(slots.scalars.data(), slots.scalars.size() * 4);
  const size_t dim = table.options().dim, slot_floats = slots.slot_floats(dim);
  const EvictionState eviction = snapshot->eviction();
  put(&eviction.time, 8);
  put(&eviction.row_hand, 4);
  put(&eviction.candidate_hand, 4);
  uint64_t rows = 0, candidates = 0;
  for (int shard = 0; shard < kShardCount; ++shard) {
    EXPECT_TRUE(snapshot
                    ->ForEachBlock(shard, 1000,
                                   [&](const RowBlock& block) {
                                     rows += block.count;
                                     put(block.keys, block.count * 8);
                                     put(block.values, block.count * dim * 4);
                                     put(block.slots, block.count * slot_floats * 4);
                                     if (block.use_counts != nullptr) put(block.use_counts, block.count * 4);
                                     if (block.last_seen_ms != nullptr) put(block.last_seen_ms, block.count * 8);
                                     if (block.use_stamps != nullptr) put(block.use_stamps, block.count * 4);
                                     return OkStatus();
                                   })
                    .ok());
    EXPECT_TRUE(snapshot
                    ->ForEachCandidate(shard,
                                       [&](std::span<const Candidate> block) {
                                         candidates += block.size();
                                         for (const Candidate& c : block)
                                           out += std::to_string(c.key) + ":" + std::to_string(c.count) + "@" +
                                                  std::to_string(c.last_seen_ms) + ";";
                                         return OkStatus();
                                       })
                    .ok());
  }
  EXPECT_EQ(rows, snapshot->rows());
  EXPECT_EQ(candidates, snapshot->candidates());
  return out;
}

// Copies a table through Snapshot and Loader.
inline Status CopyInto(const Table& from, Table* to, int64_t now_ms = 0) {
  const auto snapshot = from.TakeSnapshot();
  MXREC_ASSIGN_OR_RETURN(const auto loader, to->BeginLoad(snapshot->slots(), snapshot->rows(), now_ms, snapshot->eviction()));
  for (int shard = 0; shard < kShardCount; ++shard) {
    MXREC_RETURN_IF_ERROR(snapshot->ForEachBlock(shard, 777, [&](const RowBlock& block) { return loader->AddRows(block); }));
    MXREC_RETURN_IF_ERROR(
        snapshot->ForEachCandidate(shard, [&](std::span<const Candidate> block) { return loader->AddCandidates(block); }));
  }
  loader->Commit();
  return OkStatus();
}

}  // namespace mxrec::testing

#endif  // MXREC_TABLE_TABLE_TEST_UTIL_H_
