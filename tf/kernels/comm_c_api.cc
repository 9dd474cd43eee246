// The C functions of tf/c_api.h about ranks, groups and the communicator.
#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tf/c_api.h"
#include "tf/comm_runtime.h"
#include "tf/kernels/hcom_groups.h"
#include "tf/kernels/shard_tables.h"

namespace mxrec {
namespace {

using Json = nlohmann::json;

thread_local std::string last_error;

const char* TextOf(const Status& status) {
  if (status.ok()) return nullptr;
  last_error = status.message();
  return last_error.c_str();
}

void Read(const Json& json, const char* key, std::chrono::milliseconds* value) {
  if (const auto found = json.find(key); found != json.end() && found->is_number()) {
    *value = std::chrono::milliseconds(found->get<int64_t>());
  }
}

template <typename T>
void Read(const Json& json, const char* key, T* value) {
  if (const auto found = json.find(key); found != json.end()) *value = found->get<T>();
}

Result<CommOptions> ParseOptions(const char* text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgumentError("the options of the collective runtime are no JSON object");
  CommOptions options;
  Read(json, "rank", &options.rank);
  Read(json, "size", &options.size);
  Read(json, "local_rank", &options.local_rank);
  Read(json, "local_size", &options.local_size);
  Read(json, "chief_host", &options.chief_host);
  Read(json, "chief_port", &options.chief_port);
  Read(json, "store_path", &options.store_path);
  Read(json, "bind_host", &options.bind_host);
  Read(json, "secret", &options.secret);
  Read(json, "job", &options.job);
  Read(json, "transport", &options.transport);
  Read(json, "plugin_folder", &options.plugin_folder);
  Read(json, "connect_timeout", &options.connect_timeout);
  Read(json, "stall_warning", &options.stall_warning);
  Read(json, "stall_abort", &options.stall_abort);
  Read(json, "heartbeat_timeout", &options.heartbeat_timeout);
  Read(json, "fusion_bytes", &options.fusion_bytes);
  Read(json, "deterministic", &options.deterministic);
  Read(json, "timeline_path", &options.timeline_path);
  std::string algorithm;
  Read(json, "algorithm", &algorithm);
  if (algorithm == "ring") options.algorithm = Algorithm::kRing;
  if (algorithm == "halving_doubling") options.algorithm = Algorithm::kHalvingDoubling;
  if (algorithm == "recursive_doubling") options.algorithm = Algorithm::kRecursiveDoubling;
  if (algorithm == "tree") options.algorithm = Algorithm::kTree;
  return options;
}

// Whether a group of several ranks has to be agreed on with others: it has, and this rank is one of them.
bool NeedsAgreement(const std::vector<int>& ranks) {
  return ranks.size() > 1 && std::find(ranks.begin(), ranks.end(), GetHcomWorld().rank) != ranks.end();
}

Status AddGroup(const std::string& name, const std::vector<int>& ranks) {
  MXREC_RETURN_IF_ERROR(AddHcomGroup(name, ranks));
  if (!NeedsAgreement(ranks)) return OkStatus();
  const Status agreed = AddCommGroup(name, ranks);
  if (!agreed.ok()) static_cast<void>(RemoveHcomGroup(name));
  return agreed;
}

Status RemoveGroup(const std::string& name) {
  const Result<std::vector<int>> ranks = FindHcomGroup(name);
  MXREC_RETURN_IF_ERROR(RemoveHcomGroup(name));
  return ranks.ok() && NeedsAgreement(*ranks) ? RemoveCommGroup(name) : OkStatus();
}

}  // namespace
}  // namespace mxrec

const char* mxrec_hcom_add_group(const char* name, const int* ranks, int count) {
  return mxrec::TextOf(mxrec::AddGroup(name, std::vector<int>(ranks, ranks + count)));
}

const char* mxrec_hcom_remove_group(const char* name) { return mxrec::TextOf(mxrec::RemoveGroup(name)); }

const char* mxrec_hcom_find_group(const char* name, int* ranks, int capacity, int* count) {
  const mxrec::Result<std::vector<int>> found = mxrec::FindHcomGroup(name);
  if (!found.ok()) return mxrec::TextOf(found.status());
  *count = static_cast<int>(found->size());
  for (int i = 0; i < std::min(*count, capacity); ++i) ranks[i] = (*found)[static_cast<size_t>(i)];
  return nullptr;
}

const char* mxrec_comm_configure(const char* json) {
  const mxrec::Result<mxrec::CommOptions> options = mxrec::ParseOptions(json);
  if (!options.ok()) return mxrec::TextOf(options.status());
  if (const mxrec::Status set = mxrec::ConfigureComm(*options); !set.ok()) return mxrec::TextOf(set);
  mxrec::SetHcomWorld({.rank = options->rank, .size = options->size});
  // Other ranks may ask before there is a table here.
  if (options->size > 1) static_cast<void>(mxrec::ShardHostHere());
  return nullptr;
}

const char* mxrec_comm_start() { return mxrec::GetHcomWorld().size == 1 ? nullptr : mxrec::TextOf(mxrec::StartCommAndWait()); }

void mxrec_comm_shutdown() {
  struct End {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false;
  };
  const auto end = std::make_shared<End>();
  mxrec::ShutdownComm([end](const mxrec::Status&) {
    const std::lock_guard<std::mutex> lock(end->mutex);
    end->reached = true;
    end->changed.notify_all();
  });
  std::unique_lock<std::mutex> lock(end->mutex);
  end->changed.wait(lock, [&] { return end->reached; });
}

void mxrec_comm_leave() {
  mxrec::LeaveShardHost();
  mxrec::LeaveComm();
}

const char* mxrec_comm_health() { return mxrec::TextOf(mxrec::CommHealth()); }

void mxrec_comm_refuse(const char* group, const char* name, int parts, const char* why) {
  if (mxrec::GetHcomWorld().size == 1) return;
  mxrec::CommRequest request;
  request.group = group;
  request.name = name;
  request.parts = parts;
  mxrec::RefuseComm(std::move(request), mxrec::InvalidArgumentError(why));
}

const char* mxrec_comm_machines(int* machines, int capacity) {
  const mxrec::Result<std::vector<int>> found = mxrec::CommMachines();
  if (!found.ok()) return mxrec::TextOf(found.status());
  std::copy_n(found->begin(), std::min<size_t>(found->size(), static_cast<size_t>(std::max(capacity, 0))), machines);
  return nullptr;
}

void mxrec_comm_stats(uint64_t* values, int count) {
  const mxrec::CommStats stats = mxrec::CommStatistics();
  const uint64_t all[] = {stats.operations,         stats.fused_buffers,   stats.agreements,     stats.full_requests,
                          stats.control_bytes_sent, stats.data_bytes_sent, stats.data_parts_sent};
  std::copy_n(all, std::clamp<int>(count, 0, static_cast<int>(std::size(all))), values);
}
