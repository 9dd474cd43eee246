#include "mxrec/comm/control/store_service.h"

#include "mxrec/comm/control/status_wire.h"
#include "mxrec/comm/control/wire_bytes.h"

namespace mxrec {
namespace {

// Set has no deadline of its own: rank 0 answers or is lost.
constexpr auto kSetTimeout = std::chrono::seconds(300);

std::string Reply(uint64_t number, const Status& status, std::string_view value) {
  std::string bytes;
  WireWriter out(&bytes);
  out.Unsigned(number);
  WriteStatus(status, out);
  out.Bytes(value);
  return bytes;
}

}  // namespace

// With mutex_ held.
Status StoreService::SetHere(std::string_view key, std::string_view value) {
  const auto [at, inserted] = values_.try_emplace(std::string(key), value);
  if (!inserted && at->second != value) return AlreadyExistsError("key '" + std::string(key) + "' has another value already");
  if (const auto asked = asked_.find(key); asked != asked_.end()) {
    for (const auto& [rank, number] : asked->second) plane_.Send(rank, kGetReply, Reply(number, OkStatus(), value));
    asked_.erase(asked);
  }
  changed_.notify_all();
  return OkStatus();
}

// With mutex_ held.
uint64_t StoreService::Ask(uint8_t type, std::string_view key, std::string_view value) {
  const uint64_t number = next_++;
  waiting_[number] = {};
  std::string bytes;
  WireWriter out(&bytes);
  out.Unsigned(number);
  out.Bytes(key);
  if (type == kSet) out.Bytes(value);
  plane_.Send(0, type, bytes);
  return number;
}

Status StoreService::Set(std::string_view key, std::string_view value) {
  if (key.size() > kMaxKeyBytes || value.size() > kMaxValueBytes) {
    return InvalidArgumentError("a key of " + std::to_string(key.size()) + " bytes with a value of " +
                                std::to_string(value.size()) + " bytes: at most " + std::to_string(kMaxKeyBytes) + " and " +
                                std::to_string(kMaxValueBytes));
  }
  std::unique_lock lock(mutex_);
  if (!failed_.ok()) return failed_;
  if (plane_.rank() == 0) return SetHere(key, value);
  const uint64_t number = Ask(kSet, key, value);
  changed_.wait_for(lock, kSetTimeout, [&] { return !failed_.ok() || waiting_[number].status.has_value(); });
  const std::optional<Status> status = waiting_[number].status;
  waiting_.erase(number);
  if (status.has_value()) return *status;
  return failed_.ok() ? CancelledError("rank 0 did not answer when key '" + std::string(key) + "' was set") : failed_;
}

Result<std::string> StoreService::Get(std::string_view key, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto late = [&] { return CancelledError("nobody set key '" + std::string(key) + "' in time"); };
  if (!failed_.ok()) return failed_;
  if (plane_.rank() == 0) {
    auto at = values_.end();
    changed_.wait_until(lock, deadline, [&] { return !failed_.ok() || (at = values_.find(key)) != values_.end(); });
    if (!failed_.ok()) return failed_;
    if (at == values_.end()) return late();
    return at->second;
  }
  if (key.size() > kMaxKeyBytes) return InvalidArgumentError("a key of " + std::to_string(key.size()) + " bytes");
  const uint64_t number = Ask(kGet, key, {});
  changed_.wait_until(lock, deadline, [&] { return !failed_.ok() || waiting_[number].status.has_value(); });
  const Waiting found = std::move(waiting_[number]);
  waiting_.erase(number);
  if (!found.status.has_value()) return failed_.ok() ? late() : failed_;
  if (!found.status->ok()) return *found.status;
  return found.value;
}

Status StoreService::OnFrame(int from, uint8_t type, std::string_view payload) {
  WireReader in(payload);
  const uint64_t number = in.Unsigned();
  const std::lock_guard lock(mutex_);
  if (type == kSetReply || type == kGetReply) {
    Status status = ReadStatus(in);
    const std::string_view value = in.Bytes(kMaxValueBytes);
    if (!in.done()) return DataLossError("an answer of the store");
    // One that came too late finds nobody.
    if (const auto waiting = waiting_.find(number); waiting != waiting_.end()) {
      waiting->second.status = std::move(status);
      waiting->second.value = value;
      changed_.notify_all();
    }
    return OkStatus();
  }
  const std::string_view key = in.Bytes(kMaxKeyBytes);
  if (type == kSet) {
    const std::string_view value = in.Bytes(kMaxValueBytes);
    if (!in.done() || plane_.rank() != 0) return DataLossError("a value for the store");
    plane_.Send(from, kSetReply, Reply(number, SetHere(key, value), {}));
    return OkStatus();
  }
  if (!in.done() || type != kGet || plane_.rank() != 0) return DataLossError("a question to the store");
  if (const auto at = values_.find(key); at != values_.end()) {
    plane_.Send(from, kGetReply, Reply(number, OkStatus(), at->second));
  } else {
    asked_[std::string(key)].emplace_back(from, number);
  }
  return OkStatus();
}

void StoreService::Fail(const Status& why) {
  const std::lock_guard lock(mutex_);
  if (failed_.ok()) failed_ = why;
  changed_.notify_all();
}

}  // namespace mxrec
