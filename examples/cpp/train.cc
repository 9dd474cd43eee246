// Trains a table from C++, without TensorFlow: looks ids up, pulls every row towards 1, prints the loss as it falls.
#include <iostream>
#include <vector>

#include "mxrec/engine/embedding_table.h"

int main() {
  auto table = mxrec::EmbeddingTable::Create({.table = {.name = "user", .dim = 4}}).value();
  auto sgd = mxrec::MakeOptimizer("sgd").value();
  const float learning_rate = 0.1f;
  const std::vector<uint64_t> ids = {7, 42, 7, 1ull << 63};  // any 64-bit number; 7 comes twice and is updated once
  for (int step = 0; step < 3; ++step) {
    std::vector<float> rows(ids.size() * 4), gradient;  // a row for each id, and what pulls at it
    std::vector<int32_t> inverse(ids.size());           // ids[i] is keys[inverse[i]]
    std::vector<uint64_t> keys(ids.size());             // the distinct ids
    std::vector<uint32_t> handles(ids.size());          // where their rows are
    mxrec::UpdatePart part{.index = inverse};           // what the update is told
    auto outputs = [&](size_t unique) -> mxrec::Result<mxrec::UniqueOutputs> {
      part.keys = {keys.data(), unique}, part.handles = {handles.data(), unique};
      return mxrec::UniqueOutputs{.keys = keys.data(), .handles = handles.data()};
    };
    auto status = table->Lookup(ids, {}, inverse.data(), rows.data(), outputs, &part.generation, nullptr);
    float loss = 0;
    for (float value : rows) loss += (value - 1) * (value - 1), gradient.push_back(2 * (value - 1));
    part.values = gradient.data();
    if (status.ok()) status = table->Apply(*sgd, {&learning_rate, 1}, {&part, 1}, nullptr);
    if (!status.ok()) return std::cerr << status.ToString() << '\n', 1;
    std::cout << "step " << step << " loss " << loss << ", " << table->table().size() << " rows\n";
  }
}
