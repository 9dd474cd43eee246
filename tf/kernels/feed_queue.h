// FeedQueue: a bounded first-in first-out queue whose waiting sides hold no thread: they leave a callback.
//
// Items come out in the order in which they were put in, the waiting ones included; who waits longest is served first. After
// Stop nothing can be put in any more; what is in, or was waiting to get in, can still be taken out; then taking gives nothing.
// Threads: all methods from any thread at once. Callbacks run without the lock held, in the thread that made them possible,
// and may call the queue again.
#ifndef MXREC_TF_KERNELS_FEED_QUEUE_H_
#define MXREC_TF_KERNELS_FEED_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/base/log.h"
#include "mxrec/base/status.h"

namespace mxrec {

template <typename Item>
class FeedQueue {
 public:
  using PutDone = std::function<void(Status)>;
  // OK without an item: the queue is stopped and empty.
  using TakeDone = std::function<void(Status, std::optional<Item>)>;
  // Whether a taker can use the item at the front. If not, the taker gets the error and the item stays.
  using Accept = std::function<Status(const Item&)>;

  // REQUIRES: capacity >= 1. The name is for messages.
  FeedQueue(std::string name, size_t capacity) : name_(std::move(name)), capacity_(capacity) {}
  FeedQueue(const FeedQueue&) = delete;
  FeedQueue& operator=(const FeedQueue&) = delete;

  const std::string& name() const { return name_; }

  // Calls done once the item is in: at once, or when there is room. kFailedPrecondition after Stop, kCancelled by Cancel.
  // Returns a number for Cancel.
  uint64_t Put(Item item, PutDone done) {
    std::vector<std::function<void()>> calls;
    uint64_t number = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      number = ++last_number_;
      if (stopped_) {
        calls.push_back([done = std::move(done), name = name_] {
          done(FailedPreconditionError("channel \"" + name + "\" was stopped; nothing can be put in any more"));
        });
      } else {
        putters_.push_back({number, std::move(item), std::move(done)});
        Serve(&calls);
        if (!putters_.empty() && !warned_) {
          warned_ = true;
          MXREC_LOG(WARNING) << "channel \"" << name_ << "\" is full (" << capacity_
                             << " elements): putting one in waits until one is taken out (said once a channel)";
        }
      }
    }
    for (const auto& call : calls) call();
    return number;
  }

  // Calls done with the item at the front: at once, or when there is one or the queue ends. kCancelled by Cancel, or what accept
  // said. Returns a number for Cancel.
  uint64_t Take(Accept accept, TakeDone done) {
    std::vector<std::function<void()>> calls;
    uint64_t number = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      number = ++last_number_;
      takers_.push_back({number, std::move(accept), std::move(done)});
      Serve(&calls);
    }
    for (const auto& call : calls) call();
    return number;
  }

  // Ends a wait with kCancelled; nothing when it is over already.
  void Cancel(uint64_t number) {
    std::function<void()> call;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (auto it = putters_.begin(); it != putters_.end(); ++it) {
        if (it->number != number) continue;
        call = [done = std::move(it->done), status = Cancelled("putting in")] { done(status); };
        putters_.erase(it);
        break;
      }
      for (auto it = takers_.begin(); it != takers_.end(); ++it) {
        if (it->number != number) continue;
        call = [done = std::move(it->done), status = Cancelled("taking out")] { done(status, std::nullopt); };
        takers_.erase(it);
        break;
      }
    }
    if (call) call();
  }

  // Ends the queue; a second call does nothing.
  void Stop() {
    std::vector<std::function<void()>> calls;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopped_ = true;
      Serve(&calls);
    }
    for (const auto& call : calls) call();
  }

  size_t size() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return items_.size();
  }

 private:
  struct Putter {
    uint64_t number;
    Item item;
    PutDone done;
  };
  struct Taker {
    uint64_t number;
    Accept accept;
    TakeDone done;
  };

  Status Cancelled(const char* what) const {
    return CancelledError(std::string(what) + " of channel \"" + name_ + "\" was cancelled while it waited");
  }

  // Lets in and hands out all that can go; what is to be called afterwards goes to *calls.
  void Serve(std::vector<std::function<void()>>* calls) {
    for (;;) {
      while (!putters_.empty() && items_.size() < capacity_) {
        items_.push_back(std::move(putters_.front().item));
        calls->push_back([done = std::move(putters_.front().done)] { done(OkStatus()); });
        putters_.pop_front();
      }
      if (takers_.empty()) return;
      if (items_.empty() && !stopped_) return;
      Taker taker = std::move(takers_.front());
      takers_.pop_front();
      if (items_.empty()) {
        calls->push_back([done = std::move(taker.done)] { done(OkStatus(), std::nullopt); });
        continue;
      }
      if (Status status = taker.accept(items_.front()); !status.ok()) {
        calls->push_back([done = std::move(taker.done), status] { done(status, std::nullopt); });
        continue;
      }
      calls->push_back([done = std::move(taker.done), item = std::move(items_.front())] { done(OkStatus(), item); });
      items_.pop_front();
    }
  }

  const std::string name_;
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::deque<Item> items_;      // the rest under mutex_
  std::deque<Putter> putters_;  // only while items_ is full
  std::deque<Taker> takers_;    // only while items_ is empty
  uint64_t last_number_ = 0;
  bool stopped_ = false, warned_ = false;
};

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_FEED_QUEUE_H_
