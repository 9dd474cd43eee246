#include "mxrec/comm/transport_factory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "mxrec/comm/transport/plugin_transport.h"
#include "mxrec/comm/transport_test_util.h"
#include "mxrec/io/test_dir.h"

namespace mxrec {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

CommOptions OptionsOf(int rank, int size, const std::string& transport) {
  CommOptions options;
  options.rank = rank;
  options.size = size;
  options.transport = transport;
  options.plugin_folder = MXREC_PLUGIN_FOLDER;
  return options;
}

std::vector<std::string> NamesOf(int size, const std::string& transport, Store& store) {
  std::vector<std::string> names(size);
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Transport>> transports(size);
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto made = CreateTransport(OptionsOf(rank, size, transport), store, In(milliseconds(20'000)));
      if (!made.ok()) {
        names[rank] = made.status().ToString();
        return;
      }
      names[rank] = (*made)->name();
      transports[rank] = std::move(made).value();
    });
  }
  for (auto& thread : threads) thread.join();
  return names;
}

TEST(TransportFactoryTest, RanksOfOneHostShareMemory) {
  EXPECT_THAT(NamesOf(3, "auto", *MakeMemoryStore()), testing::Each("shm"));
  EXPECT_THAT(NamesOf(2, "shm", *MakeMemoryStore()), testing::Each("shm"));
}

TEST(TransportFactoryTest, ARankElsewhereMakesAllTakeGloo) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "Gloo is not instrumented for ThreadSanitizer";
#endif
  // Rank 2 is played by what it would say.
  auto store = MakeMemoryStore();
  ASSERT_TRUE(store->Set("transport/2", "gloo another-host 1 0").ok());
  std::vector<std::thread> threads;
  for (int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      const auto made = CreateTransport(OptionsOf(rank, 3, "auto"), *store, In(milliseconds(300)));
      EXPECT_FALSE(made.ok());
      EXPECT_THAT(made.status().message(), HasSubstr("gloo"));
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(TransportFactoryTest, OneRankNeedsNoEngine) { EXPECT_THAT(NamesOf(1, "gloo", *MakeMemoryStore()), testing::Each("local")); }

TEST(TransportFactoryTest, AnUnknownNameIsRefused) {
  auto store = MakeMemoryStore();
  const auto made = CreateTransport(OptionsOf(0, 2, "carrier pigeon"), *store, In(milliseconds(10)));
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(made.status().message(), HasSubstr("carrier pigeon"));
}

TEST(TransportFactoryTest, ARankThatDoesNotComeIsNamed) {
  auto store = MakeMemoryStore();
  const auto made = CreateTransport(OptionsOf(0, 2, "auto"), *store, In(milliseconds(10)));
  EXPECT_EQ(made.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(made.status().message(), HasSubstr("rank 1"));
}

TEST(PluginTest, AMissingPluginIsNamed) {
  auto store = MakeMemoryStore();
  const auto made = MakePluginTransport("gloo", {0, 2, "", "/no/such/folder"}, *store, In(milliseconds(10)));
  EXPECT_EQ(made.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(made.status().message(), HasSubstr("/no/such/folder/libmxrec_gloo.so"));
}

TEST(PluginTest, APluginThatCannotBeLoadedNamesThePackage) {
  TestDir dir;
  std::ofstream(dir.File("libmxrec_mpi.so")) << "not a library";
  auto store = MakeMemoryStore();
  const auto made = MakePluginTransport("mpi", {0, 2, "", dir.path()}, *store, In(milliseconds(10)));
  EXPECT_EQ(made.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(made.status().message(), AllOf(HasSubstr("libmxrec_mpi.so"), HasSubstr("libopenmpi3")));
}

}  // namespace
}  // namespace mxrec
