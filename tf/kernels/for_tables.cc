#include "tf/kernels/for_tables.h"

#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace mxrec {

void ForTables(tensorflow::OpKernelContext* ctx, std::span<const std::string> names, Executor* executor,
               const std::function<TfStatus(int)>& body) {
  std::vector<TfStatus> statuses(names.size());
  executor->ParallelFor(names.size(), [&](size_t t) { statuses[t] = body(static_cast<int>(t)); });
  for (size_t t = 0; t < names.size(); ++t) {
    if (statuses[t].ok()) continue;
    // In the form in which TensorFlow names nodes, so that Python finds the op and the line that made it.
    ctx->SetStatus(TfStatus(statuses[t].code(), std::string(statuses[t].message()) + "\n\t [[{{node " + names[t] + "}}]]"));
    return;
  }
}

size_t SumOf(std::span<const int64_t> counts, size_t n) {
  size_t sum = 0;
  for (int64_t count : counts) {
    if (count < 0) return SIZE_MAX;
    sum += static_cast<size_t>(count);
  }
  return counts.size() == n ? sum : SIZE_MAX;
}

}  // namespace mxrec
