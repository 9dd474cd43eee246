// Table::Lookup and Find. See table.cc for the whole picture.
#include <algorithm>
#include <string>
#include <vector>

#include "mxrec/table/scratch.h"
#include "mxrec/table/table_impl.h"

namespace mxrec {
namespace {

struct GroupScratch {
  std::vector<uint32_t> handles, special, counts;
  std::vector<float> special_rows;
  std::vector<uint32_t> special_of;
};

void FillDefault(const LookupOptions& options, size_t dim, float* row) {
  if (options.default_row.empty()) {
    std::fill_n(row, dim, 0.0f);
  } else {
    std::copy_n(options.default_row.data(), dim, row);
  }
}

bool NeverTrained(const LookupOptions& options, uint64_t key) {
  return std::find(options.never_trained.begin(), options.never_trained.end(), key) != options.never_trained.end();
}

void MarkNeverTrained(const LookupOptions& options, const uint64_t* keys, size_t count, uint32_t* handles) {
  if (options.never_trained.empty()) return;
  for (size_t i = 0; i < count; ++i) {
    if (NeverTrained(options, keys[i])) handles[i] = kNeverTrained;
  }
}

// How often the keys of a group count when each of their occurrences says that itself.
const uint32_t* SumOccurrences(const LookupOptions& options, const KeyBatch& batch, const KeyGroup& group,
                               std::vector<uint32_t>* counts) {
  counts->assign(group.unique_count, 0);
  for (size_t j = group.ids_begin; j < group.ids_end; ++j) {
    uint32_t& count = (*counts)[batch.local()[j]];
    const uint32_t more = options.occurrences[batch.positions()[j]];
    count = more > UINT32_MAX - count ? UINT32_MAX : count + more;
  }
  return counts->data();
}

// Answers the keys that own no row. `special` lists their positions among the group's keys; row_of(i) says where the answer
// for special[i] goes. Replaces their handles by kUnseen or kNotAdmitted.
template <typename RowOf>
void AnswerSpecial(const Table::Impl& impl, const LookupOptions& options, const uint64_t* keys, const uint32_t* counts,
                   const uint32_t* special, size_t special_count, uint32_t* handles, RowOf row_of) {
  const size_t dim = impl.options.dim;
  const uint32_t least = impl.admission() ? impl.options.min_used_times : 0;
  // Neighbours in `special` whose answers lie one behind the other are generated together.
  size_t run_begin = 0, run = 0;
  const auto generate = [&] {
    if (run == 0) return;
    GenerateFirstRows(impl.options.initializer, impl.options.seed, keys + special[run_begin], run, dim, row_of(run_begin), dim);
    run = 0;
  };
  for (size_t i = 0; i < special_count; ++i) {
    const uint32_t at = special[i];
    bool first_row = options.mode == LookupMode::kTrain && !NeverTrained(options, keys[at]);
    if (first_row && least > 1) {
      const uint64_t before = handles[at] == BucketIndex::kAbsent ? 0 : impl.candidate(handles[at])->count;
      first_row = before + counts[at] >= least;
    }
    handles[at] = first_row ? kUnseen : kNotAdmitted;
    if (!first_row) {
      generate();
      FillDefault(options, dim, row_of(i));
      continue;
    }
    if (run > 0 && (special[run_begin] + run != at || row_of(i) != row_of(run_begin) + run * dim)) generate();
    if (run == 0) run_begin = i;
    ++run;
  }
  generate();
}

}  // namespace

Status Table::Lookup(std::span<const uint64_t> ids, const LookupOptions& options, int32_t* inverse, float* expanded,
                     const std::function<Result<UniqueOutputs>(size_t)>& outputs, uint64_t* generation, Executor* executor) const {
  const Impl& impl = *impl_;
  const size_t dim = impl.options.dim, n = ids.size();
  if (n > 0x7FFFFFFFu) {
    return InvalidArgumentError("table " + impl.options.name + ": a lookup takes at most 2147483647 ids, found " +
                                std::to_string(n));
  }
  if (!options.default_row.empty() && options.default_row.size() != dim) {
    return InvalidArgumentError("table " + impl.options.name + ": the default row has " +
                                std::to_string(options.default_row.size()) + " values, expected " + std::to_string(dim));
  }
  if (!options.occurrences.empty() && options.occurrences.size() != n) {
    return InvalidArgumentError("table " + impl.options.name + ": a lookup of " + std::to_string(n) + " ids has " +
                                std::to_string(options.occurrences.size()) + " numbers of occurrences, expected one an id");
  }
  // Read before any shard: an erase that a later probe misses makes this number stale, never the other way round.
  if (generation != nullptr) *generation = this->generation();
  ScratchLease<KeyBatch> batch;
  batch->Build(ids, executor);
  MXREC_ASSIGN_OR_RETURN(const UniqueOutputs out, outputs(batch->unique()));

  const auto groups = batch->groups();
  ForGroups(executor, n, groups.size(), [&](size_t g) {
    const KeyGroup& group = groups[g];
    const size_t count = group.unique_count;
    if (count == 0) return;
    ScratchLease<GroupScratch> scratch;
    const uint64_t* keys = batch->unique_keys(group);
    const uint32_t* counts =
        options.occurrences.empty() ? batch->unique_counts(group) : SumOccurrences(options, *batch, group, &scratch->counts);
    const uint32_t* positions = batch->positions() + group.ids_begin;
    const uint32_t* local = batch->local() + group.ids_begin;
    const size_t occurrences = group.ids_end - group.ids_begin;
    uint32_t* handles = out.handles != nullptr ? out.handles + group.unique_begin : Ensure(&scratch->handles, count);
    uint32_t* special = Ensure(&scratch->special, count + 1);
    float* rows = out.rows != nullptr ? out.rows + static_cast<size_t>(group.unique_begin) * dim : nullptr;
    size_t special_count = 0;
    {
      uint64_t present = 0;
      for (size_t i = 0; i < count; ++i) present |= uint64_t{1} << ShardOfHash(KeyHash(keys[i]));
      const auto wanted = [present](int s) { return (present >> s & 1) != 0; };
      ShardLocks<false, decltype(wanted)> locks(&impl.shards, group.first_shard, group.last_shard, wanted);
      ProbeShard views[kShardCount];
      impl.View(views, group.first_shard, group.last_shard, wanted);
      const ProbeInput probe = impl.Probe(views, keys, count);
      if (rows != nullptr) {
        special_count = ProbeAndGather(probe, rows, handles, special);
        AnswerSpecial(impl, options, keys, counts, special, special_count, handles,
                      [rows, special, dim](size_t i) { return rows + special[i] * dim; });
      } else if (expanded != nullptr) {
        special_count = ProbeAndExpand(probe, local, positions, occurrences, expanded, handles, special);
        float* special_rows = Ensure(&scratch->special_rows, special_count * dim);
        AnswerSpecial(impl, options, keys, counts, special, special_count, handles,
                      [special_rows, dim](size_t i) { return special_rows + i * dim; });
      } else {
        ProbeHandles(probe, handles);
        float* ignored = Ensure(&scratch->special_rows, dim);
        for (size_t i = 0; i < count; ++i) {
          if ((handles[i] & kCandidateBit) == 0) continue;
          const uint32_t one = static_cast<uint32_t>(i);
          AnswerSpecial(impl, options, keys, counts, &one, 1, handles, [ignored](size_t) { return ignored; });
          ++special_count;
        }
      }
    }
    impl.hits.fetch_add(count - special_count, std::memory_order_relaxed);
    impl.misses.fetch_add(special_count, std::memory_order_relaxed);
    if (out.keys != nullptr) std::copy_n(keys, count, out.keys + group.unique_begin);
    if (out.counts != nullptr) std::copy_n(counts, count, out.counts + group.unique_begin);
    if (inverse != nullptr) {
      for (size_t j = 0; j < occurrences; ++j) inverse[positions[j]] = static_cast<int32_t>(group.unique_begin + local[j]);
    }
    if (expanded == nullptr) {
      MarkNeverTrained(options, keys, count, handles);
      return;
    }
    if (rows != nullptr) {
      for (size_t j = 0; j < occurrences; ++j) {
        std::memcpy(expanded + positions[j] * dim, rows + local[j] * dim, dim * sizeof(float));
      }
    } else if (special_count > 0) {
      uint32_t* special_of = Ensure(&scratch->special_of, count);
      for (size_t i = 0; i < special_count; ++i) special_of[special[i]] = static_cast<uint32_t>(i);
      for (size_t j = 0; j < occurrences; ++j) {
        if ((handles[local[j]] & kCandidateBit) == 0) continue;
        std::memcpy(expanded + positions[j] * dim, scratch->special_rows.data() + special_of[local[j]] * dim, dim * sizeof(float));
      }
    }
    MarkNeverTrained(options, keys, count, handles);
  });
  return OkStatus();
}

void Table::Find(std::span<const uint64_t> keys, float* values, bool* found, Executor* executor) const {
  // No dedupe, so no shard order either: blocks of keys under the shared locks of all shards.
  constexpr size_t kBlockKeys = 4096;
  const Impl& impl = *impl_;
  const size_t dim = impl.options.dim;
  ForGroups(executor, keys.size(), (keys.size() + kBlockKeys - 1) / kBlockKeys, [&](size_t block) {
    const size_t begin = block * kBlockKeys, count = std::min(kBlockKeys, keys.size() - begin);
    ScratchLease<GroupScratch> scratch;
    uint32_t* handles = Ensure(&scratch->handles, count);
    uint32_t* special = Ensure(&scratch->special, count + 1);
    const auto wanted = [](int) { return true; };
    ShardLocks<false, decltype(wanted)> locks(&impl.shards, 0, kShardCount, wanted);
    ProbeShard views[kShardCount];
    impl.View(views, 0, kShardCount, wanted);
    const ProbeInput probe = impl.Probe(views, keys.data() + begin, count);
    if (values == nullptr) {
      ProbeHandles(probe, handles);
    } else {
      float* rows = values + begin * dim;
      const size_t special_count = ProbeAndGather(probe, rows, handles, special);
      for (size_t i = 0; i < special_count; ++i) {
        GenerateFirstRows(impl.options.initializer, impl.options.seed, probe.keys + special[i], 1, dim, rows + special[i] * dim,
                          dim);
      }
    }
    if (found == nullptr) return;
    for (size_t i = 0; i < count; ++i) found[begin + i] = (handles[i] & kCandidateBit) == 0;
  });
}

}  // namespace mxrec
