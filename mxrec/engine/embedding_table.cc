#include "mxrec/engine/embedding_table.h"

#include <cinttypes>
#include <nlohmann/json.hpp>
#include <utility>

#include "mxrec/base/log.h"
#include "mxrec/kernels/non_finite.h"

namespace mxrec {
namespace {

// Brings an optimizer to the table's rows.
class OptimizerStep final : public RowUpdater {
 public:
  OptimizerStep(const EmbeddingTable& table, const Optimizer& optimizer, std::span<const float> hyper)
      : table_(table), optimizer_(optimizer), hyper_(hyper), dim_(table.dim()) {}

  Status Begin(SlotRecord* record) override {
    if (record->optimizer_kind != optimizer_.kind()) *record = SlotRecord();
    const bool fresh = record->optimizer_kind.empty();
    record->optimizer_kind = optimizer_.kind();
    record->slot_names = optimizer_.slot_names();
    record->slot_initial_values = optimizer_.slot_initial_values();
    record->slot_widths = optimizer_.slot_widths(dim_);
    record->scalar_names = optimizer_.scalar_names();
    if (fresh || record->scalars.size() != record->scalar_names.size()) record->scalars = optimizer_.scalar_initial_values();
    OptimizerState state{record->step, record->scalars};
    if (Status status = optimizer_.BeginStep(hyper_, &state, &constants_); !status.ok()) {
      return Status(status.code(), "table " + table_.name() + ": " + std::string(status.message()));
    }
    record->step = state.step;
    record->scalars = std::move(state.scalars);
    return OkStatus();
  }

  void OnSlotsReplaced(const std::string& kind_before) override {
    MXREC_LOG(WARNING) << "table " << table_.name() << ": the checkpoint was written by optimizer " << kind_before << ", now "
                       << optimizer_.kind() << " trains it; rows were loaded, optimizer slots start afresh";
  }

  size_t UpdateRows(float* const* rows, const float* const* grads, size_t count) const override {
    return optimizer_.UpdateRows(constants_, {rows, grads, count, dim_});
  }

 private:
  const EmbeddingTable& table_;
  const Optimizer& optimizer_;
  std::span<const float> hyper_;
  size_t dim_;
  StepConstants constants_{};
};

}  // namespace

Result<std::shared_ptr<EmbeddingTable>> EmbeddingTable::Create(EmbeddingTableConfig config) {
  std::shared_ptr<EmbeddingTable> table(new EmbeddingTable(std::move(config)));
  MXREC_ASSIGN_OR_RETURN(table->table_, Table::Create(table->config_.table));
  return table;
}

EmbeddingTable::EmbeddingTable(EmbeddingTableConfig config) : config_(std::move(config)) {
  config_.table.keep_counts |= config_.table.min_used_times > 1;  // as its text says
}
EmbeddingTable::~EmbeddingTable() = default;

Status EmbeddingTable::Lookup(std::span<const uint64_t> ids, const LookupOptions& options, int32_t* inverse, float* expanded,
                              const std::function<Result<UniqueOutputs>(size_t)>& outputs, uint64_t* generation,
                              Executor* executor) {
  if (!config_.check_lookups) return table_->Lookup(ids, options, inverse, expanded, outputs, generation, executor);
  UniqueOutputs seen;
  size_t unique = 0;
  const auto watched = [&](size_t count) -> Result<UniqueOutputs> {
    MXREC_ASSIGN_OR_RETURN(seen, outputs(count));
    unique = count;
    return seen;
  };
  MXREC_RETURN_IF_ERROR(table_->Lookup(ids, options, inverse, expanded, watched, generation, executor));
  const bool by_row = seen.rows != nullptr;
  const float* values = by_row ? seen.rows : expanded;
  const size_t total = (by_row ? unique : ids.size()) * dim();
  if (values == nullptr) return OkStatus();
  const size_t bad = FirstNonFinite(values, total);
  if (bad == total) return OkStatus();
  const std::string id = by_row && seen.keys != nullptr ? std::to_string(static_cast<int64_t>(seen.keys[bad / dim()]))
                         : by_row                       ? "?"
                                                        : std::to_string(static_cast<int64_t>(ids[bad / dim()]));
  const std::string text =
      "table " + name() + ": the row of id " + id + " holds NaN or Inf in column " + std::to_string(bad % dim());
  if (config_.non_finite == NonFinitePolicy::kError) return InvalidArgumentError(text);
  if (!warned_lookup_.exchange(true)) MXREC_LOG(WARNING) << text << " (said once a table)";
  return OkStatus();
}

Status EmbeddingTable::Apply(const Optimizer& optimizer, std::span<const float> hyper, std::span<const UpdatePart> parts,
                             Executor* executor, UpdateReport* report) {
  OptimizerStep step(*this, optimizer, hyper);
  UpdateOptions options;
  options.non_finite = config_.non_finite;
  options.now_ms = NowMs();
  UpdateReport own;
  if (report == nullptr) report = &own;
  MXREC_RETURN_IF_ERROR(table_->Update(parts, &step, options, executor, report));
  if (report->has_non_finite_key && !warned_update_.exchange(true)) {
    const bool skips = config_.non_finite == NonFinitePolicy::kSkip;
    MXREC_LOG(WARNING) << "table " << name() << ": " << (skips ? "the gradient of id " : "after this update the row of id ")
                       << static_cast<int64_t>(report->non_finite_key) << " holds NaN or Inf (" << report->non_finite_rows
                       << " such rows in this step" << (skips ? "; they were skipped" : "")
                       << "); non_finite=\"error\" or \"skip\" keeps such gradients out (said once a table)";
  }
  return OkStatus();
}

Status EmbeddingTable::Insert(std::span<const uint64_t> keys, const float* values, Executor* executor, uint64_t* inserted) {
  return table_->Insert(keys, values, NowMs(), executor, inserted);
}

uint64_t EmbeddingTable::Erase(std::span<const uint64_t> keys) { return table_->Erase(keys); }
uint64_t EmbeddingTable::EvictCold(Executor* executor) { return table_->EvictCold(NowMs(), executor); }
void EmbeddingTable::Reset() { table_->Clear(); }

std::string EmbeddingTable::StatsJson() const {
  const TableStats stats = table_->stats();
  const SlotRecord slots = table_->slots();
  nlohmann::ordered_json json;
  json["name"] = name();
  json["dim"] = dim();
  json["optimizer"] = slots.optimizer_kind;
  json["optimizer_step"] = slots.step;
  json["rows"] = stats.rows;
  json["candidates"] = stats.candidates;
  json["bytes_index"] = stats.bytes_index;
  json["bytes_rows"] = stats.bytes_rows;
  json["bytes_slots"] = stats.bytes_slots;
  json["bytes_candidates"] = stats.bytes_candidates;
  json["load"] = stats.load;
  json["mean_probe_length"] = stats.mean_probe_length;
  json["max_probe_length"] = stats.max_probe_length;
  json["inserts"] = stats.inserts;
  json["erases"] = stats.erases;
  json["evictions"] = stats.evictions;
  json["admissions"] = stats.admissions;
  json["hits"] = stats.hits;
  json["misses"] = stats.misses;
  json["updates"] = stats.updates;
  json["generation"] = stats.generation;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);  // a name need not be UTF-8
}

}  // namespace mxrec
