#include "mxrec/comm/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "mxrec/comm/local_transport.h"
#include "mxrec/comm/transport_test_util.h"
#include "mxrec/numeric/half.h"

namespace mxrec {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

const Algorithm kAlgorithms[] = {Algorithm::kAuto,   Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kRecursiveDoubling,
                                 Algorithm::kShared, Algorithm::kTree};
Deadline Soon() { return In(milliseconds(60'000)); }

// All ranks of a world as one group.
struct World {
  explicit World(Transport& transport) : ranks(transport.size()) {
    std::iota(ranks.begin(), ranks.end(), 0);
    view = {ranks, transport.rank()};
  }
  std::vector<int> ranks;
  GroupView view;
};

// Runs `body` on `size` ranks and returns what each returned.
std::vector<std::string> OnRanks(int size, bool shares_memory,
                                 const std::function<std::string(Transport&, const GroupView&)>& body) {
  std::vector<std::string> results(size);
  RunRanks(MakeLocalTransports(size, shares_memory), [&](Transport& transport) {
    const World world(transport);
    results[transport.rank()] = body(transport, world.view);
  });
  return results;
}

std::string Bytes(const auto& numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(numbers[0]));
}

TEST(AllReduceTest, EveryAlgorithmSumsAtEveryNumberOfRanks) {
  for (int size = 1; size <= 8; ++size) {
    for (Algorithm algorithm : kAlgorithms) {
      for (size_t count : {0, 1, 2, 5, 8, 1000, 30'001}) {
        OnRanks(size, true, [&](Transport& transport, const GroupView& world) {
          std::vector<int64_t> data(count);
          for (size_t i = 0; i < count; ++i) data[i] = static_cast<int64_t>(i) * (transport.rank() + 1);
          const Status status = AllReduce(transport, world, data.data(), count, DType::kInt64, ReduceOp::kSum, algorithm, Soon());
          EXPECT_TRUE(status.ok()) << status;
          const int64_t all = size * (size + 1) / 2;
          for (size_t i = 0; i < count; ++i) {
            if (data[i] != static_cast<int64_t>(i) * all) {
              ADD_FAILURE() << AlgorithmName(algorithm) << ", " << size << " ranks, element " << i << " of " << count << ": "
                            << data[i];
              break;
            }
          }
          return std::string();
        });
      }
    }
  }
}

TEST(AllReduceTest, EveryTypeIsReducedByEveryOperation) {
  const DType types[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt8,   DType::kInt16,
                         DType::kInt32,   DType::kInt64,   DType::kUInt8,   DType::kUInt16,   DType::kUInt32, DType::kUInt64};
  // Rank r has r + 1 everywhere; a number of each type by way of double.
  const auto encode = [](DType dtype, double x, char* to) {
    switch (dtype) {
      case DType::kFloat32: {
        const float y = static_cast<float>(x);
        std::memcpy(to, &y, 4);
        break;
      }
      case DType::kFloat64:
        std::memcpy(to, &x, 8);
        break;
      case DType::kFloat16: {
        const uint16_t y = FloatToHalf(static_cast<float>(x));
        std::memcpy(to, &y, 2);
        break;
      }
      case DType::kBFloat16: {
        const uint16_t y = FloatToBFloat16(static_cast<float>(x));
        std::memcpy(to, &y, 2);
        break;
      }
      default: {
        const int64_t y = static_cast<int64_t>(x);
        std::memcpy(to, &y, DTypeSize(dtype));
      }
    }
  };
  for (Algorithm algorithm : kAlgorithms) {
    for (DType dtype : types) {
      const size_t size = DTypeSize(dtype), count = 4321;
      const std::pair<ReduceOp, double> cases[] = {
          {ReduceOp::kSum, 15}, {ReduceOp::kMin, 1}, {ReduceOp::kMax, 5}, {ReduceOp::kProduct, 120}};
      for (const auto& [op, result] : cases) {
        std::string expected(count * size, '\0');
        for (size_t i = 0; i < count; ++i) encode(dtype, result, &expected[i * size]);
        const auto results = OnRanks(5, true, [&](Transport& transport, const GroupView& world) {
          std::string data(count * size, '\0');
          for (size_t i = 0; i < count; ++i) encode(dtype, transport.rank() + 1, &data[i * size]);
          EXPECT_TRUE(AllReduce(transport, world, data.data(), count, dtype, op, algorithm, Soon()).ok());
          return data;
        });
        for (const auto& data : results) {
          ASSERT_TRUE(data == expected) << AlgorithmName(algorithm) << " " << DTypeName(dtype) << " " << ReduceOpName(op);
        }
      }
    }
  }
}

TEST(AllReduceTest, AnInputOfItsOwnIsLeftAloneAndGivesTheBitsOfTheSumInPlace) {
  for (const int size : {1, 2, 3, 5}) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
        const size_t count = 40'001, bytes = count * DTypeSize(dtype);
        OnRanks(size, true, [&](Transport& transport, const GroupView& world) {
          std::mt19937 random(transport.rank());
          std::string input(bytes, '\0');
          for (size_t i = 0; i < count; ++i) {
            const float x = static_cast<float>(random() % 2000) / 7 - 100;
            const uint16_t narrow = FloatToHalf(x);
            dtype == DType::kFloat32 ? std::memcpy(&input[i * 4], &x, 4) : std::memcpy(&input[i * 2], &narrow, 2);
          }
          const std::string before = input;
          std::string in_place = input, out(bytes, 'x');
          EXPECT_TRUE(AllReduce(transport, world, input.data(), out.data(), count, dtype, ReduceOp::kSum, algorithm, Soon()).ok());
          EXPECT_TRUE(AllReduce(transport, world, in_place.data(), count, dtype, ReduceOp::kSum, algorithm, Soon()).ok());
          EXPECT_TRUE(input == before) << AlgorithmName(algorithm);
          EXPECT_TRUE(out == in_place) << AlgorithmName(algorithm) << " of " << DTypeName(dtype) << ", " << size << " ranks";
          return std::string();
        });
      }
    }
  }
}

TEST(AllReduceTest, AllRanksAndAllRunsGetTheSameBits) {
  std::mt19937 random(7);
  for (int size = 2; size <= 8; ++size) {
    for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
      for (Algorithm algorithm : kAlgorithms) {
        const size_t count = 1 + random() % 8'000, bytes = count * DTypeSize(dtype);
        const uint64_t seed = random();
        std::vector<std::string> first;
        for (int run = 0; run < 3; ++run) {
          // The last run without shared memory: a given algorithm means the same bits on every transport.
          const bool shares = run < 2 || algorithm == Algorithm::kShared || algorithm == Algorithm::kAuto;
          auto results = OnRanks(size, shares, [&](Transport& transport, const GroupView& world) {
            std::string data = Noise(bytes, seed + transport.rank());  // NaNs and infinities too
            EXPECT_TRUE(AllReduce(transport, world, data.data(), count, dtype, ReduceOp::kSum, algorithm, Soon(), {1, 3}).ok());
            return data;
          });
          for (const auto& data : results) {
            ASSERT_TRUE(data == results[0]) << AlgorithmName(algorithm) << " " << DTypeName(dtype) << ", " << size << " ranks";
          }
          if (run == 0) first = results;
          ASSERT_TRUE(results == first) << AlgorithmName(algorithm) << " " << DTypeName(dtype) << ", run " << run;
        }
      }
    }
  }
}

