// Packed reductions: the same bits through the memory that the ranks share as through a buffer that is packed by hand, for every
// form in which tensors come.
#include "mxrec/comm/controller/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "mxrec/comm/local_transport.h"
#include "mxrec/comm/transport/shm/shm_transport.h"
#include "mxrec/comm/transport_test_util.h"
#include "mxrec/kernels/narrow_floats.h"

namespace mxrec {
namespace {

Deadline Soon() { return In(std::chrono::seconds(60)); }

// What the tensors of a job have in common, and how their bytes travel.
struct Form {
  DType dtype = DType::kFloat32;
  DType wire = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1, postscale = 1;
  bool divide_by_size = false;
};

const std::vector<Form> kForms = {
    {},
    {.prescale = 0.3},
    {.op = ReduceOp::kMax, .postscale = 3},
    {.wire = DType::kFloat16, .divide_by_size = true},
    {.wire = DType::kBFloat16, .prescale = 1.7, .postscale = 0.9},
    {.dtype = DType::kFloat64, .prescale = 0.1},
    {.dtype = DType::kInt8},
    {.dtype = DType::kBFloat16, .divide_by_size = true},
};

// Small and empty ones among others; chunks, slices and blocks begin and end within all of them.
const std::vector<size_t> kCounts = {5000, 0, 1, 4096, 3, 0, 12'345, 4097, 7, 40'000};

std::string Numbers(const Form& form, size_t tensor, int rank) {
  const size_t count = kCounts[tensor];
  if (form.dtype == DType::kInt8) return Noise(count, tensor * 31 + rank);
  std::string bytes(count * DTypeSize(form.dtype), '\0');
  const auto value = [&](size_t i) {
    return (static_cast<float>((i * 2654435761u + tensor * 40503u + rank * 977u) % 10'007) - 5000) / 7;
  };
  std::vector<float> floats(count);
  for (size_t i = 0; i < count; ++i) floats[i] = value(i);
  if (form.dtype == DType::kBFloat16) {
    FloatsToBFloat16(floats.data(), count, reinterpret_cast<uint16_t*>(bytes.data()));
  } else if (form.dtype == DType::kFloat64) {
    for (size_t i = 0; i < count; ++i) reinterpret_cast<double*>(bytes.data())[i] = value(i);
  } else if (count > 0) {
    std::memcpy(bytes.data(), floats.data(), bytes.size());
  }
  return bytes;
}

// The result that packing by hand gives, one string a tensor.
std::vector<std::string> ByHand(Transport& transport, const GroupView& group, const Form& form,
                                const std::vector<std::string>& inputs) {
  std::string all;
  for (const std::string& input : inputs) all += input;
  const size_t count = all.size() / DTypeSize(form.dtype);
  if (form.prescale != 1) Scale(all.data(), count, form.dtype, form.prescale);
  const bool narrow = form.wire != DType::kFloat32, half = form.wire == DType::kFloat16;
  std::vector<uint16_t> bits(narrow ? count : 0);
  auto* const floats = reinterpret_cast<float*>(all.data());
  if (narrow) half ? FloatsToHalf(floats, count, bits.data()) : FloatsToBFloat16(floats, count, bits.data());
  const Finish finish{.multiply = form.postscale, .divide = form.divide_by_size ? static_cast<double>(transport.size()) : 1};
  const Status status = AllReduce(transport, group, narrow ? static_cast<void*>(bits.data()) : all.data(), count,
                                  narrow ? form.wire : form.dtype, form.op, Algorithm::kAuto, Soon(), finish);
  EXPECT_TRUE(status.ok()) << status;
  if (narrow) half ? HalfToFloats(bits.data(), count, floats) : BFloat16ToFloats(bits.data(), count, floats);
  std::vector<std::string> results;
  size_t at = 0;
  for (const std::string& input : inputs) {
    results.push_back(all.substr(at, input.size()));
    at += input.size();
  }
  return results;
}

struct World {
  const char* name;
  std::function<std::vector<std::unique_ptr<Transport>>(int size)> make;
};

const std::vector<World> kWorlds = {
    {"threads", [](int size) { return MakeLocalTransports(size); }},
    {"threads that share nothing", [](int size) { return MakeLocalTransports(size, false); }},
    {"small chunks of shared memory",
     [](int size) {
       auto store = MakeMemoryStore();
       std::vector<std::unique_ptr<Transport>> transports(size);
       std::vector<std::thread> threads;
       for (int rank = 0; rank < size; ++rank) {
         threads.emplace_back([&, rank] {
           transports[rank] = MakeShmTransport({.rank = rank, .size = size, .chunk_bytes = 3000}, *store, Soon()).value();
         });
       }
       for (std::thread& thread : threads) thread.join();
       return transports;
     }},
};

// A job of the tensors in `which`, on the memory of a rank. in_place: every second tensor's result goes to where it comes from.
class RankJob {
 public:
  RankJob(const Form& form, const std::vector<size_t>& which, int rank, int size, bool in_place) : requests_(which.size()) {
    job.me = rank;
    job.ranks.resize(size);
    std::iota(job.ranks.begin(), job.ranks.end(), 0);
    for (const size_t tensor : which) inputs.push_back(Numbers(form, tensor, rank));
    outputs.resize(which.size());
    for (size_t i = 0; i < which.size(); ++i) {
      outputs[i].assign(inputs[i].size(), 'x');
      CommRequest& request = requests_[i];
      request.dtype = form.dtype;
      request.wire = form.wire;
      request.op = form.op;
      request.prescale = form.prescale;
      request.postscale = form.postscale;
      request.divide_by_size = form.divide_by_size;
      request.shape = {static_cast<int64_t>(kCounts[which[i]])};
      request.input = inputs[i].data();
      const bool here = in_place && i % 2 == 0;
      request.allocate = [this, i, here](const Agreed& agreed) -> Result<void*> {
        EXPECT_EQ(agreed.shape, requests_[i].shape);
        return static_cast<void*>(here ? inputs[i].data() : outputs[i].data());
      };
      job.tensors.emplace_back().request = &request;
    }
  }
  // This rank has joined: it gives zeros and wants nothing.
  void Join() {
    for (Job::Tensor& tensor : job.tensors) {
      const CommRequest& request = *tensor.request;
      auto fields = std::make_shared<RequestFields>();
      fields->dtype = request.dtype;
      fields->wire = request.wire;
      fields->op = request.op;
      fields->prescale = request.prescale;
      fields->postscale = request.postscale;
      fields->divide_by_size = request.divide_by_size;
      fields->shape = request.shape;
      tensor.joined = std::move(fields);
      tensor.request = nullptr;
    }
    for (std::string& input : inputs) std::fill(input.begin(), input.end(), '\0');
  }
  CommRequest& request(size_t i) { return requests_[i]; }
  const std::string& result(size_t i, bool in_place) const { return in_place && i % 2 == 0 ? inputs[i] : outputs[i]; }

  Job job;
  std::vector<std::string> inputs, outputs;

 private:
  std::vector<CommRequest> requests_;
};

std::vector<size_t> AllTensors() {
  std::vector<size_t> all(kCounts.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(ExecutorTest, PackedTensorsGetTheBitsOfTensorsPackedByHand) {
  for (const World& world : kWorlds) {
    for (const int size : {2, 3}) {
      RunRanks(world.make(size), [&](Transport& transport) {
        Executor executor(transport, Algorithm::kAuto);
        for (size_t f = 0; f < kForms.size(); ++f) {
          // All tensors, one that is large enough for the shared memory, one that is not.
          for (const std::vector<size_t>& which : {AllTensors(), {9}, {3}, {1}}) {
            for (const bool in_place : {false, true}) {
              RankJob mine(kForms[f], which, transport.rank(), size, in_place);
              const std::vector<std::string> before = mine.inputs;
              const auto expected = ByHand(transport, {.ranks = mine.job.ranks, .me = mine.job.me}, kForms[f], mine.inputs);
              const Status status = executor.Run(mine.job, Soon());
              ASSERT_TRUE(status.ok()) << status;
              for (size_t i = 0; i < which.size(); ++i) {
                EXPECT_EQ(mine.job.tensors[i].status, OkStatus());
                EXPECT_TRUE(mine.result(i, in_place) == expected[i])
                    << world.name << ", " << size << " ranks, form " << f << ", tensor " << which[i] << " of " << which.size();
                EXPECT_TRUE(mine.inputs[i] == before[i] || (in_place && i % 2 == 0)) << "an input was changed";
              }
            }
          }
        }
      });
    }
  }
}

TEST(ExecutorTest, AJoinedRankGivesZerosAndATensorWithoutMemoryFailsAlone) {
  for (const World& world : kWorlds) {
    constexpr int kRanks = 3;
    RunRanks(world.make(kRanks), [&](Transport& transport) {
      Executor executor(transport, Algorithm::kAuto);
      for (size_t f = 0; f < kForms.size(); ++f) {
        RankJob mine(kForms[f], AllTensors(), transport.rank(), kRanks, false);
        if (transport.rank() == 1) mine.Join();
        const auto expected = ByHand(transport, {.ranks = mine.job.ranks, .me = mine.job.me}, kForms[f], mine.inputs);
        if (transport.rank() == 2) {
          mine.request(3).allocate = [](const Agreed&) -> Result<void*> { return ResourceExhaustedError("none left"); };
        }
        const Status status = executor.Run(mine.job, Soon());
        ASSERT_TRUE(status.ok()) << status;
        for (size_t i = 0; i < mine.outputs.size(); ++i) {
          const bool failed = transport.rank() == 2 && i == 3;
          EXPECT_EQ(mine.job.tensors[i].status.code(), failed ? StatusCode::kResourceExhausted : StatusCode::kOk);
          const std::string untouched(mine.outputs[i].size(), 'x');
          EXPECT_TRUE(mine.outputs[i] == (failed || transport.rank() == 1 ? untouched : expected[i]))
              << world.name << ", form " << f << ", tensor " << i;
        }
      }
    });
  }
}

// Of a gather in place the input is where the output was to be: without that no rank gets anything.
TEST(ExecutorTest, AGatherInPlaceWithoutMemoryFailsAsAWhole) {
  const auto group = MakeLocalTransports(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Executor executor(*group[rank], Algorithm::kAuto);
      std::vector<float> out(6);
      CommRequest request;
      request.kind = Collective::kAllGather;
      request.shape = {3};
      request.input = kInPlace;
      request.allocate = [&](const Agreed&) -> Result<void*> {
        if (rank == 1) return ResourceExhaustedError("no room for the rows");
        return out.data();
      };
      Job job;
      job.kind = Collective::kAllGather;
      job.ranks = {0, 1};
      job.me = rank;
      job.received = {3, 3};
      job.tensors.emplace_back().request = &request;
      const Status status = executor.Run(job, In(std::chrono::milliseconds(rank == 0 ? 300 : 10'000)));
      EXPECT_FALSE(status.ok()) << rank;
      if (rank == 1) EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("no room for the rows"));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ExecutorTest, WhatGoesThroughSharedMemoryIsSaidAndTheRestIsRefused) {
  RunRanks(MakeLocalTransports(2), [](Transport& transport) {
    const std::vector<int> ranks = {0, 1};
    const GroupView group{.ranks = ranks, .me = transport.rank()};
    const size_t large = size_t{1} << 20;
    EXPECT_TRUE(ReducesInSharedMemory(transport, group, large, DType::kFloat32, ReduceOp::kSum, Algorithm::kAuto));
    EXPECT_TRUE(ReducesInSharedMemory(transport, group, 1, DType::kFloat32, ReduceOp::kSum, Algorithm::kShared));
    EXPECT_FALSE(ReducesInSharedMemory(transport, group, 1, DType::kFloat32, ReduceOp::kSum, Algorithm::kAuto));
    EXPECT_FALSE(ReducesInSharedMemory(transport, group, large, DType::kFloat32, ReduceOp::kAdasum, Algorithm::kAuto));
    EXPECT_FALSE(ReducesInSharedMemory(transport, group, large, DType::kFloat32, ReduceOp::kSum, Algorithm::kRing));
    EXPECT_FALSE(ReducesInSharedMemory(transport, group, 0, DType::kFloat32, ReduceOp::kSum, Algorithm::kShared));
    struct Nothing final : Transport::Payload {
      void Read(size_t, size_t, void*) override { ADD_FAILURE(); }
      void Write(size_t, size_t, const void*) override { ADD_FAILURE(); }
    } payload;
    const Status status =
        AllReduceShared(transport, group, payload, large, DType::kFloat32, ReduceOp::kSum, Algorithm::kRing, Soon());
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("4194304 bytes in a group of 2 ranks over local"));
  });
}

}  // namespace
}  // namespace mxrec
