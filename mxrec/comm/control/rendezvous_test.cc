#include "mxrec/comm/control/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/comm/controller/comm_test_util.h"
#include "mxrec/io/env.h"
#include "mxrec/io/test_dir.h"

namespace mxrec {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class RendezvousTest : public ::testing::Test {
 protected:
  CommOptions Options(int rank, int size) const { return testing::OptionsIn(dir_, rank, size, milliseconds(5000)); }

  static std::vector<Result<Meeting>> MeetAll(const std::vector<CommOptions>& ranks) {
    std::vector<std::optional<Result<Meeting>>> meetings(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) threads.emplace_back([&, i] { meetings[i] = Meet(ranks[i]); });
    for (std::thread& thread : threads) thread.join();
    std::vector<Result<Meeting>> results;
    for (auto& meeting : meetings) results.push_back(std::move(*meeting));
    return results;
  }

  // Waits until rank 0 has published its address.
  int Port() const {
    for (int i = 0; i < 500; ++i) {
      const Result<std::string> text = ReadWholeFile(Env::Default(), dir_.File("chief"), 4096);
      if (text.ok()) return std::stoi(text->substr(text->rfind('\n', text->size() - 2) + 1));
      std::this_thread::sleep_for(milliseconds(10));
    }
    return 0;
  }

  TestDir dir_;
};

TEST_F(RendezvousTest, AllLearnWhoTheOthersAre) {
  std::vector<CommOptions> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(Options(rank, 4));
    ranks.back().secret = "s";
    ranks.back().fusion_bytes = 100 + rank;
  }
  std::vector<Result<Meeting>> meetings = MeetAll(ranks);
  for (auto& meeting : meetings) {
    ASSERT_TRUE(meeting.ok()) << meeting.status();
    EXPECT_EQ(meeting->world.epoch, meetings[0]->world.epoch);
    EXPECT_EQ(meeting->world.ranks.size(), 4);
    EXPECT_EQ(meeting->world.ranks[2].pid, ::getpid());
    EXPECT_EQ(meeting->world.fusion_bytes, 100) << "rank 0's";
  }
  EXPECT_FALSE(Env::Default()->FileExists(dir_.File("chief"))) << "the address does not outlive the meeting";
}

TEST_F(RendezvousTest, AFixedPortNeedsNoFile) {
  Result<Listener> free = ListenTcp("127.0.0.1", 0);
  std::vector<CommOptions> ranks = {Options(0, 2), Options(1, 2)};
  for (CommOptions& options : ranks) {
    options.store_path.clear();
    options.chief_port = free->port;
  }
  free->fd.Reset();
  for (auto& meeting : MeetAll(ranks)) EXPECT_TRUE(meeting.ok()) << meeting.status();
}

TEST_F(RendezvousTest, APortInUseNamesTheAddressAndWhatToCheck) {
  const Result<Listener> other = ListenTcp("127.0.0.1", 0);
  CommOptions options = Options(0, 2);
  options.chief_port = other->port;
  const Status status = Meet(options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("127.0.0.1:" + std::to_string(other->port)), HasSubstr("in use"), HasSubstr("earlier process")));
}

TEST_F(RendezvousTest, AnotherSecretIsTurnedAwayAndDoesNotDisturb) {
  std::vector<CommOptions> ranks = {Options(0, 2), Options(1, 2), Options(1, 2)};
  ranks[0].secret = ranks[2].secret = "right";
  ranks[1].secret = "wrong";
  std::optional<Result<Meeting>> wrong;
  std::thread intruder([&] { wrong = Meet(ranks[1]); });
  std::thread late([&] {
    intruder.join();
    EXPECT_TRUE(Meet(ranks[2]).ok());
  });
  const Result<Meeting> chief = Meet(ranks[0]);
  late.join();
  EXPECT_TRUE(chief.ok()) << chief.status();
  EXPECT_EQ(wrong->status().code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(wrong->status().message()), AllOf(HasSubstr("secret"), HasSubstr("rank 1"), HasSubstr("127.0.0.1")));
}

TEST_F(RendezvousTest, AChiefWithAnotherSecretIsNotBelieved) {
  // It welcomes whoever comes, but cannot prove anything.
  const Challenge challenge{.nonce = std::string(kNonceBytes, 'c')};
  EXPECT_EQ(DecodeVerdict(EncodeVerdict(OkStatus(), challenge, "h", "other"), challenge, "h", "ours").code(),
            StatusCode::kPermissionDenied);
  EXPECT_TRUE(DecodeVerdict(EncodeVerdict(OkStatus(), challenge, "h", "ours"), challenge, "h", "ours").ok());
  // A proof for another connection does not serve here.
  EXPECT_FALSE(DecodeVerdict(EncodeVerdict(OkStatus(), challenge, "g", "ours"), challenge, "h", "ours").ok());
}

