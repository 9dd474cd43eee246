#include "mxrec/comm/controller/coordinator.h"

#include <algorithm>
#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/comm/controller/coordinator_test_util.h"

namespace mxrec {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::AllReduceOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Ids;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using testing::Told;

TEST(CoordinatorTest, AnOperationStartsWhenTheLastRankHasAsked) {
  Told told(3);
  ASSERT_TRUE(told.Ask(2, AllReduceOf("a")).ok());
  ASSERT_TRUE(told.Ask(0, AllReduceOf("a")).ok());
  EXPECT_THAT(told.Next(0).executions, IsEmpty());
  EXPECT_EQ(told->waiting(), 1);
  ASSERT_TRUE(told.Ask(1, AllReduceOf("a")).ok());
  for (int rank = 0; rank < 3; ++rank) {
    const Agreement agreement = told.Next(rank);
    ASSERT_THAT(agreement.executions, SizeIs(1));
    EXPECT_EQ(agreement.executions[0]->tensors[0].name, "a");
  }
  EXPECT_EQ(told->waiting(), 0);
}

TEST(CoordinatorTest, NamesThatRepeatAreKnownByTheirNumbers) {
  Told told(2);
  told.AskAll(AllReduceOf("a"));
  told.AskAll(AllReduceOf("b"));
  const uint64_t a = told.Next(0).executions[0]->tensors[0].id;
  static_cast<void>(told.Next(1));
  ASSERT_TRUE(told.AskById(0, {a, a + 1}).ok());
  ASSERT_TRUE(told.AskById(1, {a + 1}).ok());
  Agreement agreement = told.Next(1);
  ASSERT_THAT(agreement.executions, SizeIs(1));
  EXPECT_THAT(Ids(*agreement.executions[0]), ElementsAre(a + 1));
  EXPECT_EQ(agreement.executions[0]->tensors[0].name, "");
  ASSERT_TRUE(told.AskById(1, {a}).ok());
  agreement = told.Next(0);
  EXPECT_THAT(Ids(*agreement.executions.back()), ElementsAre(a));
}

TEST(CoordinatorTest, SmallReductionsOfOneKindArePackedInTheOrderOfTheirNumbers) {
  Told told(2, [](CoordinatorOptions& options) {
    options.fuse_below = 64;
    options.fusion_bytes = 48;
  });
  RequestFields large = AllReduceOf("large", {17}), halves = AllReduceOf("halves");
  halves.dtype = DType::kFloat16;
  for (const RequestFields& fields : {AllReduceOf("a"), large, AllReduceOf("b"), halves, AllReduceOf("c"), AllReduceOf("d")})
    told.AskAll(fields);
  const Agreement agreement = told.Next(1);
  ASSERT_THAT(agreement.executions, SizeIs(4));
  EXPECT_THAT(Ids(*agreement.executions[0]), ElementsAre(1, 3, 5));  // 3 x 16 bytes are 48
  EXPECT_THAT(Ids(*agreement.executions[1]), ElementsAre(2));
  EXPECT_THAT(Ids(*agreement.executions[2]), ElementsAre(4));
  EXPECT_THAT(Ids(*agreement.executions[3]), ElementsAre(6));
}

TEST(CoordinatorTest, GathersAndExchangesTellEachRankItsRows) {
  Told told(3);
  RequestFields gather = AllReduceOf("g");
  gather.kind = Collective::kAllGather;
  RequestFields exchange = AllReduceOf("x");
  exchange.kind = Collective::kAllToAll;
  for (int rank = 0; rank < 3; ++rank) {
    gather.shape = {rank, 2};
    exchange.splits = {rank, 10 * rank, 0};
    exchange.shape = {11 * rank};
    ASSERT_TRUE(told.Ask(rank, gather).ok());
    ASSERT_TRUE(told.Ask(rank, exchange).ok());
  }
  Agreement agreement = told.Next(1);
  EXPECT_THAT(agreement.executions[0]->received, ElementsAre(0, 1, 2));
  EXPECT_THAT(agreement.executions[1]->received, ElementsAre(0, 10, 20));
  EXPECT_THAT(told.Next(2).executions[1]->received, ElementsAre(0, 0, 0));
  // Again, with other rows: only those travel.
  for (int rank = 0; rank < 3; ++rank) {
    Requests requests;
    requests.rows = {{.id = 1, .rows = 5 - rank, .splits = {}}, {.id = 2, .rows = 3, .splits = {1, 1, 1}}};
    ASSERT_TRUE(told.Take(rank, requests).ok());
  }
  agreement = told.Next(0);
  EXPECT_THAT(agreement.executions[2]->received, ElementsAre(5, 4, 3));
  EXPECT_THAT(agreement.executions[3]->received, ElementsAre(1, 1, 1));
}

TEST(CoordinatorTest, D40MismatchesFailOnAllRanksAndNameRanksValuesAndOrigins) {
  struct Case {
    std::function<void(RequestFields&)> change;
    std::vector<std::string> words;
  };
  for (const Case& wrong : {Case{[](auto& f) { f.shape = {5}; }, {"shape", "float32 [4]", "float32 [5]"}},
                            Case{[](auto& f) { f.dtype = DType::kFloat64; }, {"element type", "float32", "float64"}},
                            Case{[](auto& f) { f.kind = Collective::kAllGather; }, {"kind of operation", "allreduce", "allgather"}},
                            Case{[](auto& f) { f.op = ReduceOp::kMin; }, {"reduction", "min", "sum"}},
                            Case{[](auto& f) { f.divide_by_size = true; }, {"scale", "a mean"}},
                            Case{[](auto& f) { f.root = 1; }, {"root 0", "root 1"}},
                            Case{[](auto& f) { f.wire = DType::kFloat16; }, {"type on the wire", "float16"}}}) {
    Told told(3);
    RequestFields other = AllReduceOf("loss");
    other.origin = "other/node, line 7";
    wrong.change(other);
    ASSERT_TRUE(told.Ask(0, AllReduceOf("loss")).ok());
    ASSERT_TRUE(told.Ask(1, other).ok());
    EXPECT_THAT(told.Next(0).errors, IsEmpty());
    ASSERT_TRUE(told.Ask(2, AllReduceOf("loss")).ok());
    for (int rank = 0; rank < 3; ++rank) {
      const Agreement agreement = told.Next(rank);
      EXPECT_THAT(agreement.executions, IsEmpty());
      ASSERT_THAT(agreement.errors, SizeIs(1));
      const std::string text(agreement.errors[0].status.message());
      EXPECT_EQ(agreement.errors[0].status.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(text, AllOf(HasSubstr("'loss'"), HasSubstr("ranks 0, 2 have"), HasSubstr("rank 1 has"),
                              HasSubstr("other/node, line 7"), HasSubstr("node of loss")));
      for (const std::string& word : wrong.words) EXPECT_THAT(text, HasSubstr(word));
    }
    // The next step works.
    told.AskAll(AllReduceOf("loss"));
    EXPECT_THAT(told.Next(1).executions, SizeIs(1));
  }
}

TEST(CoordinatorTest, ItKnowsWhetherOthersWaitForARank) {
  Told told(2);
  const auto others_wait = [&] { return told->OthersWaitFor(0); };
  EXPECT_FALSE(others_wait());
  ASSERT_TRUE(told.Ask(0, AllReduceOf("a")).ok());
  EXPECT_FALSE(others_wait());
  ASSERT_TRUE(told.Ask(1, AllReduceOf("a")).ok());
  EXPECT_FALSE(others_wait());
  ASSERT_TRUE(told.Ask(1, AllReduceOf("b")).ok());
  EXPECT_TRUE(others_wait());
  // What the other gave up, this rank has still to hear of.
  Requests requests;
  requests.cancels = {{.group = kWorldGroup, .name = "b", .why = ""}};
  ASSERT_TRUE(told.Take(1, requests).ok());
  EXPECT_TRUE(others_wait());
  ASSERT_TRUE(told.Ask(0, AllReduceOf("b")).ok());
  EXPECT_FALSE(others_wait());
  RequestFields join;
  join.kind = Collective::kJoin;
  ASSERT_TRUE(told.Ask(1, join).ok());
  EXPECT_TRUE(others_wait());
  ASSERT_TRUE(told.Ask(0, join).ok());
  EXPECT_FALSE(others_wait());
  requests = {};
  requests.groups = {{.remove = false, .name = "g", .ranks = {0, 1}}};
  ASSERT_TRUE(told.Take(1, requests).ok());
  EXPECT_TRUE(others_wait());
  ASSERT_TRUE(told.Take(0, requests).ok());
  EXPECT_FALSE(others_wait());
  told.Leave(1);
  EXPECT_TRUE(others_wait());
}

TEST(CoordinatorTest, AMismatchWithAKnownNumberLeavesTheNumberAsItWas) {
  Told told(2);
  told.AskAll(AllReduceOf("a"));
  EXPECT_THAT(told.Next(0).executions, SizeIs(1));
  ASSERT_TRUE(told.AskById(0, {1}).ok());
  ASSERT_TRUE(told.Ask(1, AllReduceOf("a", {9})).ok());
  EXPECT_THAT(told.Next(0).errors, SizeIs(1));
  ASSERT_TRUE(told.AskById(0, {1}).ok());
  ASSERT_TRUE(told.AskById(1, {1}).ok());
  EXPECT_THAT(told.Next(0).executions, SizeIs(1));
}

TEST(CoordinatorTest, JoinedRanksTakePartInSumsAndAreToldTheShapes) {
  Told told(3);
  RequestFields join;
  join.kind = Collective::kJoin;
  ASSERT_TRUE(told.Ask(0, AllReduceOf("early")).ok());
  ASSERT_TRUE(told.Ask(0, join).ok());
  for (const int rank : {1, 2}) {
    ASSERT_TRUE(told.Ask(rank, AllReduceOf("early")).ok());
    ASSERT_TRUE(told.Ask(rank, AllReduceOf("late", {6})).ok());
  }
  Agreement agreement = told.Next(0);
  ASSERT_THAT(agreement.executions, SizeIs(1));
  EXPECT_EQ(agreement.executions[0]->tensors[0].name, "early");
  ASSERT_NE(agreement.executions[0]->tensors[1].joined, nullptr);
  EXPECT_THAT(agreement.executions[0]->tensors[1].joined->shape, ElementsAre(6));
  // What zeros would falsify is refused, for those who asked.
  RequestFields gather = AllReduceOf("gather"), minimum = AllReduceOf("minimum");
  gather.kind = Collective::kAllGather;
  minimum.op = ReduceOp::kMin;
  for (const RequestFields& fields : {gather, minimum}) {
    for (const int rank : {1, 2}) ASSERT_TRUE(told.Ask(rank, fields).ok());
    EXPECT_THAT(told.Next(0).errors, IsEmpty());
    agreement = told.Next(1);
    EXPECT_THAT(std::string(agreement.errors.back().status.message()),
                AllOf(HasSubstr("rank 0 has joined"), HasSubstr(fields.name)));
  }
  ASSERT_TRUE(told.Ask(2, join).ok());
  ASSERT_TRUE(told.Ask(1, join).ok());
  agreement = told.Next(0);
  ASSERT_THAT(agreement.executions, SizeIs(1));
  EXPECT_EQ(agreement.executions[0]->kind, Collective::kJoin);
  EXPECT_THAT(agreement.executions[0]->received, ElementsAre(1));
}

TEST(CoordinatorTest, D39ARankThatLeavesFailsWhatWaitsForItAndWhatComesLater) {
  Told told(3);
  told.AskAll(AllReduceOf("a"));
  for (int rank = 0; rank < 3; ++rank) told->Finished(rank, 0);
  static_cast<void>(told.Next(0));
  told->Finished(1, 1);
  ASSERT_TRUE(told.Ask(0, AllReduceOf("b")).ok());
  ASSERT_TRUE(told.Ask(1, AllReduceOf("c")).ok());
  ASSERT_TRUE(told.Ask(0, AllReduceOf("c")).ok());
  told.Leave(1);
  EXPECT_TRUE(told.Next(1).goodbye);
  Agreement agreement = told.Next(0);
  ASSERT_THAT(agreement.errors, SizeIs(2));
  for (const NameError& error : agreement.errors) {
    EXPECT_THAT(std::string(error.status.message()),
                AllOf(HasSubstr("rank 1 has left"), HasSubstr("last finished 'a', operation 1"), HasSubstr("'" + error.name + "'"),
                      HasSubstr("asked for by rank 0")));
  }
  ASSERT_TRUE(told.Ask(2, AllReduceOf("b")).ok());
  EXPECT_THAT(told.Next(2).errors, SizeIs(1));
  EXPECT_TRUE(told->left(1));
  EXPECT_FALSE(told.Ask(1, AllReduceOf("z")).ok());
}

// Ranks that fail because one has left leave too, perhaps before the others ask: the first one is the cause.
TEST(CoordinatorTest, D39TheFirstRankThatLeftIsNamedWhoeverFollowsIt) {
  Told told(4);
  told.AskAll(AllReduceOf("a"));
  told.Leave(2);
  told.Leave(1);
  told.Leave(0);
  RequestFields join;
  join.kind = Collective::kJoin;
  Requests group;
  group.groups = {{.remove = false, .name = "g", .ranks = {3, 1, 2}}};
  ASSERT_TRUE(told.Ask(3, AllReduceOf("b")).ok());
  ASSERT_TRUE(told.Ask(3, join).ok());
  ASSERT_TRUE(told.Take(3, group).ok());
  const Agreement agreement = told.Next(3);
  ASSERT_THAT(agreement.errors, SizeIs(2));
  for (const NameError& error : agreement.errors) {
    EXPECT_THAT(std::string(error.status.message()),
                AllOf(HasSubstr("rank 2 has left, after it ranks 0, 1"), HasSubstr("rank 2 has finished no operation")));
  }
  ASSERT_THAT(agreement.groups, SizeIs(1));
  EXPECT_THAT(std::string(agreement.groups[0].status.message()), HasSubstr("rank 2 has left, after it rank 1"));
}

TEST(CoordinatorTest, WhatIsAgreedOnBeforeARankLeavesStillRuns) {
  Told told(2);
  told.AskAll(AllReduceOf("a"));
  told.Leave(1);
  EXPECT_THAT(told.Next(0).executions, SizeIs(1));
  const Agreement agreement = told.Next(1);
  EXPECT_THAT(agreement.executions, SizeIs(1));
  EXPECT_TRUE(agreement.goodbye);
}

TEST(CoordinatorTest, ACancelledNameFailsForThoseWhoAskedAndOnceForThoseWhoCome) {
  Told told(3);
  ASSERT_TRUE(told.Ask(0, AllReduceOf("a")).ok());
  ASSERT_TRUE(told.Ask(1, AllReduceOf("a")).ok());
  Requests requests;
  requests.cancels = {{.group = kWorldGroup, .name = "a", .why = "its step failed"}};
  ASSERT_TRUE(told.Take(1, requests).ok());
  for (const int rank : {0, 1}) {
    const Agreement agreement = told.Next(rank);
    ASSERT_THAT(agreement.errors, SizeIs(1));
    EXPECT_EQ(agreement.errors[0].status.code(), StatusCode::kCancelled);
    EXPECT_THAT(std::string(agreement.errors[0].status.message()),
                HasSubstr("rank 1 gave up waiting for it: its step failed; asked"));
  }
  // The next step of ranks 0 and 1 comes before rank 2's first.
  ASSERT_TRUE(told.Ask(1, AllReduceOf("a")).ok());
  ASSERT_TRUE(told.Ask(2, AllReduceOf("a")).ok());
  EXPECT_EQ(told.Next(2).errors[0].status.code(), StatusCode::kCancelled);
  ASSERT_TRUE(told.Ask(0, AllReduceOf("a")).ok());
  ASSERT_TRUE(told.Ask(2, AllReduceOf("a")).ok());
  EXPECT_THAT(told.Next(2).executions, SizeIs(1));
  // Once it is agreed on, it runs.
  told.AskAll(AllReduceOf("b"));
  requests.cancels = {{.group = kWorldGroup, .name = "b", .why = ""}};
  ASSERT_TRUE(told.Take(1, requests).ok());
  const Agreement agreement = told.Next(1);
  EXPECT_THAT(agreement.errors, IsEmpty());
  EXPECT_THAT(agreement.executions, SizeIs(2));
}

TEST(CoordinatorTest, ARefusalFailsThatOperationOfTheOthersOnceForEachTime) {
  Told told(3);
  const auto refuse = [&](int rank, std::string name, int parts) {
    Requests requests;
    requests.refusals = {{.group = kWorldGroup, .name = std::move(name), .parts = parts, .why = "the splits are wrong"}};
    return told.Take(rank, requests);
  };
  const auto failed = [&](int rank) {
    std::vector<std::string> names;
    for (const NameError& error : told.Next(rank).errors) {
      EXPECT_EQ(error.status.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(error.status.message()), HasSubstr("rank 1 does not take part: the splits are wrong"));
      names.push_back(error.name);
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  // Rank 0 has asked, rank 2 has not.
  ASSERT_TRUE(told.Ask(0, AllReduceOf("a")).ok());
  ASSERT_TRUE(refuse(1, "a", 1).ok());
  EXPECT_THAT(failed(0), ElementsAre("a"));
  EXPECT_EQ(told->waiting(), 0);
  ASSERT_TRUE(told.Ask(2, AllReduceOf("a")).ok());
  EXPECT_THAT(failed(2), ElementsAre("a"));
  // What comes next runs.
  told.AskAll(AllReduceOf("a"));
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(told.Next(rank).executions, SizeIs(1));
  // Twice before the others come: they hear of it twice. Who refuses the same itself hears nothing, and nobody does of that.
  ASSERT_TRUE(refuse(1, "a", 1).ok());
  ASSERT_TRUE(refuse(1, "a", 1).ok());
  for (int time = 0; time < 2; ++time) {
    ASSERT_TRUE(told.Ask(0, AllReduceOf("a")).ok());
    EXPECT_THAT(failed(0), ElementsAre("a"));
    ASSERT_TRUE(refuse(2, "a", 1).ok());
  }
  told.AskAll(AllReduceOf("a"));
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(told.Next(rank).executions, SizeIs(1));
  // Of several tensors all fail, in whatever order they were asked for.
  RequestFields first = AllReduceOf("b"), second = AllReduceOf("b/1");
  first.parts = second.parts = 2;
  second.part = 1;
  ASSERT_TRUE(told.Ask(0, second).ok());
  ASSERT_TRUE(refuse(1, "b", 2).ok());
  ASSERT_TRUE(told.Ask(0, first).ok());
  EXPECT_THAT(failed(0), ElementsAre("b", "b/1"));
  ASSERT_TRUE(told.Ask(2, first).ok());
  ASSERT_TRUE(told.Ask(2, second).ok());
  EXPECT_THAT(failed(2), ElementsAre("b", "b/1"));
  EXPECT_EQ(told->waiting(), 0);
  told.AskAll(first);
  told.AskAll(second);
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(told.Next(rank).executions[0]->tensors, SizeIs(2));
  EXPECT_FALSE(told->OthersWaitFor(0));
  EXPECT_FALSE(refuse(1, "\x1fjoin", 1).ok());
}

TEST(CoordinatorTest, ListsOfUnequalLengthFailAsAWhole) {
  Told told(3);
  const auto tensor = [](int part, int parts) {
    RequestFields fields = AllReduceOf(part == 0 ? "g" : "g/" + std::to_string(part), {part + 1});
    fields.origin = "line " + std::to_string(parts);
    fields.part = part;
    fields.parts = parts;
    return fields;
  };
  const auto failed = [&](int rank) {
    size_t errors = 0;
    for (const NameError& error : told.Next(rank).errors) {
      EXPECT_THAT(std::string(error.status.message()),
                  HasSubstr("the ranks disagree about the number of tensors: ranks 0, 2 have 3 tensors (line 3); rank 1 has 1 "
                            "tensor (line 1)"));
      ++errors;
    }
    return errors;
  };
  const int counts[] = {3, 1, 3};
  for (int time = 0; time < 2; ++time) {
    // Rank 2 tells of its first tensor last of all.
    ASSERT_TRUE(told.Ask(2, tensor(2, 3)).ok());
    for (const int rank : {0, 1}) {
      for (int part = 0; part < counts[rank]; ++part) ASSERT_TRUE(told.Ask(rank, tensor(part, counts[rank])).ok());
    }
    ASSERT_TRUE(told.Ask(2, tensor(0, 3)).ok());
    EXPECT_EQ(failed(0), 3);
    EXPECT_EQ(failed(1), 1);
    ASSERT_TRUE(told.Ask(2, tensor(1, 3)).ok());
    EXPECT_EQ(failed(2), 3);
    EXPECT_EQ(told->waiting(), 0);
    // The next operation of as many on all ranks runs.
    for (int part = 0; part < 2; ++part) told.AskAll(tensor(part, 2));
    for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(told.Next(rank).executions[0]->tensors, SizeIs(2));
  }
  EXPECT_FALSE(told->OthersWaitFor(0));
}

TEST(CoordinatorTest, GroupsHaveNamesOfTheirOwn) {
  Told told(3);
  for (const int rank : {2, 0}) {
    Requests requests;
    requests.groups = {{.remove = false, .name = "g", .ranks = {2, 0}}};
    ASSERT_TRUE(told.Take(rank, requests).ok());
  }
  Agreement agreement = told.Next(0);
  ASSERT_THAT(agreement.groups, SizeIs(1));
  const uint32_t id = agreement.groups[0].id;
  EXPECT_THAT(agreement.groups[0].ranks, ElementsAre(2, 0));
  EXPECT_THAT(told.Next(1).groups, IsEmpty());
  RequestFields fields = AllReduceOf("a");
  ASSERT_TRUE(told.Ask(1, fields).ok());  // of the world
  fields.group = id;
  ASSERT_TRUE(told.Ask(0, fields).ok());
  ASSERT_TRUE(told.Ask(2, fields).ok());
  EXPECT_THAT(told.Next(0).executions, SizeIs(1));
  EXPECT_THAT(told.Next(1).executions, IsEmpty());
  EXPECT_FALSE(told.Ask(1, fields).ok());
  // It goes as it came.
  for (const int rank : {0, 2}) {
    Requests requests;
    requests.groups = {{.remove = true, .name = "g", .ranks = {}}};
    ASSERT_TRUE(told.Take(rank, requests).ok());
  }
  EXPECT_TRUE(told.Next(2).groups.back().remove);
  EXPECT_FALSE(told.Ask(0, fields).ok());
}

TEST(CoordinatorTest, DisagreementAboutAGroupReachesAllThatAnyoneNamed) {
  Told told(3);
  Requests requests;
  requests.groups = {{.remove = false, .name = "g", .ranks = {0, 1}}};
  ASSERT_TRUE(told.Take(0, requests).ok());
  requests.groups[0].ranks = {0, 1, 2};
  ASSERT_TRUE(told.Take(1, requests).ok());
  EXPECT_THAT(std::string(told.Next(0).groups[0].status.message()),
              AllOf(HasSubstr("rank 0 said [0, 1]"), HasSubstr("rank 1 said [0, 1, 2]")));
  EXPECT_FALSE(told.Next(1).groups[0].status.ok());
  ASSERT_TRUE(told.Take(2, requests).ok());
  EXPECT_FALSE(told.Next(2).groups[0].status.ok());
  // A second try works.
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(told.Take(rank, requests).ok());
  EXPECT_TRUE(told.Next(2).groups[0].status.ok());
}

TEST(CoordinatorTest, SendAndReceiveMeetUnderRanksAndTag) {
  Told told(3);
  RequestFields send = AllReduceOf(PointToPointName(2, 0, 5)), receive = send;
  send.kind = Collective::kSend;
  send.peer = 0;
  receive.kind = Collective::kReceive;
  receive.peer = 2;
  send.tag = receive.tag = 5;
  ASSERT_TRUE(told.Ask(2, send).ok());
  ASSERT_TRUE(told.Ask(0, receive).ok());
  EXPECT_EQ(told.Next(2).executions[0]->kind, Collective::kSend);
  EXPECT_EQ(told.Next(0).executions[0]->kind, Collective::kReceive);
  EXPECT_THAT(told.Next(1).executions, IsEmpty());
  receive.shape = {5};
  ASSERT_TRUE(told.AskById(2, {1}).ok());
  ASSERT_TRUE(told.Ask(0, receive).ok());
  EXPECT_THAT(std::string(told.Next(2).errors[0].status.message()), AllOf(HasSubstr("2>0 tag 5"), HasSubstr("float32 [5]")));
}

TEST(CoordinatorTest, ARefusedSendOrReceiveFailsForTheOtherOfThePairAlone) {
  Told told(3);
  RequestFields send = AllReduceOf(PointToPointName(2, 0, -5)), receive = send;
  send.kind = Collective::kSend;
  send.peer = 0;
  receive.kind = Collective::kReceive;
  receive.peer = 2;
  send.tag = receive.tag = -5;
  const auto refuse = [&](int rank, std::string name, int parts = 0) {
    Requests requests;
    requests.refusals = {{.group = kWorldGroup, .name = std::move(name), .parts = parts, .why = "no such type"}};
    return told.Take(rank, requests);
  };
  const auto expect_told = [&](int rank, const char* refuser) {
    const Agreement agreement = told.Next(rank);
    ASSERT_THAT(agreement.errors, SizeIs(1));
    EXPECT_EQ(agreement.errors[0].name, send.name);
    EXPECT_THAT(std::string(agreement.errors[0].status.message()),
                AllOf(HasSubstr("'2>0 tag -5'"), HasSubstr(std::string(refuser) + " does not take part: no such type")));
  };
  // The sender waits; then the receiver comes later.
  ASSERT_TRUE(told.Ask(2, send).ok());
  ASSERT_TRUE(refuse(0, send.name).ok());
  expect_told(2, "rank 0");
  ASSERT_TRUE(refuse(2, send.name).ok());
  ASSERT_TRUE(told.Ask(0, receive).ok());
  expect_told(0, "rank 2");
  EXPECT_THAT(told.Next(1).errors, IsEmpty());
  // Both refuse: nobody is to hear of it. Then it runs.
  ASSERT_TRUE(refuse(0, send.name).ok());
  ASSERT_TRUE(refuse(2, send.name).ok());
  ASSERT_TRUE(told.Ask(2, send).ok());
  ASSERT_TRUE(told.Ask(0, receive).ok());
  EXPECT_THAT(told.Next(2).executions, SizeIs(1));
  // What is no pair of this rank's ends the connection.
  EXPECT_EQ(refuse(1, send.name).code(), StatusCode::kDataLoss);
  EXPECT_EQ(refuse(0, send.name, 1).code(), StatusCode::kDataLoss);
  EXPECT_EQ(refuse(0, "").code(), StatusCode::kDataLoss);
  for (const char* name : {"\x1f",
                           "\x1f"
                           "0",
                           "\x1f"
                           "0>",
                           "\x1f"
                           "0>1",
                           "\x1f"
                           "0>1 tag ",
                           "\x1f"
                           "0>1 tag 5x",
                           "\x1f"
                           "0>3 tag 5",
                           "\x1f"
                           "0>0 tag 5",
                           "\x1f-1>0 tag 5",
                           "\x1f"
                           "00>1 tag 5",
                           "\x1fjoin"}) {
    EXPECT_EQ(refuse(0, name).code(), StatusCode::kDataLoss) << name;
  }
}

TEST(CoordinatorTest, StallsAreReportedOnceAndEndTheWorldAtTheLimit) {
  Told told(3, [](CoordinatorOptions& options) {
    options.stall_warning = milliseconds(60'000);
    options.stall_abort = milliseconds(300'000);
  });
  told.AskAll(AllReduceOf("first"));
  static_cast<void>(told.Next(0));
  told->Finished(2, 1);
  ASSERT_TRUE(told.Ask(0, AllReduceOf("second")).ok());
  ASSERT_TRUE(told.Ask(1, AllReduceOf("second")).ok());
  std::vector<std::string> warnings;
  told.Pass(milliseconds(59'999));
  EXPECT_TRUE(told->CheckStalls(told.now(), &warnings).ok());
  EXPECT_THAT(warnings, IsEmpty());
  told.Pass(milliseconds(1));
  EXPECT_TRUE(told->CheckStalls(told.now(), &warnings).ok());
  EXPECT_TRUE(told->CheckStalls(told.now(), &warnings).ok());
  ASSERT_THAT(warnings, SizeIs(1));
  EXPECT_THAT(warnings[0], AllOf(HasSubstr("'second'"), HasSubstr("asked for by ranks 0, 1 (node of second)"),
                                 HasSubstr("not by rank 2"), HasSubstr("rank 2 last finished 'first', operation 1")));
  told.Pass(milliseconds(240'000));
  const Status status = told->CheckStalls(told.now(), &warnings);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("the limit is 300000 ms"));
}

TEST(CoordinatorTest, AWorldEndedByAStallNamesWhatElseWaitsOldestFirst) {
  Told told(2, [](CoordinatorOptions& options) { options.stall_abort = milliseconds(4'000); });
  ASSERT_TRUE(told.Ask(0, AllReduceOf("branch")).ok());
  told.Pass(milliseconds(100));
  ASSERT_TRUE(told.Ask(1, AllReduceOf("after")).ok());
  told.Pass(milliseconds(3'950));
  std::vector<std::string> warnings;
  const std::string text(told->CheckStalls(told.now(), &warnings).message());
  EXPECT_THAT(text, AllOf(HasSubstr("'branch' of group hccl_world_group has waited 4050 ms: asked for by rank 0"),
                          HasSubstr("not by rank 1"), HasSubstr("\nand "),
                          HasSubstr("'after' of group hccl_world_group has waited 3950 ms: asked for by rank 1")));
  EXPECT_LT(text.find("'branch'"), text.find("'after'"));
}

TEST(CoordinatorTest, NamesNotUsedForLongestLoseTheirNumbers) {
  Told told(2, [](CoordinatorOptions& options) { options.max_names = 8; });
  std::vector<uint64_t> forgotten;
  for (int step = 0; step < 20; ++step) {
    told.AskAll(AllReduceOf("always"));
    told.AskAll(AllReduceOf("step" + std::to_string(step)));
    const Agreement agreement = told.Next(0);
    forgotten.insert(forgotten.end(), agreement.forget.begin(), agreement.forget.end());
    EXPECT_THAT(told.Next(1).forget, agreement.forget);
  }
  EXPECT_GE(forgotten.size(), 12);
  EXPECT_EQ(std::count(forgotten.begin(), forgotten.end(), 1u), 0) << "the one in use";
  // A question by a number that is gone is overheard: the rank asks again in full.
  EXPECT_TRUE(told.AskById(0, {forgotten[0]}).ok());
  EXPECT_EQ(told->waiting(), 0);
}

TEST(CoordinatorTest, BreakingTheProtocolIsAnErrorNotACrash) {
  Told told(2);
  ASSERT_TRUE(told.Ask(0, AllReduceOf("a")).ok());
  EXPECT_EQ(told.Ask(0, AllReduceOf("a")).code(), StatusCode::kDataLoss);
  EXPECT_EQ(told.AskById(1, {1}).code(), StatusCode::kDataLoss);  // never agreed on
  RequestFields fields = AllReduceOf("b");
  fields.group = 77;
  EXPECT_EQ(told.Ask(1, fields).code(), StatusCode::kDataLoss);
  fields.group = kWorldGroup;
  fields.root = 2;
  EXPECT_EQ(told.Ask(1, fields).code(), StatusCode::kDataLoss);
  fields.root = 0;
  fields.kind = Collective::kSend;
  EXPECT_EQ(told.Ask(1, fields).code(), StatusCode::kDataLoss);
  fields.kind = Collective::kAllReduce;
  fields.name = PointToPointName(0, 1, 0);
  EXPECT_EQ(told.Ask(1, fields).code(), StatusCode::kDataLoss);
  Requests requests;
  requests.groups = {{.remove = false, .name = "g", .ranks = {1, 5}}};
  EXPECT_EQ(told.Take(1, requests).code(), StatusCode::kDataLoss);
  requests.groups = {};
  requests.rows = {{.id = 1, .rows = 3, .splits = {1}}};
  EXPECT_EQ(told.Take(1, requests).code(), StatusCode::kDataLoss);
}

TEST(CoordinatorTest, AnyOrderOfRequestsGivesAllRanksOneOrder) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    const int size = 2 + static_cast<int>(random() % 4);
    Told told(size, [](CoordinatorOptions& options) { options.max_names = 12; });
    std::vector<std::vector<std::string>> done(size);
    std::vector<std::map<uint64_t, std::string>> names(size);
    std::vector<std::vector<std::string>> queues(size);
    std::vector<std::map<std::string, int>> pending(size);
    for (int rank = 0; rank < size; ++rank) {
      for (int i = 0; i < 40; ++i)
        queues[rank].push_back(std::string("n").append(std::to_string(i % 20)).append(i < 20 ? "" : "'"));
      std::shuffle(queues[rank].begin(), queues[rank].end(), random);
    }
    size_t left = static_cast<size_t>(size) * 40;
    while (left > 0) {
      const int rank = static_cast<int>(random() % size);
      if (!queues[rank].empty()) {
        ASSERT_TRUE(told.Ask(rank, AllReduceOf(queues[rank].back())).ok());
        queues[rank].pop_back();
        --left;
      }
      if (random() % 3 == 0) told.Flush();
    }
    for (int rank = 0; rank < size; ++rank) {
      const Agreement agreement = told.Next(rank);
      for (const auto& execution : agreement.executions) {
        for (const AgreedTensor& tensor : execution->tensors) done[rank].push_back(tensor.name);
      }
      EXPECT_THAT(done[rank], SizeIs(40)) << "seed " << seed;
      EXPECT_EQ(done[rank], done[0]) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace mxrec
