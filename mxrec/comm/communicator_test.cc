// Ranks as threads: what a Communicator promises while nobody dies. What happens when somebody does: tests/comm_failure_test.cc.
#include "mxrec/comm/communicator.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/comm/controller/comm_test_util.h"
#include "mxrec/io/env.h"

namespace mxrec {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FloatRequest;
using ::testing::HasSubstr;
using testing::ThreadWorld;

CommRequest Barrier(std::string name) {
  CommRequest request;
  request.kind = Collective::kBarrier;
  request.name = std::move(name);
  return request;
}

TEST(CommunicatorTest, OneRankNeedsNoSocketsAndDoesEverything) {
  CommOptions options;
  const auto comm = Communicator::Create(options).value();
  const std::vector<float> in = {1, 2, 3};
  std::vector<float> out;
  ASSERT_TRUE(comm->Run(FloatRequest(Collective::kAllReduce, "a", in, &out)).ok());
  EXPECT_THAT(out, ElementsAre(1, 2, 3));
  Agreed agreed;
  ASSERT_TRUE(comm->Run(FloatRequest(Collective::kAllGather, "b", in, &out), &agreed).ok());
  EXPECT_THAT(out, ElementsAre(1, 2, 3));
  EXPECT_THAT(agreed.received, ElementsAre(3));
  CommRequest all_to_all = FloatRequest(Collective::kAllToAll, "c", in, &out);
  all_to_all.splits = {3};
  ASSERT_TRUE(comm->Run(std::move(all_to_all)).ok());
  EXPECT_THAT(out, ElementsAre(1, 2, 3));
  for (const Collective kind : {Collective::kBroadcast, Collective::kReduce, Collective::kReduceScatter}) {
    ASSERT_TRUE(comm->Run(FloatRequest(kind, "d", in, &out)).ok());
    EXPECT_THAT(out, ElementsAre(1, 2, 3));
  }
  CommRequest mean = FloatRequest(Collective::kAllReduce, "a", in, &out);
  mean.prescale = 2;
  mean.postscale = 3;
  mean.divide_by_size = true;
  ASSERT_TRUE(comm->Run(std::move(mean)).ok());
  EXPECT_THAT(out, ElementsAre(6, 12, 18));
  ASSERT_TRUE(comm->Run(Barrier("barrier")).ok());
  CommRequest join = FloatRequest(Collective::kJoin, "", in, &out);
  ASSERT_TRUE(comm->Run(std::move(join), &agreed).ok());
  EXPECT_THAT(agreed.received, ElementsAre(0));
  EXPECT_TRUE(comm->AddGroup("g", {0}).ok());
  EXPECT_THAT(comm->Group("g").value(), ElementsAre(0));
  EXPECT_TRUE(comm->RemoveGroup("g").ok());
  EXPECT_EQ(comm->stats().control_bytes_sent, 0);
  EXPECT_TRUE(comm->Shutdown().ok());
  EXPECT_TRUE(comm->Shutdown().ok());
}

TEST(CommunicatorTest, StatisticsMayBeReadWhileTheWorldEndsAndAfterwards) {
  ThreadWorld world(2);
  world.OnAll([](Communicator& comm, int rank) {
    const std::vector<float> in(100'000, 1.0f);
    std::vector<float> out;
    ASSERT_TRUE(comm.Run(FloatRequest(Collective::kAllReduce, "a", in, &out)).ok());
    const CommStats before = comm.stats();
    EXPECT_GT(before.data_bytes_sent, 0u);
    std::atomic<bool> over = false;
    std::thread reader([&] {
      while (!over.load()) EXPECT_EQ(comm.stats().data_bytes_sent, before.data_bytes_sent) << rank;
    });
    EXPECT_TRUE(comm.Shutdown().ok());
    over.store(true);
    reader.join();
    EXPECT_EQ(comm.stats().data_bytes_sent, before.data_bytes_sent);
    EXPECT_EQ(comm.stats().data_parts_sent, before.data_parts_sent);
  });
}

TEST(CommunicatorTest, TheTimelineTellsWhenEachOperationWasAskedForAndDone) {
  const std::string path = ::testing::TempDir() + "/timeline-" + std::to_string(::getpid()) + ".json";
  CommOptions options;
  options.timeline_path = path;
  const auto comm = Communicator::Create(options).value();
  const std::vector<float> in = {1, 2, 3};
  std::vector<float> out;
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(comm->Run(FloatRequest(Collective::kAllReduce, "grad \"w\"", in, &out)).ok());
  }
  // The file is whole then, though `comm` still exists, as that of a process at its end does.
  ASSERT_TRUE(comm->Shutdown().ok());
  const Result<std::string> text = ReadWholeFile(Env::Default(), path, 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto count = [&](const std::string& piece) {
    size_t found = 0;
    for (size_t at = text->find(piece); at != std::string::npos; at = text->find(piece, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(text->substr(0, 2), "[\n");
  EXPECT_EQ(text->substr(text->size() - 3), "\n]\n");
  EXPECT_EQ(count("\"name\": \"NEGOTIATE\", \"ph\": \"X\""), 2u);
  EXPECT_EQ(count("\"args\": {\"bytes\": 12, \"tensors\": 1}"), 2u);
  EXPECT_EQ(count("\"args\": {\"name\": \"grad \\\"w\\\"\"}"), 1u);
  static_cast<void>(Env::Default()->RemoveFile(path));

  CommOptions nowhere;
  nowhere.timeline_path = "/nowhere/timeline.json";
  const Status status = Communicator::Create(nowhere).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("timeline /nowhere/timeline.json cannot be written"));
}

TEST(CommunicatorTest, EveryCollectiveGivesWhatItsNameSays) {
  for (const int size : {2, 3}) {
    for (const bool shares_memory : {true, false}) {
      ThreadWorld world(size, {}, shares_memory);
      world.OnAll([&](Communicator& comm, int rank) {
        const auto mine = static_cast<float>(rank + 1);
        const float sum = static_cast<float>(size * (size + 1)) / 2;
        std::vector<float> out;
        for (int step = 0; step < 3; ++step) {
          const std::vector<float> in(5, mine);
          ASSERT_EQ(comm.Run(FloatRequest(Collective::kAllReduce, "sum", in, &out)), OkStatus());
          EXPECT_EQ(out, std::vector<float>(5, sum));
          CommRequest mean = FloatRequest(Collective::kAllReduce, "mean", in, &out);
          mean.divide_by_size = true;
          ASSERT_EQ(comm.Run(std::move(mean)), OkStatus());
          EXPECT_EQ(out, std::vector<float>(5, sum / static_cast<float>(size)));
          CommRequest narrow = FloatRequest(Collective::kAllReduce, "narrow", in, &out);
          narrow.wire = DType::kBFloat16;
          ASSERT_EQ(comm.Run(std::move(narrow)), OkStatus());
          EXPECT_EQ(out, std::vector<float>(5, sum));

          // Unequal rows, none on rank 0.
          const std::vector<float> rows(static_cast<size_t>(rank + step * rank), mine);
          std::vector<float> all;
          for (int r = 0; r < size; ++r) all.insert(all.end(), static_cast<size_t>(r + step * r), static_cast<float>(r + 1));
          Agreed agreed;
          ASSERT_EQ(comm.Run(FloatRequest(Collective::kAllGather, "gather", rows, &out), &agreed), OkStatus());
          EXPECT_EQ(out, all);
          EXPECT_EQ(agreed.received[size - 1], size - 1 + step * (size - 1));

          CommRequest broadcast = FloatRequest(Collective::kBroadcast, "broadcast", in, &out);
          broadcast.root = size - 1;
          ASSERT_EQ(comm.Run(std::move(broadcast)), OkStatus());
          EXPECT_EQ(out, std::vector<float>(5, static_cast<float>(size)));

          CommRequest reduce = FloatRequest(Collective::kReduce, "reduce", in, &out);
          reduce.root = 1;
          reduce.op = ReduceOp::kMax;
          ASSERT_EQ(comm.Run(std::move(reduce)), OkStatus());
          if (rank == 1) {
            EXPECT_EQ(out, std::vector<float>(5, static_cast<float>(size)));
          }

          ASSERT_EQ(comm.Run(FloatRequest(Collective::kReduceScatter, "scatter", in, &out)), OkStatus());
          EXPECT_EQ(out, std::vector<float>(static_cast<size_t>(5 / size + (rank < 5 % size ? 1 : 0)), sum));

          // Rank r sends step + r rows to everybody but itself.
          CommRequest all_to_all = FloatRequest(Collective::kAllToAll, "exchange", in, &out);
          const std::vector<float> sent(static_cast<size_t>((step + rank) * (size - 1)), mine);
          all_to_all.input = sent.data();
          all_to_all.shape = {static_cast<int64_t>(sent.size())};
          std::vector<float> received;
          for (int r = 0; r < size; ++r) {
            all_to_all.splits.push_back(r == rank ? 0 : step + rank);
            if (r != rank) received.insert(received.end(), static_cast<size_t>(step + r), static_cast<float>(r + 1));
          }
          ASSERT_EQ(comm.Run(std::move(all_to_all)), OkStatus());
          EXPECT_EQ(out, received);

          if (rank < 2) {
            CommRequest pair =
                FloatRequest(rank == 0 ? Collective::kSend : Collective::kReceive, "pair" + std::to_string(rank), in, &out);
            pair.peer = 1 - rank;
            pair.tag = 7;
            ASSERT_EQ(comm.Run(std::move(pair)), OkStatus());
            if (rank == 1) {
              EXPECT_EQ(out, std::vector<float>(5, 1.0f));
            }
          }
          ASSERT_EQ(comm.Run(Barrier("barrier")), OkStatus());
        }
      });
    }
  }
}

// Submits and gives a handle to wait for.
class Pending {
 public:
  Pending(Communicator& comm, CommRequest request) {
    auto state = state_;
    request.done = [state](const Status& status, const Agreed& agreed) {
      const std::lock_guard lock(state->mutex);
      EXPECT_FALSE(state->status.has_value()) << "called twice";
      state->status = status;
      state->changed.notify_all();
    };
    comm.Submit(std::move(request));
  }
  Status Wait() {
    std::unique_lock lock(state_->mutex);
    EXPECT_TRUE(state_->changed.wait_for(lock, std::chrono::seconds(30), [&] { return state_->status.has_value(); }));
    return state_->status.value_or(CancelledError("the test waited in vain"));
  }
  bool over() const {
    const std::lock_guard lock(state_->mutex);
    return state_->status.has_value();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Status> status;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST(CommunicatorTest, ManyNamesInAnyOrderAreFusedAndTravelAsBits) {
  ThreadWorld world(3);
  constexpr int kNames = 200;
  world.OnAll([&](Communicator& comm, int rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    std::vector<std::vector<float>> in(kNames), out(kNames);
    for (int step = 0; step < 5; ++step) {
      std::vector<int> order(kNames);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Pending> pending;
      for (const int n : order) {
        in[n].assign(static_cast<size_t>(n % 7), static_cast<float>(n + rank + step));
        CommRequest request = FloatRequest(Collective::kAllReduce, "gradient/" + std::to_string(n), in[n], &out[n]);
        if (n < 3) request.origin.assign(10'000, 'x');  // more than is told: the name has a number all the same
        pending.emplace_back(comm, std::move(request));
      }
      for (Pending& one : pending) ASSERT_EQ(one.Wait(), OkStatus());
      for (int n = 0; n < kNames; ++n)
        EXPECT_EQ(out[n], std::vector<float>(static_cast<size_t>(n % 7), static_cast<float>(3 * (n + step) + 3)));
    }
    const CommStats stats = comm.stats();
    EXPECT_EQ(stats.full_requests, kNames) << "in the first step only";
    EXPECT_GT(stats.fused_buffers, 0);
    EXPECT_LT(stats.operations, 5 * kNames);
  });
}

TEST(CommunicatorTest, RequestsSubmittedTogetherBecomeOneReductionAndOneThatIsRefusedFailsAlone) {
  constexpr int kTensors = 40, kSteps = 30;
  for (const int size : {1, 2, 3}) {
    ThreadWorld world(size);
    std::vector<CommStats> before(size);
    world.OnAll([&](Communicator& comm, int rank) {
      const std::vector<float> in(3, static_cast<float>(rank + 1));
      std::vector<std::vector<float>> outs(kTensors);
      for (int step = 0; step < kSteps; ++step) {
        if (step == 2) before[rank] = comm.stats();  // names have numbers from here on
        std::mutex mutex;
        std::condition_variable changed;
        int left = kTensors + 1;
        Status refused;
        std::vector<CommRequest> requests;
        for (int i = 0; i < kTensors; ++i) {
          requests.push_back(FloatRequest(Collective::kAllReduce, "g" + std::to_string(i), in, &outs[i]));
        }
        requests.insert(requests.begin() + 7, FloatRequest(Collective::kAllReduce, "", in, &outs[0]));
        for (CommRequest& request : requests) {
          request.done = [&, name = request.name](const Status& status, const Agreed&) {
            const std::lock_guard lock(mutex);
            EXPECT_EQ(status.ok(), !name.empty()) << status;
            if (name.empty()) refused = status;
            if (--left == 0) changed.notify_one();
          };
        }
        comm.Submit(std::move(requests));
        std::unique_lock lock(mutex);
        ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return left == 0; })) << left << " requests wait";
        EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
        const float sum = static_cast<float>(size * (size + 1)) / 2;
        for (const std::vector<float>& out : outs) ASSERT_EQ(out, std::vector<float>(3, sum));
      }
      const CommStats after = comm.stats();
      EXPECT_EQ(after.operations - before[rank].operations, kSteps - 2u);
      EXPECT_EQ(after.fused_buffers - before[rank].fused_buffers, kSteps - 2u);
      EXPECT_EQ(after.full_requests, before[rank].full_requests);
    });
  }
}

TEST(CommunicatorTest, D41ASecondRequestOfAPendingNameIsRefusedAndTheNextStepWorks) {
  ThreadWorld world(2);
  const std::vector<float> in(3, 1.0f);
  std::vector<float> out0, out1, other;
  CommRequest first = FloatRequest(Collective::kAllReduce, "twice", in, &out0);
  first.origin = "first/place, a.py:1";
  Pending pending(world[0], std::move(first));
  CommRequest second = FloatRequest(Collective::kAllReduce, "twice", in, &other);
  second.origin = "second/place, a.py:2";
  const Status refused = world[0].Run(std::move(second));
  EXPECT_EQ(refused.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("'twice'"), HasSubstr("rank 0"), HasSubstr("first/place, a.py:1"),
                                                    HasSubstr("second/place, a.py:2")));
  EXPECT_EQ(world[1].Run(FloatRequest(Collective::kAllReduce, "twice", in, &out1)), OkStatus());
  EXPECT_EQ(pending.Wait(), OkStatus());
  EXPECT_THAT(out0, ElementsAre(2, 2, 2));
  world.OnAll([&](Communicator& comm, int rank) {
    std::vector<float> out;
    EXPECT_EQ(comm.Run(FloatRequest(Collective::kAllReduce, "twice", in, &out)), OkStatus());
  });
}

TEST(CommunicatorTest, D40ADisagreementFailsThatNameOnAllRanksAndNothingElse) {
  ThreadWorld world(3);
  world.OnAll([&](Communicator& comm, int rank) {
    for (int step = 0; step < 3; ++step) {
      const std::vector<float> in(rank == 1 && step == 1 ? 4 : 3, 1.0f);
      std::vector<float> out, good;
      CommRequest request = FloatRequest(Collective::kAllReduce, "loss", in, &out);
      request.origin = "node of rank " + std::to_string(rank);
      const std::vector<float> one = {1.0f};
      Pending same(comm, FloatRequest(Collective::kAllReduce, "good", one, &good));
      const Status status = comm.Run(std::move(request));
      if (step == 1) {
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'loss'"), HasSubstr("float32 [3]"),
                                                         HasSubstr("rank 1 has float32 [4]"), HasSubstr("node of rank 1")));
      } else {
        EXPECT_EQ(status, OkStatus());
      }
      EXPECT_EQ(same.Wait(), OkStatus());
    }
    EXPECT_EQ(comm.health(), OkStatus());
  });
}

TEST(CommunicatorTest, D38ExchangesWithManyEmptyPartsEnd) {
  ThreadWorld world(4);
  world.OnAll([&](Communicator& comm, int rank) {
    for (uint64_t step = 0; step < 40; ++step) {
      // All ranks draw the same table of splits; one rank sends and gets nothing.
      std::mt19937_64 random(step);
      const int idle = static_cast<int>(random() % 4);
      int64_t table[4][4];
      for (int from = 0; from < 4; ++from) {
        for (int to = 0; to < 4; ++to)
          table[from][to] = from == idle || to == idle || random() % 2 == 0 ? 0 : static_cast<int64_t>(random() % 1000);
      }
      std::vector<float> in, out, expected;
      for (int to = 0; to < 4; ++to) in.insert(in.end(), static_cast<size_t>(table[rank][to]), static_cast<float>(10 * rank + to));
      for (int from = 0; from < 4; ++from)
        expected.insert(expected.end(), static_cast<size_t>(table[from][rank]), static_cast<float>(10 * from + rank));
      CommRequest request = FloatRequest(Collective::kAllToAll, "exchange", in, &out);
      request.splits.assign(table[rank], table[rank] + 4);
      Agreed agreed;
      ASSERT_EQ(comm.Run(std::move(request), &agreed), OkStatus());
      EXPECT_EQ(out, expected);
      for (int from = 0; from < 4; ++from) EXPECT_EQ(agreed.received[from], table[from][rank]);
    }
    EXPECT_EQ(comm.stats().full_requests, 1);
  });
}

TEST(CommunicatorTest, D46AMeanOfIntegersIsRefusedWithAdvice) {
  const auto comm = Communicator::Create({}).value();
  CommRequest request = FloatRequest(Collective::kAllReduce, "count", {1, 2}, nullptr);
  request.dtype = DType::kInt32;
  request.divide_by_size = true;
  const Status status = comm->Run(std::move(request));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'count'"), HasSubstr("int32"), HasSubstr("sum")));
}

TEST(CommunicatorTest, WrongArgumentsAreRefusedAtOnce) {
  ThreadWorld world(2);
  std::vector<float> out;
  const std::vector<float> in(4, 1.0f);
  const auto refused = [&](const std::function<void(CommRequest&)>& change) {
    CommRequest request = FloatRequest(Collective::kAllReduce, "a", in, &out);
    change(request);
    const Status status = world[0].Run(std::move(request));
    EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](auto& r) { r.name = ""; }), HasSubstr("name"));
  EXPECT_THAT(refused([](auto& r) { r.name = std::string(1025, 'x'); }), HasSubstr("1025"));
  EXPECT_THAT(refused([](auto& r) { r.group = "nowhere"; }), HasSubstr("'nowhere'"));
  EXPECT_THAT(refused([](auto& r) { r.shape = {-1}; }), HasSubstr("-1"));
  EXPECT_THAT(refused([](auto& r) { r.shape = {int64_t{1} << 40, int64_t{1} << 40}; }), HasSubstr("too many elements"));
  EXPECT_THAT(refused([](auto& r) { r.input = nullptr; }), HasSubstr("no input"));
  EXPECT_THAT(refused([](auto& r) { r.allocate = nullptr; }), HasSubstr("allocator"));
  EXPECT_THAT(refused([](auto& r) { r.dtype = DType::kBool; }), HasSubstr("bool"));
  EXPECT_THAT(refused([](auto& r) { r.wire = DType::kInt8; }), HasSubstr("int8"));
  EXPECT_THAT(refused([](auto& r) { r.kind = Collective::kBroadcast, r.root = 2; }), HasSubstr("root 2"));
  EXPECT_THAT(refused([](auto& r) { r.kind = Collective::kSend, r.peer = 0; }), HasSubstr("peer 0"));
  EXPECT_THAT(refused([](auto& r) { r.kind = Collective::kAllGather, r.shape = {}; }), HasSubstr("scalar"));
  EXPECT_THAT(refused([](auto& r) { r.kind = Collective::kAllToAll, r.splits = {4}; }), HasSubstr("1 splits"));
  EXPECT_THAT(refused([](auto& r) { r.kind = Collective::kAllToAll, r.splits = {1, 2}; }), HasSubstr("add up to 3"));
}

