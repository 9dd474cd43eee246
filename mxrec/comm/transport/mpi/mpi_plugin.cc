// Open MPI as a transport plug-in: nonblocking sends and receives in a communicator of its own, none of MPI's collective
// operations.
//
// MPI is initialized once in a process, by a thread that lives until the process ends and finalizes it then. Finalizing waits for
// all ranks: without limit when all went well, a short time when a transport has failed or is still open. (mpirun ends the others
// when a rank ends without.) A program that has initialized MPI before keeps the duty.
#include <mpi.h>
#include <sched.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "mxrec/comm/transport/mpi/piece_exchange.h"
#include "mxrec/comm/transport/plugin.h"
#include "mxrec/comm/transport/plugin_util.h"

namespace mxrec::plugin {
namespace {

std::string Text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "error " + std::to_string(code);
  return std::string(text, length);
}

// The thread that owns MPI.
class MpiThread {
 public:
  // Never destroyed: it ends with the process.
  static MpiThread& Get() {
    static MpiThread* const thread = new MpiThread;
    return *thread;
  }

  // Runs `job` there; false when it has not ended by the deadline (it then ends later, or never).
  bool Run(std::function<void()> job, int64_t deadline) {
    auto task = std::make_shared<std::packaged_task<void()>>(std::move(job));
    std::future<void> done = task->get_future();
    {
      std::lock_guard lock(mutex_);
      job_ = [task] { (*task)(); };
    }
    changed_.notify_all();
    return done.wait_for(std::chrono::nanoseconds(std::max<int64_t>(deadline - Now(), 0))) == std::future_status::ready;
  }

  // On that thread. Null, or why MPI cannot be used.
  const std::string* Initialize() {
    int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE;
    MPI_Finalized(&finalized);
    if (finalized != 0) return SetFailure("MPI has been finalized in this process and cannot be used again");
    MPI_Initialized(&initialized);
    if (initialized != 0) {
      MPI_Query_thread(&level);
    } else {
      if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level); code != MPI_SUCCESS) {
        return SetFailure("MPI_Init_thread: " + Text(code));
      }
      owns_ = true;
      std::atexit([] { Get().FinalizeAtExit(); });
    }
    if (level < MPI_THREAD_MULTIPLE) {
      return SetFailure("MPI must be initialized with MPI_THREAD_MULTIPLE; its thread level is " + std::to_string(level));
    }
    return nullptr;
  }

  std::atomic<int> open{0};
  std::atomic<bool> failed{false};

 private:
  MpiThread() {
    std::thread([this] { Loop(); }).detach();
  }

  const std::string* SetFailure(std::string why) {
    failure_ = std::move(why);
    return &failure_;
  }

  void Loop() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return job_ != nullptr; });
        job = std::exchange(job_, nullptr);
      }
      job();
    }
  }

  void FinalizeAtExit() {
    if (!owns_) return;
    const bool clean = !failed.load() && open.load() == 0;
    (void)Run(
        [] {
          int finalized = 0;
          MPI_Finalized(&finalized);
          if (finalized == 0) MPI_Finalize();
        },
        clean ? Now() + kLongTime : Now() + kShortTime);
  }

  static constexpr int64_t kShortTime = 2'000'000'000;
  static constexpr int64_t kLongTime = INT64_MAX / 2;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;
  bool owns_ = false;
  std::string failure_;
};

class MpiEngine {
 public:
  struct Piece {
    MPI_Request request = MPI_REQUEST_NULL;
    PieceState state = PieceState::kPending;
    bool receiving = false;
    int bytes = 0;
    int32_t code = kUnavailable;
    std::string failure;
  };

  explicit MpiEngine(MPI_Comm comm) : comm_(comm) {}

  Piece StartSend(int peer, const void* data, size_t bytes) {
    Piece piece;
    piece.bytes = static_cast<int>(bytes);
    Check(piece, MPI_Isend(data, piece.bytes, MPI_BYTE, peer, kTag, comm_, &piece.request));
    return piece;
  }
  Piece StartReceive(int peer, void* data, size_t bytes) {
    Piece piece;
    piece.bytes = static_cast<int>(bytes);
    piece.receiving = true;
    Check(piece, MPI_Irecv(data, piece.bytes, MPI_BYTE, peer, kTag, comm_, &piece.request));
    return piece;
  }

  PieceState Test(Piece& piece, MxrecPluginError* error) {
    if (piece.state == PieceState::kPending) {
      int done = 0;
      MPI_Status status{};
      if (Check(piece, MPI_Test(&piece.request, &done, &status)) && done != 0) {
        piece.state = PieceState::kDone;
        int got = piece.bytes;
        if (piece.receiving) MPI_Get_count(&status, MPI_BYTE, &got);
        if (got != piece.bytes) {
          piece.state = PieceState::kFailed;
          piece.code = kDataLoss;
          piece.failure = "expected " + std::to_string(piece.bytes) + " bytes, found " + std::to_string(got);
        }
      }
      if (piece.state != PieceState::kPending) idle_ = 0;
    }
    if (piece.state == PieceState::kFailed) Fail(error, piece.code, piece.failure);
    return piece.state;
  }

  // MPI makes progress only while it is called, so no long sleep; but a rank that waits for a late one leaves the processor to
  // others.
  void Idle() {
    ++idle_;
    if (idle_ < kSpins) return;
    if (idle_ < kYields) {
      sched_yield();
      return;
    }
    const timespec time{0, idle_ < kShortSleeps ? 20'000 : 200'000};
    nanosleep(&time, nullptr);
  }

