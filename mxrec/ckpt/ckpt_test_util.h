// What the tests of checkpoints share: tables with known contents, contents as plain maps, temporary folders.
#ifndef MXREC_CKPT_CKPT_TEST_UTIL_H_
#define MXREC_CKPT_CKPT_TEST_UTIL_H_

#include <unistd.h>

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "mxrec/base/hash.h"
#include "mxrec/ckpt/checkpoint.h"
#include "mxrec/ckpt/one_file_env.h"
#include "mxrec/table/owner.h"
#include "mxrec/table/table.h"

namespace mxrec::testing {

class TempDir {
 public:
  TempDir() {
    // In memory where the system has it: the tests sync a lot.
    const std::string parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path().string();
    std::string pattern = parent + "/mxrec-ckpt-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string Join(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string ReadBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Values that follow from the key, so that a swapped or lost row shows.
inline float ValueOf(uint64_t key, size_t column, uint64_t salt) {
  return static_cast<float>(static_cast<int32_t>(Mix64(key * 1315423911u + column * 2654435761u + salt) >> 40)) / 1024.0f - 8192.0f;
}

struct Shape {
  uint32_t dim = 4;
  size_t slots = 2;
  bool counts = true;
  bool times = true;
  size_t candidates = 0;  // needs counts
  bool last_slot_one_float = false;
  bool evicts = false;  // by capacity
};

inline TableOptions OptionsOf(const Shape& shape, const std::string& name = "user") {
  TableOptions options;
  options.name = name;
  options.dim = shape.dim;
  options.seed = 77;
  options.keep_counts = shape.counts;
  options.min_used_times = shape.candidates != 0 ? 3 : 0;
  options.max_cold_secs = shape.times ? 100 : 0;
  if (shape.evicts) {
    options.capacity_policy = CapacityPolicy::kEvict;
    options.capacity_rows = 1'000'000;
    options.evict_by = EvictBy::kLfu;
  }
  return options;
}

inline SlotRecord RecordOf(const Shape& shape) {
  SlotRecord record;
  if (shape.slots == 0) return record;
  record.optimizer_kind = shape.slots == 1 ? "adagrad" : "adam";
  for (size_t s = 0; s < shape.slots; ++s) {
    record.slot_names.push_back(std::string(1, static_cast<char>('m' + s)));
    record.slot_initial_values.push_back(0.1f * static_cast<float>(s));
  }
  if (shape.last_slot_one_float) {
    record.slot_widths.assign(shape.slots, shape.dim);
    record.slot_widths.back() = 1;
  }
  record.step = 41;
  record.scalar_names = {"beta1_power", "beta2_power"};
  record.scalars = {0.9f, 0.999f};
  return record;
}

inline std::vector<uint64_t> KeysOf(size_t count, uint64_t first = 0) {
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < count; ++i) keys.push_back(Mix64(first + i + 1));
  // The ends of the range are ordinary keys.
  if (count > 4) {
    keys[0] = 0;
    keys[1] = ~uint64_t{0};
    keys[2] = uint64_t{1} << 63;
    keys[3] = (uint64_t{1} << 63) - 1;
  }
  return keys;
}

// A table that holds the keys with values, slots, counts and times that follow from them, and the shape's candidates.
inline std::unique_ptr<Table> MakeTable(const Shape& shape, const std::vector<uint64_t>& keys, const std::string& name = "user",
                                        uint64_t salt = 0) {
  std::unique_ptr<Table> table = Table::Create(OptionsOf(shape, name)).value();
  const SlotRecord record = RecordOf(shape);
  const size_t slot_floats = record.slot_floats(shape.dim);
  const EvictionState eviction{
      .kept = shape.evicts, .by = EvictBy::kLfu, .time = uint64_t{99} << 32, .row_hand = 0x12345678, .candidate_hand = 9};
  auto loader = table->BeginLoad(record, keys.size(), 0, eviction).value();
  for (const uint64_t key : keys) {
    std::vector<float> values, slots;
    for (size_t c = 0; c < shape.dim; ++c) values.push_back(ValueOf(key, c, salt));
    for (size_t c = 0; c < slot_floats; ++c) slots.push_back(ValueOf(key, 1000 + c, salt));
    const uint32_t count = static_cast<uint32_t>(key % 1000) + 3;
    const uint64_t time = 5000 + key % 977;
    const uint32_t stamp = static_cast<uint32_t>(70000 + key % 3001);
    EXPECT_EQ(loader->AddRows({.count = 1,
                               .keys = &key,
                               .values = values.data(),
                               .slots = shape.slots != 0 ? slots.data() : nullptr,
                               .use_counts = &count,
                               .last_seen_ms = &time,
                               .use_stamps = &stamp}),
              OkStatus());
  }
  for (size_t i = 0; i < shape.candidates; ++i) {
    const Candidate candidate{Mix64(1000000 + i), static_cast<uint32_t>(i % 2 + 1), 6000 + i};
    EXPECT_EQ(loader->AddCandidates({&candidate, 1}), OkStatus());
  }
  loader->Commit();
  return table;
}

// Everything a table holds, comparable. Floats as bits.
struct Contents {
  struct Row {
    std::vector<uint32_t> values, slots;
    uint32_t count = 0;
    uint64_t time = 0;
    uint32_t stamp = 0;
    auto operator<=>(const Row&) const = default;
  };
  std::map<uint64_t, Row> rows;
  std::map<uint64_t, std::pair<uint32_t, uint64_t>> candidates;
  std::string optimizer_kind;
  std::vector<std::string> slot_names, scalar_names;
  std::vector<uint64_t> slot_widths;
  std::vector<uint32_t> initial_values, scalars;
  uint64_t step = 0;
  uint64_t eviction_time = 0;
  std::pair<uint32_t, uint32_t> hands;
  bool operator==(const Contents&) const = default;
};

inline std::vector<uint32_t> BitsOf(const float* from, size_t count) {
  std::vector<uint32_t> bits;
  for (size_t i = 0; i < count; ++i) bits.push_back(std::bit_cast<uint32_t>(from[i]));
  return bits;
}

inline Contents ContentsOf(const Table& table) {
  Contents contents;
  const auto snapshot = table.TakeSnapshot();
  const SlotRecord slots = snapshot->slots();
  const size_t dim = table.options().dim;
  for (int shard = 0; shard < kShardCount; ++shard) {
    EXPECT_EQ(snapshot->ForEachBlock(shard, 100,
                                     [&](const RowBlock& block) {
                                       for (size_t i = 0; i < block.count; ++i) {
                                         Contents::Row row;
                                         row.values = BitsOf(block.values + i * dim, dim);
                                         const size_t width = slots.slot_floats(dim);
                                         if (width != 0) row.slots = BitsOf(block.slots + i * width, width);
                                         if (block.use_counts != nullptr) row.count = block.use_counts[i];
                                         if (block.last_seen_ms != nullptr) row.time = block.last_seen_ms[i];
                                         if (block.use_stamps != nullptr) row.stamp = block.use_stamps[i];
                                         EXPECT_TRUE(contents.rows.emplace(block.keys[i], row).second);
                                       }
                                       return OkStatus();
                                     }),
              OkStatus());
    EXPECT_EQ(snapshot->ForEachCandidate(shard,
                                         [&](std::span<const Candidate> candidates) {
                                           for (const Candidate& c : candidates)
                                             contents.candidates[c.key] = {c.count, c.last_seen_ms};
                                           return OkStatus();
                                         }),
              OkStatus());
  }
  contents.optimizer_kind = slots.optimizer_kind;
  contents.slot_names = slots.slot_names;
  for (size_t s = 0; s < slots.slot_names.size(); ++s) contents.slot_widths.push_back(slots.slot_width(s, dim));
  contents.scalar_names = slots.scalar_names;
  contents.initial_values = BitsOf(slots.slot_initial_values.data(), slots.slot_initial_values.size());
  contents.scalars = BitsOf(slots.scalars.data(), slots.scalars.size());
  contents.step = slots.step;
  const EvictionState eviction = snapshot->eviction();
  contents.eviction_time = eviction.time;
  contents.hands = {eviction.row_hand, eviction.candidate_hand};
  return contents;
}

inline bool Contains(const Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

}  // namespace mxrec::testing

#endif  // MXREC_CKPT_CKPT_TEST_UTIL_H_
