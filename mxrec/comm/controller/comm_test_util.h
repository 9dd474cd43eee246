// Worlds of ranks that are threads of the test, over a real control plane on loopback and transports within the process.
#ifndef MXREC_COMM_CONTROLLER_COMM_TEST_UTIL_H_
#define MXREC_COMM_CONTROLLER_COMM_TEST_UTIL_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "mxrec/comm/controller/communicator_impl.h"
#include "mxrec/comm/local_transport.h"
#include "mxrec/io/test_dir.h"

namespace mxrec::testing {

// Options of a rank of a world that meets in `dir`.
inline CommOptions OptionsIn(const TestDir& dir, int rank, int size,
                             std::chrono::milliseconds connect_timeout = std::chrono::seconds(20)) {
  CommOptions options;
  options.rank = rank;
  options.size = size;
  options.store_path = dir.File("chief");
  options.connect_timeout = connect_timeout;
  return options;
}

class ThreadWorld {
 public:
  // `change` edits the options of each rank before it starts.
  explicit ThreadWorld(int size, const std::function<void(CommOptions&)>& change = {}, bool shares_memory = true) : ranks_(size) {
    std::vector<std::unique_ptr<Transport>> transports = MakeLocalTransports(size, shares_memory);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        CommOptions options = OptionsIn(dir_, rank, size);
        if (change) change(options);
        auto made = internal::CreateCommunicator(
            options, [&](const CommOptions&, std::shared_ptr<Store>) -> Result<std::unique_ptr<Transport>> {
              return std::move(transports[rank]);
            });
        EXPECT_TRUE(made.ok()) << made.status();
        if (made.ok()) ranks_[rank] = std::move(made).value();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  ~ThreadWorld() {
    // All at once: rank 0 waits for the others.
    OnAll([](Communicator& comm, int) { EXPECT_TRUE(comm.Shutdown().ok()); });
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Communicator& operator[](int rank) { return *ranks_[rank]; }

  // Runs body(communicator, rank) on a thread for each rank.
  void OnAll(const std::function<void(Communicator&, int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      if (ranks_[rank] != nullptr) threads.emplace_back([&, rank] { body(*ranks_[rank], rank); });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  TestDir dir_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

// A request over floats whose result goes to `out`.
inline CommRequest FloatRequest(Collective kind, std::string name, const std::vector<float>& in, std::vector<float>* out) {
  CommRequest request;
  request.kind = kind;
  request.name = std::move(name);
  request.shape = {static_cast<int64_t>(in.size())};
  request.input = in.data();
  request.allocate = [out](const Agreed& agreed) -> Result<void*> {
    size_t count = 1;
    for (const int64_t dim : agreed.shape) count *= static_cast<size_t>(dim);
    out->assign(count, -1.0f);
    return static_cast<void*>(out->data());
  };
  return request;
}

}  // namespace mxrec::testing

#endif  // MXREC_COMM_CONTROLLER_COMM_TEST_UTIL_H_