// The ring as the guide describes it: 2 (N - 1) steps, each of which sends a chunk of one Nth.
TEST(AllReduceTest, G26TheRingSendsTwiceNMinusOneChunksOfOneNth) {
  for (int size = 2; size <= 8; ++size) {
    for (DType dtype : {DType::kFloat32, DType::kFloat16}) {
      const size_t count = 840 * 10;  // every size divides it
      OnRanks(size, false, [&](Transport& transport, const GroupView& world) {
        std::string data(count * DTypeSize(dtype), '\0');
        EXPECT_TRUE(AllReduce(transport, world, data.data(), count, dtype, ReduceOp::kSum, Algorithm::kRing, Soon()).ok());
        EXPECT_EQ(transport.parts_sent(), 2u * (size - 1));
        EXPECT_EQ(transport.bytes_sent(), 2 * (size - 1) * (data.size() / size));
        return std::string();
      });
    }
  }
}

TEST(AllReduceTest, HalvingAndDoublingSendTheBytesThatTheirCostSays) {
  const size_t count = 4096;
  OnRanks(8, false, [&](Transport& transport, const GroupView& world) {
    std::vector<float> data(count);
    EXPECT_TRUE(
        AllReduce(transport, world, data.data(), count, DType::kFloat32, ReduceOp::kSum, Algorithm::kHalvingDoubling, Soon()).ok());
    EXPECT_EQ(transport.parts_sent(), 6u);
    EXPECT_EQ(transport.bytes_sent(), 2 * count * 4 * 7 / 8);
    EXPECT_TRUE(
        AllReduce(transport, world, data.data(), count, DType::kFloat32, ReduceOp::kSum, Algorithm::kRecursiveDoubling, Soon())
            .ok());
    EXPECT_EQ(transport.parts_sent(), 6u + 3);
    EXPECT_EQ(transport.bytes_sent(), 2 * count * 4 * 7 / 8 + 3 * count * 4);
    return std::string();
  });
}

