// "rank 3", "ranks 0, 2-5": how messages name ranks.
#ifndef MXREC_COMM_RANK_LIST_H_
#define MXREC_COMM_RANK_LIST_H_

#include <span>
#include <string>

namespace mxrec {

// `ranks` in rising order, not empty.
std::string RankList(std::span<const int> ranks);

}  // namespace mxrec

#endif  // MXREC_COMM_RANK_LIST_H_
