// What the ops over several tables share: their tables side by side on the intra-op pool, and errors that say which.
#ifndef MXREC_TF_KERNELS_FOR_TABLES_H_
#define MXREC_TF_KERNELS_FOR_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "mxrec/base/executor.h"
#include "tf/status_adapter.h"

namespace tensorflow {
class OpKernelContext;
}

namespace mxrec {

// Calls body(t) once for each t below names.size(), in parallel, to the end also when some fail. The op fails with the first
// failure in the order of t, with its code and text and names[t] as the node it comes from. body may use `executor` itself, and
// of ctx: inputs, allocations, and outputs that are its own.
void ForTables(tensorflow::OpKernelContext* ctx, std::span<const std::string> names, Executor* executor,
               const std::function<TfStatus(int)>& body);

// The sum of n counts; SIZE_MAX when there are not n of them, or one is negative.
size_t SumOf(std::span<const int64_t> counts, size_t n);

}  // namespace mxrec

#endif  // MXREC_TF_KERNELS_FOR_TABLES_H_
