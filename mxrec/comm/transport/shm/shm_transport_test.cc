// What threads cannot show (transport_test has the rest): ranks that are processes, killed or stopped at any moment.
#include "mxrec/comm/transport/shm/shm_transport.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "mxrec/comm/transport_test_util.h"
#include "mxrec/io/env.h"
#include "mxrec/io/test_dir.h"

namespace mxrec {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

std::unique_ptr<Transport> Join(const std::string& folder, int rank, int size) {
  auto store = MakeFileStore(folder).value();
  return std::move(MakeShmTransport({rank, size}, *store, In(milliseconds(20'000)))).value();
}

// A rank as a process, which ends with the body's return value.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ == 0) _exit(body());
  }
  void Kill() const { kill(pid_, SIGKILL); }
  void Stop() const { kill(pid_, SIGSTOP); }
  int Wait() const {
    int state = 0;
    waitpid(pid_, &state, 0);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 1000 + WTERMSIG(state);
  }

 private:
  pid_t pid_;
};

// Without those of Open MPI, whose programs may run beside.
std::set<std::string> SharedMemoryFiles() {
  std::set<std::string> names;
  if (const auto files = Env::Default()->ListDir("/dev/shm"); files.ok()) names.insert(files->begin(), files->end());
  std::erase_if(names, [](const std::string& name) { return name.starts_with("vader_segment."); });
  return names;
}

// Passes numbers to and fro; the error that ended it.
Status PlayUntilError(Transport& transport, milliseconds deadline) {
  const int other = 1 - transport.rank();
  std::vector<char> out(100'000), in(out.size());
  for (;;) {
    const SendPart send{other, out.data(), out.size()};
    const ReceivePart receive{other, in.data(), in.size()};
    MXREC_RETURN_IF_ERROR(transport.Exchange({&send, 1}, {&receive, 1}, In(deadline)));
  }
}

TEST(ShmTransportTest, AKilledRankIsNoticedAndNothingIsLeftBehind) {
  const auto before = SharedMemoryFiles();
  for (int moment : {0, 1, 3, 10, 30, 100}) {
    TestDir dir;
    const Child victim([&] {
      auto transport = Join(dir.path(), 1, 2);
      (void)PlayUntilError(*transport, milliseconds(20'000));
      return 0;
    });
    const Child survivor([&] {
      auto store = MakeFileStore(dir.path()).value();
      auto transport = MakeShmTransport({0, 2}, *store, In(milliseconds(2000)));
      // Killed before or while they met: an error within the deadline, too.
      if (!transport.ok()) return transport.status().code() == StatusCode::kUnavailable ? 7 : 1;
      const Status status = PlayUntilError(**transport, milliseconds(20'000));
      return status.code() == StatusCode::kUnavailable && status.message().find("rank 1") != std::string_view::npos ? 7 : 2;
    });
    std::this_thread::sleep_for(milliseconds(moment));
    const auto start = steady_clock::now();
    victim.Kill();
    EXPECT_EQ(survivor.Wait(), 7) << moment;
    EXPECT_LT(steady_clock::now() - start, milliseconds(8000));
    victim.Wait();
  }
  // Files of other programs come and go meanwhile; one that was left behind would stay.
  std::vector<std::string> left;
  const auto until = steady_clock::now() + milliseconds(30'000);
  do {
    left.clear();
    std::ranges::set_difference(SharedMemoryFiles(), before, std::back_inserter(left));
    if (!left.empty()) std::this_thread::sleep_for(milliseconds(100));
  } while (!left.empty() && steady_clock::now() < until);
  EXPECT_THAT(left, ::testing::IsEmpty());
}

TEST(ShmTransportTest, AStoppedRankIsGivenUpAtTheDeadline) {
  TestDir dir;
  const Child stopped([&] {
    auto transport = Join(dir.path(), 1, 2);
    kill(getpid(), SIGSTOP);
    return 0;
  });
  auto transport = Join(dir.path(), 0, 2);
  const auto start = steady_clock::now();
  const Status status = PlayUntilError(*transport, milliseconds(400));
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_THAT(status.message(), HasSubstr("rank 1"));
  EXPECT_GE(steady_clock::now() - start, milliseconds(390));
  EXPECT_LT(steady_clock::now() - start, milliseconds(5000));
  stopped.Kill();
  stopped.Wait();
}

TEST(ShmTransportTest, WhatARankSentBeforeItEndedIsStillDelivered) {
  TestDir dir;
  const Child sender([&] {
    auto transport = Join(dir.path(), 1, 2);
    const SendPart send{0, "farewell", 8};
    return transport->Exchange({&send, 1}, {}, In(milliseconds(20'000))).ok() ? 0 : 1;
  });
  auto transport = Join(dir.path(), 0, 2);
  EXPECT_EQ(sender.Wait(), 0);
  std::string word(8, ' ');
  const ReceivePart receive{1, word.data(), word.size()};
  EXPECT_TRUE(transport->Exchange({}, {&receive, 1}, In(milliseconds(20'000))).ok());
  EXPECT_EQ(word, "farewell");
}

TEST(ShmTransportTest, WaitingCostsLittleProcessorTime) {
  TestDir dir;
  const Child late([&] {
    auto transport = Join(dir.path(), 1, 2);
    std::this_thread::sleep_for(milliseconds(600));
    const SendPart send{0, "x", 1};
    return transport->Exchange({&send, 1}, {}, In(milliseconds(20'000))).ok() ? 0 : 1;
  });
  auto transport = Join(dir.path(), 0, 2);
  char byte = 0;
  const ReceivePart receive{1, &byte, 1};
  const std::clock_t start = std::clock();
  EXPECT_TRUE(transport->Exchange({}, {&receive, 1}, In(milliseconds(20'000))).ok());
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 0.1);
  EXPECT_EQ(late.Wait(), 0);
}

TEST(ShmTransportTest, ARankThatDoesNotComeIsNamed) {
  auto store = MakeMemoryStore();
  const auto first = MakeShmTransport({0, 3}, *store, In(milliseconds(50)));
  EXPECT_EQ(first.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(first.status().message(), HasSubstr("rank 1, 2"));
  const auto second = MakeShmTransport({1, 2}, *MakeMemoryStore(), In(milliseconds(50)));
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr("rank 0"));
}

TEST(ShmTransportTest, ARankThatHasEndedSinceItCalledIsNamed) {
  auto store = MakeMemoryStore();
  ASSERT_FALSE(MakeShmTransport({0, 2}, *store, In(milliseconds(10))).ok());
  const auto second = MakeShmTransport({1, 2}, *store, In(milliseconds(2000)));
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr("rank 0"));
}

TEST(ShmTransportTest, OtherOptionsOnTheOtherRankAreRefused) {
  auto store = MakeMemoryStore();
  std::thread first([&] { (void)MakeShmTransport({0, 2, 4096}, *store, In(milliseconds(1000))); });
  const auto second = MakeShmTransport({1, 2, 8192}, *store, In(milliseconds(1000)));
  first.join();
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("options"));
}

}  // namespace
}  // namespace mxrec
