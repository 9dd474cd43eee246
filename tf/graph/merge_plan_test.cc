#include "tf/graph/merge_plan.h"

#include <algorithm>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mxrec {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Edge {
  int from, to;
};
using Groups = std::vector<std::vector<int>>;

// Kind -1 is local work, -2 a meeting that is no candidate.
std::vector<MergeNode> Nodes(const std::vector<int>& kinds, const std::vector<Edge>& edges, int64_t bytes = 1) {
  std::vector<MergeNode> nodes(kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    nodes[i].kind = std::max(kinds[i], -1);
    nodes[i].meets = kinds[i] == -2;
    nodes[i].bytes = bytes;
  }
  for (const Edge& edge : edges) nodes[edge.from].successors.push_back(edge.to);
  return nodes;
}

Groups Plan(const std::vector<int>& kinds, const std::vector<Edge>& edges, const MergeLimits& limits = {}) {
  return PlanMerge(Nodes(kinds, edges), limits);
}

TEST(MergePlan, NothingToMergeGivesNoGroup) {
  EXPECT_THAT(Plan({}, {}), IsEmpty());
  EXPECT_THAT(Plan({-1, 0, 1, -2}, {{0, 1}}), IsEmpty());
}

TEST(MergePlan, IndependentCandidatesOfOneKindBecomeOneNode) {
  EXPECT_THAT(Plan({0, 1, 0, 1, 0, -1}, {{0, 5}, {2, 5}}), ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3)));
}

TEST(MergePlan, ACandidateAfterAnotherStaysApart) {
  EXPECT_THAT(Plan({0, -1, 0}, {{0, 1}, {1, 2}}), IsEmpty());
  EXPECT_THAT(Plan({0, -1, 0, 0}, {{0, 1}, {1, 2}}), IsEmpty()) << "3 waits for nobody, but 2 waits for 0";
}

TEST(MergePlan, CandidatesWithOtherMeetingsBeforeOrAfterThemStayApart) {
  EXPECT_THAT(Plan({-2, 0, 0}, {{0, 1}}), IsEmpty());
  EXPECT_THAT(Plan({-2, 0, 0}, {{1, 0}}), IsEmpty());
  EXPECT_THAT(Plan({-2, 0, 0}, {{0, 1}, {0, 2}}), ElementsAre(ElementsAre(1, 2)));
  EXPECT_THAT(Plan({-2, 0, 0, -1}, {{1, 3}, {2, 3}, {3, 0}}), ElementsAre(ElementsAre(1, 2)));
}

TEST(MergePlan, ACycleGivesNoGroup) { EXPECT_THAT(Plan({0, 0, -1, -1}, {{2, 3}, {3, 2}}), IsEmpty()); }