TEST(CommunicatorTest, GroupsRunBesideEachOtherUnderTheSameNames) {
  ThreadWorld world(4);
  world.OnAll([&](Communicator& comm, int rank) {
    const std::string name = rank % 2 == 0 ? "even" : "odd";
    ASSERT_EQ(comm.AddGroup(name, rank % 2 == 0 ? std::vector{2, 0} : std::vector{1, 3}), OkStatus());
    EXPECT_EQ(comm.AddGroup(name, {rank}).code(), StatusCode::kAlreadyExists);
    EXPECT_EQ(comm.Group(rank % 2 == 0 ? "odd" : "even").status().code(), StatusCode::kNotFound);
    for (int step = 0; step < 20; ++step) {
      const std::vector<float> in(3, static_cast<float>(rank));
      std::vector<float> in_group, in_world, gathered;
      CommRequest request = FloatRequest(Collective::kAllReduce, "x", in, &in_group);
      request.group = name;
      Pending first(comm, std::move(request));
      Pending second(comm, FloatRequest(Collective::kAllReduce, "x", in, &in_world));
      request = FloatRequest(Collective::kAllGather, "g", in, &gathered);
      request.group = name;
      Pending third(comm, std::move(request));
      ASSERT_EQ(third.Wait(), OkStatus());
      ASSERT_EQ(second.Wait(), OkStatus());
      ASSERT_EQ(first.Wait(), OkStatus());
      EXPECT_EQ(in_group[0], rank % 2 == 0 ? 2 : 4);
      EXPECT_EQ(in_world[0], 6);
      EXPECT_EQ(gathered[0], rank % 2 == 0 ? 2 : 1) << "in the order of the group";
    }
    ASSERT_EQ(comm.RemoveGroup(name), OkStatus());
    EXPECT_EQ(comm.Group(name).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(comm.RemoveGroup(name).code(), StatusCode::kNotFound);
  });
}

TEST(CommunicatorTest, RanksThatJoinGiveZerosUntilAllHave) {
  ThreadWorld world(3);
  world.OnAll([&](Communicator& comm, int rank) {
    // Rank r has 2 + r batches.
    std::vector<float> out;
    for (int step = 0; step < 2 + rank; ++step) {
      const std::vector<float> in(2, 1.0f);
      ASSERT_EQ(comm.Run(FloatRequest(Collective::kAllReduce, "gradient", in, &out)), OkStatus());
      EXPECT_EQ(out[0], step < 2 ? 3 : step < 3 ? 2 : 1);
    }
    Agreed agreed;
    ASSERT_EQ(comm.Run(FloatRequest(Collective::kJoin, "", {}, &out), &agreed), OkStatus());
    EXPECT_THAT(agreed.received, ElementsAre(2));
    // All is as before.
    const std::vector<float> in(2, 1.0f);
    ASSERT_EQ(comm.Run(FloatRequest(Collective::kAllReduce, "gradient", in, &out)), OkStatus());
    EXPECT_EQ(out[0], 3);
  });
}

TEST(CommunicatorTest, ACancelledRequestEndsHereAndOnTheOthers) {
  ThreadWorld world(3);
  const std::vector<float> in(2, 1.0f);
  std::vector<float> out[3];
  Pending here(world[1], FloatRequest(Collective::kAllReduce, "late", in, &out[1]));
  Pending there(world[0], FloatRequest(Collective::kAllReduce, "late", in, &out[0]));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(here.over());
  world[1].Cancel("hccl_world_group", "late");
  for (Pending* pending : {&here, &there}) {
    const Status status = pending->Wait();
    EXPECT_EQ(status.code(), StatusCode::kCancelled);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'late'"), HasSubstr("rank 1 gave up")));
  }
  EXPECT_EQ(world[2].Run(FloatRequest(Collective::kAllReduce, "late", in, &out[2])).code(), StatusCode::kCancelled);
  world.OnAll([&](Communicator& comm, int rank) {
    EXPECT_EQ(comm.Run(FloatRequest(Collective::kAllReduce, "late", in, &out[rank])), OkStatus());
    comm.Cancel("hccl_world_group", "nothing of the kind");
  });
}

TEST(CommunicatorTest, WhatOneRankRefusesFailsOnTheOthersAtOnce) {
  ThreadWorld world(3);
  const std::vector<float> in(2, 1.0f);
  std::vector<float> out[3];
  const auto sum = [&](int rank) { return FloatRequest(Collective::kAllReduce, "refused", in, &out[rank]); };
  for (int time = 0; time < 3; ++time) {
    Pending there(world[0], sum(0));
    CommRequest wrong = sum(1);
    wrong.shape = {-1};
    if (time == 1) {
      world[1].Refuse(sum(1), InvalidArgumentError("a dimension is -1"));
    } else {
      EXPECT_EQ(world[1].Run(std::move(wrong)).code(), StatusCode::kInvalidArgument);
    }
    for (const Status& status : {there.Wait(), world[2].Run(sum(2))}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("'refused'"), HasSubstr("rank 1 ("), HasSubstr("a dimension is -1")));
    }
    world.OnAll([&](Communicator& comm, int rank) { EXPECT_EQ(comm.Run(sum(rank)), OkStatus()); });
  }
  // Rank 0 refuses as well as any other, and a refusal of what is pending here is none.
  Pending pending(world[0], sum(0));
  world[0].Refuse(sum(0), InvalidArgumentError("never heard of"));
  Pending first(world[1], sum(1)), second(world[2], sum(2));
  for (Pending* one : {&pending, &first, &second}) EXPECT_EQ(one->Wait(), OkStatus());
  world[0].Refuse(sum(0), InvalidArgumentError("not now"));
  EXPECT_THAT(std::string(world[1].Run(sum(1)).message()), HasSubstr("not now"));
  EXPECT_THAT(world[1].Machines(), ElementsAre(0, 0, 0));
}

