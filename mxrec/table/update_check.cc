#include "mxrec/table/update_check.h"

#include <algorithm>

#include "mxrec/table/occurrences.h"
#include "mxrec/table/table_impl.h"

namespace mxrec {
namespace {

// What a part says about shared rows of values; `where` names it.
Status CheckShared(const std::string& where, const UpdatePart& part) {
  const size_t shared = part.value_rows.size(), scales = part.scales.size(), expected = part.dense ? 0 : part.index.size();
  if ((shared != 0 && shared != expected) || (scales != 0 && (scales != expected || shared == 0))) {
    return InvalidArgumentError(where + ": expected one value row and one scale (or none) for each of " + std::to_string(expected) +
                                " occurrences, found " + std::to_string(shared) + " value rows and " + std::to_string(scales) +
                                " scales");
  }
  for (size_t j = 0; j < shared; ++j) {
    if (static_cast<uint32_t>(part.value_rows[j]) < part.value_count) continue;
    return InvalidArgumentError(where + ": occurrence " + std::to_string(j) + " takes value row " +
                                std::to_string(part.value_rows[j]) + ", expected 0 to " + std::to_string(part.value_count) +
                                " (exclusive)");
  }
  return OkStatus();
}

}  // namespace

Result<PartsSummary> CheckParts(const std::string& table, std::span<const UpdatePart> parts, uint64_t generation,
                                uint64_t allocated) {
  PartsSummary all;
  size_t total = 0, values = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    const UpdatePart& part = parts[p];
    const std::string where = "table " + table + ", part " + std::to_string(p);
    if (part.handles.size() != part.keys.size() || (!part.counts.empty() && part.counts.size() != part.keys.size())) {
      return InvalidArgumentError(where + ": expected one handle and one count a key, found " + std::to_string(part.keys.size()) +
                                  " keys, " + std::to_string(part.handles.size()) + " handles, " +
                                  std::to_string(part.counts.size()) + " counts");
    }
    if (part.generation != generation && !part.keys.empty()) all.stale = true;
    const auto names_no_row = [allocated](uint32_t handle) { return (handle & kCandidateBit) == 0 && handle >= allocated; };
    bool wrong = false;
    for (const uint32_t handle : part.handles) {
      wrong |= names_no_row(handle);
      all.some_never_trained |= handle == kNeverTrained;
    }
    if (wrong && part.generation == generation) {
      const uint32_t handle = *std::find_if(part.handles.begin(), part.handles.end(), names_no_row);
      return InvalidArgumentError(where + ": handle " + std::to_string(handle) + " names no row; the table has handed out " +
                                  std::to_string(allocated));
    }
    MXREC_RETURN_IF_ERROR(CheckShared(where, part));
    total += part.keys.size();
    all.gradients += OccurrenceCount(part);
    values += ValueRowCount(part);
    all.scaled |= !part.scales.empty();
  }
  if (total > 0x7FFFFFFFu || all.gradients > 0x7FFFFFFFu || values > 0x7FFFFFFFu) {
    return InvalidArgumentError("table " + table + ": an update takes at most 2147483647 keys and gradient rows");
  }
  return all;
}

}  // namespace mxrec
