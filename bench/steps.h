// Training steps at engine level, without TensorFlow: what a step's lookup and apply ops do, over batches of kBatch ids.
#ifndef MXREC_BENCH_STEPS_H_
#define MXREC_BENCH_STEPS_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/keys.h"
#include "mxrec/engine/embedding_table.h"
#include "mxrec/kernels/pool_rows.h"

namespace mxrec::bench {

inline std::shared_ptr<EmbeddingTable> MakeTable(size_t dim, const char* name) {
  EmbeddingTableConfig config;
  config.table.name = name;
  config.table.dim = static_cast<uint32_t>(dim);
  return EmbeddingTable::Create(config).value();
}

struct OptimizerUnderTest {
  std::shared_ptr<const Optimizer> optimizer;
  std::vector<float> hyper;
};

inline OptimizerUnderTest Make(const std::string& kind) {
  OptimizerUnderTest result{MakeOptimizer(kind).value(), {}};
  for (const std::string& name : result.optimizer->hyper_names()) {
    result.hyper.push_back(name == "learning_rate"  ? 0.001f
                           : name == "weight_decay" ? 0.004f
                           : name == "epsilon"      ? 1e-6f
                           : name == "beta_2"       ? 0.999f
                                                    : 0.9f);
  }
  return result;
}

// Buffers of one training step at engine level.
struct StepBuffers {
  std::vector<float> expanded, gradients;
  std::vector<int32_t> inverse, bag_of;
  std::vector<uint64_t> unique_keys;
  std::vector<uint32_t> handles, counts;
  std::vector<float> rows;
  size_t unique = 0;
  uint64_t generation = 0;

  explicit StepBuffers(size_t dim)
      : expanded(kBatch * dim),
        gradients(kBatch * dim, 0.01f),
        inverse(kBatch),
        bag_of(kBatch),
        unique_keys(kBatch),
        handles(kBatch),
        counts(kBatch),
        rows(kBatch * dim) {}
};

inline void Check(const Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::exit(2);
}

// dedupe + find + copy of the distinct rows
inline void LookupUnique(EmbeddingTable* table, const uint64_t* ids, StepBuffers* b, Executor* executor) {
  Check(table->Lookup(
      {ids, kBatch}, {}, b->inverse.data(), nullptr,
      [b](size_t unique) -> Result<UniqueOutputs> {
        b->unique = unique;
        return UniqueOutputs{b->rows.data(), b->unique_keys.data(), b->handles.data(), b->counts.data()};
      },
      &b->generation, executor));
}

// What the lookup said, with a gradient for each id.
inline UpdatePart PartOf(const StepBuffers& b) {
  UpdatePart part;
  part.keys = {b.unique_keys.data(), b.unique};
  part.handles = {b.handles.data(), b.unique};
  part.counts = {b.counts.data(), b.unique};
  part.generation = b.generation;
  part.index = b.inverse;
  part.values = b.gradients.data();
  return part;
}

// dedupe, find, expand, segment sum, fused update
inline void TrainStep(EmbeddingTable* table, const OptimizerUnderTest& optimizer, const uint64_t* ids, StepBuffers* b,
                      Executor* executor) {
  Check(table->Lookup(
      {ids, kBatch}, {}, b->inverse.data(), b->expanded.data(),
      [b](size_t unique) -> Result<UniqueOutputs> {
        b->unique = unique;
        return UniqueOutputs{nullptr, b->unique_keys.data(), b->handles.data(), b->counts.data()};
      },
      &b->generation, executor));
  const UpdatePart part = PartOf(*b);
  Check(table->Apply(*optimizer.optimizer, optimizer.hyper, {&part, 1}, executor));
}

inline constexpr size_t kBagIds = 8;

// Offsets of a batch in bags of kBagIds ids.
inline std::vector<int32_t> BagOffsets() {
  std::vector<int32_t> offsets;
  for (size_t at = 0; at <= kBatch; at += kBagIds) offsets.push_back(static_cast<int32_t>(at));
  return offsets;
}

// dedupe, find, pool bags of 8 to their sums; back: the bags' gradients, segment sum, fused update
inline void PooledStep(EmbeddingTable* table, const OptimizerUnderTest& optimizer, const uint64_t* ids,
                       const std::vector<int32_t>& offsets, StepBuffers* b, Executor* executor) {
  LookupUnique(table, ids, b, executor);
  const size_t count = offsets.size() - 1;
  const Bags bags = {offsets.data(), count, b->inverse.data(), kBatch, nullptr, Combiner::kSum};
  if (PoolRows(b->rows.data(), b->unique, table->dim(), bags, 0, count, b->expanded.data()) != kBatch) std::exit(2);
  OccurrenceScales(bags, 0, count, b->bag_of.data(), nullptr);
  UpdatePart part = PartOf(*b);
  part.first_rows = b->rows.data();
  part.value_rows = b->bag_of;
  part.value_count = count;
  Check(table->Apply(*optimizer.optimizer, optimizer.hyper, {&part, 1}, executor));
}

inline void Fill(EmbeddingTable* table, const std::vector<uint64_t>& keys, const OptimizerUnderTest* optimizer) {
  InlineExecutor inline_executor;
  if (optimizer != nullptr) Check(table->Apply(*optimizer->optimizer, optimizer->hyper, {}, &inline_executor));
  for (size_t at = 0; at < keys.size(); at += kBatch) {
    Check(table->Insert({keys.data() + at, std::min(kBatch, keys.size() - at)}, nullptr, &inline_executor));
  }
}

}  // namespace mxrec::bench

#endif  // MXREC_BENCH_STEPS_H_
