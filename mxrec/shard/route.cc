#include "mxrec/shard/route.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "mxrec/kernels/float_mode.h"
#include "mxrec/shard/distinct_ids.h"
#include "mxrec/table/scratch.h"

namespace mxrec {
namespace {

struct RouteScratch {
  DistinctIds distinct;
  std::vector<uint32_t> owners;
  std::vector<uint32_t> places;
};

struct SumScratch {
  std::vector<uint8_t> seen;
};

const HotKey* FindHot(const HotRoute* hot, uint64_t key) {
  if (hot == nullptr) return nullptr;
  const auto found = std::lower_bound(hot->keys.begin(), hot->keys.end(), key,
                                      [](const HotKey& entry, uint64_t wanted) { return entry.key < wanted; });
  return found != hot->keys.end() && found->key == key ? &*found : nullptr;
}

// How often each number comes; `counts` may be null.
void Count(std::span<const int32_t> numbers, size_t size, uint32_t* counts) {
  if (counts == nullptr) return;
  std::fill_n(counts, size, 0);
  for (const int32_t number : numbers) ++counts[number];
}

}  // namespace

Status RouteIds(std::span<const uint64_t> ids, int ranks, OwnerRule rule, int32_t* inverse, std::span<int64_t> splits,
                const std::function<Result<RoutedKeys>(size_t)>& outputs, const HotRoute* hot) {
  const size_t n = ids.size();
  if (n > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return InvalidArgumentError("a lookup takes at most 2147483647 ids, found " + std::to_string(n));
  }
  if (ranks < 1 || splits.size() != static_cast<size_t>(ranks)) {
    return InvalidArgumentError("ids are routed to at least 1 rank with a split for each, found " + std::to_string(ranks) +
                                " ranks and " + std::to_string(splits.size()) + " splits");
  }
  ScratchLease<RouteScratch> scratch;
  DistinctIds& distinct = scratch->distinct;
  distinct.Start();
  distinct.Add(ids, inverse);
  const uint64_t* const keys = distinct.keys();
  const uint32_t unique = static_cast<uint32_t>(distinct.size());

  std::fill(splits.begin(), splits.end(), 0);
  if (hot != nullptr) hot->found->clear();
  if (ranks == 1 && hot == nullptr) {  // already in order
    splits[0] = unique;
    MXREC_ASSIGN_OR_RETURN(const RoutedKeys out, outputs(unique));
    std::copy_n(keys, unique, out.keys);
    Count({inverse, n}, unique, out.counts);
    return OkStatus();
  }
  uint32_t* const owners = Ensure(&scratch->owners, unique);
  for (uint32_t u = 0; u < unique; ++u) {
    if (const HotKey* const entry = FindHot(hot, keys[u])) {
      owners[u] = static_cast<uint32_t>(ranks);  // of nobody
      hot->found->push_back(entry->index);
      ++splits[static_cast<size_t>(hot->me)];
    } else {
      owners[u] = OwnerOf(keys[u], static_cast<uint32_t>(ranks), rule);
      ++splits[owners[u]];
    }
  }

  MXREC_ASSIGN_OR_RETURN(const RoutedKeys out, outputs(unique));
  uint32_t* places = Ensure(&scratch->places, unique + static_cast<size_t>(ranks) + 1);
  uint32_t* next = places + unique;
  uint32_t begin = 0;
  for (int r = 0; r < ranks; ++r) {
    next[r] = begin;
    begin += static_cast<uint32_t>(splits[static_cast<size_t>(r)]);
    if (hot != nullptr && r == hot->me) next[ranks] = begin - static_cast<uint32_t>(hot->found->size());
  }
  for (uint32_t u = 0; u < unique; ++u) {
    const uint32_t place = next[owners[u]]++;
    places[u] = place;
    out.keys[place] = keys[u];
  }
  for (size_t i = 0; i < n; ++i) inverse[i] = static_cast<int32_t>(places[inverse[i]]);
  Count({inverse, n}, unique, out.counts);
  return OkStatus();
}

Status SumRoutedGradients(std::span<const int32_t> index, const float* values, size_t unique, size_t dim, const ScatterTarget& sums,
                          Executor* executor) {
  // As unsigned numbers negative ones are the largest.
  uint32_t largest = 0;
  for (const int32_t u : index) largest = std::max(largest, static_cast<uint32_t>(u));
  if (!index.empty() && largest >= unique) {
    const auto wrong = std::find_if(index.begin(), index.end(), [&](int32_t u) { return static_cast<uint32_t>(u) >= unique; });
    return InvalidArgumentError("index[" + std::to_string(wrong - index.begin()) + "] of a gradient is " + std::to_string(*wrong) +
                                ", expected 0 <= index < " + std::to_string(unique));
  }
  ScratchLease<SumScratch> scratch;
  scratch->seen.assign(unique, 0);
  uint8_t* const seen = scratch->seen.data();
  // Each part does a range of the sums and looks at all indices, which is cheap beside the rows.
  constexpr size_t kLeast = 1024, kMostParts = 16;
  const size_t width = executor == nullptr ? 1 : static_cast<size_t>(executor->concurrency());
  const size_t parts = std::clamp<size_t>(unique / kLeast, 1, std::min(width, kMostParts));
  const auto sum_part = [&](size_t part) {
    const ScopedIeeeFloat ieee;  // the result must not depend on the thread
    const size_t first = unique * part / parts, last = unique * (part + 1) / parts;
    ScatterSumRows(values, index.data(), index.size(), dim, static_cast<int32_t>(first), static_cast<int32_t>(last), seen, sums);
    for (size_t u = first; u < last; ++u) {
      if (seen[u] == 0) std::fill_n(sums.places != nullptr ? sums.places[u] : sums.sums + u * dim, dim, 0.0f);
    }
  };
  if (parts == 1) {
    sum_part(0);
  } else {
    executor->ParallelFor(parts, sum_part);
  }
  return OkStatus();
}

}  // namespace mxrec