TEST(CommunicatorTest, D40ASendOrReceiveThatOneRankRefusesFailsOnTheOtherAtOnce) {
  ThreadWorld world(3);
  std::vector<float> in(2, 1.0f), out(2);
  const auto part = [&](Collective kind, int peer) {
    CommRequest request = FloatRequest(kind, kind == Collective::kSend ? "given" : "taken", in, &out);
    request.peer = peer;
    request.tag = 7;
    return request;
  };
  const auto expect = [](const Status& status, const char* what) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("1>2 tag 7"), HasSubstr(what)));
  };
  {
    // What Submit finds wrong: the receiver waits.
    Pending receiving(world[2], part(Collective::kReceive, 1));
    CommRequest wrong = part(Collective::kSend, 2);
    wrong.shape = {-1};
    EXPECT_EQ(world[1].Run(std::move(wrong)).code(), StatusCode::kInvalidArgument);
    expect(receiving.Wait(), "rank 1 (");
  }
  // What the caller finds wrong: the sender comes later.
  world[2].Refuse(part(Collective::kReceive, 1), InvalidArgumentError("no room"));
  expect(world[1].Run(part(Collective::kSend, 2)), "no room");
  Pending receiving(world[2], part(Collective::kReceive, 1));
  world[2].Refuse(part(Collective::kReceive, 1), InvalidArgumentError("it is pending"));
  world[1].Refuse(part(Collective::kSend, 1), InvalidArgumentError("to itself"));
  EXPECT_EQ(world[1].Run(part(Collective::kSend, 2)), OkStatus());
  EXPECT_EQ(receiving.Wait(), OkStatus());
}

