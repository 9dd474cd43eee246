#include "mxrec/table/occurrences.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <utility>

#include "mxrec/base/atomic_min.h"
#include "mxrec/table/batch.h"
#include "mxrec/table/scratch.h"

namespace mxrec {
namespace {

constexpr size_t kSlice = 16384;  // occurrences that one task goes through
constexpr size_t kBins = 64;

// A run of occurrences of one part.
struct Slice {
  size_t part;
  size_t begin, end;
  size_t key_base, value_base;  // keys and value rows of the parts before
};

struct BinScratch {
  std::vector<uint32_t> next;
};

// Calls visit(merged key, occurrence) for each one that takes part; returns the first one that names no key, or slice.end.
template <typename Visit>
size_t EachOccurrence(const OccurrenceInput& in, const Slice& slice, Visit visit) {
  const UpdatePart& part = in.parts[slice.part];
  const size_t key_count = part.keys.size();
  const int32_t* merged_of = in.merged_of == nullptr ? nullptr : in.merged_of + slice.key_base;
  for (size_t j = slice.begin; j < slice.end; ++j) {
    const size_t u = part.dense ? j : static_cast<size_t>(static_cast<uint32_t>(part.index[j]));
    if (u >= key_count) return j;
    if (in.some_never_trained && part.handles[u] == kNeverTrained) continue;
    if (in.skip_not_admitted && part.handles[u] == kNotAdmitted) continue;
    visit(merged_of == nullptr ? u : static_cast<size_t>(merged_of[u]), j);
  }
  return slice.end;
}

}  // namespace

Status OccurrenceSort::Run(const OccurrenceInput& in, Executor* executor) {
  std::vector<Slice> slices;
  size_t key_base = 0, value_base = 0, total = 0;
  for (size_t p = 0; p < in.parts.size(); ++p) {
    const UpdatePart& part = in.parts[p];
    const size_t count = OccurrenceCount(part);
    for (size_t begin = 0; begin < count; begin += kSlice) {
      slices.push_back({p, begin, std::min(begin + kSlice, count), key_base, value_base});
    }
    key_base += part.keys.size();
    value_base += ValueRowCount(part);
    total += count;
  }
  const int shift = std::max(0, static_cast<int>(std::bit_width(in.unique)) - static_cast<int>(std::bit_width(kBins - 1)));
  const size_t bins = in.unique == 0 ? 0 : ((in.unique - 1) >> shift) + 1;

  // How many occurrences of each slice belong to each bin, and from that where they go.
  uint32_t* begins = Ensure(&bin_begins_, (slices.size() + 1) * kBins);
  std::atomic<size_t> first_bad{slices.size()};
  ForGroups(executor, total, slices.size(), [&](size_t i) {
    uint32_t counts[kBins] = {};
    const size_t done = EachOccurrence(in, slices[i], [&](size_t m, size_t) { ++counts[m >> shift]; });
    std::copy_n(counts, kBins, begins + i * kBins);
    if (done != slices[i].end) AtomicMin(&first_bad, i);
  });
  if (first_bad != slices.size()) {
    const Slice& slice = slices[first_bad];
    const size_t j = EachOccurrence(in, slice, [](size_t, size_t) {});
    const UpdatePart& part = in.parts[slice.part];
    return InvalidArgumentError("table " + in.table + ", part " + std::to_string(slice.part) + ": gradient row " +
                                std::to_string(j) + " names row " + std::to_string(part.index[j]) + ", expected 0 to " +
                                std::to_string(part.keys.size()) + " (exclusive), the rows of its lookup");
  }
  std::array<uint32_t, kBins + 1> bin_begin{};
  uint32_t next = 0;
  for (size_t bin = 0; bin < kBins; ++bin) {
    bin_begin[bin] = next;
    for (size_t i = 0; i < slices.size(); ++i) next += std::exchange(begins[i * kBins + bin], next);
  }
  bin_begin[kBins] = next;

  uint32_t* binned_keys = Ensure(&binned_keys_, next);
  uint32_t* binned_rows = Ensure(&binned_rows_, next);
  float* binned_scales = in.scaled ? Ensure(&binned_scales_, next) : nullptr;
  ForGroups(executor, total, slices.size(), [&](size_t i) {
    const Slice& slice = slices[i];
    const UpdatePart& part = in.parts[slice.part];
    uint32_t to_of[kBins];
    std::copy_n(begins + i * kBins, kBins, to_of);
    EachOccurrence(in, slice, [&](size_t m, size_t j) {
      const uint32_t to = to_of[m >> shift]++;
      const size_t row = part.value_rows.empty() ? j : static_cast<size_t>(part.value_rows[j]);
      binned_keys[to] = static_cast<uint32_t>(m);
      binned_rows[to] = static_cast<uint32_t>(slice.value_base + row);
      if (binned_scales != nullptr) binned_scales[to] = part.scales.empty() ? 1.0f : part.scales[j];
    });
  });

  uint32_t* offsets = Ensure(&offsets_, in.unique + 1);
  uint32_t* value_rows = Ensure(&value_rows_, next);
  float* scales = in.scaled ? Ensure(&scales_, next) : nullptr;
  ForGroups(executor, std::max(in.unique, total), bins, [&](size_t bin) {
    const size_t first = bin << shift, last = std::min(in.unique, (bin + 1) << shift);
    ScratchLease<BinScratch> scratch;
    uint32_t* to_of = Ensure(&scratch->next, last - first);
    std::fill_n(to_of, last - first, 0u);
    for (uint32_t i = bin_begin[bin]; i < bin_begin[bin + 1]; ++i) ++to_of[binned_keys[i] - first];
    uint32_t at = bin_begin[bin];
    for (size_t m = first; m < last; ++m) {
      offsets[m] = at;
      at += std::exchange(to_of[m - first], at);
    }
    for (uint32_t i = bin_begin[bin]; i < bin_begin[bin + 1]; ++i) {
      const uint32_t to = to_of[binned_keys[i] - first]++;
      value_rows[to] = binned_rows[i];
      if (scales != nullptr) scales[to] = binned_scales[i];
    }
  });
  offsets[in.unique] = next;
  return OkStatus();
}

}  // namespace mxrec
