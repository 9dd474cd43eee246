// The Open MPI transport. The program starts itself three times through mpirun; every rank runs every test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "mxrec/comm/collectives.h"
#include "mxrec/comm/local_transport.h"
#include "mxrec/comm/transport/plugin_transport.h"
#include "mxrec/comm/transport_test_util.h"

namespace mxrec {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr int kRanks = 3;

int Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::atoi(value) : -1;
}

Result<std::unique_ptr<Transport>> TryOpen(int rank, int size, size_t piece_bytes) {
  auto store = MakeMemoryStore();  // MPI ranks know each other
  return MakePluginTransport("mpi", {rank, size, "", MXREC_PLUGIN_FOLDER, piece_bytes}, *store, In(milliseconds(30'000)));
}
std::unique_ptr<Transport> Open(size_t piece_bytes = 1 << 20) {
  return std::move(TryOpen(Environment("OMPI_COMM_WORLD_RANK"), kRanks, piece_bytes)).value();
}

TEST(MpiTransportTest, ANumberOfRanksThatMpiDoesNotHaveIsRefused) {
  const auto transport = TryOpen(0, 7, 1 << 20);
  EXPECT_EQ(transport.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(transport.status().message(), AllOf(HasSubstr("of 7"), HasSubstr("of 3"), HasSubstr("mpirun")));
}

// D-49: longer than the engine takes, some empty.
TEST(MpiTransportTest, PartsOfAllSizesArriveInOrder) {
  for (size_t piece_bytes : {size_t{1} << 20, size_t{5000}}) {
    auto transport = Open(piece_bytes);
    const int me = transport->rank();
    std::vector<SendPart> sends;
    std::vector<ReceivePart> receives;
    std::vector<std::string> sent, received, expected;
    sent.reserve(100), received.reserve(100), expected.reserve(100);
    const size_t sizes[] = {1, 0, 3'000'001, 77, 5000, 10'000};
    for (int peer = 0; peer < kRanks; ++peer) {
      for (size_t k = 0; k < std::size(sizes); ++k) {
        sent.push_back(Noise(sizes[k], me * 100 + peer * 10 + k));
        sends.push_back({peer, sent.back().data(), sizes[k]});
        expected.push_back(Noise(sizes[k], peer * 100 + me * 10 + k));
        received.emplace_back(sizes[k], '\0');
        receives.push_back({peer, received.back().data(), sizes[k]});
      }
    }
    const Status status = transport->Exchange(sends, receives, In(milliseconds(30'000)));
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(received[i] == expected[i]) << i;
    EXPECT_EQ(transport->parts_sent(), (kRanks - 1) * (std::size(sizes) - 1));
  }
}

TEST(MpiTransportTest, AlgorithmsGiveTheBitsThatTheyGiveOnEveryTransport) {
  const size_t count = 200'003;
  const std::vector<int> ranks = {0, 1, 2};
  auto transport = Open(10'000);
  for (Algorithm algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kRecursiveDoubling, Algorithm::kTree}) {
    for (DType dtype : {DType::kFloat32, DType::kFloat16}) {
      const auto reduce = [&](Transport& with) {
        std::string data = Noise(count * DTypeSize(dtype), with.rank());
        // Finite numbers: which bits a NaN of two NaNs has is the compiler's affair.
        for (size_t at = DTypeSize(dtype) - 1; at < data.size(); at += DTypeSize(dtype)) data[at] &= char(0xBF);
        EXPECT_TRUE(
            AllReduce(with, {ranks, with.rank()}, data.data(), count, dtype, ReduceOp::kSum, algorithm, In(milliseconds(30'000)))
                .ok());
        return data;
      };
      std::string expected;
      RunRanks(MakeLocalTransports(kRanks), [&](Transport& local) {
        const std::string result = reduce(local);
        if (local.rank() == 0) expected = result;
      });
      EXPECT_TRUE(reduce(*transport) == expected) << AlgorithmName(algorithm);
    }
  }
}

TEST(MpiTransportTest, SeveralTransportsDoNotMix) {
  auto first = Open(), second = Open();
  const int me = first->rank(), right = (me + 1) % kRanks, left = (me + 2) % kRanks;
  char a = 'a', b = 'b', in = 0;
  const SendPart send_a{right, &a, 1}, send_b{right, &b, 1};
  const ReceivePart receive{left, &in, 1};
  EXPECT_TRUE(first->Exchange({&send_a, 1}, {}, In(milliseconds(30'000))).ok());
  EXPECT_TRUE(second->Exchange({&send_b, 1}, {&receive, 1}, In(milliseconds(30'000))).ok());
  EXPECT_EQ(in, 'b');
  EXPECT_TRUE(first->Exchange({}, {&receive, 1}, In(milliseconds(30'000))).ok());
  EXPECT_EQ(in, 'a');
}

TEST(MpiTransportTest, APassedDeadlineNamesTheRank) {
  auto transport = Open();
  char in = 0;
  const ReceivePart receive{(transport->rank() + 1) % kRanks, &in, 1};
  const Status status = transport->Exchange({}, {&receive, 1}, In(milliseconds(100)));
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_THAT(status.message(), HasSubstr("in vain for rank " + std::to_string(receive.peer)));
  EXPECT_EQ(transport->Exchange({}, {}, In(milliseconds(100))), status);
}

TEST(MpiTransportTest, AbortEndsABlockedExchange) {
  auto transport = Open();
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(50));
    transport->Abort("enough");
  });
  char in = 0;
  const ReceivePart receive{(transport->rank() + 1) % kRanks, &in, 1};
  const Status status = transport->Exchange({}, {&receive, 1}, In(milliseconds(30'000)));
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_THAT(status.message(), HasSubstr("enough"));
  other.join();
}

TEST(MpiTransportTest, ASizeThatTheReceiverDoesNotExpectIsDataLoss) {
  for (size_t bytes : {size_t{60}, size_t{40}}) {
    auto transport = Open();
    std::string memory(100, ' ');
    if (transport->rank() == 0) {
      const SendPart send{1, memory.data(), bytes};
      EXPECT_TRUE(transport->Exchange({&send, 1}, {}, In(milliseconds(30'000))).ok());
    } else if (transport->rank() == 1) {
      const ReceivePart receive{0, memory.data(), 50};
      const Status status = transport->Exchange({}, {&receive, 1}, In(milliseconds(30'000)));
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
      EXPECT_THAT(status.message(), HasSubstr("50"));
    }
  }
}

}  // namespace
}  // namespace mxrec

int main(int argc, char** argv) {
#if defined(__SANITIZE_THREAD__)
  std::printf("SKIPPED: Open MPI is not instrumented for ThreadSanitizer\n");
  return 0;
#endif
#if defined(__SANITIZE_ADDRESS__)
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // Open MPI keeps memory to the end
#endif
  if (!mxrec::PluginIsThere("mpi", MXREC_PLUGIN_FOLDER)) {
    std::printf("SKIPPED: built without libopenmpi-dev\n");
    return 0;
  }
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    std::vector<char*> command;
    std::string words[] = {"mpirun", "--oversubscribe", "-np", "3", "/proc/self/exe"};
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
    words[4].assign(path, length > 0 ? length : 0);
    for (std::string& word : words) command.push_back(word.data());
    for (int i = 1; i < argc; ++i) command.push_back(argv[i]);
    command.push_back(nullptr);
    execvp("mpirun", command.data());
    std::printf("SKIPPED: there is no mpirun (package openmpi-bin)\n");
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  return result;
}