  void GiveUp(Piece& piece) {
    if (piece.request == MPI_REQUEST_NULL) return;
    // Open MPI cancels receives; a send that it has begun keeps its request, and the communicator is not used again.
    MPI_Cancel(&piece.request);
    if (piece.receiving) {
      MPI_Status status;
      MPI_Wait(&piece.request, &status);
    } else {
      MPI_Request_free(&piece.request);
    }
  }

 private:
  static constexpr int kTag = 1;
  static constexpr int kSpins = 200;
  static constexpr int kYields = 3000;
  static constexpr int kShortSleeps = 10'000;

  bool Check(Piece& piece, int code) {
    if (code == MPI_SUCCESS) return true;
    int kind = code;
    MPI_Error_class(code, &kind);
    piece.state = PieceState::kFailed;
    piece.code = kind == MPI_ERR_TRUNCATE ? kDataLoss : kUnavailable;
    piece.failure =
        (kind == MPI_ERR_TRUNCATE ? "expected " + std::to_string(piece.bytes) + " bytes, found more: " : "MPI: ") + Text(code);
    return false;
  }

  const MPI_Comm comm_;
  int idle_ = 0;
};

class MpiTransport {
 public:
  MpiTransport(MPI_Comm comm, int rank, int size, size_t piece_bytes)
      : comm_(comm), engine_(comm), exchange_(engine_, rank, size, std::min<size_t>(piece_bytes, 1 << 30), aborted_) {}

  MPI_Comm comm() const { return comm_; }
  PieceExchange<MpiEngine>& exchange() { return exchange_; }
  std::atomic<bool>& aborted() { return aborted_; }

 private:
  std::atomic<bool> aborted_{false};
  const MPI_Comm comm_;
  MpiEngine engine_;
  PieceExchange<MpiEngine> exchange_;
};

// On MPI's thread.
MpiTransport* Connect(int rank, int size, size_t piece_bytes, MxrecPluginError* error) {
  if (const std::string* why = MpiThread::Get().Initialize(); why != nullptr) {
    Fail(error, kFailedPrecondition, "transport mpi: " + *why);
    return nullptr;
  }
  int found_rank = 0, found_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &found_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &found_size);
  if (found_rank != rank || found_size != size) {
    Fail(error, kFailedPrecondition,
         "transport mpi: this process is rank " + std::to_string(rank) + " of " + std::to_string(size) + ", but rank " +
             std::to_string(found_rank) + " of " + std::to_string(found_size) +
             " for MPI: start all ranks with mpirun, or choose another transport");
    return nullptr;
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm comm = MPI_COMM_NULL;
  if (const int code = MPI_Comm_dup(MPI_COMM_WORLD, &comm); code != MPI_SUCCESS) {
    Fail(error, kUnavailable, "transport mpi: MPI_Comm_dup: " + Text(code));
    return nullptr;
  }
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return new MpiTransport(comm, rank, size, piece_bytes);
}

void* Open(const MxrecPluginOptions* options, const MxrecPluginStore* store, int64_t deadline, MxrecPluginError* error) {
  // Shared with a job that may end after this function.
  struct Outcome {
    MpiTransport* transport = nullptr;
    MxrecPluginError error{};
  };
  auto outcome = std::make_shared<Outcome>();
  const int rank = options->rank, size = options->size;
  const size_t piece_bytes = options->piece_bytes;
  const bool done = MpiThread::Get().Run([=] { outcome->transport = Connect(rank, size, piece_bytes, &outcome->error); }, deadline);
  if (!done) {
    MpiThread::Get().failed = true;
    Fail(error, kUnavailable, "transport mpi: the other ranks did not initialize MPI in time");
    return nullptr;
  }
  *error = outcome->error;
  if (outcome->transport != nullptr) ++MpiThread::Get().open;
  return outcome->transport;
}

void Exchange(void* transport, const MxrecPluginSend* sends, uint64_t send_count, const MxrecPluginReceive* receives,
              uint64_t receive_count, int64_t deadline, MxrecPluginError* error) {
  try {
    static_cast<MpiTransport*>(transport)->exchange().Run(sends, send_count, receives, receive_count, deadline, error);
  } catch (const std::exception& e) {
    Fail(error, kInternal, std::string("transport mpi: ") + e.what());
  }
}

void Abort(void* transport) { static_cast<MpiTransport*>(transport)->aborted().store(true, std::memory_order_release); }

void Close(void* transport, int32_t clean) {
  auto* const mpi = static_cast<MpiTransport*>(transport);
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (clean == 0) {
    MpiThread::Get().failed = true;
  } else if (finalized == 0) {
    MPI_Comm comm = mpi->comm();
    MPI_Comm_free(&comm);
  }
  --MpiThread::Get().open;
  delete mpi;
}

constexpr MxrecTransportPlugin kPlugin{MXREC_TRANSPORT_PLUGIN_VERSION, "mpi", Open, Exchange, Abort, Close};

}  // namespace
}  // namespace mxrec::plugin

extern "C" __attribute__((visibility("default"))) const MxrecTransportPlugin* mxrec_transport_plugin() {
  return &mxrec::plugin::kPlugin;
}