// The asking thread of rank 1 sends such a request itself, the progress thread sends the cancellation: never the other way round,
// or rank 0 would take the cancellation for one of nothing.
TEST(CommunicatorTest, ALoneRequestIsSentBeforeItsCancellation) {
  ThreadWorld world(2, [](CommOptions& options) { options.stall_abort = std::chrono::seconds(5); });
  const std::vector<float> in(2, 1.0f);
  std::vector<float> out[2];
  const auto together = [&] {
    world.OnAll([&](Communicator& comm, int rank) {
      EXPECT_EQ(comm.Run(FloatRequest(Collective::kAllReduce, "alone", in, &out[rank])), OkStatus());
    });
  };
  for (int i = 0; i < 3; ++i) together();
  for (int i = 0; i < 100; ++i) {
    Pending pending(world[1], FloatRequest(Collective::kAllReduce, "alone", in, &out[1]));
    world[1].Cancel("hccl_world_group", "alone");
    ASSERT_EQ(pending.Wait().code(), StatusCode::kCancelled);
    ASSERT_EQ(world[0].Run(FloatRequest(Collective::kAllReduce, "alone", in, &out[0])).code(), StatusCode::kCancelled);
    together();
  }
}

TEST(CommunicatorTest, CallbacksMayAskForTheNextStep) {
  ThreadWorld world(2);
  world.OnAll([&](Communicator& comm, int) {
    std::atomic<int> steps{0};
    std::vector<float> in(8, 1.0f), out;
    std::function<void()> next = [&] {
      CommRequest request = FloatRequest(Collective::kAllReduce, "step", in, &out);
      request.done = [&](const Status& status, const Agreed&) {
        EXPECT_EQ(status, OkStatus());
        if (++steps < 200) next();
        steps.notify_all();
      };
      comm.Submit(std::move(request));
    };
    next();
    for (int seen = steps.load(); seen < 200; seen = steps.load()) steps.wait(seen);
  });
}

