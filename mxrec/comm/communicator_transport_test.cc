// The Communicator over the transports between processes. Each rank is a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "mxrec/comm/communicator.h"
#include "mxrec/comm/controller/comm_test_util.h"
#include "mxrec/comm/transport/plugin_transport.h"
#include "mxrec/io/test_dir.h"

namespace mxrec {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class CommunicatorTransportTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "gloo" && !PluginIsThere("gloo", MXREC_PLUGIN_FOLDER)) GTEST_SKIP() << "built without libgloo-dev";
#if defined(__SANITIZE_THREAD__)
    if (GetParam() == "gloo") GTEST_SKIP() << "Gloo is not instrumented for ThreadSanitizer";
#endif
  }
  Result<std::unique_ptr<Communicator>> Join(int rank, int size) {
    CommOptions options = testing::OptionsIn(dir_, rank, size);
    options.transport = GetParam();
    options.plugin_folder = MXREC_PLUGIN_FOLDER;
    return Communicator::Create(options);
  }
  // The exit codes of processes that run `body` with their rank.
  std::vector<int> OnProcesses(int size, const std::function<int(int rank)>& body) {
    std::vector<pid_t> children;
    for (int rank = 0; rank < size; ++rank) {
      children.push_back(fork());
      if (children.back() == 0) {
        alarm(60);
        _exit(body(rank));
      }
    }
    std::vector<int> codes;
    for (pid_t child : children) {
      int state = 0;
      waitpid(child, &state, 0);
      codes.push_back(WIFEXITED(state) ? WEXITSTATUS(state) : 1000 + WTERMSIG(state));
    }
    return codes;
  }
  static Status Sum(Communicator& communicator, const std::string& name, std::vector<float>* data) {
    CommRequest request;
    request.name = name;
    request.shape = {static_cast<int64_t>(data->size())};
    request.input = data->data();
    request.allocate = [data](const Agreed&) -> Result<void*> { return static_cast<void*>(data->data()); };
    return communicator.Run(std::move(request));
  }

  TestDir dir_;
};

TEST_P(CommunicatorTransportTest, ProcessesSumSmallAndLargeTensors) {
  const auto codes = OnProcesses(3, [&](int rank) {
    auto communicator = Join(rank, 3);
    if (!communicator.ok()) return 2;
    for (size_t count : {size_t{1}, size_t{1000}, size_t{1'000'000}}) {
      std::vector<float> data(count, static_cast<float>(rank + 1));
      if (!Sum(**communicator, "sum" + std::to_string(count), &data).ok()) return 3;
      for (float x : data) {
        if (x != 6) return 4;
      }
    }
    return (*communicator)->Shutdown().ok() ? 0 : 5;
  });
  EXPECT_THAT(codes, ::testing::ElementsAre(0, 0, 0));
}

TEST_P(CommunicatorTransportTest, AKilledRankEndsTheWaitOfTheOthersByName) {
  const auto start = steady_clock::now();
  const auto codes = OnProcesses(3, [&](int rank) {
    auto communicator = Join(rank, 3);
    if (!communicator.ok()) return 2;
    std::vector<float> data(2'000'000, 1);
    for (int step = 0;; ++step) {
      if (rank == 2 && step == 3) kill(getpid(), SIGKILL);
      const Status status = Sum(**communicator, "gradient", &data);
      if (status.ok()) continue;
      return status.message().find("rank 2") != std::string_view::npos ? 7 : 3;
    }
  });
  EXPECT_THAT(codes, ::testing::ElementsAre(7, 7, 1000 + SIGKILL));
  EXPECT_LT(steady_clock::now() - start, milliseconds(20'000));
}

INSTANTIATE_TEST_SUITE_P(Transports, CommunicatorTransportTest, ::testing::Values("auto", "shm", "gloo"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace mxrec
