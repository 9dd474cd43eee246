#include "mxrec/table/extent_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "mxrec/base/check.h"

namespace mxrec {
namespace {

constexpr size_t kLargestRegion = size_t{1} << 30;  // unless one block needs more

size_t Rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

Status ExtentPool::AddRegion(size_t least) {
  size_t so_far = 0;
  for (const auto& [begin, region] : regions_) so_far += region.memory.bytes();
  const size_t bytes =
      std::max(Rounded(least, MappedMemory::kHugePage), std::clamp(so_far, MappedMemory::kHugePage, kLargestRegion));
  MXREC_ASSIGN_OR_RETURN(MappedMemory memory, MappedMemory::Allocate(bytes, "the index of a table"));
  char* begin = static_cast<char*>(memory.data());
  regions_.emplace(begin, Region{std::move(memory), 0});
  free_.emplace(begin, bytes);
  return OkStatus();
}

ExtentPool::Regions::iterator ExtentPool::RegionOf(char* block) { return std::prev(regions_.upper_bound(block)); }

Result<char*> ExtentPool::Take(size_t bytes) {
  bytes = Rounded(bytes, 64);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto best = [this, bytes] {
    auto found = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second >= bytes && (found == free_.end() || it->second < found->second)) found = it;
    }
    return found;
  };
  auto extent = best();
  if (extent == free_.end()) {
    MXREC_RETURN_IF_ERROR(AddRegion(bytes));
    extent = best();
  }
  char* const block = extent->first;
  const size_t left = extent->second - bytes;
  free_.erase(extent);
  if (left > 0) free_.emplace(block + bytes, left);
  RegionOf(block)->second.taken += bytes;
  return block;
}

void ExtentPool::Give(char* block, size_t bytes) {
  bytes = Rounded(bytes, 64);
  char *const given = block, *const given_end = block + bytes;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto region = RegionOf(block);
  MXREC_CHECK(region->second.taken >= bytes) << "a block was given back that was not taken";
  region->second.taken -= bytes;
  // Joins what is free on either side; an extent does not cross the end of its region.
  const auto next = free_.upper_bound(block);
  if (next != free_.end() && next->first == block + bytes && RegionOf(next->first) == region) {
    bytes += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(block);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == block && RegionOf(before->first) == region) {
      block = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  // The memory of a table that shrank goes back to the system; one region stays, for what grows again.
  if (region->second.taken == 0 && regions_.size() > 1) {
    regions_.erase(region);
    return;
  }
  free_.emplace(block, bytes);
  // Only pages that the given block had a part in: the others of the extent were discarded before or never touched.
  constexpr size_t kPage = MappedMemory::kHugePage;
  MappedMemory::Discard(given - block > static_cast<ptrdiff_t>(kPage) ? given - kPage : block,
                        block + bytes - given_end > static_cast<ptrdiff_t>(kPage) ? given_end + kPage : block + bytes);
}

uint64_t ExtentPool::region_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [begin, region] : regions_) bytes += region.memory.bytes();
  return bytes;
}

}  // namespace mxrec
