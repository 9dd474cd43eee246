// Scratch arrays of a table call, kept for the next one.
//
// A batch of 65,536 ids needs about 2 MB of scratch; fresh memory of that size costs more page faults than the work on it
// takes. ScratchLease borrows an object of type T from a process-wide list (one list a type) and gives it back. At most 16
// idle objects are kept.
#ifndef MXREC_TABLE_SCRATCH_H_
#define MXREC_TABLE_SCRATCH_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace mxrec {

template <typename T>
class ScratchLease {
 public:
  ScratchLease() {
    Shelf& shelf = TheShelf();
    std::lock_guard<std::mutex> lock(shelf.mutex);
    if (!shelf.idle.empty()) {
      object_ = std::move(shelf.idle.back());
      shelf.idle.pop_back();
    }
    if (object_ == nullptr) object_ = std::make_unique<T>();
  }
  ~ScratchLease() {
    Shelf& shelf = TheShelf();
    std::lock_guard<std::mutex> lock(shelf.mutex);
    if (shelf.idle.size() < kMostIdle) shelf.idle.push_back(std::move(object_));
  }
  ScratchLease(const ScratchLease&) = delete;
  ScratchLease& operator=(const ScratchLease&) = delete;
  T* operator->() { return object_.get(); }
  T& operator*() { return *object_; }

 private:
  static constexpr size_t kMostIdle = 16;
  struct Shelf {
    std::mutex mutex;
    std::vector<std::unique_ptr<T>> idle;
  };
  static Shelf& TheShelf() {
    static Shelf* shelf = new Shelf;  // never destroyed: calls may outlive static destruction
    return *shelf;
  }
  std::unique_ptr<T> object_;
};

// The array's data, grown to at least n elements (contents of new elements: zero; of old ones: whatever they were).
template <typename T>
T* Ensure(std::vector<T>* array, size_t n) {
  if (array->size() < n) array->resize(n + n / 4);
  return array->data();
}

}  // namespace mxrec

#endif  // MXREC_TABLE_SCRATCH_H_
