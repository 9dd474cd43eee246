// What the files of ShardHost share: shard_host.cc has the tables and their life, shard_save.cc saving, shard_load.cc loading.
#ifndef MXREC_SHARD_SHARD_HOST_IMPL_H_
#define MXREC_SHARD_SHARD_HOST_IMPL_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "mxrec/comm/control/wire_bytes.h"
#include "mxrec/shard/held_table.h"
#include "mxrec/shard/shard_host.h"

namespace mxrec {
namespace internal {

// The first byte of a question.
enum Verb : uint8_t { kHold = 1, kRows, kRelease, kLoad, kRead, kClaim, kClaimEnd, kNeeded, kAlive };
// The first byte of the answer to kHold and kClaim.
enum State : uint8_t { kWaiting = 0, kReady, kNoRows, kAhead };

// How long an answer may take to become another one than "not yet".
inline constexpr std::chrono::milliseconds kAnswerWithin{50};
inline constexpr uint64_t kMaxText = uint64_t{1} << 20;

Status Malformed();
// "1.5 s".
std::string Seconds(std::chrono::milliseconds time);
std::string Absolute(const std::string& path);
bool Cancelled(const CheckpointIo& io);

}  // namespace internal

// A table of a session here, or one that waits for its session.
struct ShardHost::Instance {
  enum class Life { kPending, kOpen, kClosed };

  uint64_t id = 0;
  std::shared_ptr<EmbeddingTable> table;
  Life life = Life::kOpen;
  // By rank: the instance there that this one was met with.
  std::map<int, uint64_t> met;
  // The update that the last load brought.
  std::atomic<uint64_t> loaded_step{0};

  std::mutex loading;
  struct Loaded {
    uint64_t content_tag = 0, content_id = 0;  // content_id 0: nothing
    uint32_t crc32c = 0;
    bool rows_only = false;
    LoadReport report;
  };
  Loaded loaded;  // guarded by loading

  std::mutex freezing;
  std::weak_ptr<internal::HeldTable> held;

  // content_id() when it was last held for another rank.
  std::atomic<uint64_t> held_content{0};

  bool whole() const { return table->config().distribution == Distribution::kReplicated; }
  uint64_t step() const { return table->table().slots().step; }
  bool trained() const { return step() != loaded_step; }

  // The rows held still, in one holding however many ask: a second one might wait for a writer that waits for the first.
  std::shared_ptr<internal::HeldTable> Hold() {
    const std::lock_guard lock(freezing);
    if (std::shared_ptr<internal::HeldTable> now = held.lock()) return now;
    table->EvictCold(nullptr);
    auto made = std::make_shared<internal::HeldTable>(table);
    held = made;
    return made;
  }
};

// Which table a question of another rank is about.
struct ShardHost::Question {
  int from = 0;
  uint64_t instance = 0;  // there
  bool trained = false;
  std::string name;

  void Write(WireWriter& out) const {
    out.Unsigned(instance);
    out.Byte(trained ? 1 : 0);
    out.Bytes(name);
  }
  static Question Read(int from, WireReader& in) {
    Question question;
    question.from = from;
    question.instance = in.Unsigned();
    question.trained = in.Byte() != 0;
    question.name = in.Bytes(internal::kMaxText);
    return question;
  }
};

// Another rank wants the rows as of an update.
struct ShardHost::HoldJob {
  Question question;
  uint64_t wanted = 0;
  std::mutex mutex;
  std::condition_variable changed;
  internal::State state = internal::kWaiting;
  bool there = false;  // there is such a table
  uint64_t step = 0;   // its update
  bool stop = false;
  std::chrono::steady_clock::time_point last_asked = std::chrono::steady_clock::now();
  std::shared_ptr<internal::HeldTable> held;
  std::map<std::pair<int, bool>, std::shared_ptr<internal::BlockStream>> streams;
  std::thread thread;

  ~HoldJob() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
      changed.notify_all();
    }
    if (thread.joinable()) thread.join();
  }
};

// Another rank wants its file to be loaded here.
struct ShardHost::LoadJob {
  Question question;
  uint64_t offer = 0;
  std::string config, path;
  TableFileInfo info;  // bytes, checksum, content tag
  bool rows_only = false;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> bytes{0};
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Status status;
  std::chrono::steady_clock::time_point last_asked = std::chrono::steady_clock::now();
  std::thread thread;

  ~LoadJob() {
    stop = true;
    if (thread.joinable()) thread.join();
  }
};

}  // namespace mxrec

#endif  // MXREC_SHARD_SHARD_HOST_IMPL_H_
