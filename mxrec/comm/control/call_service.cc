#include "mxrec/comm/control/call_service.h"

#include <algorithm>
#include <climits>

#include "mxrec/comm/control/status_wire.h"
#include "mxrec/comm/control/wire_bytes.h"

namespace mxrec {
namespace {

constexpr size_t kMaxThreads = 16;

// A confirmation of chunks, and whether it goes to the one who answers. (Both ends number their questions: the number alone would
// not tell whose question is meant.)
std::string Confirmation(int chunks, bool of_answer) {
  std::string bytes;
  WireWriter out(&bytes);
  out.Byte(of_answer ? 1 : 0);
  out.Unsigned(static_cast<uint64_t>(chunks));
  return bytes;
}

}  // namespace

void CallService::Serve(const std::string& service, Handler handler) {
  const std::lock_guard lock(mutex_);
  handlers_[service] = std::make_shared<const Handler>(std::move(handler));
}

Result<std::string> CallService::Call(int rank, const std::string& service, std::string_view request, Deadline deadline) {
  const int me = plane_ == nullptr ? 0 : plane_->rank(), size = plane_ == nullptr ? 1 : plane_->size();
  if (rank < 0 || rank >= size || service.size() > kMaxServiceBytes) {
    return InvalidArgumentError("call of '" + service.substr(0, 100) + "' on rank " + std::to_string(rank) + ": expected 0 to " +
                                std::to_string(size - 1));
  }
  std::unique_lock lock(mutex_);
  if (!failed_.ok()) return failed_;
  if (rank == me) {
    const auto handler = handlers_.find(service);
    if (handler == handlers_.end()) return NotFoundError("rank " + std::to_string(rank) + " serves no '" + service + "'");
    const std::shared_ptr<const Handler> keep = handler->second;
    lock.unlock();
    return (*keep)(me, request);
  }
  const uint64_t number = next_++;
  Question& question = questions_[number];
  question.to = rank;
  question.request.bytes = request;
  std::string front;
  WireWriter out(&front);
  out.Bytes(service);
  out.Unsigned(request.size());
  Send(rank, kAsk, number, front);
  Push(rank, kAskData, number, question.request);
  changed_.wait_until(lock, deadline, [&] {
    return !failed_.ok() || !question.failed.ok() ||
           (question.status.has_value() && (!question.status->ok() || question.answer.complete()));
  });
  const Question found = std::move(question);
  questions_.erase(number);
  if (!failed_.ok()) return failed_;
  if (!found.failed.ok()) return found.failed;
  if (found.status.has_value() && !found.status->ok()) return *found.status;
  if (found.status.has_value() && found.answer.complete()) return found.answer.bytes;
  Send(rank, kDrop, number, {});
  return CancelledError("rank " + std::to_string(rank) + " did not answer the call of '" + service + "' in time" +
                        (found.status.has_value() ? ": " + std::to_string(found.answer.bytes.size()) + " of " +
                                                        std::to_string(found.answer.total) + " bytes came"
                                                  : std::string()));
}

// A frame is: from, to, number, rest.
void CallService::Send(int to, uint8_t type, uint64_t number, std::string_view rest) {
  std::string bytes;
  WireWriter out(&bytes);
  out.Unsigned(static_cast<uint64_t>(plane_->rank()));
  out.Unsigned(static_cast<uint64_t>(to));
  out.Unsigned(number);
  bytes += rest;
  plane_->Send(plane_->rank() == 0 ? to : 0, type, bytes);
}

// Sends what the window allows. With mutex_ held, as all below.
void CallService::Push(int to, uint8_t type, uint64_t number, Outgoing& out) {
  while (out.window > 0 && out.sent < out.bytes.size()) {
    const std::string_view chunk = std::string_view(out.bytes).substr(out.sent, kChunkBytes);
    Send(to, type, number, chunk);
    out.sent += chunk.size();
    --out.window;
  }
}

Status CallService::OnFrame(int from, uint8_t type, std::string_view payload) {
  WireReader in(payload);
  const auto asker = static_cast<int>(in.Unsigned(INT_MAX)), to = static_cast<int>(in.Unsigned(INT_MAX));
  const uint64_t number = in.Unsigned();
  const int me = plane_->rank();
  if (!in.ok() || asker >= plane_->size() || to >= plane_->size() || (me == 0 ? asker != from : from != 0 || to != me) ||
      asker == me) {
    return DataLossError("a call of nobody or for nobody");
  }
  if (to != me) {
    if (!plane_->lost(to)) {
      plane_->Send(to, type, payload);
    } else if (type == kAsk || type == kAskData) {
      std::string answer;
      WireWriter out(&answer);
      out.Unsigned(static_cast<uint64_t>(to));
      out.Unsigned(static_cast<uint64_t>(asker));
      out.Unsigned(number);
      WriteStatus(FailedPreconditionError(plane_->Describe(to) + " has left"), out);
      out.Unsigned(0);
      plane_->Send(from, kAnswer, answer);
    }
    return OkStatus();
  }
  const std::lock_guard lock(mutex_);
  const auto take = [&](Incoming& incoming, std::string_view chunk) {
    if (chunk.empty() || chunk.size() > incoming.total - incoming.bytes.size()) return false;
    incoming.bytes.append(chunk);
    if (++incoming.unconfirmed >= kWindow / 2) {
      Send(asker, kMore, number, Confirmation(std::exchange(incoming.unconfirmed, 0), type == kAnswerData));
    }
    return true;
  };
  const TaskKey key(asker, number);
  switch (type) {
    case kAsk: {
      Task task;
      task.service = in.Bytes(kMaxServiceBytes);
      task.request.total = in.Unsigned();
      if (!in.done() || tasks_.contains(key)) return DataLossError("a call");
      const bool complete = task.request.complete();
      tasks_[key] = std::move(task);
      if (complete) Start(key);
      return OkStatus();
    }
    case kAskData: {
      const auto task = tasks_.find(key);
      if (task == tasks_.end()) return OkStatus();  // answered already, with an error
      if (task->second.request.complete() || !take(task->second.request, in.Rest())) return DataLossError("bytes of a call");
      if (task->second.request.complete()) Start(key);
      return OkStatus();
    }
    case kAnswer: {
      Status status = ReadStatus(in);
      const uint64_t total = in.Unsigned();
      if (!in.done()) return DataLossError("an answer");
      const auto question = questions_.find(number);
      if (question == questions_.end() || question->second.to != asker) return OkStatus();  // nobody waits any more
      question->second.status = std::move(status);
      question->second.answer.total = total;
      changed_.notify_all();
      return OkStatus();
    }
    case kAnswerData: {
      const auto question = questions_.find(number);
      if (question == questions_.end() || question->second.to != asker) return OkStatus();
      if (!question->second.status.has_value() || !take(question->second.answer, in.Rest()))
        return DataLossError("bytes of an answer");
      if (question->second.answer.complete()) changed_.notify_all();
      return OkStatus();
    }
    case kMore: {
      const bool of_answer = in.Byte() != 0;
      const auto more = static_cast<int>(in.Unsigned(kWindow));
      if (!in.done()) return DataLossError("a confirmation");
      if (!of_answer) {
        const auto question = questions_.find(number);
        if (question == questions_.end() || question->second.to != asker) return OkStatus();
        question->second.request.window += more;
        Push(asker, kAskData, number, question->second.request);
      } else if (const auto task = tasks_.find(key); task != tasks_.end() && task->second.answer.has_value()) {
        task->second.answer->window += more;
        Push(asker, kAnswerData, number, *task->second.answer);
        if (task->second.answer->sent == task->second.answer->bytes.size()) tasks_.erase(task);
      }
      return OkStatus();
    }
    case kDrop:
      if (!in.done()) return DataLossError("the end of a call");
      tasks_.erase(key);
      return OkStatus();
    case kGone: {
      const std::string why(in.Bytes(kMaxStatusText));
      if (!in.done() || asker != 0) return DataLossError("the end of a rank");
      for (auto& [id, question] : questions_) {
        if (question.to == static_cast<int>(number) && question.failed.ok()) question.failed = FailedPreconditionError(why);
      }
      changed_.notify_all();
      return OkStatus();
    }
    default:
      return DataLossError("a call of type " + std::to_string(type));
  }
}

void CallService::Start(const TaskKey& key) {
  ready_.push_back(key);
  work_.notify_one();
  if (ready_.size() > static_cast<size_t>(idle_) && threads_.size() < kMaxThreads && !stop_) {
    threads_.emplace_back([this] { Work(); });
  }
}

void CallService::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    work_.wait(lock, [&] { return stop_ || !ready_.empty(); });
    --idle_;
    if (stop_) return;
    const TaskKey key = ready_.front();
    ready_.pop_front();
    const auto task = tasks_.find(key);
    if (task == tasks_.end()) continue;
    const std::string service = task->second.service, request = std::move(task->second.request.bytes);
    task->second.request.total = 0;
    const auto handler = handlers_.find(service);
    if (handler == handlers_.end()) {
      Answer(key, NotFoundError("rank " + std::to_string(plane_->rank()) + " serves no '" + service + "'"));
      continue;
    }
    const std::shared_ptr<const Handler> keep = handler->second;
    lock.unlock();
    Result<std::string> answer = (*keep)(key.first, request);
    lock.lock();
    Answer(key, std::move(answer));
  }
}

