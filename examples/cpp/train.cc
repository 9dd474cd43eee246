// Trains a table for one step from C++, without TensorFlow: look ids up, pull every row towards 1, see the loss fall.
#include <cstdio>
#include <vector>

#include "mxrec/engine/embedding_table.h"

int main() {
  constexpr uint32_t kDim = 4;
  const std::vector<uint64_t> ids = {7, 42, 7, 1ull << 63};
  auto table = mxrec::EmbeddingTable::Create({.table = {.name = "user", .dim = kDim}}).value();
  auto sgd = mxrec::MakeOptimizer("sgd").value();
  mxrec::InlineExecutor executor;

  for (int step = 0; step < 3; ++step) {
    std::vector<int32_t> inverse(ids.size());
    std::vector<uint64_t> keys(ids.size());
    std::vector<uint32_t> handles(ids.size());
    std::vector<float> expanded(ids.size() * kDim), rows(ids.size() * kDim);
    uint64_t generation = 0;
    size_t unique = 0;
    auto outputs = [&](size_t n) -> mxrec::Result<mxrec::UniqueOutputs> {
      unique = n;
      return mxrec::UniqueOutputs{.rows = rows.data(), .keys = keys.data(), .handles = handles.data()};
    };
    auto status = table->Lookup(ids, {}, inverse.data(), expanded.data(), outputs, &generation, &executor);

    float loss = 0;
    std::vector<float> gradient(expanded.size());
    for (size_t i = 0; i < expanded.size(); ++i) {
      gradient[i] = 2 * (expanded[i] - 1);
      loss += (expanded[i] - 1) * (expanded[i] - 1);
    }
    mxrec::UpdatePart part{.keys = {keys.data(), unique},
                           .handles = {handles.data(), unique},
                           .generation = generation,
                           .first_rows = rows.data(),
                           .index = inverse,
                           .values = gradient.data()};
    const float learning_rate = 0.1f;
    if (status.ok()) status = table->Apply(*sgd, {&learning_rate, 1}, {&part, 1}, &executor);
    if (!status.ok()) return std::fprintf(stderr, "%s\n", status.ToString().c_str()), 1;
    std::printf("step %d loss %.4f\n", step, loss);
  }
  std::printf("rows: %llu\n", static_cast<unsigned long long>(table->table().size()));
}
