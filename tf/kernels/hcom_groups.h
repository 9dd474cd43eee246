// The world of this process (rank, size) and its groups of ranks, as the collective ops see them.
//
// Python tells the world (it knows where rank and size stand, python/mxrec/_world.py) and makes groups; kernels only read. A
// process that nobody told is a world of its own. Group "hccl_world_group" always exists and holds every rank. Threads: any.
#ifndef MXREC_TF_KERNELS_HCOM_GROUPS_H_
#define MXREC_TF_KERNELS_HCOM_GROUPS_H_

#include <string>
#include <vector>

#include "mxrec/base/status.h"

namespace mxrec {

inline constexpr char kHcomWorldGroup[] = "hccl_world_group";

struct HcomWorld {
  int rank = 0;
  int size = 1;
};

// Replaces the world; groups other than the world's are forgotten when it becomes another.
void SetHcomWorld(const HcomWorld& world);
HcomWorld GetHcomWorld();

// World ranks of a group in the order of its own ranks. AlreadyExists for a known name; InvalidArgument for ranks outside the
// world, twice, or none.
Status AddHcomGroup(const std::string& name, const std::vector<int>& ranks);
// NotFound for an unknown name; InvalidArgument for the world's.
Status RemoveHcomGroup(const std::string& name);
// NotFound names the group and those there are.
Result<std::vector<int>> FindHcomGroup(const std::string& name);

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_HCOM_GROUPS_H_
