// What every transport that can run as threads of one process must do. (Open MPI's has a test of its own, transport/mpi.)
#include "mxrec/comm/transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "mxrec/comm/collectives.h"
#include "mxrec/comm/local_transport.h"
#include "mxrec/comm/store.h"
#include "mxrec/comm/transport/plugin_transport.h"
#include "mxrec/comm/transport/shm/shm_transport.h"
#include "mxrec/comm/transport_test_util.h"

namespace mxrec {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

struct Kind {
  std::string name;
  std::function<std::vector<std::unique_ptr<Transport>>(int size)> make;
  // Whether a receiver sees the size of what comes. Else a part of another size never arrives.
  bool sees_sizes = true;
};

class TransportTest : public testing::TestWithParam<Kind> {};

TEST_P(TransportTest, PartsBetweenAllRanksArriveInTheOrderGiven) {
  for (int size : {1, 2, 3, 5}) {
    SCOPED_TRACE(size);
    RunRanks(GetParam().make(size), [&](Transport& transport) {
      // All ranks draw the same numbers, so each knows what comes from whom.
      std::mt19937 random(size);
      for (int round = 0; round < 15; ++round) {
        const size_t parts = random() % 4;
        std::vector<SendPart> sends;
        std::vector<ReceivePart> receives;
        std::vector<std::string> sent, received, expected;
        sent.reserve(200), received.reserve(200), expected.reserve(200);
        for (int from = 0; from < size; ++from) {
          for (int to = 0; to < size; ++to) {
            for (size_t part = 0; part < parts; ++part) {
              size_t bytes = random() % 100;
              if (random() % 4 == 0) bytes = 0;
              if (random() % 8 == 0) bytes = random() % 300'000;
              const uint32_t seed = random();
              if (from == transport.rank()) {
                sent.push_back(Noise(bytes, seed));
                sends.push_back({to, sent.back().data(), bytes});
              }
              if (to == transport.rank()) {
                expected.push_back(Noise(bytes, seed));
                received.emplace_back(bytes, '\0');
                receives.push_back({from, received.back().data(), bytes});
              }
            }
          }
        }
        const Status status = transport.Exchange(sends, receives, In(milliseconds(60'000)));
        ASSERT_TRUE(status.ok()) << status;
        for (size_t i = 0; i < expected.size(); ++i) ASSERT_TRUE(received[i] == expected[i]) << "part " << i;
      }
    });
  }
}

TEST_P(TransportTest, ALargePartArrivesWhole) {
  RunRanks(GetParam().make(2), [&](Transport& transport) {
    const int other = 1 - transport.rank();
    const size_t bytes = 3'000'001;
    const std::string sent = Noise(bytes, transport.rank());
    std::string received(bytes, '\0');
    const SendPart send{other, sent.data(), bytes};
    const ReceivePart receive{other, received.data(), bytes};
    const Status status = transport.Exchange({&send, 1}, {&receive, 1}, In(milliseconds(60'000)));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(received == Noise(bytes, other));
  });
}

TEST_P(TransportTest, ASinkTakesEveryByteInOrderAndInWholeElements) {
  RunRanks(GetParam().make(2), [&](Transport& transport) {
    struct Collect final : PieceSink {
      void Take(size_t offset, const void* piece, size_t bytes) override {
        EXPECT_EQ(offset, got.size());
        EXPECT_EQ(bytes % 8, 0u);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % 8, 0u);
        got.append(static_cast<const char*>(piece), bytes);
      }
      std::string got;
    };
    const int other = 1 - transport.rank();
    for (size_t bytes : {size_t{8}, size_t{4096}, size_t{1'000'008}}) {
      std::vector<uint64_t> sent(bytes / 8), first(3);
      std::memcpy(sent.data(), Noise(bytes, transport.rank()).data(), bytes);
      Collect sink;
      // An odd part before it must not move the elements off their places.
      const SendPart sends[] = {{other, first.data(), 13}, {other, sent.data(), bytes}};
      std::vector<uint64_t> got_first(3);
      const ReceivePart receives[] = {{other, got_first.data(), 13}, {other, nullptr, bytes, &sink, 8}};
      const Status status = transport.Exchange(sends, receives, In(milliseconds(60'000)));
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(sink.got == Noise(bytes, other));
    }
  });
}

TEST_P(TransportTest, OneRankMaySendToManyAndReceiveNothing) {
  RunRanks(GetParam().make(4), [&](Transport& transport) {
    std::string word = "hello";
    if (transport.rank() == 2) {
      std::vector<SendPart> sends;
      for (int peer : {3, 1, 0}) sends.push_back({peer, word.data(), word.size()});
      EXPECT_TRUE(transport.Exchange(sends, {}, In(milliseconds(60'000))).ok());
    } else {
      word.assign(5, ' ');
      const ReceivePart receive{2, word.data(), word.size()};
      EXPECT_TRUE(transport.Exchange({}, {&receive, 1}, In(milliseconds(60'000))).ok());
      EXPECT_EQ(word, "hello");
    }
    EXPECT_TRUE(transport.Exchange({}, {}, In(milliseconds(60'000))).ok());
  });
}

TEST_P(TransportTest, ASizeThatTheReceiverDoesNotExpectIsDataLoss) {
  RunRanks(GetParam().make(2), [&](Transport& transport) {
    std::string memory(100, ' ');
    if (transport.rank() == 0) {
      const SendPart send{1, memory.data(), 60};
      (void)transport.Exchange({&send, 1}, {}, In(milliseconds(300)));
    } else {
      const ReceivePart receive{0, memory.data(), 50};
      if (!GetParam().sees_sizes) {
        EXPECT_EQ(transport.Exchange({}, {&receive, 1}, In(milliseconds(300))).code(), StatusCode::kCancelled);
        return;
      }
      const Status status = transport.Exchange({}, {&receive, 1}, In(milliseconds(60'000)));
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
      EXPECT_THAT(status.message(), AllOf(HasSubstr("50"), HasSubstr("60")));
    }
  });
}

TEST_P(TransportTest, AbortEndsABlockedExchangeAndAllLaterOnes) {
  RunRanks(GetParam().make(2), [&](Transport& transport) {
    char byte = 0;
    const ReceivePart receive{1 - transport.rank(), &byte, 1};
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(50));
      transport.Abort("the user pressed the button");
      transport.Abort("another reason");
    });
    for (int i = 0; i < 2; ++i) {
      const Status status = transport.Exchange({}, {&receive, 1}, In(milliseconds(60'000)));
      EXPECT_EQ(status.code(), StatusCode::kAborted);
      EXPECT_THAT(status.message(), HasSubstr("the user pressed the button"));
    }
    other.join();
  });
}

TEST_P(TransportTest, APassedDeadlineNamesThePeersNotHeardOf) {
  std::latch ended(3);
  RunRanks(GetParam().make(3), [&](Transport& transport) {
    if (transport.rank() == 0) {
      char bytes[2] = {};
      const ReceivePart receives[] = {{1, &bytes[0], 1}, {2, &bytes[1], 1}};
      const auto start = std::chrono::steady_clock::now();
      const Status status = transport.Exchange({}, receives, In(milliseconds(100)));
      EXPECT_EQ(status.code(), StatusCode::kCancelled);
      EXPECT_THAT(status.message(), HasSubstr("rank 2"));
      EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("rank 1")));
      EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(10'000));
      // Dead from then on, with the same words.
      EXPECT_EQ(transport.Exchange({}, {}, In(milliseconds(60'000))), status);
    } else if (transport.rank() == 1) {
      const SendPart send{0, "x", 1};
      EXPECT_TRUE(transport.Exchange({&send, 1}, {}, In(milliseconds(60'000))).ok());
    }
    ended.arrive_and_wait();
  });
}

TEST_P(TransportTest, APeerThatIsGoneIsNamed) {
  auto transports = GetParam().make(3);
  std::vector<std::thread> threads;
  for (int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      char byte = 0;
      const ReceivePart receive{2, &byte, 1};
      const Status status = transports[rank]->Exchange({}, {&receive, 1}, In(milliseconds(60'000)));
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
      EXPECT_THAT(status.message(), HasSubstr("rank 2"));
    });
  }
  std::this_thread::sleep_for(milliseconds(20));
  transports[2].reset();
  for (auto& thread : threads) thread.join();
}

TEST_P(TransportTest, WhatTravelsIsCounted) {
  RunRanks(GetParam().make(2), [&](Transport& transport) {
    std::vector<char> memory(5000);
    const int me = transport.rank(), other = 1 - me;
    const SendPart sends[] = {
        {other, memory.data(), 100}, {other, memory.data(), 0}, {me, memory.data(), 7}, {other, memory.data(), 23}};
    const ReceivePart receives[] = {
        {other, &memory[1000], 100}, {other, &memory[1000], 0}, {me, &memory[2000], 7}, {other, &memory[3000], 23}};
    ASSERT_TRUE(transport.Exchange(sends, receives, In(milliseconds(60'000))).ok());
    EXPECT_EQ(transport.bytes_sent(), 123u);
    EXPECT_EQ(transport.parts_sent(), 2u);
  });
}

TEST_P(TransportTest, ARankOutsideTheWorldIsRefused) {
  RunRanks(GetParam().make(1), [&](Transport& transport) {
    const SendPart send{1, "x", 1};
    EXPECT_EQ(transport.Exchange({&send, 1}, {}, In(milliseconds(1000))).code(), StatusCode::kInvalidArgument);
  });
}

// D-49, with the engine's limit lowered ("InSmallPieces"): parts of many times that size, in both directions at once.
TEST_P(TransportTest, AllToAllOfPartsLongerThanTheEngineTakesArrives) {
  RunRanks(GetParam().make(3), [&](Transport& transport) {
    const int me = transport.rank();
    const std::vector<int> ranks = {0, 1, 2};
    std::vector<Span> send(3), receive(3);
    std::string data, expected;
    for (int r = 0; r < 3; ++r) {
      const size_t to = r == (me + 1) % 3 ? 0 : 700'001 + 100 * me + r, from = me == (r + 1) % 3 ? 0 : 700'001 + 100 * r + me;
      send[r] = {data.size(), to};
      data += Noise(to, me * 10 + r);
      receive[r] = {expected.size(), from};
      expected += Noise(from, r * 10 + me);
    }
    std::string out(expected.size(), '\0');
    const Status status = AllToAll(transport, {ranks, me}, data.data(), send, out.data(), receive, In(milliseconds(60'000)));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(out == expected);
  });
}

TEST_P(TransportTest, EveryAlgorithmGivesTheBitsThatItGivesOnEveryTransport) {
  const size_t count = 30'011;
  for (Algorithm algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kRecursiveDoubling, Algorithm::kTree}) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      std::vector<std::string> results[2];
      for (int run = 0; run < 2; ++run) {
        results[run].resize(3);
        RunRanks(run == 0 ? MakeLocalTransports(3) : GetParam().make(3), [&](Transport& transport) {
          const std::vector<int> ranks = {0, 1, 2};
          std::string data = Noise(count * DTypeSize(dtype), transport.rank());
          const Status status = AllReduce(transport, {ranks, transport.rank()}, data.data(), count, dtype, ReduceOp::kSum,
                                          algorithm, In(milliseconds(60'000)), {1, 3});
          ASSERT_TRUE(status.ok()) << status;
          results[run][transport.rank()] = data;
        });
      }
      EXPECT_TRUE(results[0] == results[1]) << AlgorithmName(algorithm) << " " << DTypeName(dtype);
    }
  }
}

// Numbers in one piece; counts how often each was read and written.
struct CountingPayload final : Transport::Payload {
  CountingPayload(const std::vector<uint32_t>& input, std::vector<uint32_t>* out)
      : from(reinterpret_cast<const char*>(input.data())),
        to(reinterpret_cast<char*>(out->data())),
        reads(input.size()),
        writes(input.size()) {}
  void Read(size_t offset, size_t bytes, void* place) override {
    if (bytes == 0) return;
    Count(offset, bytes, &reads);
    std::memcpy(place, from + offset, bytes);
  }
  void Write(size_t offset, size_t bytes, const void* place) override {
    Count(offset, bytes, &writes);
    early |=
        std::any_of(reads.begin() + offset / 4, reads.begin() + (offset + bytes) / 4, [](uint8_t count) { return count != 1; });
    std::memcpy(to + offset, place, bytes);
  }
  static void Count(size_t offset, size_t bytes, std::vector<uint8_t>* counts) {
    EXPECT_TRUE(offset % 4 == 0 && bytes % 4 == 0) << offset << " " << bytes;
    ASSERT_LE((offset + bytes) / 4, counts->size());
    for (size_t i = offset / 4; i < (offset + bytes) / 4; ++i) ++(*counts)[i];
  }

  const char* const from;
  char* const to;
  std::vector<uint8_t> reads, writes;
  bool early = false;  // something was written before it was read
};

TEST_P(TransportTest, ASharedReductionGivesEveryRankTheWholeAndTouchesEachNumberOnce) {
  struct Add final : Transport::SliceReducer {
    void Reduce(std::span<const void* const> ranks, void* out, size_t bytes) override {
      EXPECT_EQ(bytes % 4, 0u);
      for (size_t i = 0; i < bytes / 4; ++i) {
        uint32_t sum = 0;
        for (size_t r = 0; r < ranks.size(); ++r) sum = sum * 10 + static_cast<const uint32_t*>(ranks[r])[i];
        static_cast<uint32_t*>(out)[i] = sum;
      }
    }
  };
  for (int size : {1, 2, 3, 4}) {
    RunRanks(GetParam().make(size), [&](Transport& transport) {
      if (!transport.shares_memory()) {
        Add add;
        std::vector<uint32_t> none;
        CountingPayload payload(none, &none);
        EXPECT_EQ(transport.SharedAllReduce(payload, 0, 4, add, In(milliseconds(1000))).code(), StatusCode::kUnimplemented);
        return;
      }
      for (size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{1000}, size_t{1'234'567}}) {
        std::vector<uint32_t> data(count, transport.rank() + 1);
        for (size_t i = 0; i < count; i += 3) data[i] += 4;
        Add add;
        const std::vector<uint32_t> before = data;
        std::vector<uint32_t> apart(count, 99);
        uint32_t plain = 0, raised = 0;
        for (int r = 0; r < size; ++r) plain = plain * 10 + r + 1, raised = raised * 10 + r + 5;
        // To other memory, then in place; on the last rank in place alone.
        std::vector<uint32_t>& out = transport.rank() == size - 1 ? data : apart;
        for (std::vector<uint32_t>* const to : {&out, &data}) {
          if (to == &data) data = before;
          CountingPayload payload(data, to);
          const Status status = transport.SharedAllReduce(payload, count * 4, 4, add, In(milliseconds(60'000)));
          ASSERT_TRUE(status.ok()) << status;
          const std::vector<uint8_t> once(count, 1);
          ASSERT_TRUE(payload.reads == once && payload.writes == once && !payload.early) << count;
          for (size_t i = 0; i < count; ++i) ASSERT_EQ((*to)[i], i % 3 == 0 ? raised : plain) << i << " of " << count;
          if (to != &data) {
            ASSERT_EQ(data, before);
          }
        }
      }
    });
  }
}

// Transports that meet through a store, each made on a thread of its own.
std::vector<std::unique_ptr<Transport>> Meet(
    int size, const std::function<Result<std::unique_ptr<Transport>>(int rank, Store& store, Deadline deadline)>& make) {
  auto store = MakeMemoryStore();
  std::vector<std::unique_ptr<Transport>> transports(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { transports[rank] = make(rank, *store, In(milliseconds(30'000))).value(); });
  }
  for (auto& thread : threads) thread.join();
  return transports;
}

Kind Shm(std::string name, size_t lane_bytes, size_t chunk_bytes) {
  return {std::move(name), [=](int size) {
            return Meet(size, [=](int rank, Store& store, Deadline deadline) {
              return MakeShmTransport({rank, size, lane_bytes, chunk_bytes}, store, deadline);
            });
          }};
}

#if !defined(__SANITIZE_THREAD__)  // Gloo's own threads are not instrumented
Kind Gloo(std::string name, size_t piece_bytes) {
  return {std::move(name),
          [=](int size) {
            return Meet(size, [=](int rank, Store& store, Deadline deadline) {
              return MakePluginTransport("gloo", {rank, size, "127.0.0.1", MXREC_PLUGIN_FOLDER, piece_bytes}, store, deadline);
            });
          },
          false};
}
#endif

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds = {{"Local", [](int size) { return MakeLocalTransports(size); }},
                             {"LocalWithoutSharing", [](int size) { return MakeLocalTransports(size, false); }},
                             Shm("Shm", 0, 0),
                             Shm("ShmInSmallPieces", 2048, 1000)};
#if !defined(__SANITIZE_THREAD__)
  if (PluginIsThere("gloo", MXREC_PLUGIN_FOLDER)) {
    kinds.push_back(Gloo("Gloo", 1 << 20));
    kinds.push_back(Gloo("GlooInSmallPieces", 10'000));
  }
#endif
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Kinds, TransportTest, testing::ValuesIn(Kinds()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace mxrec
