// ExtentPool: huge-page memory for the indexes of a table's shards, in contiguous blocks of any size.
//
// The index of one shard of a table of 10 million keys has 2.7 MB: on huge pages of its own a fifth of it would be rounding,
// and on small pages random probes wait for the address translation as long as for the data. So the shards of a table take
// their blocks from common regions on huge pages. A block is contiguous, so that a probe needs one multiplication to reach
// its bucket and no further table in the cache.
//
// Best fit with coalescing. Shards grow one after the other by the same factor, so what two of them leave behind, lying side
// by side, is where a third fits: about three blocks' worth of 64 lies idle, and huge pages that are idle as a whole are not
// resident. Each region is as large as all before it together; memory that was never handed out is not resident either.
//
// Threads: safe. The pool must outlive what was taken from it.
#ifndef MXREC_TABLE_EXTENT_POOL_H_
#define MXREC_TABLE_EXTENT_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "mxrec/base/status.h"
#include "mxrec/table/memory.h"

namespace mxrec {

class ExtentPool {
 public:
  // A block of `bytes` > 0, rounded up to a multiple of 64, aligned to 64, contents unspecified. kResourceExhausted.
  Result<char*> Take(size_t bytes);
  // REQUIRES: block and bytes as of a Take, given back once.
  void Give(char* block, size_t bytes);

  // Bytes of all regions: taken, given back, and never handed out.
  uint64_t region_bytes() const;

 private:
  struct Region {
    MappedMemory memory;
    size_t taken = 0;
  };
  using Regions = std::map<char*, Region>;  // by address

  Status AddRegion(size_t least);
  Regions::iterator RegionOf(char* block);

  mutable std::mutex mutex_;
  Regions regions_;
  std::map<char*, size_t> free_;  // by address; never two that touch within a region
};

}  // namespace mxrec

#endif  // MXREC_TABLE_EXTENT_POOL_H_