TEST(CommunicatorTest, ATensorWhoseMemoryCannotBeHadFailsAlone) {
  ThreadWorld world(2);
  world.OnAll([&](Communicator& comm, int rank) {
    const std::vector<float> in(2, 1.0f);
    std::vector<float> out;
    CommRequest request = FloatRequest(Collective::kAllGather, "a", in, &out);
    if (rank == 1) request.allocate = [](const Agreed&) -> Result<void*> { return ResourceExhaustedError("full"); };
    EXPECT_EQ(comm.Run(std::move(request)), rank == 1 ? ResourceExhaustedError("full") : OkStatus());
    EXPECT_EQ(comm.Run(FloatRequest(Collective::kAllGather, "a", in, &out)), OkStatus());
  });
}

TEST(CommunicatorTest, CallsAreAnsweredOutsideOfAnyOrder) {
  ThreadWorld world(3);
  world.OnAll([&](Communicator& comm, int rank) {
    comm.Serve("repeat", [rank](int from, std::string_view request) -> Result<std::string> {
      return std::to_string(rank) + "<" + std::to_string(from) + ":" + std::string(request);
    });
    comm.Serve("big", [](int, std::string_view request) -> Result<std::string> {
      return std::string(std::stoul(std::string(request)), 'b');
    });
    comm.Serve("fails", [](int, std::string_view) -> Result<std::string> { return DataLossError("broken shard"); });
    std::vector<float> out;
    CommRequest barrier = Barrier("served");
    ASSERT_EQ(comm.Run(std::move(barrier)), OkStatus());
    const Deadline soon = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (int to = 0; to < 3; ++to) {
      EXPECT_EQ(comm.Call(to, "repeat", "x", soon).value(), std::to_string(to) + "<" + std::to_string(rank) + ":x");
      EXPECT_EQ(comm.Call(to, "fails", "", soon).status(), DataLossError("broken shard"));
      EXPECT_EQ(comm.Call(to, "none", "", soon).status().code(), StatusCode::kNotFound);
      // More than the window, both ways.
      EXPECT_EQ(comm.Call(to, "big", "5000000", soon)->size(), 5'000'000);
      EXPECT_EQ(comm.Call(to, "repeat", std::string(5'000'000, 'q'), soon)->size(), 5'000'004);
      EXPECT_EQ(comm.Call(to, "repeat", "", soon)->size(), 4);
    }
    EXPECT_EQ(comm.Call(3, "repeat", "", soon).status().code(), StatusCode::kInvalidArgument);
    comm.Serve("slow", [](int, std::string_view) -> Result<std::string> {
      std::this_thread::sleep_for(milliseconds(200));
      return std::string();
    });
    ASSERT_EQ(comm.Run(Barrier("slow is served")), OkStatus());
    EXPECT_EQ(comm.Call((rank + 1) % 3, "slow", "", std::chrono::steady_clock::now() + milliseconds(20)).status().code(),
              StatusCode::kCancelled);
    ASSERT_EQ(comm.Run(Barrier("done")), OkStatus());
  });
}

