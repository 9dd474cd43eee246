// The inner loops of a lookup: probe many keys with their cache misses overlapped, and copy the rows found.
//
// Three places wait for memory in each lookup: the bucket, the row's lines, the output. The loops go by blocks of 64 keys: compare
// all buckets, load all rows found and all buckets of the next block (touch.h says why not prefetch them), copy. Compiled for each
// SIMD target by Highway and picked at run time; equal results on all.
#ifndef MXREC_TABLE_PROBE_KERNELS_H_
#define MXREC_TABLE_PROBE_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "mxrec/table/bucket_index.h"

namespace mxrec {

struct ProbeShard {
  const Bucket* buckets = nullptr;  // BucketIndex::buckets
  uint32_t bucket_count = 0;
};

struct ProbeInput {
  const ProbeShard* shards;  // [kShardCount]
  const uint64_t* keys;      // distinct
  size_t count;
  char* const* directory;  // of the row slab
  uint32_t shift;
  size_t stride_bytes;
  size_t dim;
};

// handles[i] = the key's handle, or BucketIndex::kAbsent.
void ProbeHandles(const ProbeInput& in, uint32_t* handles);

// The same, and copies the dim values of each row found to out + i * dim. Positions of keys without a row (absent, or a
// tagged candidate handle >= 2^31) go to special [count + 1], in any order; returns how many; their output is untouched.
size_t ProbeAndGather(const ProbeInput& in, float* out, uint32_t* handles, uint32_t* special);

// The same, but writes each row to all its occurrences: occurrence j is of keys[local[j]] and goes to expanded +
// positions[j] * dim. local must count up: a value appears first right after all smaller ones.
size_t ProbeAndExpand(const ProbeInput& in, const uint32_t* local, const uint32_t* positions, size_t occurrences, float* expanded,
                      uint32_t* handles, uint32_t* special);

}  // namespace mxrec

#endif  // MXREC_TABLE_PROBE_KERNELS_H_
