// ShardHost: the tables of this rank that several ranks train, as other ranks reach them. It lets one rank alone save a whole
// table, and load one for all: what a tf.train.Saver needs that runs at rank 0 only.
//
// Saving. The rank that saves holds its own rows still; that fixes the update k (TableSlots::step) which the file is of. Each other
// rank is asked for its rows as of update k. It waits until it has made that update, holds its rows still and hands them out,
// on threads of its own: nothing of this waits for a step of that rank, or for a collective. A rank that has made fewer updates
// is on its way: it got the gradients of update k when the rank that saves did, and makes it without anybody's help. It cannot be
// further, as long as nobody trains while the save runs, since update k + 1 needs the ids of all ranks; its next step may have
// begun and waits. Where somebody does train meanwhile, the saving rank lets go and starts again at the later update. Waits end
// after `patience` with an error that names rank and updates. All rows are merged into one file with the bytes that one process
// would have written.
//
// Loading. The rank that loads takes its own rows, then has every other rank load its rows of the same file: from the path where
// they see the file with the same contents, else through the rank that loads. A rank that holds the contents already
// (it loaded them itself) does nothing, so all ranks may load. A rank that has no such table yet keeps the rows for the one to
// come.
//
// Tables that every rank holds whole (DP) are saved as the saving rank has them, and loaded by all. Where several ranks save a
// table under one path, the first one writes and the others take its file: rank 0 knows who was first.
//
// Several sessions of a process may each have a table of one name. Which one is meant: the one that this table of the other rank
// was met with before; else the newest one that has been trained, or has not been trained, like the other's. Threads: any.
#ifndef MXREC_SHARD_SHARD_HOST_H_
#define MXREC_SHARD_SHARD_HOST_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "mxrec/base/status.h"
#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/comm/transport.h"
#include "mxrec/engine/embedding_table.h"

namespace mxrec {

namespace internal {
struct HeldTable;
}

struct ShardHostOptions {
  int rank = 0;
  int size = 1;
  // Asks another rank's ShardHost, as Communicator::Call of kService does.
  std::function<Result<std::string>(int rank, std::string_view request, Deadline deadline)> call;
  // How long a rank is waited for that does not go on.
  std::chrono::milliseconds patience{300'000};
  // Whether this rank waits for others in a collective, and has for a while; empty: no.
  std::function<bool()> waits;
  // Whether others can be reached without waiting for them to come; empty: yes.
  std::function<bool()> reachable;
};

class ShardHost {
 public:
  static constexpr char kService[] = "mxrec/shards";

  explicit ShardHost(ShardHostOptions options);
  // Nobody may call any more.
  ~ShardHost();
  ShardHost(const ShardHost&) = delete;
  ShardHost& operator=(const ShardHost&) = delete;

  // What other ranks ask: the handler of kService.
  Result<std::string> Answer(int from, std::string_view request);

  // A session gets a table: a new one, or one that another rank's load has filled for it. FailedPrecondition when that one was made
  // from another config.
  Result<std::shared_ptr<EmbeddingTable>> Open(const EmbeddingTableConfig& config);
  // The session let go of it. The rows stay with the host while another rank has a session with the table at the same update, so
  // that it can save them; at most until a table of the name is opened here.
  void Close(const EmbeddingTable* table);
  // The table, opened here, was loaded from files by this rank, in one step with the others.
  void NoteLoaded(const EmbeddingTable& table);

  // Before the end of this process: waits, at most for `patience`, while another rank has a session with a table whose newest rows
  // are here, since it may save yet; not for one that waits for this rank itself.
  void Leave();

  // Erases cold rows at every rank and writes the rows of all ranks to one file; as WriteTableFile of a table that has them all.
  // Of what is returned, a file that another rank wrote has the content tag only.
  Result<TableFileInfo> WriteTable(const CheckpointIo& io, const EmbeddingTable& table,
                                   const std::function<std::string(uint64_t content_tag)>& path_for_tag);
  // Loads the file at every rank; the report is that of this rank's rows.
  Result<LoadReport> ReadTable(const CheckpointIo& io, const EmbeddingTable& table, const std::string& path, bool rows_only);

 private:
  struct Instance;
  struct HoldJob;
  struct LoadJob;
  struct Held;
  struct Offer;
  struct Question;
  // Who saves a table under a path, by table and path; at rank 0.
  struct Claim {
    int rank = 0;
    uint64_t step = 0;
    bool done = false;
    uint64_t content_tag = 0;
  };
  using JobKey = std::pair<int, uint64_t>;  // who asked, its number

  // Internal when the table was not opened here.
  Result<std::shared_ptr<Instance>> Find(const EmbeddingTable& table);
  // The table here that is meant by a question, with `however_trained` also one that was trained while the other was not; null when
  // there is none. With mutex_ held.
  std::shared_ptr<Instance> Choose(const Question& question, bool however_trained);

  Result<std::string> AnswerHold(int from, std::string_view request);
  Result<std::string> AnswerRows(int from, std::string_view request);
  Result<std::string> AnswerRelease(int from, std::string_view request);
  Result<std::string> AnswerLoad(int from, std::string_view request);
  Result<std::string> AnswerRead(int from, std::string_view request);
  Result<std::string> AnswerClaim(int from, std::string_view request);
  Result<std::string> AnswerClaimEnd(int from, std::string_view request);
  Result<std::string> AnswerNeeded(int from, std::string_view request);
  Result<std::string> AnswerAlive(int from, std::string_view request);
  Result<TableFileInfo> WriteAll(const CheckpointIo& io, Instance& instance,
                                 const std::function<std::string(uint64_t content_tag)>& path_for_tag);
  // Has the rank hold its rows as of `own`'s update and fills *rows, which stays empty when it has none. Where the rank is ahead,
  // the update that it has made.
  Result<std::optional<uint64_t>> AskToHold(int rank, const Instance& instance, const internal::HeldTable& own,
                                            const CheckpointIo& io, Deadline deadline, Held* rows);
  void RunHold(HoldJob* job);
  void RunLoad(LoadJob* job);
  // Gives up what nobody asked about for `patience`, and rows of closed tables that no rank needs.
  void Sweep();
  void StartSweeper();  // with mutex_ held
  // The name of a table of these (name, update) that another rank has in a session; "" when it has none, or is not there.
  std::string NeededAt(int rank, const std::vector<std::pair<std::string, uint64_t>>& tables);

  // Asks until the other rank is there: its host may come into being a moment later.
  Result<std::string> Ask(int rank, const std::string& request, const CheckpointIo& io);
  Result<LoadReport> LoadShare(Instance& instance, const CheckpointIo& io, const std::string& path, const TableFileInfo& info,
                               bool rows_only);

  const ShardHostOptions options_;
  std::mutex saving_, reading_;  // one of this rank at a time
  std::mutex mutex_;
  std::vector<std::shared_ptr<Instance>> instances_;  // in the order of their making
  std::map<JobKey, std::shared_ptr<HoldJob>> holds_;
  std::map<JobKey, std::shared_ptr<LoadJob>> loads_;
  std::map<uint64_t, std::shared_ptr<Offer>> offers_;
  std::map<std::pair<std::string, std::string>, Claim> claims_;
  bool leaving_ = false, warned_ = false;
  uint64_t next_ = 1;
  bool stop_ = false;
  std::condition_variable stopped_;
  std::thread sweeper_;  // started by the first question
};

}  // namespace mxrec

#endif  // MXREC_SHARD_SHARD_HOST_H_
