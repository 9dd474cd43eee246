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
