// TransportLife: whether a transport still works: the error that ended it, or the reason somebody gave to Abort.
//
// Threads: Abort and aborted from any thread, the rest from the one that exchanges.
#ifndef MXREC_COMM_TRANSPORT_LIFE_H_
#define MXREC_COMM_TRANSPORT_LIFE_H_

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "mxrec/base/status.h"

namespace mxrec {

class TransportLife {
 public:
  // OK, or the first of: the error it died of, Aborted with the reason.
  Status Alive() {
    if (!dead_.ok()) return dead_;
    if (!aborted()) return OkStatus();
    const std::lock_guard lock(mutex_);
    dead_ = AbortedError(reason_);
    return dead_;
  }

  // Returns the error that counts: this one, or an earlier one.
  Status Die(Status status) {
    if (dead_.ok()) dead_ = std::move(status);
    return dead_;
  }

  // False when somebody was faster.
  bool Abort(std::string why) {
    const std::lock_guard lock(mutex_);
    if (aborted_.load(std::memory_order_relaxed)) return false;
    reason_ = std::move(why);
    aborted_.store(true, std::memory_order_release);
    return true;
  }

  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  bool ended() const { return !dead_.ok() || aborted(); }

 private:
  Status dead_;
  std::atomic<bool> aborted_{false};
  std::mutex mutex_;
  std::string reason_;
};

}  // namespace mxrec

#endif  // MXREC_COMM_TRANSPORT_LIFE_H_
