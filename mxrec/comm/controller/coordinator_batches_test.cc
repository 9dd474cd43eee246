// Batches of the coordinator: what is asked for together is told as if each name had been asked for alone.
#include <algorithm>
#include <numeric>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/comm/controller/coordinator_test_util.h"

namespace mxrec {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::AllReduceOf;
using ::testing::HasSubstr;
using testing::Ids;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::Told;

// What a rank is told, but for the packing and the order among operations.
struct Heard {
  std::vector<uint64_t> ids;
  std::vector<std::string> errors;
  bool operator==(const Heard&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Heard& heard) {
  return out << ::testing::PrintToString(heard.ids) << " " << ::testing::PrintToString(heard.errors);
}

Heard HeardOf(const Agreement& agreement) {
  Heard heard;
  for (const auto& execution : agreement.executions) {
    for (const AgreedTensor& tensor : execution->tensors) heard.ids.push_back(tensor.id);
  }
  for (const NameError& error : agreement.errors) heard.errors.push_back(error.name + ": " + error.status.ToString());
  std::sort(heard.ids.begin(), heard.ids.end());
  std::sort(heard.errors.begin(), heard.errors.end());
  return heard;
}

constexpr int kBatchNames = 40;

// All ranks know `kBatchNames` names n0, n1, ... with the numbers 1, 2, ...
std::string BatchName(uint64_t id) {
  std::string name = "n";
  return name.append(std::to_string(id - 1));
}
void TeachNames(Told& told, int size) {
  for (uint64_t id = 1; id <= kBatchNames; ++id) told.AskAll(AllReduceOf(BatchName(id)));
  for (int rank = 0; rank < size; ++rank) told.Next(rank);
}

TEST(CoordinatorBatchesTest, NamesThatAreAskedForTogetherRunAsBefore) {
  Told told(2);
  TeachNames(told, 2);
  std::vector<uint64_t> ids(20);
  std::iota(ids.begin(), ids.end(), 1);
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE(told.AskById(1, ids).ok());
    EXPECT_EQ(told->waiting(), 20) << step;
    EXPECT_TRUE(told->OthersWaitFor(0));
    EXPECT_FALSE(told->OthersWaitFor(1));
    EXPECT_EQ(HeardOf(told.Next(0)), Heard());
    ASSERT_TRUE(told.AskById(0, ids).ok());
    for (int rank = 0; rank < 2; ++rank) {
      const Agreement agreement = told.Next(rank);
      ASSERT_THAT(agreement.executions, SizeIs(1));
      EXPECT_EQ(Ids(*agreement.executions[0]), ids);
    }
    EXPECT_EQ(told->waiting(), 0);
  }
  // A name twice at once is an error, in a batch as elsewhere.
  ASSERT_TRUE(told.AskById(1, ids).ok());
  EXPECT_EQ(told.AskById(1, ids).code(), StatusCode::kDataLoss);
}

// A batch that rank 1 of 2 has asked for.
class OpenBatch : public ::testing::Test {
 protected:
  void SetUp() override {
    TeachNames(told_, 2);
    for (int step = 0; step < 2; ++step) {
      for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(told_.AskById(rank, ids_).ok());
      for (int rank = 0; rank < 2; ++rank) ASSERT_THAT(told_.Next(rank).executions, SizeIs(1));
    }
    ASSERT_TRUE(told_.AskById(1, ids_).ok());
  }
  static std::vector<uint64_t> Range(uint64_t first, uint64_t last) {
    std::vector<uint64_t> ids(last - first + 1);
    std::iota(ids.begin(), ids.end(), first);
    return ids;
  }

