// Real payloads beyond 2 and 4 GiB (label slow: `make test-full`). The paths are tested with lowered limits in transport_test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "mxrec/comm/collectives.h"
#include "mxrec/comm/store.h"
#include "mxrec/comm/transport/plugin_transport.h"
#include "mxrec/comm/transport/shm/shm_transport.h"
#include "mxrec/comm/transport_test_util.h"

namespace mxrec {
namespace {

using std::chrono::minutes;

constexpr size_t kBytes = (size_t{5} << 29) + 40;  // 2.5 GiB and a little

std::vector<std::unique_ptr<Transport>> Make(bool gloo) {
  auto store = MakeMemoryStore();
  std::vector<std::unique_ptr<Transport>> transports(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      transports[rank] =
          gloo ? std::move(MakePluginTransport("gloo", {rank, 2, "127.0.0.1", MXREC_PLUGIN_FOLDER}, *store, In(minutes(1)))).value()
               : std::move(MakeShmTransport({rank, 2}, *store, In(minutes(1)))).value();
    });
  }
  for (auto& thread : threads) thread.join();
  return transports;
}

uint64_t Number(size_t i) { return i * 0x9E3779B97F4A7C15u; }

TEST(LargePayloadTest, AnAllReduceOfMoreThanTwoGiBInSharedMemoryIsRight) {
  RunRanks(Make(false), [](Transport& transport) {
    const std::vector<int> ranks = {0, 1};
    std::vector<uint64_t> data(kBytes / 8);
    for (size_t i = 0; i < data.size(); ++i) data[i] = Number(i) + transport.rank();
    const Status status = AllReduce(transport, {ranks, transport.rank()}, data.data(), data.size(), DType::kUInt64, ReduceOp::kSum,
                                    Algorithm::kAuto, In(minutes(4)));
    ASSERT_TRUE(status.ok()) << status;
    size_t wrong = 0;
    for (size_t i = 0; i < data.size(); ++i) wrong += data[i] != 2 * Number(i) + 1;
    EXPECT_EQ(wrong, 0u);
  });
}

// D-49: one part of 2.5 GiB, the others small or empty.
TEST(LargePayloadTest, APartOfMoreThanTwoGiBPassesThroughEveryTransport) {
  for (bool gloo : {false, true}) {
    if (gloo && !PluginIsThere("gloo", MXREC_PLUGIN_FOLDER)) continue;
    RunRanks(Make(gloo), [](Transport& transport) {
      const std::vector<int> ranks = {0, 1};
      const bool sender = transport.rank() == 0;
      std::vector<uint64_t> data(sender ? kBytes / 8 : 1, 7), out(sender ? 1 : kBytes / 8);
      if (sender) {
        for (size_t i = 0; i < data.size(); ++i) data[i] = Number(i);
      }
      const std::vector<Span> send = sender ? std::vector<Span>{{0, 0}, {0, kBytes}} : std::vector<Span>{{0, 8}, {0, 0}};
      const std::vector<Span> receive = sender ? std::vector<Span>{{0, 0}, {0, 8}} : std::vector<Span>{{0, kBytes}, {0, 0}};
      const Status status = AllToAll(transport, {ranks, transport.rank()}, data.data(), send, out.data(), receive, In(minutes(4)));
      ASSERT_TRUE(status.ok()) << status;
      if (sender) {
        EXPECT_EQ(out[0], 7u);
        return;
      }
      size_t wrong = 0;
      for (size_t i = 0; i < out.size(); ++i) wrong += out[i] != Number(i);
      EXPECT_EQ(wrong, 0u);
    });
  }
}

}  // namespace
}  // namespace mxrec
