// RouteIds: the distinct ids of a batch, put in the order in which they travel to the ranks that own them. SumRoutedGradients: the
// gradients of a batch, summed by distinct id in that order.
//
// Distinct ids come owner after owner, for one owner by first occurrence. So what a rank sends depends on its ids alone, and the
// rows that come back, owner after owner, lie in that very order: nothing is sorted again. A row and a gradient travel once for
// each distinct id of a rank, however often it occurs.
// Hot keys, which the caller names, go to no owner: they lie behind the keys that this rank owns itself, so that whatever each rank
// knows of them takes the place of what an owner would send.
// Threads: the functions write only what they are given; scratch is shared by leases.
#ifndef MXREC_SHARD_ROUTE_H_
#define MXREC_SHARD_ROUTE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "mxrec/base/executor.h"
#include "mxrec/base/status.h"
#include "mxrec/kernels/scatter_rows.h"
#include "mxrec/table/owner.h"

namespace mxrec {

struct RoutedKeys {
  uint64_t* keys = nullptr;    // [unique]
  uint32_t* counts = nullptr;  // [unique]: how often each occurs among the ids
};

struct HotKey {
  uint64_t key;
  int32_t index;  // the caller's number for it
};
struct HotRoute {
  std::span<const HotKey> keys;  // ascending, distinct
  int me = 0;                    // behind whose keys they are put
  std::vector<int32_t>* found;   // index of each one that the ids have, in the order in which they lie: that of first occurrence
};

// inverse [ids.size()]: the place of each id among the distinct keys. splits [ranks]: how many keys go to each rank. `outputs`
// gives memory once the number of distinct ids is known. InvalidArgument: 2^31 ids or more, ranks outside [1, 2^31), splits of
// another size. `hot` may be null; its keys count in splits[hot->me].
Status RouteIds(std::span<const uint64_t> ids, int ranks, OwnerRule rule, int32_t* inverse, std::span<int64_t> splits,
                const std::function<Result<RoutedKeys>(size_t unique)>& outputs, const HotRoute* hot = nullptr);

// Sum u of `sums`, of `unique`, becomes the sum of the rows of `values` [index.size(), dim] whose index is u, in the order in which
// they stand; zeros where there is none. InvalidArgument names the first index outside [0, unique), and nothing is written.
// The executor may be null. The result does not depend on threads.
Status SumRoutedGradients(std::span<const int32_t> index, const float* values, size_t unique, size_t dim, const ScatterTarget& sums,
                          Executor* executor);

}  // namespace mxrec

#endif  // MXREC_SHARD_ROUTE_H_
