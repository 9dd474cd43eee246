// SegmentPool: equal pieces of huge-page memory for the indexes of a table's shards.
//
// The index of one shard of a table of 10 million keys has 2.7 MB: too little to be laid on huge pages by itself, and random
// probes of 4 KiB pages wait for the address translation as long as for the data. So all shards take 16 KiB segments from one
// pool, whose regions (doubling, up to 32 MiB) lie on huge pages. What a shard gives back after growing, the next shard to
// grow takes: no fragments.
//
// Threads: safe. The pool must outlive what was taken from it.
#ifndef MXREC_TABLE_SEGMENT_POOL_H_
#define MXREC_TABLE_SEGMENT_POOL_H_

#include <cstddef>
#include <mutex>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/table/memory.h"

namespace mxrec {

class SegmentPool {
 public:
  static constexpr size_t kSegmentBytes = size_t{16} << 10;

  // Appends `count` segments, contents unspecified. kResourceExhausted: nothing was taken.
  Status Take(size_t count, std::vector<char*>* segments);
  void Give(const std::vector<char*>& segments);

 private:
  std::mutex mutex_;
  std::vector<MappedMemory> regions_;
  std::vector<char*> free_;
  char* next_ = nullptr;  // of the last region
  size_t left_ = 0;       // segments left there
};

}  // namespace mxrec

#endif  // MXREC_TABLE_SEGMENT_POOL_H_
