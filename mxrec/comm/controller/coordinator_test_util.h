// What tests of the coordinator share: requests, and what each rank was told.
#ifndef MXREC_COMM_CONTROLLER_COORDINATOR_TEST_UTIL_H_
#define MXREC_COMM_CONTROLLER_COORDINATOR_TEST_UTIL_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "mxrec/comm/controller/coordinator.h"

namespace mxrec::testing {

inline RequestFields AllReduceOf(std::string name, std::vector<int64_t> shape = {4}) {
  RequestFields fields;
  fields.name = std::move(name);
  fields.origin = "node of " + fields.name;
  fields.shape = std::move(shape);
  return fields;
}

// A coordinator, and what each rank was told.
class Told {
 public:
  explicit Told(int size, const std::function<void(CoordinatorOptions&)>& change = {}) : agreements_(size) {
    CoordinatorOptions options;
    options.size = size;
    if (change) change(options);
    coordinator_ = std::make_unique<Coordinator>(std::move(options));
  }

  Status Take(int rank, const Requests& requests) { return coordinator_->Take(rank, requests, now_); }
  Status Ask(int rank, const RequestFields& fields) {
    Requests requests;
    requests.full = {fields};
    return Take(rank, requests);
  }
  void AskAll(const RequestFields& fields) {
    for (size_t rank = 0; rank < agreements_.size(); ++rank) EXPECT_EQ(Ask(static_cast<int>(rank), fields), OkStatus());
  }
  Status AskById(int rank, std::vector<uint64_t> ids) {
    Requests requests;
    requests.ids = std::move(ids);
    return Take(rank, requests);
  }
  void Leave(int rank) {
    Requests requests;
    requests.leaves = true;
    EXPECT_EQ(Take(rank, requests), OkStatus());
  }
  void Flush() {
    for (auto& [rank, agreement] : coordinator_->Flush()) {
      // Over the wire and back, as in life.
      Agreement found = DecodeAgreement(EncodeAgreement(agreement)).value();
      Agreement& all = agreements_[rank];
      for (auto& part : found.executions) all.executions.push_back(part);
      for (auto& part : found.errors) all.errors.push_back(part);
      for (auto& part : found.groups) all.groups.push_back(part);
      for (auto& part : found.forget) all.forget.push_back(part);
      all.goodbye = all.goodbye || found.goodbye;
    }
  }
  Agreement Next(int rank) {
    Flush();
    return std::exchange(agreements_[rank], {});
  }
  Coordinator& operator*() { return *coordinator_; }
  Coordinator* operator->() { return coordinator_.get(); }
  void Pass(std::chrono::milliseconds time) { now_ += time; }
  Coordinator::Time now() const { return now_; }

 private:
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<Agreement> agreements_;
  Coordinator::Time now_{};
};

inline std::vector<uint64_t> Ids(const Execution& execution) {
  std::vector<uint64_t> ids;
  for (const AgreedTensor& tensor : execution.tensors) ids.push_back(tensor.id);
  return ids;
}

}  // namespace mxrec::testing

#endif  // MXREC_COMM_CONTROLLER_COORDINATOR_TEST_UTIL_H_
