#include "mxrec/kernels/moments.h"

namespace mxrec {
namespace {

constexpr size_t kParts = 8;

template <typename T, typename Term>
double SumOf(const T* x, size_t n, const Term& term) {
  double part[kParts] = {};
  size_t i = 0;
  for (; i + kParts <= n; i += kParts) {
    for (size_t l = 0; l < kParts; ++l) part[l] += term(static_cast<double>(x[i + l]));
  }
  for (size_t l = 0; i + l < n; ++l) part[l] += term(static_cast<double>(x[i + l]));
  double sum = 0;
  for (const double p : part) sum += p;
  return sum;
}

template <typename T>
double SquaresOf(const T* x, size_t n, double centre) {
  return SumOf(x, n, [centre](double v) { return (v - centre) * (v - centre); });
}

template <typename T>
void StandardizeAll(const T* x, size_t n, double mean, double scale, T* y) {
  for (size_t i = 0; i < n; ++i) y[i] = static_cast<T>((static_cast<double>(x[i]) - mean) * scale);
}

}  // namespace

double Sum(const float* x, size_t n) {
  return SumOf(x, n, [](double v) { return v; });
}
double Sum(const double* x, size_t n) {
  return SumOf(x, n, [](double v) { return v; });
}
double SquareSum(const float* x, size_t n, double centre) { return SquaresOf(x, n, centre); }
double SquareSum(const double* x, size_t n, double centre) { return SquaresOf(x, n, centre); }
void Standardize(const float* x, size_t n, double mean, double scale, float* y) { StandardizeAll(x, n, mean, scale, y); }
void Standardize(const double* x, size_t n, double mean, double scale, double* y) { StandardizeAll(x, n, mean, scale, y); }

}  // namespace mxrec