void CallService::Answer(const TaskKey& key, Result<std::string> answer) {
  const auto task = tasks_.find(key);
  if (task == tasks_.end() || !failed_.ok()) return;  // nobody waits any more
  std::string front;
  WireWriter out(&front);
  WriteStatus(answer.status(), out);
  out.Unsigned(answer.ok() ? answer->size() : 0);
  Send(key.first, kAnswer, key.second, front);
  if (answer.ok()) {
    task->second.answer = Outgoing{.bytes = std::move(answer).value()};
    Push(key.first, kAnswerData, key.second, *task->second.answer);
    if (task->second.answer->sent < task->second.answer->bytes.size()) return;
  }
  tasks_.erase(task);
}

void CallService::OnGone(int rank, const std::string& why) {
  const std::lock_guard lock(mutex_);
  for (auto& [number, question] : questions_) {
    if (question.to == rank && question.failed.ok()) question.failed = FailedPreconditionError(why);
  }
  std::erase_if(tasks_, [&](const auto& task) { return task.first.first == rank; });
  changed_.notify_all();
  std::string rest;
  WireWriter(&rest).Bytes(std::string_view(why).substr(0, kMaxStatusText));
  for (int other = 1; other < plane_->size(); ++other) {
    if (other != rank && !plane_->lost(other)) Send(other, kGone, static_cast<uint64_t>(rank), rest);
  }
}

void CallService::Fail(const Status& why) {
  const std::lock_guard lock(mutex_);
  if (failed_.ok()) failed_ = why;
  changed_.notify_all();
}

void CallService::Stop() {
  Fail(FailedPreconditionError("the communicator was shut down"));
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    threads.swap(threads_);
    work_.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
  const std::lock_guard lock(mutex_);
  tasks_.clear();
  ready_.clear();
}

}  // namespace mxrec
