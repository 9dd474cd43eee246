// Ranks are processes here, and some of them die, stop, leave or never come: what the others are told, and how soon. Every test has
// a deadline and ends all processes it started.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/comm/communicator.h"
#include "mxrec/comm/controller/comm_test_util.h"
#include "mxrec/io/test_dir.h"

namespace mxrec {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSlower = 5;
#else
constexpr int kSlower = 1;
#endif
constexpr milliseconds kDeadline = std::chrono::seconds(40) * kSlower;

struct Outcome {
  bool exited = false;
  int signal = 0;
  std::string said;  // what the rank reported before it ended
  milliseconds took{};
};

class CommunicatorFailureTest : public ::testing::Test {
 protected:
  CommOptions Options(int rank, int size) const { return testing::OptionsIn(dir_, rank, size, std::chrono::seconds(20) * kSlower); }

  // Runs body(rank) in a process each; what it returns is what the rank said. The processes are gone when this returns.
  std::vector<Outcome> Run(int size, const std::function<std::string(int)>& body) {
    struct Child {
      pid_t pid;
      int pipe;
      bool open = true;
    };
    std::vector<Child> children;
    const auto start = Clock::now();
    for (int rank = 0; rank < size; ++rank) {
      int ends[2];
      EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::close(ends[0]);
        const std::string said = body(rank);
        static_cast<void>(!::write(ends[1], said.data(), said.size()));
        ::_exit(0);
      }
      ::close(ends[1]);
      children.push_back({.pid = pid, .pipe = ends[0]});
    }
    std::vector<Outcome> outcomes(static_cast<size_t>(size));
    size_t open = children.size();
    bool late = false;
    while (open > 0) {
      late = late || Clock::now() - start > kDeadline;
      // A stopped process ends only now, when the others have.
      bool only_stopped = true;
      for (size_t i = 0; i < children.size(); ++i)
        only_stopped = only_stopped && (!children[i].open || static_cast<int>(i) == stopped_);
      for (size_t i = 0; i < children.size(); ++i) {
        Child& child = children[i];
        if (!child.open) continue;
        if (late || only_stopped) ::kill(child.pid, SIGKILL);
        pollfd wait{.fd = child.pipe, .events = POLLIN, .revents = 0};
        if (::poll(&wait, 1, 5) <= 0) continue;
        char bytes[4096];
        const ssize_t got = ::read(child.pipe, bytes, sizeof(bytes));
        if (got > 0) {
          outcomes[i].said.append(bytes, static_cast<size_t>(got));
          continue;
        }
        outcomes[i].took = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
        child.open = false;
        ::close(child.pipe);
        --open;
        int status = 0;
        ::waitpid(child.pid, &status, 0);
        outcomes[i].exited = WIFEXITED(status);
        outcomes[i].signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      }
    }
    EXPECT_FALSE(late) << "some rank hung";
    return outcomes;
  }

  static Status Sum(Communicator& comm, const std::string& name, size_t count) {
    std::vector<float> data(count, 1.0f);
    CommRequest request;
    request.name = name;
    request.origin = "model/" + name + ", train.py:7";
    request.shape = {static_cast<int64_t>(count)};
    request.input = data.data();
    request.allocate = [&](const Agreed&) -> Result<void*> { return static_cast<void*>(data.data()); };
    const Status status = comm.Run(std::move(request));
    if (status.ok() && data.back() != static_cast<float>(comm.options().size)) return InternalError("a wrong sum");
    return status;
  }

  // Sums until something fails, and says what.
  static std::string UntilFailure(Communicator& comm, size_t count, const std::function<void(int step)>& before_step = {}) {
    for (int step = 0;; ++step) {
      if (before_step) before_step(step);
      if (const Status status = Sum(comm, "gradient", count); !status.ok()) return status.ToString();
    }
  }

  static void KillMyself() { ::kill(::getpid(), SIGKILL); }