TEST_F(RendezvousTest, AnotherJobAtTheSamePortIsToldSo) {
  std::thread chief([&] {
    CommOptions options = Options(0, 2);
    options.job = "mine";
    options.connect_timeout = milliseconds(700);
    EXPECT_EQ(Meet(options).status().code(), StatusCode::kUnavailable);
  });
  CommOptions options = Options(1, 2);
  options.chief_port = Port();
  options.store_path.clear();
  options.job = "yours";
  const Status status = Meet(options).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'yours'"), HasSubstr("'mine'")));
  chief.join();
}

TEST_F(RendezvousTest, OtherNumbersEndTheMeetingForAll) {
  for (auto& meeting : MeetAll({Options(0, 2), Options(1, 3)})) {
    EXPECT_EQ(meeting.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(meeting.status().message()), AllOf(HasSubstr("3 ranks"), HasSubstr("rank 0 for 2")));
  }
  std::vector<Result<Meeting>> meetings = MeetAll({Options(0, 3), Options(1, 3), Options(1, 3)});
  for (auto& meeting : meetings) {
    EXPECT_FALSE(meeting.ok());
    EXPECT_THAT(std::string(meeting.status().message()), HasSubstr("two processes say that they are rank 1"));
  }
}

TEST_F(RendezvousTest, MissingRanksAreNamedOnAllThatCame) {
  std::vector<CommOptions> ranks = {Options(0, 5), Options(2, 5)};
  ranks[0].connect_timeout = milliseconds(400);
  for (auto& meeting : MeetAll(ranks)) {
    EXPECT_EQ(meeting.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(std::string(meeting.status().message()),
                AllOf(HasSubstr("ranks 1, 3, 4 of 5"), HasSubstr("0.4 s"), HasSubstr("127.0.0.1:")));
  }
}

TEST_F(RendezvousTest, NobodyAtTheAddressIsSaidWithTheAddress) {
  CommOptions options = Options(1, 2);
  options.connect_timeout = milliseconds(200);
  Status status = Meet(options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(options.store_path), HasSubstr("rank 1"), HasSubstr("0.2 s")));
  Result<Listener> free = ListenTcp("127.0.0.1", 0);
  options.store_path.clear();
  options.chief_port = free->port;
  free->fd.Reset();
  status = Meet(options).status();
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("127.0.0.1:" + std::to_string(free->port)), HasSubstr("refused")));
}

TEST_F(RendezvousTest, ARankThatComesAndGoesCanComeAgain) {
  std::thread others([&] {
    {
      CommOptions options = Options(1, 3);
      options.connect_timeout = milliseconds(300);
      // Gives up before rank 2 is there.
      const Result<Meeting> meeting = Meet(options);
      EXPECT_EQ(meeting.status().code(), StatusCode::kUnavailable);
    }
    std::thread second([&] { EXPECT_TRUE(Meet(Options(2, 3)).ok()); });
    EXPECT_TRUE(Meet(Options(1, 3)).ok());
    second.join();
  });
  CommOptions options = Options(0, 3);
  options.connect_timeout = milliseconds(20'000);
  EXPECT_TRUE(Meet(options).ok());
  others.join();
}

TEST_F(RendezvousTest, StrangersAndTheirBytesDoNotDisturb) {
  std::vector<UniqueFd> strangers;
  std::thread visitors([&] {
    const int port = Port();
    for (const std::string& text : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\xff'),
                                    std::string("\x05\0\0\0\x02xxxxx", 10), std::string()}) {
      strangers.push_back(std::move(StartConnectTcp("127.0.0.1", port)).value());
      pollfd wait{.fd = strangers.back().get(), .events = POLLOUT, .revents = 0};
      ::poll(&wait, 1, 1000);
      static_cast<void>(::send(strangers.back().get(), text.data(), text.size(), MSG_NOSIGNAL));
    }
    EXPECT_TRUE(Meet(Options(1, 2)).ok());
  });
  EXPECT_TRUE(Meet(Options(0, 2)).ok());
  visitors.join();
}

TEST_F(RendezvousTest, WithoutASecretOnlyLoopbackIsAllowed) {
  CommOptions options = Options(0, 2);
  options.bind_host = "0.0.0.0";
  EXPECT_EQ(Meet(options).status().code(), StatusCode::kInvalidArgument);
  options = Options(1, 2);
  options.store_path.clear();
  options.chief_host = "192.0.2.1";
  options.chief_port = 1;
  EXPECT_EQ(Meet(options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace mxrec
