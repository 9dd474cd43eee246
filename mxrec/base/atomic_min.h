// AtomicMin: *least becomes the smaller of itself and value. Threads: any.
#ifndef MXREC_BASE_ATOMIC_MIN_H_
#define MXREC_BASE_ATOMIC_MIN_H_

#include <atomic>

namespace mxrec {

template <typename T>
void AtomicMin(std::atomic<T>* least, T value) {
  T seen = least->load();
  while (value < seen && !least->compare_exchange_weak(seen, value)) {
  }
}

}  // namespace mxrec

#endif  // MXREC_BASE_ATOMIC_MIN_H_
