// What is complete becomes executions: packed, put in order, told to the ranks.
#include <algorithm>

#include "mxrec/comm/controller/coordinator_impl.h"

namespace mxrec {
namespace {

uint64_t CountOf(std::span<const int64_t> shape) {
  uint64_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<uint64_t>(dim);
  return count;
}

}  // namespace

void Coordinator::Impl::Give(int rank, std::shared_ptr<const Execution> execution, uint64_t slot) {
  Rank& to = ranks[rank];
  if (to.left) return;
  to.out.executions.push_back(std::move(execution));
  ++to.given;
  to.unfinished.push_back(slot);
  if (to.unfinished.size() > 4096) to.unfinished.pop_front();
}

bool Coordinator::Impl::Fusable(const RequestFields& fields) {
  return fields.kind == Collective::kAllReduce && fields.op != ReduceOp::kAdasum;
}

const RequestFields& Coordinator::Impl::First(const Slot& slot) {
  size_t i = 0;
  while (slot.asked[i] == 0) ++i;
  return *slot.Request(i);
}

// Turns what is ready into executions.
void Coordinator::Impl::Emit() {
  EmitBatches();
  if (ready.empty()) return;
  // By number: the order of the first step, the shortest to write, and the same on every run once the names repeat.
  std::sort(ready.begin(), ready.end(), [](const Slot* a, const Slot* b) { return a->id < b->id; });
  struct Bucket {
    std::vector<Slot*> slots;
    const RequestFields* fields = nullptr;
    uint64_t bytes = 0;
    bool open = false;
  };
  std::vector<Bucket> buckets;
  size_t oldest_open = 0;
  for (Slot* const slot : ready) {
    const RequestFields& fields = First(*slot);
    const DType dtype = fields.wire != DType::kFloat32 ? fields.wire : fields.dtype;
    const uint64_t bytes = CountOf(fields.shape) * DTypeSize(dtype);
    const bool open = Fusable(fields) && bytes <= static_cast<uint64_t>(options.fuse_below);
    Bucket* into = nullptr;
    for (size_t b = buckets.size(); open && b-- > oldest_open && into == nullptr;) {
      Bucket& bucket = buckets[b];
      const RequestFields& with = *bucket.fields;
      if (bucket.open && bucket.slots[0]->group == slot->group && with.dtype == fields.dtype && with.op == fields.op &&
          with.wire == fields.wire && with.prescale == fields.prescale && with.postscale == fields.postscale &&
          with.divide_by_size == fields.divide_by_size && bucket.bytes + bytes <= static_cast<uint64_t>(options.fusion_bytes) &&
          bucket.slots.size() < kMaxIdsInMessage / 8) {
        into = &bucket;
      }
    }
    if (into == nullptr) {
      into = &buckets.emplace_back();
      into->fields = &fields;
      into->open = open;
      // The search for a place stays short.
      if (buckets.size() - oldest_open > 32) ++oldest_open;
    }
    into->slots.push_back(slot);
    into->bytes += bytes;
  }
  std::vector<std::pair<std::shared_ptr<const Execution>, uint64_t>> executions;
  for (const Bucket& bucket : buckets) executions.emplace_back(EmitOne(bucket.slots), bucket.slots[0]->id);
  MakeBatch(std::move(executions));
  for (Slot* const slot : ready) Commit(*slot);
  ready.clear();
  Forget();
}

std::shared_ptr<const Execution> Coordinator::Impl::EmitOne(const std::vector<Slot*>& packed) {
  const Slot& first = *packed[0];
  const RequestFields& fields = First(first);
  Execution common;
  common.kind = fields.kind;
  common.group = first.group->id;
  common.tensors.reserve(packed.size());
  for (const Slot* slot : packed) common.tensors.push_back({.id = slot->id, .name = {}, .joined = {}});
  if (fields.kind == Collective::kAllGather) {
    for (size_t i = 0; i < first.participants(); ++i) common.received.push_back(first.Request(i)->shape[0]);
  }
  std::shared_ptr<const Execution> shared;
  bool same_for_all = true;
  for (size_t i = 0; i < first.participants(); ++i) {
    bool own = fields.kind == Collective::kAllToAll || first.point_to_point;
    for (const Slot* slot : packed) own = own || slot->asked[i] == 0 || slot->known[i] == 0;
    if (!own) {
      if (shared == nullptr) shared = std::make_shared<const Execution>(common);
      Give(WorldRank(first, i), shared, first.id);
      continue;
    }
    same_for_all = false;
    auto execution = std::make_shared<Execution>(common);
    if (first.point_to_point) execution->kind = first.Request(i)->kind;
    if (fields.kind == Collective::kAllToAll) {
      for (size_t from = 0; from < first.participants(); ++from) execution->received.push_back(first.Request(from)->splits[i]);
    }
    for (size_t t = 0; t < packed.size(); ++t) {
      const Slot& slot = *packed[t];
      if (slot.asked[i] == 0) {
        execution->tensors[t].joined = std::make_shared<const RequestFields>(First(slot));
      } else if (slot.known[i] == 0) {
        execution->tensors[t].name = slot.name;
      }
    }
    Give(WorldRank(first, i), std::move(execution), first.id);
  }
  return same_for_all ? shared : nullptr;
}

void Coordinator::Impl::Commit(Slot& slot) {
  for (size_t i = 0; i < slot.participants(); ++i) {
    if (slot.asked[i] == 0) continue;
    slot.known[i] = 1;
    if (slot.fresh[i] != nullptr) slot.agreed[i] = std::move(slot.fresh[i]);
  }
  Reset(slot);
}

// Takes their numbers from the names not used for longest.
void Coordinator::Impl::Forget() {
  if (slots.size() <= options.max_names) return;
  DissolveAll();
  std::vector<Slot*> idle;
  for (const auto& [id, slot] : slots) {
    if (slot->asked_count == 0 && slot->owed.empty()) idle.push_back(slot.get());
  }
  const size_t count = std::min({idle.size(), slots.size() - options.max_names + options.max_names / 8, kMaxIdsInMessage / 8});
  std::partial_sort(idle.begin(), idle.begin() + static_cast<std::ptrdiff_t>(count), idle.end(),
                    [](const Slot* a, const Slot* b) { return a->used < b->used; });
  for (size_t n = 0; n < count; ++n) {
    Slot& slot = *idle[n];
    for (size_t i = 0; i < slot.participants(); ++i) {
      if (slot.known[i] != 0) ranks[WorldRank(slot, i)].out.forget.push_back(slot.id);
    }
    slot_ids.erase(SlotKey(slot.group->id, slot.name));
    slots.erase(slot.id);
  }
}

}  // namespace mxrec
