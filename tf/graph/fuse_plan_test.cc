#include "tf/graph/fuse_plan.h"

#include <random>
#include <set>
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

std::vector<PlanNode> Nodes(const std::vector<int>& kinds, const std::vector<Edge>& edges) {
  std::vector<PlanNode> nodes(kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) nodes[i].kind = kinds[i];
  for (const Edge& edge : edges) nodes[edge.from].successors.push_back(edge.to);
  return nodes;
}

std::vector<std::vector<int>> Plan(const std::vector<int>& kinds, const std::vector<Edge>& edges) {
  return PlanFusion(Nodes(kinds, edges));
}

// Whether the graph with each group made one node can be put in order.
bool HasOrder(const std::vector<PlanNode>& nodes, const std::vector<std::vector<int>>& groups) {
  std::vector<int> group_of(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) group_of[i] = static_cast<int>(i);
  for (const auto& group : groups) {
    for (int member : group) group_of[member] = group.front();
  }
  std::vector<std::set<int>> before(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (int next : nodes[i].successors) before[group_of[next]].insert(group_of[i]);
  }
  std::vector<bool> done(nodes.size(), false);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (done[i] || group_of[i] != static_cast<int>(i)) continue;
      bool ready = true;
      for (int other : before[i]) ready = ready && done[other];
      if (!ready) continue;
      done[i] = moved = true;
    }
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!done[group_of[i]]) return false;
  }
  return true;
}

TEST(FusePlan, NothingToFuseGivesNoGroup) {
  EXPECT_THAT(Plan({}, {}), IsEmpty());
  EXPECT_THAT(Plan({-1, 0, 1}, {}), IsEmpty());
  EXPECT_THAT(Plan({-1, -1}, {{0, 1}}), IsEmpty());
}

TEST(FusePlan, IndependentNodesOfOneKindAreOneGroup) {
  EXPECT_THAT(Plan({0, -1, 0, 1, 0, 1}, {}), ElementsAre(ElementsAre(0, 2, 4), ElementsAre(3, 5)));
}

TEST(FusePlan, ANodeIsNotFusedWithOneThatItDependsOn) {
  EXPECT_THAT(Plan({0, 0}, {{0, 1}}), IsEmpty());
  EXPECT_THAT(Plan({0, -1, 0}, {{0, 1}, {1, 2}}), IsEmpty());
  // 0 and 1 first, then 3 and 4.
  EXPECT_THAT(Plan({0, 0, -1, 0, 0}, {{0, 2}, {2, 3}, {1, 4}}), ElementsAre(ElementsAre(0, 1), ElementsAre(3, 4)));
}

TEST(FusePlan, GroupsThatWouldWaitForEachOtherAreNotMade) {
  // a0 -> b0 and b1 -> a1: {a0, a1} and {b0, b1} together would close a cycle.
  const std::vector<PlanNode> nodes = Nodes({0, 0, 1, 1}, {{0, 2}, {3, 1}});
  EXPECT_TRUE(HasOrder(nodes, PlanFusion(nodes)));
}

TEST(FusePlan, AStepIsOneGroupOfLookupsAndOneOfUpdates) {
  constexpr int kTables = 26;
  std::vector<int> kinds(kTables, 0);
  std::vector<Edge> edges;
  kinds.push_back(-1);  // the loss
  for (int t = 0; t < kTables; ++t) {
    kinds.push_back(1);
    edges.insert(edges.end(), {{t, kTables}, {t, kTables + 1 + t}, {kTables, kTables + 1 + t}});
  }
  const auto groups = Plan(kinds, edges);
  ASSERT_EQ(groups.size(), 2);
  EXPECT_EQ(groups[0].size(), kTables);
  EXPECT_EQ(groups[1].size(), kTables);
}

TEST(FusePlan, ACycleGivesNoGroup) { EXPECT_THAT(Plan({-1, -1, 0, 0}, {{0, 1}, {1, 0}}), IsEmpty()); }

TEST(FusePlan, RandomGraphsKeepAnOrder) {
  std::mt19937 random(7);
  size_t fused = 0;
  for (int turn = 0; turn < 500; ++turn) {
    const int count = 2 + static_cast<int>(random() % 30);
    std::vector<int> kinds(count);
    for (int& kind : kinds) kind = static_cast<int>(random() % 4) - 1;
    std::vector<Edge> edges;
    for (size_t i = random() % (2 * count); i > 0; --i) {
      const int a = static_cast<int>(random() % count), b = static_cast<int>(random() % count);
      if (a < b) edges.push_back({a, b});
    }
    const std::vector<PlanNode> nodes = Nodes(kinds, edges);
    const auto groups = PlanFusion(nodes);
    ASSERT_TRUE(HasOrder(nodes, groups)) << "turn " << turn;
    std::set<int> seen;
    for (const auto& group : groups) {
      for (int member : group) {
        ASSERT_TRUE(seen.insert(member).second);
        ASSERT_EQ(nodes[member].kind, nodes[group.front()].kind);
        ++fused;
      }
    }
  }
  EXPECT_GT(fused, 1000u);
}

}  // namespace
}  // namespace mxrec