  Told told_{2};
  std::vector<uint64_t> ids_ = Range(1, 20);
};

TEST_F(OpenBatch, FailsWhenARankLeaves) {
  told_.Leave(0);
  EXPECT_THAT(told_.Next(1).errors, SizeIs(20));
}

TEST_F(OpenBatch, IsToldByNameWhenItStalls) {
  told_.Pass(milliseconds(61'000));
  std::vector<std::string> warnings;
  EXPECT_EQ(told_->CheckStalls(told_.now(), &warnings), OkStatus());
  ASSERT_THAT(warnings, SizeIs(20));
  EXPECT_THAT(warnings[0],
              AllOf(HasSubstr("'n0'"), HasSubstr("61000 ms"), HasSubstr("asked for by rank 1 (node of n0), not by rank 0")));
}

TEST_F(OpenBatch, LosesWhatIsCancelledAlone) {
  Requests requests;
  requests.cancels = {{.group = kWorldGroup, .name = "n3", .why = ""}};
  ASSERT_TRUE(told_.Take(1, requests).ok());
  EXPECT_THAT(told_.Next(1).errors, SizeIs(1));
  ASSERT_TRUE(told_.AskById(0, ids_).ok());
  const Agreement agreement = told_.Next(0);
  EXPECT_THAT(agreement.errors, SizeIs(1));
  ASSERT_THAT(agreement.executions, SizeIs(1));
  EXPECT_THAT(Ids(*agreement.executions[0]), SizeIs(19));
}

TEST_F(OpenBatch, RunsForARankThatAsksInPieces) {
  ASSERT_TRUE(told_.AskById(0, Range(1, 9)).ok());
  EXPECT_THAT(Ids(*told_.Next(1).executions.at(0)), SizeIs(9));
  ASSERT_TRUE(told_.AskById(0, Range(10, 20)).ok());
  EXPECT_THAT(Ids(*told_.Next(1).executions.at(0)), SizeIs(11));
}

TEST_F(OpenBatch, RunsWithZerosOfARankThatHasJoined) {
  Requests requests;
  requests.full.resize(1);
  requests.full[0].kind = Collective::kJoin;
  ASSERT_TRUE(told_.Take(0, requests).ok());
  const Agreement agreement = told_.Next(0);
  ASSERT_THAT(agreement.executions, SizeIs(1));
  ASSERT_THAT(agreement.executions[0]->tensors, SizeIs(20));
  EXPECT_NE(agreement.executions[0]->tensors[0].joined, nullptr);
}

TEST_F(OpenBatch, IsPackedAnewWhenTheLimitChanges) {
  told_->set_fuse_below(8);  // less than a tensor
  ASSERT_TRUE(told_.AskById(0, ids_).ok());
  EXPECT_THAT(told_.Next(0).executions, SizeIs(20));
}

TEST(CoordinatorBatchesTest, ABatchGoesWithItsGroup) {
  Told told(2);
  uint32_t id = 0;
  const auto group = [&](bool remove) {
    for (int rank = 0; rank < 2; ++rank) {
      Requests requests;
      requests.groups = {{.remove = remove, .name = "g", .ranks = remove ? std::vector<int>() : std::vector{0, 1}}};
      ASSERT_TRUE(told.Take(rank, requests).ok());
    }
    ASSERT_THAT(told.Next(1).groups, SizeIs(1));
    const Agreement agreement = told.Next(0);
    ASSERT_TRUE(agreement.groups.at(0).status.ok());
    id = agreement.groups[0].id;
  };
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_NO_FATAL_FAILURE(group(false));
    std::vector<uint64_t> ids;
    for (int i = 0; i < 10; ++i) {
      RequestFields fields = AllReduceOf(BatchName(static_cast<uint64_t>(i) + 1));
      fields.group = id;
      told.AskAll(fields);
      told.Next(1);
      ids.push_back(told.Next(0).executions.at(0)->tensors.at(0).id);
    }
    for (int step = 0; step < 3; ++step) {
      for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(told.AskById(rank, ids).ok());
      ASSERT_THAT(told.Next(0).executions, SizeIs(1));
      ASSERT_THAT(told.Next(1).executions, SizeIs(1));
    }
    ASSERT_NO_FATAL_FAILURE(group(true));
    EXPECT_FALSE(told->OthersWaitFor(0));
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(told.AskById(rank, ids).ok());  // they mean nothing any more
    EXPECT_THAT(told.Next(0).executions, IsEmpty());
    EXPECT_EQ(told->waiting(), 0);
  }
}

// The same random requests, cancellations, refusals, joins, stalls and farewells, with and without batches: every rank hears the
// same, at the same time.
TEST(CoordinatorBatchesTest, BatchesChangeNothingThatARankIsTold) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int size = 2 + static_cast<int>(random() % 3);
    Told with(size, [](CoordinatorOptions& options) { options.batch_names = 4; });
    Told without(size, [](CoordinatorOptions& options) { options.batch_names = SIZE_MAX; });
    TeachNames(with, size);
    TeachNames(without, size);
    std::vector<std::set<uint64_t>> pending(size);
    std::vector<bool> gone(size), joined(size);
    const auto both = [&](int rank, const Requests& requests) {
      const Status one = with.Take(rank, requests), other = without.Take(rank, requests);
      ASSERT_EQ(one.ToString(), other.ToString());
    };
    const auto flush = [&] {
      for (int rank = 0; rank < size; ++rank) {
        const Agreement agreement = with.Next(rank);
        const Heard heard = HeardOf(agreement);
        ASSERT_EQ(heard, HeardOf(without.Next(rank))) << "rank " << rank;
        for (const auto& execution : agreement.executions) joined[rank] = joined[rank] && execution->kind != Collective::kJoin;
        for (const NameError& error : agreement.errors) {
          if (error.name == kJoinName) joined[rank] = false;
        }
        for (const uint64_t id : heard.ids) pending[rank].erase(id);
        std::erase_if(pending[rank], [&](uint64_t id) {
          return std::any_of(agreement.errors.begin(), agreement.errors.end(),
                             [&](const NameError& e) { return e.name == BatchName(id); });
        });
      }
      ASSERT_EQ(with->waiting(), without->waiting());
      for (int rank = 0; rank < size; ++rank) ASSERT_EQ(with->OthersWaitFor(rank), without->OthersWaitFor(rank));
    };
    const std::pair<uint64_t, uint64_t> sets[] = {{1, 12}, {13, 24}, {25, 40}};
    for (int step = 0; step < 60; ++step) {
      const int rank = static_cast<int>(random() % size);
      if (gone[rank]) continue;
      const uint64_t what = random() % 100;
      Requests requests;
      if (!joined[rank] && what < 70) {  // the sets of a step, one in a message or several
        for (const auto& [first, last] : sets) {
          if (random() % 8 == 0) continue;
          for (uint64_t id = first; id <= last; ++id) {
            if (pending[rank].insert(id).second) requests.ids.push_back(id);
          }
        }
      } else if (!joined[rank] && what < 76) {
        const uint64_t id = 1 + random() % kBatchNames;
        if (pending[rank].insert(id).second) requests.ids.push_back(id);
      } else if (!joined[rank] && what < 82) {
        const uint64_t id = 1 + random() % kBatchNames;
        if (pending[rank].insert(id).second)
          requests.full.push_back(AllReduceOf(BatchName(id), {static_cast<int64_t>(4 + random() % 2)}));
      } else if (what < 87) {
        if (!pending[rank].empty())
          requests.cancels.push_back({.group = kWorldGroup, .name = BatchName(*pending[rank].begin()), .why = ""});
      } else if (!joined[rank] && what < 92) {
        const uint64_t id = 1 + random() % kBatchNames;
        if (!pending[rank].contains(id))
          requests.refusals.push_back({.group = kWorldGroup, .name = BatchName(id), .parts = 1, .why = "no"});
      } else if (what < 95 && seed % 3 == 0) {
        if (!joined[rank]) {
          RequestFields join;
          join.kind = Collective::kJoin;
          requests.full.push_back(join);
          joined[rank] = true;
        }
      } else if (what < 96 && seed % 4 == 0) {
        requests.leaves = gone[rank] = true;
      } else if (what < 98) {
        std::vector<std::string> one, other;
        with.Pass(milliseconds(30'000));
        without.Pass(milliseconds(30'000));
        const Status stalled = with->CheckStalls(with.now(), &one);
        ASSERT_EQ(stalled.code(), without->CheckStalls(without.now(), &other).code());
        std::sort(one.begin(), one.end());
        std::sort(other.begin(), other.end());
        ASSERT_EQ(one, other);
      } else {
        const int64_t below = random() % 2 == 0 ? 8 : 1 << 20;
        with->set_fuse_below(below);
        without->set_fuse_below(below);
      }
      ASSERT_NO_FATAL_FAILURE(both(rank, requests));
      if (random() % 3 != 0) {
        ASSERT_NO_FATAL_FAILURE(flush());
      }
    }
  }
}

}  // namespace
}  // namespace mxrec
