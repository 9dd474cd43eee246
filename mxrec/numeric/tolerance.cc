#include "mxrec/numeric/tolerance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "mxrec/base/check.h"
#include "mxrec/numeric/ulp.h"

namespace mxrec {
namespace {

// Sorted by subject. The bounds of the optimizers cover 100 steps of float32 rounding that differs by an ulp or two a step
// (TensorFlow sums duplicates in another order, and uses approximate reciprocal roots where we divide).
constexpr std::array<ToleranceEntry, 21> kTable = {{
    {"adadelta", {1e-5, 1e-6, 0}, "Adadelta rows after 100 steps, ours and TensorFlow's sparse optimizer on a variable"},
    {"adagrad", {1e-5, 1e-6, 0}, "Adagrad rows after 100 steps, ours and TensorFlow's sparse optimizer on a variable"},
    {"adam", {1e-5, 1e-6, 0}, "Adam rows after 100 steps, ours and TensorFlow's formula on the touched rows"},
    {"adamw", {1e-5, 1e-6, 0}, "AdamW rows after 100 steps, ours and the formula in float64"},
    {"adamw_step", {0, 1e-6, 0}, "AdamW rows after one step, ours and the worked numbers of docs/numerics.md"},
    {"amsgrad", {1e-5, 1e-6, 0}, "AMSGrad rows after 100 steps, ours and TensorFlow's op on a variable, every row in every step"},
    {"checkpoint", {0, 0, 0}, "rows and slots saved and loaded, with those of the table that was saved"},
    {"first_row", {0, 0, 0}, "first rows of keys, SIMD and scalar, on every CPU and for any order of keys"},
    {"first_row_formula", {1e-5, 1e-6, 0}, "first rows of keys, ours and the distribution's formula in float64"},
    {"ftrl", {1e-5, 1e-6, 0}, "FTRL rows after 100 steps, ours and TensorFlow's sparse optimizer on a variable"},
    {"group_ftrl", {1e-5, 1e-6, 0}, "group-lasso FTRL rows after 100 steps, ours and the formula in float64"},
    {"kernel", {0, 0, 0}, "inner loops, SIMD and scalar reference"},
    {"lamb", {1e-5, 1e-6, 0}, "LAMB rows after 100 steps, ours and the formula in float64"},
    {"loss", {0, 1e-5, 0}, "loss of a step, a script on mxrec and the same on stock TensorFlow"},
    {"momentum", {1e-5, 1e-6, 0}, "Momentum rows after 100 steps, ours and TensorFlow's sparse optimizer on a variable"},
    {"pooled", {1e-5, 1e-6, 0}, "pooled rows and their gradients, ours and tf.nn.embedding_lookup_sparse on a variable"},
    {"rmsprop", {1e-5, 1e-6, 0}, "RMSProp rows after 100 steps, ours and TensorFlow's sparse optimizer on a variable"},
    {"rmsprop_centered",
     {1e-5, 1e-6, 0},
     "centered RMSProp rows after 100 steps, ours and TensorFlow's sparse optimizer on a variable"},
    {"rowwise_adagrad", {1e-5, 1e-6, 0}, "row-wise Adagrad rows after 100 steps, ours and the formula in float64"},
    {"sgd", {1e-5, 1e-6, 0}, "SGD rows after 100 steps, ours and TensorFlow's sparse optimizer on a variable"},
    {"threads", {0, 0, 0}, "everything the engine computes, with one thread and with several"},
}};

constexpr bool Sorted() {
  for (size_t i = 1; i < kTable.size(); ++i) {
    if (kTable[i - 1].subject >= kTable[i].subject) return false;
  }
  return true;
}
static_assert(Sorted());

std::string Short(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", number);
  return text;
}

std::string Exact(float number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", static_cast<double>(number));
  return text;
}

// How far beyond the tolerance; <= 0 is within. Infinity for NaN and infinity that stand alone.
template <typename T>
double Excess(T value, T reference, const Tolerance& tolerance) {
  const uint64_t ulp = UlpDistance(value, reference);
  if (ulp <= static_cast<uint64_t>(std::max<int64_t>(tolerance.max_ulp, 0))) return 0;
  if (ulp == kUlpNever) return std::numeric_limits<double>::infinity();
  const double difference = std::fabs(static_cast<double>(value) - static_cast<double>(reference));
  return difference - (tolerance.atol + tolerance.rtol * std::fabs(static_cast<double>(reference)));
}

}  // namespace

std::span<const ToleranceEntry> ToleranceTable() { return kTable; }

Result<Tolerance> FindTolerance(std::string_view subject) {
  std::string known;
  for (const ToleranceEntry& entry : kTable) {
    if (entry.subject == subject) return entry.tolerance;
    known.append(known.empty() ? "" : ", ").append(entry.subject);
  }
  return NotFoundError("no tolerance for \"" + std::string(subject) + "\"; known subjects: " + known);
}

std::string DumpToleranceTable() {
  std::string text = "| subject | rtol | atol | ulp | what is compared |\n|---|---|---|---|---|\n";
  for (const auto& [subject, tolerance, meaning] : kTable) {
    text.append("| ").append(subject).append(" | ").append(Short(tolerance.rtol));
    text.append(" | ").append(Short(tolerance.atol)).append(" | ").append(std::to_string(tolerance.max_ulp));
    text.append(" | ").append(meaning).append(" |\n");
  }
  return text;
}

bool WithinTolerance(float value, float reference, const Tolerance& tolerance) { return Excess(value, reference, tolerance) <= 0; }
bool WithinTolerance(double value, double reference, const Tolerance& tolerance) {
  return Excess(value, reference, tolerance) <= 0;
}

Deviation Compare(std::span<const float> values, std::span<const float> references, const Tolerance& tolerance) {
  MXREC_CHECK(values.size() == references.size()) << values.size() << " values, " << references.size() << " references";
  Deviation deviation;
  double worst_excess = 0, worst_difference = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t ulp = UlpDistance(values[i], references[i]);
    if (ulp == 0) continue;
    double difference = std::numeric_limits<double>::infinity();
    if (ulp != kUlpNever) difference = std::fabs(static_cast<double>(values[i]) - static_cast<double>(references[i]));
    const double size = std::fabs(static_cast<double>(references[i]));
    deviation.max_ulp = std::max(deviation.max_ulp, ulp);
    deviation.max_abs = std::max(deviation.max_abs, difference);
    if (size > 0 && ulp != kUlpNever) deviation.max_rel = std::max(deviation.max_rel, difference / size);
    const double excess = Excess(values[i], references[i], tolerance);
    if (excess > 0) ++deviation.beyond;
    if (excess > worst_excess || (deviation.beyond == 0 && difference > worst_difference)) {
      deviation.worst_index = i;
      worst_excess = std::max(worst_excess, excess);
      worst_difference = difference;
    }
  }
  return deviation;
}

std::string DescribeDeviation(const Deviation& deviation, std::span<const float> values, std::span<const float> references,
                              const Tolerance& tolerance) {
  std::string text = std::to_string(deviation.beyond) + " of " + std::to_string(values.size()) + " beyond rtol " +
                     Short(tolerance.rtol) + ", atol " + Short(tolerance.atol) + ", " + std::to_string(tolerance.max_ulp) + " ulp";
  if (deviation.max_ulp == 0) return text + ": all equal";
  const size_t worst = deviation.worst_index;
  text += ": worst at " + std::to_string(worst) + ": expected " + Exact(references[worst]) + ", found " + Exact(values[worst]);
  text += "; largest difference " + Short(deviation.max_abs) + ", relative " + Short(deviation.max_rel);
  return text + ", ulp " + (deviation.max_ulp == kUlpNever ? "never" : std::to_string(deviation.max_ulp));
}

}  // namespace mxrec
