#include "mxrec/table/segment_pool.h"

#include <algorithm>
#include <utility>

namespace mxrec {
namespace {

constexpr size_t kFirstRegion = size_t{2} << 20;
constexpr size_t kLargestRegion = size_t{32} << 20;

}  // namespace

Status SegmentPool::Take(size_t count, std::vector<char*>* segments) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<char*> taken;
  taken.reserve(count);
  while (taken.size() < count) {
    if (!free_.empty()) {
      taken.push_back(free_.back());
      free_.pop_back();
      continue;
    }
    if (left_ == 0) {
      const size_t bytes = regions_.empty() ? kFirstRegion : std::min(2 * regions_.back().bytes(), kLargestRegion);
      Result<MappedMemory> region = MappedMemory::Allocate(bytes, "the index of a table");
      if (!region.ok()) {
        free_.insert(free_.end(), taken.begin(), taken.end());
        return std::move(region).status();
      }
      next_ = static_cast<char*>(region->data());
      left_ = bytes / kSegmentBytes;
      regions_.push_back(std::move(region).value());
    }
    taken.push_back(next_);
    next_ += kSegmentBytes;
    --left_;
  }
  segments->insert(segments->end(), taken.begin(), taken.end());
  return OkStatus();
}

void SegmentPool::Give(const std::vector<char*>& segments) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.insert(free_.end(), segments.begin(), segments.end());
}

}  // namespace mxrec