TEST(MergePlan, BytesAndMembersLimitANodeAndPartsAreOfEqualSize) {
  MergeLimits limits;
  limits.bytes = 40;
  const Groups by_bytes = PlanMerge(Nodes({0, 0, 0, 0, 0, 0}, {}, 10), limits);
  EXPECT_THAT(by_bytes, ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
  limits.members = 2;
  EXPECT_THAT(PlanMerge(Nodes({0, 0, 0, 0, 0}, {}, 10), limits), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(PlanMerge(Nodes({0, 0}, {}, 41), limits), IsEmpty()) << "too large";
}

TEST(MergePlan, CandidatesThatAreReadyLateDoNotHoldUpEarlyOnes) {
  // A chain of 16 nodes of local work, as of a backward pass; each gives a gradient. Later ones have lower numbers.
  std::vector<int> kinds;
  std::vector<Edge> edges;
  for (int i = 0; i < 16; ++i) {
    kinds.insert(kinds.end(), {0, -1});
    edges.push_back({2 * i + 1, 2 * i});
    if (i < 15) edges.push_back({2 * i + 3, 2 * i + 1});
  }
  const Groups groups = Plan(kinds, edges);
  ASSERT_EQ(groups.size(), 8U);
  EXPECT_THAT(groups.front(), ElementsAre(30, 28));
  EXPECT_THAT(groups.back(), ElementsAre(2, 0));
}

TEST(MergePlan, TooManyMeetingsGiveNoGroup) {
  MergeLimits limits;
  limits.entries = 10;
  std::vector<int> kinds(100, 0);
  EXPECT_THAT(Plan(kinds, {}, limits), IsEmpty());
}

// --- ranks that run different graphs, one of which or all of which are merged ---

struct Rank {
  std::vector<MergeNode> nodes;
  std::vector<int> group_of;  // nodes of one group end together
};

Rank Unmerged(std::vector<MergeNode> nodes) {
  Rank rank{std::move(nodes), {}};
  for (size_t i = 0; i < rank.nodes.size(); ++i) rank.group_of.push_back(static_cast<int>(i));
  return rank;
}

Rank Merged(std::vector<MergeNode> nodes) {
  Rank rank = Unmerged(std::move(nodes));
  for (const auto& group : PlanMerge(rank.nodes, {})) {
    for (const int member : group) rank.group_of[member] = group.front();
  }
  return rank;
}

// Node i of all ranks meet if it meets. Whether all nodes of all ranks come to their ends.
bool AllEnd(const std::vector<Rank>& ranks) {
  const size_t size = ranks.front().nodes.size();
  std::vector<std::vector<bool>> ended(ranks.size(), std::vector<bool>(size, false));
  const auto asked = [&](size_t r, size_t i) {  // all that leads to a node's group has ended
    const Rank& rank = ranks[r];
    for (size_t from = 0; from < size; ++from) {
      for (const int to : rank.nodes[from].successors) {
        if (rank.group_of[to] == rank.group_of[i] && !ended[r][from]) return false;
      }
    }
    return true;
  };
  const auto met = [&](size_t i) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (!asked(r, i)) return false;
    }
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < ranks.size(); ++r) {
      for (size_t i = 0; i < size; ++i) {
        if (ended[r][i]) continue;
        bool ends = true;
        for (size_t other = 0; other < size; ++other) {
          if (ranks[r].group_of[other] != ranks[r].group_of[i]) continue;
          const MergeNode& node = ranks[r].nodes[other];
          ends = ends && (node.meets || node.kind >= 0 ? met(other) : asked(r, other));
        }
        if (ends) ended[r][i] = moved = true;
      }
    }
  }
  return std::all_of(ended.begin(), ended.end(), [](const auto& of_rank) { return std::ranges::all_of(of_rank, std::identity()); });
}

TEST(MergePlan, RanksWithOtherGraphsWaitForEachOtherInACircleOnlyIfTheyDidBefore) {
  std::mt19937 random(7);
  int merged = 0, ended = 0, stuck = 0;
  for (int round = 0; round < 3000; ++round) {
    const int size = 4 + static_cast<int>(random() % 9);
    std::vector<int> kinds;
    for (int i = 0; i < size; ++i) kinds.push_back(static_cast<int>(random() % 5) - 2);
    std::vector<std::vector<MergeNode>> graphs;
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<int> order(size);
      for (int i = 0; i < size; ++i) order[i] = i;
      if (round % 3 != 0) std::shuffle(order.begin(), order.end(), random);
      std::vector<Edge> edges;
      for (int a = 0; a < size; ++a) {
        for (int b = a + 1; b < size; ++b) {
          if (random() % 8 == 0) edges.push_back({order[a], order[b]});
        }
      }
      graphs.push_back(Nodes(kinds, edges));
    }
    merged += !PlanMerge(graphs[0], {}).empty();
    if (!AllEnd({Unmerged(graphs[0]), Unmerged(graphs[1])})) {
      ++stuck;
      continue;
    }
    ++ended;
    EXPECT_TRUE(AllEnd({Merged(graphs[0]), Unmerged(graphs[1])})) << "round " << round;
    EXPECT_TRUE(AllEnd({Merged(graphs[0]), Merged(graphs[1])})) << "round " << round;
  }
  EXPECT_GT(merged, 300);
  EXPECT_GT(ended, 300);
  EXPECT_GT(stuck, 300);
}

}  // namespace
}  // namespace mxrec