  TestDir dir_;
  int stopped_ = -1;  // the rank that a test stops
};

TEST_F(CommunicatorFailureTest, D45KilledBetweenOperations) {
  for (const int victim : {0, 2}) {
    const auto outcomes = Run(3, [&](int rank) -> std::string {
      auto comm = Communicator::Create(Options(rank, 3));
      if (!comm.ok()) return "create: " + comm.status().ToString();
      return UntilFailure(**comm, 100, [&](int step) {
        if (step == 5 && rank == victim) KillMyself();
      });
    });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) {
        EXPECT_EQ(outcomes[rank].signal, SIGKILL);
        continue;
      }
      EXPECT_TRUE(outcomes[rank].exited);
      EXPECT_THAT(outcomes[rank].said, AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("'gradient'"),
                                             HasSubstr("rank " + std::to_string(victim) + " ("), HasSubstr("killed")));
      EXPECT_LT(outcomes[rank].took, milliseconds(5000) * kSlower);
      if (victim != 0) {
        EXPECT_THAT(outcomes[rank].said, HasSubstr("last finished 'gradient', operation"));
      }
    }
  }
}

TEST_F(CommunicatorFailureTest, D45KilledInTheMiddleOfAnOperation) {
  const auto outcomes = Run(3, [&](int rank) -> std::string {
    auto comm = Communicator::Create(Options(rank, 3));
    if (!comm.ok()) return "create: " + comm.status().ToString();
    std::thread killer;
    if (rank == 1) {
      killer = std::thread([] {
        std::this_thread::sleep_for(milliseconds(150));
        KillMyself();
      });
      killer.detach();
    }
    return UntilFailure(**comm, 4 << 20);
  });
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(outcomes[rank].exited);
    EXPECT_THAT(outcomes[rank].said, AllOf(HasSubstr("'gradient'"), HasSubstr("rank 1")));
    EXPECT_LT(outcomes[rank].took, milliseconds(15'000) * kSlower);
  }
}

TEST_F(CommunicatorFailureTest, D45KilledBeforeTheFirstOperation) {
  const auto outcomes = Run(3, [&](int rank) -> std::string {
    auto comm = Communicator::Create(Options(rank, 3));
    if (!comm.ok()) return "create: " + comm.status().ToString();
    if (rank == 2) KillMyself();
    return Sum(**comm, "first", 10).ToString();
  });
  for (const int rank : {0, 1}) {
    // Also while the transports were still being made.
    EXPECT_THAT(outcomes[rank].said, HasSubstr("rank 2"));
    EXPECT_LT(outcomes[rank].took, milliseconds(10'000) * kSlower);
  }
}

TEST_F(CommunicatorFailureTest, D45KilledWhileTheRanksMeet) {
  const auto outcomes = Run(3, [&](int rank) -> std::string {
    CommOptions options = Options(rank, 3);
    options.connect_timeout = milliseconds(1500) * kSlower;
    if (rank == 2) {
      // Gone before rank 1 comes.
      std::thread([] {
        std::this_thread::sleep_for(milliseconds(200));
        KillMyself();
      }).detach();
    }
    if (rank == 1) std::this_thread::sleep_for(milliseconds(400));
    auto comm = Communicator::Create(options);
    return comm.status().ToString();
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(outcomes[rank].said, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("rank 2, which came and left again")));
  }
}

TEST_F(CommunicatorFailureTest, D39AProcessThatEndsWithoutAWordIsNamed) {
  const auto outcomes = Run(2, [&](int rank) -> std::string {
    auto comm = Communicator::Create(Options(rank, 2));
    if (!comm.ok()) return "create: " + comm.status().ToString();
    for (int step = 0; step < 10 + rank; ++step) {
      if (const Status status = Sum(**comm, "gradient", 10); !status.ok()) return status.ToString();
    }
    static_cast<void>(comm->release());  // as a process that calls _exit
    return "done";
  });
  EXPECT_EQ(outcomes[0].said, "done");
  EXPECT_THAT(outcomes[1].said, AllOf(HasSubstr("rank 0 ("), HasSubstr("'gradient'")));
}

TEST_F(CommunicatorFailureTest, D39RanksWithDifferentNumbersOfStepsEndInTheLimit) {
  for (const int longer : {0, 1}) {
    const auto outcomes = Run(2, [&](int rank) -> std::string {
      auto comm = Communicator::Create(Options(rank, 2));
      if (!comm.ok()) return "create: " + comm.status().ToString();
      for (int step = 0; step < (rank == longer ? 11 : 10); ++step) {
        if (const Status status = Sum(**comm, "gradient", 10); !status.ok()) return status.ToString();
      }
      return (*comm)->Shutdown().ToString();
    });
    EXPECT_EQ(outcomes[1 - longer].said, "OK");
    EXPECT_THAT(outcomes[longer].said, AllOf(HasSubstr("'gradient'"), HasSubstr("rank " + std::to_string(1 - longer) + " ("),
                                             HasSubstr("has left"), HasSubstr("train.py:7")));
    EXPECT_LT(outcomes[longer].took, milliseconds(8000) * kSlower);
  }
}

TEST_F(CommunicatorFailureTest, AStoppedProcessIsGivenUpAtTheLimit) {
  for (const int victim : {0, 1}) {
    stopped_ = victim;
    const auto outcomes = Run(3, [&](int rank) -> std::string {
      CommOptions options = Options(rank, 3);
      options.heartbeat_timeout = milliseconds(600) * kSlower;
      auto comm = Communicator::Create(options);
      if (!comm.ok()) return "create: " + comm.status().ToString();
      return UntilFailure(**comm, 100, [&](int step) {
        if (step == 5 && rank == victim) ::kill(::getpid(), SIGSTOP);
      });
    });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_THAT(outcomes[rank].said,
                  AllOf(HasSubstr("rank " + std::to_string(victim) + " ("), HasSubstr("silent"), HasSubstr("'gradient'")));
      EXPECT_LT(outcomes[rank].took, milliseconds(6000) * kSlower);
    }
  }
}

TEST_F(CommunicatorFailureTest, SurvivorsCanMakeANewWorld) {
  const auto outcomes = Run(3, [&](int rank) -> std::string {
    {
      auto comm = Communicator::Create(Options(rank, 3));
      if (!comm.ok()) return "create: " + comm.status().ToString();
      UntilFailure(**comm, 1000, [&](int step) {
        if (step == 3 && rank == 2) KillMyself();
      });
    }
    for (int round = 0; round < 3; ++round) {
      auto comm = Communicator::Create(Options(rank, 2));
      if (!comm.ok()) return "again: " + comm.status().ToString();
      for (int step = 0; step < 5; ++step) {
        if (const Status status = Sum(**comm, "gradient", 1000); !status.ok()) return status.ToString();
      }
      if (const Status status = (*comm)->Shutdown(); !status.ok()) return status.ToString();
    }
    return "done";
  });
  EXPECT_EQ(outcomes[0].said, "done");
  EXPECT_EQ(outcomes[1].said, "done");
}

TEST_F(CommunicatorFailureTest, NothingIsLeftBehind) {
  const auto files = [] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      if (entry.path().filename().string().find("mxrec") != std::string::npos) names.push_back(entry.path().string());
    }
    return names;
  };
  const auto before = files();
  Run(2, [&](int rank) -> std::string {
    auto comm = Communicator::Create(Options(rank, 2));
    if (!comm.ok()) return "create: " + comm.status().ToString();
    return UntilFailure(**comm, 1 << 20, [&](int step) {
      if (step == 3) KillMyself();
    });
  });
  EXPECT_EQ(files(), before);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

}  // namespace
}  // namespace mxrec