TEST(CommunicatorTest, TwoWorldsInOneProcessDoNotMeet) {
  ThreadWorld first(2), second(3);
  std::thread other([&] {
    second.OnAll([](Communicator& comm, int rank) {
      std::vector<float> out;
      const std::vector<float> in = {static_cast<float>(rank)};
      for (int step = 0; step < 100; ++step) {
        ASSERT_EQ(comm.Run(FloatRequest(Collective::kAllReduce, "x", in, &out)), OkStatus());
        EXPECT_EQ(out[0], 3);
      }
    });
  });
  first.OnAll([](Communicator& comm, int rank) {
    std::vector<float> out;
    const std::vector<float> in = {static_cast<float>(10 * rank)};
    for (int step = 0; step < 100; ++step) {
      ASSERT_EQ(comm.Run(FloatRequest(Collective::kAllReduce, "x", in, &out)), OkStatus());
      EXPECT_EQ(out[0], 10);
    }
  });
  other.join();
}

TEST(CommunicatorTest, D39ARankThatLeavesEarlyFailsWhatWaitsForItByName) {
  ThreadWorld world(3);
  world.OnAll([&](Communicator& comm, int rank) {
    const std::vector<float> in(2, 1.0f);
    std::vector<float> out;
    for (int step = 0; step < (rank == 1 ? 10 : 11); ++step) {
      const Status status = comm.Run(FloatRequest(Collective::kAllReduce, "gradient", in, &out));
      if (step < 10) {
        ASSERT_EQ(status, OkStatus());
      } else {
        EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
        EXPECT_THAT(std::string(status.message()),
                    AllOf(HasSubstr("'gradient'"), HasSubstr("rank 1"), HasSubstr("has left"), HasSubstr("operation 10")));
      }
    }
    EXPECT_EQ(comm.Shutdown(), OkStatus());
    EXPECT_EQ(comm.Run(FloatRequest(Collective::kAllReduce, "gradient", in, &out)).code(), StatusCode::kFailedPrecondition);
  });
}

