// LruIndex: which of a fixed number of places of a cache holds which id; the id that was not asked for the longest time gives way.
//
// It knows ids and places only; what lies in the places is the caller's. Threads: the caller excludes.
#ifndef MXREC_TF_KERNELS_LRU_INDEX_H_
#define MXREC_TF_KERNELS_LRU_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "mxrec/base/status.h"

namespace mxrec {

class LruIndex {
 public:
  // What an Add changed: ids that came in and the places they got, ids that gave way and the places they had, each in the order in
  // which it happened. An id that takes the place of another stands in both, at that place.
  struct Changes {
    std::vector<uint64_t> in_ids, out_ids;
    std::vector<uint64_t> in_places, out_places;
  };

  // REQUIRES: 1 <= places < 2^32 - 1.
  explicit LruIndex(size_t places) : places_(places) {}

  size_t places() const { return places_; }
  size_t size() const { return entries_.size(); }

  // Makes all ids (duplicates allowed) present, and used just now, in their order. Free places are given out from 0 up; no id of
  // the call gives way to another of it: kResourceExhausted when there are more distinct ids than places, and nothing has changed
  // then.
  Status Add(std::span<const uint64_t> ids, Changes* changes);

  // The place of each id; kNotFound names one that is absent. Does not count as use.
  Status Places(std::span<const uint64_t> ids, uint64_t* places) const;

  // All ids, by place: element p is the id at place p (places are filled without gaps).
  std::vector<uint64_t> Ids() const;

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFFu;
  struct Entry {
    uint64_t id;
    uint32_t older, newer;
  };
  void Unlink(uint32_t place);
  void LinkNewest(uint32_t place);

  const size_t places_;
  std::vector<Entry> entries_;  // by place
  std::unordered_map<uint64_t, uint32_t> place_of_;
  uint32_t oldest_ = kNone, newest_ = kNone;
};

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_LRU_INDEX_H_
