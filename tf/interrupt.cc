#include "tf/interrupt.h"

#include <semaphore.h>
#include <signal.h>

#include <cerrno>
#include <mutex>
#include <thread>

namespace mxrec {
namespace {

std::atomic<InterruptRule> the_rule{nullptr};
std::atomic<uint64_t> stops{0};

// What the handler touches: lock-free, and sem_post is allowed in a handler.
std::atomic<uint64_t> signals{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
sem_t wake;

void OnInterrupt(int) {
  const int error = errno;
  signals.fetch_add(1, std::memory_order_relaxed);
  sem_post(&wake);
  errno = error;
}

// The handler and the thread behind it, for as long as somebody watches.
class Forwarder {
 public:
  // False when SIGINT is ignored, ends the process, or is somebody's who wants to know more than its number.
  bool Install() {
    if (sigaction(SIGINT, nullptr, &previous_) != 0) return false;
    if ((previous_.sa_flags & SA_SIGINFO) != 0) return false;
    if (previous_.sa_handler == SIG_DFL || previous_.sa_handler == SIG_IGN || previous_.sa_handler == &OnInterrupt) return false;
    if (sem_init(&wake, 0, 0) != 0) return false;
    ended_ = false;
    handled_ = signals.load();
    thread_ = std::thread([this] { Run(); });
    struct sigaction action = previous_;
    action.sa_handler = &OnInterrupt;
    if (sigaction(SIGINT, &action, nullptr) == 0) return true;
    End();
    return false;
  }

  // Whoever set a handler meanwhile keeps it. Signals that came are dealt with before this returns.
  void Uninstall() {
    struct sigaction current;
    if (sigaction(SIGINT, nullptr, &current) == 0 && (current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == &OnInterrupt) {
      sigaction(SIGINT, &previous_, nullptr);
    }
    End();
  }

 private:
  void End() {
    ended_ = true;
    sem_post(&wake);
    thread_.join();
    // The semaphore stays: a handler on another thread may be about to post.
  }

  void Run() {
    for (;;) {
      while (sem_wait(&wake) != 0 && errno == EINTR) {
      }
      while (handled_ != signals.load()) {
        ++handled_;
        const InterruptRule rule = the_rule.load();
        if (rule != nullptr && rule() != 0) {
          stops.fetch_add(1);
        } else {
          previous_.sa_handler(SIGINT);
        }
      }
      if (ended_) return;
    }
  }

  struct sigaction previous_ = {};
  std::thread thread_;
  std::atomic<bool> ended_{false};
  uint64_t handled_ = 0;
};

struct Watches {
  std::mutex mutex;
  int count = 0;
  Forwarder forwarder;
};
Watches& watches() {
  static Watches* const all = new Watches;  // threads may outlive main
  return *all;
}

}  // namespace

void SetInterruptRule(InterruptRule rule) { the_rule = rule; }

InterruptWatch::InterruptWatch() : stops_before_(stops.load()) {
  if (the_rule.load() == nullptr) return;
  const std::lock_guard<std::mutex> lock(watches().mutex);
  if (watches().count == 0 && !watches().forwarder.Install()) return;
  ++watches().count;
  watching_ = true;
}

InterruptWatch::~InterruptWatch() {
  if (!watching_) return;
  const std::lock_guard<std::mutex> lock(watches().mutex);
  if (--watches().count == 0) watches().forwarder.Uninstall();
}

bool InterruptWatch::interrupted() const { return watching_ && stops.load(std::memory_order_relaxed) != stops_before_; }

}  // namespace mxrec
