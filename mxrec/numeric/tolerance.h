// The one table of tolerances: how far a result may lie from its reference, by subject. Tests, comparison tools and
// docs/numerics.md all take their numbers from here, so a bound is written once.
//
// A value is within tolerance when |value - reference| <= atol + rtol * |reference|, or when the two are at most max_ulp
// representable numbers apart (numeric/ulp.h). A NaN agrees with a NaN only, an infinity with the same infinity only.
// All zeros means bit-equal (but for the sign of zero and the bits of a NaN).
#ifndef MXREC_NUMERIC_TOLERANCE_H_
#define MXREC_NUMERIC_TOLERANCE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "mxrec/base/status.h"

namespace mxrec {

struct Tolerance {
  double rtol = 0;
  double atol = 0;
  int64_t max_ulp = 0;
  friend bool operator==(const Tolerance&, const Tolerance&) = default;
};

struct ToleranceEntry {
  std::string_view subject;
  Tolerance tolerance;
  std::string_view meaning;  // what is compared with what
};

// All entries, sorted by subject.
std::span<const ToleranceEntry> ToleranceTable();
// kNotFound names the subject and lists the known ones.
Result<Tolerance> FindTolerance(std::string_view subject);
// The table as GitHub Markdown, one line an entry; docs/numerics.md holds this text.
std::string DumpToleranceTable();

bool WithinTolerance(float value, float reference, const Tolerance& tolerance);
bool WithinTolerance(double value, double reference, const Tolerance& tolerance);

// How far two arrays are apart.
struct Deviation {
  double max_abs = 0;  // infinity when a NaN or infinity stands alone
  double max_rel = 0;  // |difference| / |reference|, over references other than 0
  uint64_t max_ulp = 0;
  size_t worst_index = 0;  // first element that is farthest beyond its tolerance, else with the largest |difference|
  size_t beyond = 0;       // elements out of tolerance
  bool within() const { return beyond == 0; }
};
// Both of the same length (checked).
Deviation Compare(std::span<const float> values, std::span<const float> references, const Tolerance& tolerance);
// "3 of 100 beyond rtol 1e-05, atol 1e-06, 0 ulp: worst at 7: ... ": for a test's message, also on success.
std::string DescribeDeviation(const Deviation& deviation, std::span<const float> values, std::span<const float> references,
                              const Tolerance& tolerance);

}  // namespace mxrec

#endif  // MXREC_NUMERIC_TOLERANCE_H_
