#include "mxrec/base/shared_mutex.h"

#include "mxrec/base/pause.h"

namespace mxrec {
namespace {

// About a microsecond: longer than most sections, shorter than a sleep and wake.
constexpr int kSpins = 64;

}  // namespace

void SharedMutex::LockSlow() {
  // From here on new readers stay out. The unlocker that makes the lock free sees the count (it is in the word it changes)
  // and wakes; an unlock before this is seen by the loads below.
  state_.fetch_add(kOneWaiting, std::memory_order_relaxed);
  for (int spin = 0;; ++spin) {
    // Read before state_: if the wake we would miss has already changed the epoch, the acquire makes its change of state_
    // visible too; if it has not, the sleep below returns at once.
    const uint32_t epoch = writer_epoch_.load(std::memory_order_acquire);
    uint32_t state = state_.load(std::memory_order_relaxed);
    while ((state & (kWriter | kReadersMask)) == 0) {
      if (state_.compare_exchange_weak(state, state - kOneWaiting + kWriter, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
        return;
      }
    }
    if (spin < kSpins) {
      Pause();
    } else {
      writer_epoch_.wait(epoch, std::memory_order_relaxed);
    }
  }
}

void SharedMutex::LockSharedSlow() {
  for (int spin = 0;; ++spin) {
    if (try_lock_shared()) return;
    if (spin < kSpins) {
      Pause();
      continue;
    }
    uint32_t state = state_.load(std::memory_order_relaxed);
    if ((state & kKeepsReadersOut) == 0) continue;
    if ((state & kReadersSleep) == 0) {
      if (!state_.compare_exchange_weak(state, state | kReadersSleep, std::memory_order_relaxed)) continue;
      state |= kReadersSleep;
    }
    state_.wait(state, std::memory_order_relaxed);
  }
}

void SharedMutex::WakeAfterWriter(uint32_t before) {
  if ((before & kWaitingMask) != 0) {
    // Readers cannot get in yet; the bit stays, the last writer wakes them.
    WakeOneWriter();
  } else if ((before & kReadersSleep) != 0) {
    // A reader that sets the bit again after this is woken by the next writer to leave; one that set it before, by us.
    state_.fetch_and(~kReadersSleep, std::memory_order_relaxed);
    state_.notify_all();
  }
}

void SharedMutex::WakeOneWriter() {
  writer_epoch_.fetch_add(1, std::memory_order_release);
  writer_epoch_.notify_one();
}

}  // namespace mxrec