TEST(CommunicatorTest, ShutdownEndsPendingRequests) {
  ThreadWorld world(2);
  const std::vector<float> in(2, 1.0f);
  std::vector<float> out;
  Pending pending(world[1], FloatRequest(Collective::kAllReduce, "never", in, &out));
  std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(world[1].Shutdown(), OkStatus());
  EXPECT_EQ(pending.Wait().code(), StatusCode::kCancelled);
}

TEST(CommunicatorTest, AStalledOperationEndsTheWorldAtTheLimit) {
  ThreadWorld world(2, [](CommOptions& options) {
    options.stall_warning = milliseconds(60);
    options.stall_abort = milliseconds(250);
  });
  const std::vector<float> in(2, 1.0f);
  std::vector<float> out;
  const auto start = std::chrono::steady_clock::now();
  const Status status = world[0].Run(FloatRequest(Collective::kAllReduce, "lonely", in, &out));
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(250));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'lonely'"), HasSubstr("not by rank 1"), HasSubstr("the limit is 250 ms")));
  for (int i = 0; i < 1000 && world[1].health().ok(); ++i) std::this_thread::sleep_for(milliseconds(2));
  EXPECT_THAT(std::string(world[1].health().message()), HasSubstr("'lonely'"));
  EXPECT_FALSE(world[1].Run(FloatRequest(Collective::kAllReduce, "other", in, &out)).ok());
}

