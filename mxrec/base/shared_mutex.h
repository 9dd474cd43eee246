// SharedMutex: a reader-writer lock of 8 bytes for short critical sections (a shard of a table).
//
// Uncontended, each of the four calls is one atomic read-modify-write. Writers come first: as soon as one waits no new reader
// gets in, so a stream of readers cannot starve it (a stream of writers can starve readers). Waiting spins briefly, then
// sleeps. Not recursive: a thread that holds it, in either mode, must not ask again. At most 65,535 readers at once and
// 8,191 waiting writers. Use with std::unique_lock and std::shared_lock.
// The lock itself must outlive every call on it, also an unlock that has already let another thread in.
//
// state_:  bit 31 a writer holds | bit 30 readers sleep on state_ | bits 16-28 writers waiting | bits 0-15 readers inside
// writer_epoch_: changes whenever a waiting writer should look again; writers sleep on it.
#ifndef MXREC_BASE_SHARED_MUTEX_H_
#define MXREC_BASE_SHARED_MUTEX_H_

#include <atomic>
#include <cstdint>

namespace mxrec {

class SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void lock() {
    if (!try_lock()) LockSlow();
  }
  bool try_lock() {
    uint32_t free = 0;
    return state_.compare_exchange_strong(free, kWriter, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void unlock() {
    const uint32_t before = state_.fetch_sub(kWriter, std::memory_order_release);
    if (before != kWriter) WakeAfterWriter(before);
  }

  void lock_shared() {
    if (!try_lock_shared()) LockSharedSlow();
  }
  bool try_lock_shared() {
    uint32_t state = state_.load(std::memory_order_relaxed);
    while ((state & kKeepsReadersOut) == 0) {
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    }
    return false;
  }
  void unlock_shared() {
    const uint32_t before = state_.fetch_sub(1, std::memory_order_release);
    if ((before & kReadersMask) == 1 && (before & kWaitingMask) != 0) WakeOneWriter();
  }

 private:
  static constexpr uint32_t kWriter = 1u << 31;
  static constexpr uint32_t kReadersSleep = 1u << 30;
  static constexpr uint32_t kOneWaiting = 1u << 16;
  static constexpr uint32_t kWaitingMask = 0x1FFFu << 16;
  static constexpr uint32_t kReadersMask = 0xFFFFu;
  static constexpr uint32_t kKeepsReadersOut = kWriter | kWaitingMask;

  void LockSlow();
  void LockSharedSlow();
  void WakeAfterWriter(uint32_t before);
  void WakeOneWriter();

  std::atomic<uint32_t> state_{0};
  std::atomic<uint32_t> writer_epoch_{0};
};

}  // namespace mxrec

#endif  // MXREC_BASE_SHARED_MUTEX_H_
