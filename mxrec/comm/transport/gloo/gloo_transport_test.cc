// What threads cannot show (transport_test has the rest): ranks that are processes, killed or not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "mxrec/comm/transport/plugin_transport.h"
#include "mxrec/comm/transport_test_util.h"
#include "mxrec/io/test_dir.h"

#ifdef __SANITIZE_ADDRESS__
// Gloo leaks what getaddrinfo gave when none of the addresses is of this host.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:gloo::transport::tcp::CreateDeviceAttr\n";
}
#endif

namespace mxrec {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

class GlooTransportTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!PluginIsThere("gloo", MXREC_PLUGIN_FOLDER)) GTEST_SKIP() << "built without libgloo-dev";
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "Gloo is not instrumented for ThreadSanitizer";
#endif
  }
  static Result<std::unique_ptr<Transport>> Join(Store& store, int rank, int size, Deadline deadline,
                                                 const std::string& host = "127.0.0.1") {
    return MakePluginTransport("gloo", {rank, size, host, MXREC_PLUGIN_FOLDER}, store, deadline);
  }
};

TEST_F(GlooTransportTest, AKilledRankIsNoticedByName) {
  TestDir dir;
  const pid_t victim = fork();
  if (victim == 0) {
    auto store = MakeFileStore(dir.path()).value();
    auto transport = Join(*store, 1, 2, In(milliseconds(20'000)));
    pause();
    _exit(0);
  }
  auto store = MakeFileStore(dir.path()).value();
  auto transport = std::move(Join(*store, 0, 2, In(milliseconds(20'000)))).value();
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(100));
    kill(victim, SIGKILL);
  });
  std::vector<char> out(10'000'000), in(out.size());
  const SendPart send{1, out.data(), out.size()};
  const ReceivePart receive{1, in.data(), in.size()};
  const auto start = steady_clock::now();
  const Status status = transport->Exchange({&send, 1}, {&receive, 1}, In(milliseconds(20'000)));
  EXPECT_LT(steady_clock::now() - start, milliseconds(5000));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("rank 1 is gone"));
  killer.join();
  waitpid(victim, nullptr, 0);
}

TEST_F(GlooTransportTest, ARankThatDoesNotComeIsNamed) {
  auto store = MakeMemoryStore();
  const auto transport = Join(*store, 0, 2, In(milliseconds(100)));
  EXPECT_EQ(transport.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(transport.status().message(), HasSubstr("rank 1"));
}

TEST_F(GlooTransportTest, AnAddressOfAnotherHostIsNamed) {
  auto store = MakeMemoryStore();
  const auto transport = Join(*store, 0, 2, In(milliseconds(1000)), "192.0.2.1");
  EXPECT_EQ(transport.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(transport.status().message(), HasSubstr("192.0.2.1"));
}

TEST_F(GlooTransportTest, ARankThatCannotBeReachedIsNamed) {
  // Rank 1 publishes its addresses and ends.
  auto store = MakeMemoryStore();
  (void)Join(*store, 1, 2, In(milliseconds(200)));
  const auto transport = Join(*store, 0, 2, In(milliseconds(2000)));
  EXPECT_EQ(transport.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(transport.status().message(), HasSubstr("rank 1"));
}

// Long parts of ranks that both send are handed to Gloo's thread, others are not.
TEST_F(GlooTransportTest, LongAndShortPartsBothWaysArriveWhole) {
  auto store = MakeMemoryStore();
  std::vector<std::unique_ptr<Transport>> transports(2);
  std::thread other([&] { transports[1] = Join(*store, 1, 2, In(milliseconds(20'000))).value(); });
  transports[0] = Join(*store, 0, 2, In(milliseconds(20'000))).value();
  other.join();
  RunRanks(std::move(transports), [](Transport& transport) {
    const int me = transport.rank(), peer = 1 - me;
    const size_t sizes[] = {3'000'001, 1, 700'000, 0, 2 << 20};
    for (int round = 0; round < 20; ++round) {
      std::vector<std::string> out, in, expected;
      for (size_t k = 0; k < std::size(sizes); ++k) {
        out.push_back(Noise(sizes[k], static_cast<uint64_t>(round * 100 + me * 10) + k));
        expected.push_back(Noise(sizes[k], static_cast<uint64_t>(round * 100 + peer * 10) + k));
        in.emplace_back(sizes[k], '\0');
      }
      std::vector<SendPart> sends;
      std::vector<ReceivePart> receives;
      // In some rounds one rank has less to send than the other.
      for (size_t k = round % 3 == me ? 3 : 0; k < std::size(sizes); ++k) sends.push_back({peer, out[k].data(), sizes[k]});
      for (size_t k = round % 3 == peer ? 3 : 0; k < std::size(sizes); ++k) receives.push_back({peer, in[k].data(), sizes[k]});
      const Status status = transport.Exchange(sends, receives, In(milliseconds(20'000)));
      ASSERT_TRUE(status.ok()) << status;
      for (size_t k = round % 3 == peer ? 3 : 0; k < std::size(sizes); ++k) EXPECT_TRUE(in[k] == expected[k]) << round << " " << k;
    }
  });
}

TEST_F(GlooTransportTest, AnAbortEndsAnExchangeOfLongParts) {
  auto store = MakeMemoryStore();
  std::vector<std::unique_ptr<Transport>> transports(2);
  std::thread other([&] { transports[1] = Join(*store, 1, 2, In(milliseconds(20'000))).value(); });
  transports[0] = Join(*store, 0, 2, In(milliseconds(20'000))).value();
  other.join();
  std::thread breaker([&] {
    std::this_thread::sleep_for(milliseconds(100));
    transports[0]->Abort("enough");
  });
  {
    // The other rank never takes part; the memory is gone when the exchange has ended.
    std::vector<char> out(50'000'000), in(out.size());
    const SendPart send{1, out.data(), out.size()};
    const ReceivePart receive{1, in.data(), in.size()};
    EXPECT_EQ(transports[0]->Exchange({&send, 1}, {&receive, 1}, In(milliseconds(20'000))).code(), StatusCode::kAborted);
  }
  breaker.join();
}

TEST_F(GlooTransportTest, SeveralWorldsLiveInOneProcess) {
  auto store = MakeMemoryStore();
  for (const std::string world : {"first/", "second/"}) {
    std::vector<std::unique_ptr<Transport>> transports(2);
    auto own = MakePrefixStore(store, world);
    std::thread other([&] { transports[1] = Join(*own, 1, 2, In(milliseconds(20'000))).value(); });
    transports[0] = Join(*own, 0, 2, In(milliseconds(20'000))).value();
    other.join();
    RunRanks(std::move(transports), [](Transport& transport) {
      char in = 0, out = static_cast<char>(transport.rank());
      const SendPart send{1 - transport.rank(), &out, 1};
      const ReceivePart receive{1 - transport.rank(), &in, 1};
      EXPECT_TRUE(transport.Exchange({&send, 1}, {&receive, 1}, In(milliseconds(20'000))).ok());
      EXPECT_EQ(in, 1 - transport.rank());
    });
  }
}

}  // namespace
}  // namespace mxrec