// Any order, any mixture of kinds: all ends, all results are right.
TEST(CommunicatorTest, RandomSchedulesEndWithTheRightResults) {
  const uint64_t start = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(start));
  for (uint64_t seed = start; seed < start + 4; ++seed) {
    std::mt19937_64 shared(seed);
    const int size = 2 + static_cast<int>(shared() % 3);
    ThreadWorld world(
        size, [&](CommOptions& options) { options.fusion_bytes = seed % 2 == 0 ? 64 : 64 << 20; }, seed % 3 != 0);
    constexpr int kSteps = 6, kNames = 30;
    int kinds[kNames];
    for (int& kind : kinds) kind = static_cast<int>(shared() % 4);
    world.OnAll([&](Communicator& comm, int rank) {
      std::mt19937_64 random(seed * 100 + static_cast<uint64_t>(rank));
      for (int step = 0; step < kSteps; ++step) {
        std::vector<int> order(kNames);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        std::vector<std::vector<float>> in(kNames), out(kNames);
        std::vector<std::unique_ptr<Pending>> pending(kNames);
        for (const int n : order) {
          const Collective kind = kinds[n] == 0   ? Collective::kAllGather
                                  : kinds[n] == 1 ? Collective::kBroadcast
                                                  : Collective::kAllReduce;
          const auto count = static_cast<size_t>(n % 5 + (kinds[n] == 0 ? rank * step : step % 2));
          in[n].assign(count, static_cast<float>(n + step + rank));
          CommRequest request = FloatRequest(kind, std::string("n").append(std::to_string(n)), in[n], &out[n]);
          request.root = kind == Collective::kBroadcast ? n % size : 0;
          pending[n] = std::make_unique<Pending>(comm, std::move(request));
          if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        }
        for (int n = 0; n < kNames; ++n) {
          ASSERT_EQ(pending[n]->Wait(), OkStatus()) << "seed " << seed;
          std::vector<float> expected;
          for (int r = 0; r < size; ++r) {
            const auto value = static_cast<float>(n + step + r);
            if (kinds[n] == 0) {
              expected.insert(expected.end(), static_cast<size_t>(n % 5 + r * step), value);
            } else if (kinds[n] == 1) {
              if (r == n % size) expected.assign(in[n].size(), value);
            } else {
              expected.resize(in[n].size());
              for (float& x : expected) x += value;
            }
          }
          EXPECT_EQ(out[n], expected) << "seed " << seed << ", name " << n << ", step " << step;
        }
      }
    });
  }
}

}  // namespace
}  // namespace mxrec
