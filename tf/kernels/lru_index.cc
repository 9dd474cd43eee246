#include "tf/kernels/lru_index.h"

#include <unordered_set>

namespace mxrec {

Status LruIndex::Add(std::span<const uint64_t> ids, Changes* changes) {
  *changes = Changes();
  const std::unordered_set<uint64_t> distinct(ids.begin(), ids.end());
  if (distinct.size() > places_) {
    return ResourceExhaustedError("a cache of " + std::to_string(places_) + " places cannot take " +
                                  std::to_string(distinct.size()) + " different ids at once");
  }
  // The present ids first: so none of the call is the oldest when a place is needed. Then all once more, in their order.
  for (const uint64_t id : ids) {
    const auto it = place_of_.find(id);
    if (it == place_of_.end()) continue;
    Unlink(it->second);
    LinkNewest(it->second);
  }
  for (const uint64_t id : ids) {
    const auto [it, is_new] = place_of_.try_emplace(id, kNone);
    if (!is_new) {
      Unlink(it->second);
      LinkNewest(it->second);
      continue;
    }
    uint32_t place = static_cast<uint32_t>(entries_.size());
    if (entries_.size() < places_) {
      entries_.push_back({id, kNone, kNone});
    } else {
      place = oldest_;
      Unlink(place);
      changes->out_ids.push_back(entries_[place].id);
      changes->out_places.push_back(place);
      place_of_.erase(entries_[place].id);  // another element: `it` stays valid
      entries_[place].id = id;
    }
    it->second = place;
    LinkNewest(place);
    changes->in_ids.push_back(id);
    changes->in_places.push_back(place);
  }
  return OkStatus();
}

Status LruIndex::Places(std::span<const uint64_t> ids, uint64_t* places) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto it = place_of_.find(ids[i]);
    if (it == place_of_.end()) {
      return NotFoundError("id " + std::to_string(static_cast<int64_t>(ids[i])) + " (element " + std::to_string(i) +
                           ") is not in the cache");
    }
    places[i] = it->second;
  }
  return OkStatus();
}

std::vector<uint64_t> LruIndex::Ids() const {
  std::vector<uint64_t> ids;
  for (const Entry& entry : entries_) ids.push_back(entry.id);
  return ids;
}

void LruIndex::Unlink(uint32_t place) {
  const Entry& entry = entries_[place];
  (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
}

void LruIndex::LinkNewest(uint32_t place) {
  entries_[place].older = newest_;
  entries_[place].newer = kNone;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = place;
  newest_ = place;
}

}  // namespace mxrec
