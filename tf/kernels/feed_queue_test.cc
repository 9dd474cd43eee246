#include "tf/kernels/feed_queue.h"

#include <atomic>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mxrec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Queue = FeedQueue<int>;

Status Any(const int&) { return OkStatus(); }

// Puts one in and keeps how that ended.
struct Put {
  Put(Queue* queue, int item) {
    number = queue->Put(item, [this](Status s) { status = s; });
  }
  std::optional<Status> status;
  uint64_t number;
};

struct Take {
  explicit Take(Queue* queue, Queue::Accept accept = Any) {
    number = queue->Take(std::move(accept), [this](Status s, std::optional<int> i) {
      status = s;
      item = i;
    });
  }
  std::optional<Status> status;
  std::optional<int> item;
  uint64_t number;
};

TEST(FeedQueueTest, ItemsComeOutInTheOrderInWhichTheyWentIn) {
  Queue queue("q", 3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Put(&queue, i).status->ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Take(&queue).item, i);
  EXPECT_EQ(queue.size(), 0u);
}

TEST(FeedQueueTest, AFullQueueMakesPuttersWaitInOrder) {
  Queue queue("q", 1);
  Put first(&queue, 1), second(&queue, 2), third(&queue, 3);
  EXPECT_TRUE(first.status.has_value());
  EXPECT_FALSE(second.status.has_value());
  EXPECT_EQ(Take(&queue).item, 1);
  EXPECT_TRUE(second.status->ok());
  EXPECT_FALSE(third.status.has_value());
  EXPECT_EQ(Take(&queue).item, 2);
  EXPECT_EQ(Take(&queue).item, 3);
  EXPECT_TRUE(third.status->ok());
}

TEST(FeedQueueTest, TakersWaitForItemsInOrder) {
  Queue queue("q", 1);
  Take first(&queue), second(&queue);
  EXPECT_FALSE(first.status.has_value());
  Put(&queue, 7);
  Put(&queue, 8);
  EXPECT_EQ(first.item, 7);
  EXPECT_EQ(second.item, 8);
}

TEST(FeedQueueTest, AfterStopTheRestIsHandedOutThenTheEnd) {
  Queue queue("q", 1);
  Put in(&queue, 1), waiting(&queue, 2);
  queue.Stop();
  queue.Stop();
  Put late(&queue, 3);
  EXPECT_EQ(late.status->code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(late.status->message()), HasSubstr("\"q\""));
  EXPECT_EQ(Take(&queue).item, 1);
  EXPECT_TRUE(waiting.status->ok());
  EXPECT_EQ(Take(&queue).item, 2);
  for (int i = 0; i < 2; ++i) {
    const Take end(&queue);
    EXPECT_TRUE(end.status->ok());
    EXPECT_FALSE(end.item.has_value());
  }
}

TEST(FeedQueueTest, StopEndsTheWaitOfTakers) {
  Queue queue("q", 1);
  Take first(&queue), second(&queue);
  queue.Stop();
  EXPECT_TRUE(first.status->ok() && second.status->ok());
  EXPECT_FALSE(first.item.has_value() || second.item.has_value());
}

TEST(FeedQueueTest, CancelEndsOnlyTheWaitItNames) {
  Queue queue("q", 1);
  Put in(&queue, 1), waiting(&queue, 2), after(&queue, 3);
  queue.Cancel(waiting.number);
  EXPECT_EQ(waiting.status->code(), StatusCode::kCancelled);
  queue.Cancel(in.number);  // over already
  EXPECT_TRUE(in.status->ok());
  EXPECT_EQ(Take(&queue).item, 1);
  EXPECT_EQ(Take(&queue).item, 3);
  Take taker(&queue), other(&queue);
  queue.Cancel(taker.number);
  EXPECT_EQ(taker.status->code(), StatusCode::kCancelled);
  Put(&queue, 4);
  EXPECT_EQ(other.item, 4);
}

TEST(FeedQueueTest, AnItemThatATakerCannotUseStaysForTheNext) {
  Queue queue("q", 2);
  Put(&queue, 1);
  const Take refused(&queue, [](const int&) { return InvalidArgumentError("odd"); });
  EXPECT_EQ(refused.status->code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Take(&queue).item, 1);
}

TEST(FeedQueueTest, CallbacksMayUseTheQueueAgain) {
  Queue queue("q", 1);
  std::vector<int> seen;
  std::function<void()> take = [&] {
    queue.Take(Any, [&](Status, std::optional<int> item) {
      if (!item.has_value()) return;
      seen.push_back(*item);
      take();
    });
  };
  take();
  for (int i = 0; i < 3; ++i) Put(&queue, i);
  queue.Stop();
  EXPECT_THAT(seen, ElementsAre(0, 1, 2));
}

TEST(FeedQueueTest, ThreadsThatPutTakeAndCancelLoseNothing) {
  Queue queue("q", 4);
  constexpr int kEach = 2000;
  std::atomic<int64_t> in{0}, out{0};

  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 1; i <= kEach; ++i) {
        const int item = t * kEach + i;
        const uint64_t number = queue.Put(item, [&, item](Status status) {
          if (status.ok()) in += item;
        });
        if (i % 7 == 0) queue.Cancel(number);
      }
    });
  }
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach / 2; ++i) {
        queue.Take(Any, [&](Status, std::optional<int> item) { out += item.value_or(0); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  queue.Stop();
  for (bool ended = false; !ended;) {
    queue.Take(Any, [&](Status, std::optional<int> item) {
      out += item.value_or(0);
      ended = !item.has_value();
    });
  }
  EXPECT_EQ(in, out);
}

}  // namespace
}  // namespace mxrec
