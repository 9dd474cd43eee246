#include "mxrec/comm/rank_list.h"

#include <cstddef>

namespace mxrec {

std::string RankList(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text.append(last == i + 1 ? ", " : "-").append(std::to_string(ranks[last]));
    i = last + 1;
  }
  return text;
}

}  // namespace mxrec
