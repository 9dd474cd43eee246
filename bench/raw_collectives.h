// Allreduce of float32 sums by the engines themselves: MPI_Allreduce, and Gloo's algorithms over TCP on the loopback. The process
// is a rank of MPI_COMM_WORLD.
#ifndef MXREC_BENCH_RAW_COLLECTIVES_H_
#define MXREC_BENCH_RAW_COLLECTIVES_H_

#include <gloo/algorithm.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <mpi.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace mxrec::bench {

// One way to reduce `count` numbers in place.
struct System {
  std::string name;
  std::function<void(float* data, size_t count)> run;
  std::vector<double> seconds = {};  // one a turn
};

inline const std::vector<std::string> kGlooSystems = {"Gloo ring", "Gloo ring_chunked", "Gloo halving_doubling"};

class RawEngines {
 public:
  // Collective. `folder`: an empty one that all ranks see.
  RawEngines(int rank, int size, const std::string& folder) {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(folder);
    context_ = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context_->connectFullMesh(store, device);
  }

  // For this buffer alone: some algorithms are made for a buffer.
  std::vector<System> Systems(float* data, size_t count) {
    const auto ring_chunked =
        std::make_shared<gloo::AllreduceRingChunked<float>>(context_, std::vector<float*>{data}, static_cast<int>(count));
    const auto halving =
        std::make_shared<gloo::AllreduceHalvingDoubling<float>>(context_, std::vector<float*>{data}, static_cast<int>(count));
    std::vector<System> systems;
    systems.push_back({"MPI_Allreduce", [](float* in, size_t n) {
                         MPI_Allreduce(MPI_IN_PLACE, in, static_cast<int>(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                       }});
    systems.push_back({"Gloo ring", [this](float* in, size_t n) {
                         gloo::AllreduceOptions ring(context_);
                         ring.setOutput(in, n);
                         ring.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
                         ring.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
                         ring.setTag(tag_++);
                         gloo::allreduce(ring);
                       }});
    systems.push_back({"Gloo ring_chunked", [ring_chunked](float*, size_t) { ring_chunked->run(); }});
    systems.push_back({"Gloo halving_doubling", [halving](float*, size_t) { halving->run(); }});
    return systems;
  }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
  uint32_t tag_ = 0;
};

}  // namespace mxrec::bench

#endif  // MXREC_BENCH_RAW_COLLECTIVES_H_
