#include "mxrec/shard/route.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "mxrec/kernels/sum_rows.h"
#include "mxrec/table/scratch.h"

namespace mxrec {
namespace {

struct RouteScratch {
  std::vector<uint32_t> slots;  // open addressing: 1 + number of the key, 0 where free
  std::vector<uint64_t> keys;   // distinct, by first occurrence
  std::vector<uint32_t> counts;
  std::vector<uint32_t> owners;
  std::vector<uint32_t> places;
};

struct SumScratch {
  std::vector<uint32_t> offsets, which;
};

constexpr size_t kAhead = 16;

const HotKey* FindHot(const HotRoute* hot, uint64_t key) {
  if (hot == nullptr) return nullptr;
  const auto found = std::lower_bound(hot->keys.begin(), hot->keys.end(), key,
                                      [](const HotKey& entry, uint64_t wanted) { return entry.key < wanted; });
  return found != hot->keys.end() && found->key == key ? &*found : nullptr;
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
  const size_t capacity = std::bit_ceil(std::max<size_t>(16, 2 * n));
  scratch->slots.assign(capacity, 0);
  uint32_t* slots = scratch->slots.data();
  uint64_t* keys = Ensure(&scratch->keys, n);
  uint32_t* counts = Ensure(&scratch->counts, n);
  uint32_t* owners = Ensure(&scratch->owners, n);
  std::fill(splits.begin(), splits.end(), 0);
  if (hot != nullptr) hot->found->clear();

  uint32_t unique = 0;
  const size_t mask = capacity - 1;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(slots + (Mix64(ids[i + kAhead]) & mask), 1);
    const uint64_t key = ids[i];
    size_t slot = Mix64(key) & mask;
    while (slots[slot] != 0 && keys[slots[slot] - 1] != key) slot = (slot + 1) & mask;
    if (slots[slot] == 0) {
      slots[slot] = ++unique;
      keys[unique - 1] = key;
      counts[unique - 1] = 0;
      if (const HotKey* const entry = FindHot(hot, key)) {
        owners[unique - 1] = static_cast<uint32_t>(ranks);  // of nobody
        hot->found->push_back(entry->index);
        ++splits[static_cast<size_t>(hot->me)];
      } else {
        owners[unique - 1] = OwnerOf(key, static_cast<uint32_t>(ranks), rule);
        ++splits[owners[unique - 1]];
      }
    }
    const uint32_t number = slots[slot] - 1;
    ++counts[number];
    inverse[i] = static_cast<int32_t>(number);
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
    if (out.counts != nullptr) out.counts[place] = counts[u];
  }
  for (size_t i = 0; i < n; ++i) inverse[i] = static_cast<int32_t>(places[inverse[i]]);
  return OkStatus();
}

Status SumRoutedGradients(std::span<const int32_t> index, const float* values, size_t unique, size_t dim, float* sums,
                          Executor* executor) {
  ScratchLease<SumScratch> scratch;
  scratch->offsets.assign(unique + 2, 0);
  uint32_t* offsets = scratch->offsets.data();
  for (size_t j = 0; j < index.size(); ++j) {
    if (index[j] < 0 || static_cast<size_t>(index[j]) >= unique) {
      return InvalidArgumentError("index[" + std::to_string(j) + "] of a gradient is " + std::to_string(index[j]) +
                                  ", expected 0 <= index < " + std::to_string(unique));
    }
    ++offsets[index[j] + 2];
  }
  for (size_t u = 2; u < unique + 2; ++u) offsets[u] += offsets[u - 1];
  uint32_t* which = Ensure(&scratch->which, index.size());
  // offsets[u + 1] runs from the begin of u to its end, where the next one begins.
  for (size_t j = 0; j < index.size(); ++j) which[offsets[index[j] + 1]++] = static_cast<uint32_t>(j);

  constexpr size_t kBlock = 1024;
  const auto sum_block = [&](size_t block) {
    for (size_t u = block * kBlock; u < std::min(unique, (block + 1) * kBlock); ++u) {
      float* sum = sums + u * dim;
      const uint32_t first = offsets[u], count = offsets[u + 1] - first;
      if (count == 0) {
        std::fill_n(sum, dim, 0.0f);
        continue;
      }
      SumRows(values, which + first, nullptr, count, dim, /*onto=*/false, sum);
    }
  };
  const size_t blocks = (unique + kBlock - 1) / kBlock;
  if (executor == nullptr || blocks < 2) {
    for (size_t block = 0; block < blocks; ++block) sum_block(block);
  } else {
    executor->ParallelFor(blocks, sum_block);
  }
  return OkStatus();
}

}  // namespace mxrec
