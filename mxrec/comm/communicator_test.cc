// Ranks as threads: what a Communicator promises while nobody dies. What happens when somebody does: tests/comm_failure_test.cc.
#include "mxrec/comm/communicator.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/comm/controller/comm_test_util.h"

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

}  // namespace
}  // namespace mxrec
