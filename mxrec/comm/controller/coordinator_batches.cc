// Batches: what ranks ask for together step after step, taken as one.
//
// A batch stands in front of the slots of its names: while it does, their own `asked` is not used. It is made when all ranks have
// asked for the same numbers in a message each and nothing else was ready, and it keeps the executions that this became. Then a
// message with these numbers costs a comparison instead of a look at each slot. Whatever else concerns a name of it dissolves it:
// the slots are asked for as the batch was, and everything goes on as if it had never been.
#include <algorithm>

#include "mxrec/base/check.h"
#include "mxrec/comm/controller/coordinator_impl.h"

namespace mxrec {
namespace {

constexpr size_t kMostBatches = 64;

}  // namespace

std::vector<uint64_t> Coordinator::Impl::AskBatches(int rank, std::span<const uint64_t> ids, Time now) {
  std::vector<uint64_t> left(ids.begin(), ids.end());
  while (left.size() >= options.batch_names) {
    // Of a message of several batches the first name left tells which one is next.
    const auto slot = slots.find(left[0]);
    Batch* const batch = slot == slots.end() ? nullptr : slot->second->batch;
    if (batch == nullptr || !std::includes(left.begin(), left.end(), batch->ids.begin(), batch->ids.end())) break;
    const int member = batch->group->index[rank];
    if (member < 0 || batch->asked[member] != 0) break;  // an error, told by the slot
    if (batch->asked_count == 0) {
      batch->since = now;
      batch->used = ++tick;
    }
    batch->asked[member] = 1;
    if (++batch->asked_count == static_cast<int>(batch->asked.size())) ready_batches.push_back(batch);
    if (batch->ids.size() == left.size()) return {};
    std::vector<uint64_t> others;
    others.reserve(left.size() - batch->ids.size());
    std::set_difference(left.begin(), left.end(), batch->ids.begin(), batch->ids.end(), std::back_inserter(others));
    left.swap(others);
  }
  return left;
}

// What all have asked for, as it ran the last time.
void Coordinator::Impl::EmitBatches() {
  for (Batch* const batch : ready_batches) {
    for (const auto& [execution, first] : batch->executions) {
      for (const int rank : batch->group->ranks) Give(rank, execution, first);
    }
    std::fill(batch->asked.begin(), batch->asked.end(), 0);
    batch->asked_count = 0;
  }
  ready_batches.clear();
}

// After the executions of all that is ready were given to all ranks alike, before it is committed.
void Coordinator::Impl::MakeBatch(std::vector<std::pair<std::shared_ptr<const Execution>, uint64_t>> executions) {
  const Slot& first = *ready[0];
  if (ready.size() < options.batch_names || ready.size() > options.max_names / 4 || first.group->joined_count > 0 ||
      !left_in_order.empty())
    return;
  for (const auto& [execution, slot] : executions) {
    if (execution == nullptr || !execution->received.empty()) return;
  }
  for (const Slot* slot : ready) {
    const bool plain = slot->group == first.group && !slot->point_to_point && !slot->changed && slot->owed.empty() &&
                       slot->asked_count == static_cast<int>(slot->participants()) && slot->batch == nullptr;
    if (!plain) return;
  }
  const auto same = [](uint64_t id, const Slot* slot) { return id == slot->id; };
  for (const int rank : first.group->ranks) {
    const std::vector<uint64_t>& last = ranks[rank].last_ids;
    if (last.size() != ready.size() || !std::equal(last.begin(), last.end(), ready.begin(), same)) return;
  }
  if (batches.size() >= kMostBatches) {
    Batch* oldest = nullptr;
    for (const auto& batch : batches) {
      if (batch->asked_count == 0 && (oldest == nullptr || batch->used < oldest->used)) oldest = batch.get();
    }
    if (oldest == nullptr) return;
    Dissolve(*oldest);
  }
  auto batch = std::make_unique<Batch>();
  batch->group = first.group;
  batch->slots = ready;
  batch->executions = std::move(executions);
  batch->asked.resize(first.participants());
  batch->used = tick;
  for (Slot* const slot : ready) {
    batch->ids.push_back(slot->id);
    slot->batch = batch.get();
  }
  batches.push_back(std::move(batch));
}

void Coordinator::Impl::Dissolve(Batch& dissolved) {
  const auto at = std::find_if(batches.begin(), batches.end(), [&](const auto& batch) { return batch.get() == &dissolved; });
  const std::unique_ptr<Batch> batch = std::move(*at);
  batches.erase(at);
  std::erase(ready_batches, batch.get());
  for (Slot* const slot : batch->slots) {
    slot->batch = nullptr;
    slot->used = std::max(slot->used, batch->used);
  }
  for (size_t member = 0; member < batch->asked.size() && batch->asked_count > 0; ++member) {
    if (batch->asked[member] == 0) continue;
    for (Slot* const slot : batch->slots) {
      const Status status = Ask(*slot, batch->group->ranks[member], nullptr, batch->since);
      MXREC_CHECK(status.ok()) << status;
    }
  }
}

void Coordinator::Impl::DissolveAll() {
  while (!batches.empty()) Dissolve(*batches.back());
}

}  // namespace mxrec
