// The state of a Coordinator, for the files that implement it.
#ifndef MXREC_COMM_CONTROLLER_COORDINATOR_IMPL_H_
#define MXREC_COMM_CONTROLLER_COORDINATOR_IMPL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/comm/controller/coordinator.h"
#include "mxrec/comm/controller/wire.h"

namespace mxrec {

struct Coordinator::Impl {
  using Fields = std::shared_ptr<const RequestFields>;

  struct Group {
    uint32_t id = 0;
    std::string name;
    std::vector<int> ranks;
    std::vector<int> index;  // by world rank; -1: no member
    std::vector<bool> joined;
    int joined_count = 0;
    int last_joined = 0;
  };

  // What a participant of a slot still has to hear of: it has not asked for what failed.
  struct Debt {
    size_t participant = 0;
    Status status;
    bool whole = false;  // of all tensors of the operation whose first one the slot is
  };

  struct Batch;

  // One name of a group, for as long as it keeps its number.
  struct Slot {
    uint64_t id = 0;
    Group* group = nullptr;
    std::string name;
    bool point_to_point = false;
    std::vector<int> pair;  // group ranks that take part when point_to_point: from, to
    // By participant. What was agreed on last (its number stands for that), what it asks for now when that is not the same.
    std::vector<Fields> agreed, fresh;
    std::vector<uint8_t> asked, known;
    std::vector<Debt> owed;  // oldest first
    int asked_count = 0;
    bool changed = false;
    bool warned = false;
    Time since;
    size_t active_at = SIZE_MAX;
    uint64_t used = 0;
    Batch* batch = nullptr;  // that stands for it

    size_t participants() const { return asked.size(); }
    const Fields& Request(size_t i) const { return fresh[i] != nullptr ? fresh[i] : agreed[i]; }
  };

  // See coordinator_batches.cc.
  struct Batch {
    Group* group = nullptr;
    std::vector<uint64_t> ids;  // rising
    std::vector<Slot*> slots;
    // And the first slot of each.
    std::vector<std::pair<std::shared_ptr<const Execution>, uint64_t>> executions;
    std::vector<uint8_t> asked;  // by member
    int asked_count = 0;
    Time since;
    uint64_t used = 0;
  };

  struct PendingGroup {
    bool remove = false;
    std::string name;
    std::vector<int> ranks;
    std::vector<bool> asked;  // by world rank
    int asked_count = 0;
    Time since;
    bool warned = false;
  };

  struct Rank {
    Agreement out;
    size_t tensors_out = 0;
    bool left = false;
    uint64_t given = 0, finished = 0;
    std::deque<uint64_t> unfinished;  // first slot of each execution
    uint64_t last_finished = 0;       // slot; 0: a join
    std::vector<uint64_t> last_ids;   // of its last message, without those of batches
  };

  CoordinatorOptions options;
  std::vector<Rank> ranks;
  std::vector<int> left_in_order;
  size_t owed = 0;  // over all slots
  std::map<uint32_t, Group> groups;
  std::unordered_map<std::string, uint32_t> group_ids;
  uint32_t next_group = 0;
  std::map<std::string, PendingGroup> pending_groups;                       // "+name", "-name"
  std::map<std::string, std::pair<Status, std::vector<bool>>> owed_groups;  // same keys: who still has to hear of a failure
  std::unordered_map<uint64_t, std::unique_ptr<Slot>> slots;
  std::unordered_map<std::string, uint64_t> slot_ids;  // by group number and name
  uint64_t next_slot = 1;
  uint64_t tick = 0;
  std::vector<Slot*> active, ready;
  std::vector<std::unique_ptr<Batch>> batches;
  std::vector<Batch*> ready_batches;