// D-42.
TEST(AllReduceTest, TheMeanOfLargeFloat16NumbersIsNotInfinite) {
  for (Algorithm algorithm : kAlgorithms) {
    for (size_t count : {size_t{3}, size_t{20'000}}) {
      OnRanks(8, true, [&](Transport& transport, const GroupView& world) {
        std::vector<uint16_t> half(count, FloatToHalf(30'000)), bfloat(count, FloatToBFloat16(257.0f));
        EXPECT_TRUE(
            AllReduce(transport, world, half.data(), count, DType::kFloat16, ReduceOp::kSum, algorithm, Soon(), {1, 8}).ok());
        for (uint16_t x : half) EXPECT_EQ(HalfToFloat(x), 30'000) << AlgorithmName(algorithm);
        // Rounded after each of the additions, the mean of seven 256 and one 258 would come out as 256.
        for (uint16_t& x : bfloat) x = FloatToBFloat16(transport.rank() == 7 ? 272.0f : 256.0f);
        EXPECT_TRUE(
            AllReduce(transport, world, bfloat.data(), count, DType::kBFloat16, ReduceOp::kSum, algorithm, Soon(), {1, 8}).ok());
        for (uint16_t x : bfloat) EXPECT_EQ(BFloat16ToFloat(x), 258) << AlgorithmName(algorithm);
        return std::string();
      });
    }
  }
}

TEST(AllReduceTest, AGroupOfSomeRanksLeavesTheOthersAlone) {
  for (Algorithm algorithm : kAlgorithms) {
    OnRanks(5, true, [&](Transport& transport, const GroupView&) {
      const int ranks[] = {4, 0, 3};
      const auto* found = std::find(std::begin(ranks), std::end(ranks), transport.rank());
      if (found == std::end(ranks)) return std::string();
      std::vector<float> data(10'000, static_cast<float>(transport.rank()));
      EXPECT_TRUE(AllReduce(transport, {ranks, static_cast<int>(found - ranks)}, data.data(), data.size(), DType::kFloat32,
                            ReduceOp::kSum, algorithm, Soon())
                      .ok());
      EXPECT_THAT(data, testing::Each(7.0f));
      return std::string();
    });
  }
}

TEST(AllReduceTest, AdasumAddsOrthogonalGradientsAndAveragesEqualOnes) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    OnRanks(4, true, [&](Transport& transport, const GroupView& world) {
      const auto run = [&](std::vector<double> numbers) {
        std::vector<float> narrow(numbers.begin(), numbers.end());
        void* data = dtype == DType::kFloat64 ? static_cast<void*>(numbers.data()) : narrow.data();
        EXPECT_TRUE(AllReduce(transport, world, data, numbers.size(), dtype, ReduceOp::kAdasum, Algorithm::kAuto, Soon()).ok());
        return dtype == DType::kFloat64 ? numbers : std::vector<double>(narrow.begin(), narrow.end());
      };
      std::vector<double> unit(4);
      unit[transport.rank()] = 3;
      EXPECT_EQ(run(unit), (std::vector<double>{3, 3, 3, 3}));
      EXPECT_EQ(run({1, 2, 3, 4}), (std::vector<double>{1, 2, 3, 4}));
      EXPECT_EQ(run({0, 0, 0, 0}), (std::vector<double>{0, 0, 0, 0}));
      return std::string();
    });
  }
}

TEST(AllReduceTest, AdasumRefusesOtherGroupsAndTypes) {
  OnRanks(3, true, [&](Transport& transport, const GroupView& world) {
    float x = 1;
    const Status status = AllReduce(transport, world, &x, 1, DType::kFloat32, ReduceOp::kAdasum, Algorithm::kAuto, Soon());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("3 ranks"));
    EXPECT_THAT(AllReduce(transport, world, &x, 1, DType::kInt32, ReduceOp::kAdasum, Algorithm::kAuto, Soon()).message(),
                HasSubstr("int32"));
    EXPECT_EQ(Reduce(transport, world, &x, 1, DType::kFloat32, ReduceOp::kAdasum, 0, Soon()).code(), StatusCode::kInvalidArgument);
    return std::string();
  });
}

TEST(ReduceTest, TheRootGetsTheReducedNumbers) {
  for (int size = 1; size <= 8; ++size) {
    for (size_t count : {size_t{0}, size_t{3}, size_t{40'000}}) {
      for (DType dtype : {DType::kInt32, DType::kFloat16}) {
        for (int root : {0, size - 1, size / 2}) {
          OnRanks(size, false, [&](Transport& transport, const GroupView& world) {
            std::vector<int32_t> whole(count, transport.rank() + 1);
            std::vector<uint16_t> half(count, FloatToHalf(static_cast<float>(transport.rank() + 1)));
            void* data = dtype == DType::kInt32 ? static_cast<void*>(whole.data()) : half.data();
            EXPECT_TRUE(Reduce(transport, world, data, count, dtype, ReduceOp::kSum, root, Soon()).ok());
            if (transport.rank() == root) {
              const int sum = size * (size + 1) / 2;
              if (dtype == DType::kInt32) {
                EXPECT_TRUE(whole == std::vector<int32_t>(count, sum));
              }
              if (dtype == DType::kFloat16) {
                EXPECT_TRUE(half == std::vector<uint16_t>(count, FloatToHalf(static_cast<float>(sum))));
              }
            }
            return std::string();
          });
        }
      }
    }
  }
}

TEST(ReduceScatterTest, EveryRankGetsItsOwnCount) {
  for (int size = 1; size <= 8; ++size) {
    for (DType dtype : {DType::kInt32, DType::kFloat16}) {
      OnRanks(size, false, [&](Transport& transport, const GroupView& world) {
        std::vector<size_t> counts(size);
        size_t all = 0;
        for (int r = 0; r < size; ++r) all += counts[r] = r % 3 == 1 ? 0 : 100 * r + 1;
        std::vector<int32_t> whole(all), out(counts[transport.rank()], -1);
        for (size_t i = 0; i < all; ++i) whole[i] = static_cast<int32_t>(i % 50);
        std::vector<uint16_t> half(all), half_out(out.size());
        for (size_t i = 0; i < all; ++i) half[i] = FloatToHalf(static_cast<float>(i % 50));
        const bool wide = dtype == DType::kInt32;
        EXPECT_TRUE(ReduceScatter(transport, world, wide ? static_cast<void*>(whole.data()) : half.data(), counts, dtype,
                                  ReduceOp::kSum, wide ? static_cast<void*>(out.data()) : half_out.data(), Soon())
                        .ok());
        const size_t before = std::accumulate(counts.begin(), counts.begin() + transport.rank(), size_t{0});
        for (size_t i = 0; i < out.size(); ++i) {
          const int expected = static_cast<int>((before + i) % 50) * size;
          if (wide) {
            EXPECT_EQ(out[i], expected);
          }
          if (!wide) {
            EXPECT_EQ(HalfToFloat(half_out[i]), expected);
          }
        }
        return std::string();
      });
    }
  }
}

TEST(AllGatherTest, UnequalAndEmptyPartsArriveInRankOrder) {
  for (int size : {1, 2, 3, 5, 8, 18}) {
    OnRanks(size, false, [&](Transport& transport, const GroupView& world) {
      std::vector<size_t> bytes(size);
      std::string expected;
      for (int r = 0; r < size; ++r) {
        bytes[r] = r % 4 == 2 ? 0 : 37 * r + 1;
        expected += Noise(bytes[r], r);
      }
      std::string out(expected.size(), '\0');
      const std::string mine = Noise(bytes[transport.rank()], transport.rank());
      EXPECT_TRUE(AllGather(transport, world, mine.data(), bytes, out.data(), Soon()).ok());
      EXPECT_TRUE(out == expected);
      // The own part in its place already.
      size_t before = 0;
      for (int r = 0; r < transport.rank(); ++r) before += bytes[r];
      std::string whole(expected.size(), '\0');
      std::copy(mine.begin(), mine.end(), whole.begin() + static_cast<ptrdiff_t>(before));
      EXPECT_TRUE(AllGather(transport, world, whole.data() + before, bytes, whole.data(), Soon()).ok());
      EXPECT_TRUE(whole == expected);
      std::fill(whole.begin(), whole.end(), '\0');
      std::copy(mine.begin(), mine.end(), whole.begin() + static_cast<ptrdiff_t>(before));
      EXPECT_TRUE(AllGather(transport, world, kInPlace, bytes, whole.data(), Soon()).ok());
      EXPECT_TRUE(whole == expected);
      return std::string();
    });
  }
}

TEST(BroadcastTest, EveryRootReachesEverybody) {
  for (int size = 1; size <= 8; ++size) {
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{1001}, size_t{200'003}}) {
      for (int root = 0; root < size; ++root) {
        OnRanks(size, false, [&](Transport& transport, const GroupView& world) {
          std::string data = transport.rank() == root ? Noise(bytes, root) : std::string(bytes, ' ');
          EXPECT_TRUE(Broadcast(transport, world, data.data(), bytes, root, Soon()).ok());
          EXPECT_TRUE(data == Noise(bytes, root)) << size << " ranks, root " << root << ", " << bytes << " bytes";
          return std::string();
        });
      }
    }
  }
}

// D-38: most parts empty, among them all that some rank sends and gets.
TEST(AllToAllTest, RandomSplitsWithManyEmptyOnesArrive) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const int size = 1 + static_cast<int>(random() % 8);
    std::vector<std::vector<size_t>> table(size, std::vector<size_t>(size));
    for (auto& row : table) {
      for (size_t& bytes : row) bytes = random() % 3 == 0 ? random() % 3000 : 0;
    }
    const int idle = static_cast<int>(random() % size);
    for (int r = 0; r < size; ++r) table[idle][r] = table[r][idle] = 0;
    OnRanks(size, false, [&](Transport& transport, const GroupView& world) {
      const int me = transport.rank();
      std::vector<Span> send(size), receive(size);
      std::string data, expected;
      for (int r = 0; r < size; ++r) {
        send[r] = {data.size(), table[me][r]};
        data += Noise(table[me][r], me * 100 + r);
        receive[r] = {expected.size(), table[r][me]};
        expected += Noise(table[r][me], r * 100 + me);
      }
      std::string out(expected.size(), '\0');
      EXPECT_TRUE(AllToAll(transport, world, data.data(), send, out.data(), receive, Soon()).ok());
      EXPECT_TRUE(out == expected);
      return std::string();
    });
  }
}

TEST(AllToAllTest, MoreRanksThanAreServedAtOnce) {
  const int size = 37;
  OnRanks(size, false, [&](Transport& transport, const GroupView& world) {
    std::vector<Span> spans(size);
    std::vector<int> data(size), out(size);
    for (int r = 0; r < size; ++r) {
      spans[r] = {r * sizeof(int), sizeof(int)};
      data[r] = transport.rank() * 1000 + r;
    }
    EXPECT_TRUE(AllToAll(transport, world, data.data(), spans, out.data(), spans, Soon()).ok());
    for (int r = 0; r < size; ++r) EXPECT_EQ(out[r], r * 1000 + transport.rank());
    return std::string();
  });
}

TEST(BarrierTest, NobodyLeavesBeforeEverybodyHasCome) {
  for (int size : {1, 2, 3, 7}) {
    std::atomic<int> came{0};
    OnRanks(size, false, [&](Transport& transport, const GroupView& world) {
      std::this_thread::sleep_for(milliseconds(transport.rank() * 3));
      ++came;
      EXPECT_TRUE(Barrier(transport, world, Soon()).ok());
      EXPECT_EQ(came, size);
      return std::string();
    });
  }
}

TEST(CollectivesTest, WrongArgumentsAreNamed) {
  OnRanks(2, false, [&](Transport& transport, const GroupView& world) {
    float data[4] = {};
    const size_t one[] = {1};
    const Span span[] = {{0, 1}};
    EXPECT_THAT(Broadcast(transport, world, data, 4, 2, Soon()).message(), HasSubstr("root 2"));
    EXPECT_THAT(Reduce(transport, world, data, 1, DType::kFloat32, ReduceOp::kSum, -1, Soon()).message(), HasSubstr("root -1"));
    EXPECT_THAT(AllGather(transport, world, data, one, data, Soon()).message(), HasSubstr("1 sizes"));
    EXPECT_THAT(AllToAll(transport, world, data, span, data, span, Soon()).message(), HasSubstr("1 parts"));
    EXPECT_THAT(AllReduce(transport, world, data, 1, static_cast<DType>(99), ReduceOp::kSum, Algorithm::kAuto, Soon()).message(),
                HasSubstr("99"));
    EXPECT_THAT(
        AllReduce(transport, world, data, size_t{1} << 62, DType::kFloat32, ReduceOp::kSum, Algorithm::kAuto, Soon()).message(),
        HasSubstr("memory"));
    EXPECT_EQ(Barrier(transport, {world.ranks, 1 - world.me}, Soon()).code(), StatusCode::kInvalidArgument);
    return std::string();
  });
}

TEST(CollectivesTest, TheDeathOfARankReachesTheOthers) {
  for (Algorithm algorithm : kAlgorithms) {
    auto transports = MakeLocalTransports(3);
    transports[1].reset();
    std::vector<std::thread> threads;
    for (int rank : {0, 2}) {
      threads.emplace_back([&, rank] {
        const World world(*transports[rank]);
        std::vector<float> data(20'000);
        const Status status = AllReduce(*transports[rank], world.view, data.data(), data.size(), DType::kFloat32, ReduceOp::kSum,
                                        algorithm, In(milliseconds(300)));
        EXPECT_FALSE(status.ok()) << AlgorithmName(algorithm);
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace mxrec