  // words: coordinator.cc
  std::string Who(int rank) const;
  static std::string Quoted(const Slot& slot);
  static std::string Quoted(const Slot& slot, const RequestFields& fields);
  int WorldRank(const Slot& slot, size_t i) const;
  // The place of a world rank in a slot; -1: none.
  static int Participant(const Slot& slot, int rank);
  std::string Asked(const Slot& slot) const;
  std::string NameOfSlot(uint64_t id) const;
  std::string LastOperation(int rank) const;
  // Of the ranks for which `concerns`, those that have left: the first one is the cause, later ones mostly left because of it.
  // Null: none has.
  std::optional<std::string> WhoLeft(const std::function<bool(int)>& concerns, bool with_last_operation = true) const;

  // answers: coordinator_requests.cc
  void Tell(Slot& slot, size_t i, const Status& status);
  // Takes the slot out of the running; what was agreed before stays.
  void Reset(Slot& slot);
  // Fails it for those who asked.
  void Fail(Slot& slot, const Status& status);
  // Fails it for one who asked.
  void FailOne(Slot& slot, size_t i, const Status& status);
  // Fails it for one who is going to ask, once.
  void Owe(Slot& slot, size_t i, Status status, bool whole);
  // Takes the oldest debt to a participant. Null: there is none.
  std::optional<Debt> TakeDebt(Slot& slot, size_t i);
  // Whether a participant may still ask: a rank that has left or joined does not.
  bool MayAsk(const Slot& slot, size_t i) const;
  // Fails the tensors of one operation, of which `part` has failed, for one participant, now or when it asks.
  void FailOthers(Group& group, const std::string& name, int part, int parts, size_t i, const Status& status);
  // Fails all tensors of the operation of each participant.
  void FailWhole(Slot& slot, const Status& status);

  // comparison: coordinator_requests.cc
  // OK, or which ranks want what. `value` makes a request's text of the property in question.
  Status Agree(const Slot& slot, std::string_view what, const std::function<std::string(const RequestFields&)>& value) const;
  // Of operations with several tensors: all ranks have as many.
  Status CheckParts(const Slot& slot) const;
  Status Validate(const Slot& slot) const;
  // Ranks that joined take part in what zeros do not falsify.
  Status ValidateJoined(const Slot& slot) const;

  // requests: coordinator_requests.cc
  bool Complete(const Slot& slot) const;
  void FinishIfComplete(Slot& slot);
  // Not OK once one of its ranks has left.
  Status CheckLeft(const Slot& slot) const;
  // `fresh`: null when the rank asks again for what was agreed on last.
  Status Ask(Slot& slot, int rank, Fields fresh, Time now);
  static std::string SlotKey(uint32_t group, std::string_view name);
  Slot& FindOrMake(Group& group, const std::string& name, std::vector<int> pair);
  Status AskInFull(int rank, const RequestFields& fields, Time now);
  Status Join(Group& group, int member);
  Status CheckLeft(const Group& group) const;
  void Cancel(int rank, const CancelRequest& cancel);
  Status Refuse(int rank, const Refusal& refusal);
  void Leave(int rank);

  // groups: coordinator_groups.cc
  void FailGroup(const std::string& key, const Status& status);
  Status AskGroup(int rank, const GroupRequest& request, Time now);
  uint32_t AddGroup(const std::string& name, const std::vector<int>& members);
  void RemoveGroup(uint32_t id);

  // executions: coordinator_executions.cc
  void Give(int rank, std::shared_ptr<const Execution> execution, uint64_t slot);
  static bool Fusable(const RequestFields& fields);
  static const RequestFields& First(const Slot& slot);
  // Turns what is ready into executions.
  void Emit();
  // What all ranks were given; null when it was not the same for all.
  std::shared_ptr<const Execution> EmitOne(const std::vector<Slot*>& packed);
  void Commit(Slot& slot);
  // Takes their numbers from the names not used for longest.
  void Forget();

  // batches: coordinator_batches.cc
  // Takes those of the rising numbers that are batches; returns the others.
  std::vector<uint64_t> AskBatches(int rank, std::span<const uint64_t> ids, Time now);
  void EmitBatches();
  void MakeBatch(std::vector<std::pair<std::shared_ptr<const Execution>, uint64_t>> executions);
  void Dissolve(Batch& dissolved);
  void DissolveAll();
};

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROLLER_COORDINATOR_IMPL_H_
