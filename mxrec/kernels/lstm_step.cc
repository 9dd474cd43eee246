#include "mxrec/kernels/lstm_step.h"

#include <algorithm>
#include <vector>

#include "mxrec/kernels/matmul_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/lstm_step.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>
// After highway.h.
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V = hn::VFromD<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  // Beyond this exp would leave the range that it is made for; the result is then below every number of a gate's use.
  const V clamped = hn::Max(x, hn::Set(d, -87.0f));
  const V one = hn::Set(d, 1.0f);
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Div(one, hn::Add(one, hn::Exp(d, hn::Neg(clamped)))));
}

template <class D, class V = hn::VFromD<D>>
HWY_INLINE V TanhOf(D d, V x) {
  // tanh is 1 in float32 from 9.02 on.
  const V clamped = hn::Min(hn::Max(x, hn::Set(d, -20.0f)), hn::Set(d, 20.0f));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, clamped));
}

// One vector of each gate (and of the cell) to one vector of each result.
template <class D>
HWY_INLINE void OneVector(D d, const float* i_sum, const float* j_sum, const float* f_sum, const float* o_sum, const float* c,
                          float forget_bias, const LstmOutputs& out, size_t at) {
  const auto i = Sigmoid(d, hn::LoadU(d, i_sum));
  const auto j = TanhOf(d, hn::LoadU(d, j_sum));
  const auto f = Sigmoid(d, hn::Add(hn::LoadU(d, f_sum), hn::Set(d, forget_bias)));
  const auto o = Sigmoid(d, hn::LoadU(d, o_sum));
  const auto next = hn::Add(hn::Mul(hn::LoadU(d, c), f), hn::Mul(i, j));
  const auto tanh_c = TanhOf(d, next);
  hn::StoreU(next, d, out.c + at);
  hn::StoreU(hn::Mul(o, tanh_c), d, out.h + at);
  hn::StoreU(i, d, out.i + at);
  hn::StoreU(j, d, out.j + at);
  hn::StoreU(f, d, out.f + at);
  hn::StoreU(o, d, out.o + at);
  hn::StoreU(tanh_c, d, out.tanh_c + at);
}

// One row: gates [4 hidden] are the sums, c [hidden] its cell; results go to `at` of the outputs.
void GatesOn(const float* gates, const float* c, size_t hidden, float forget_bias, const LstmOutputs& out, size_t at) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const float *i = gates, *j = i + hidden, *f = j + hidden, *o = f + hidden;
  size_t k = 0;
  for (; k + lanes <= hidden; k += lanes) OneVector(d, i + k, j + k, f + k, o + k, c + k, forget_bias, out, at + k);
  const hn::CappedTag<float, 1> single;
  for (; k < hidden; ++k) OneVector(single, i + k, j + k, f + k, o + k, c + k, forget_bias, out, at + k);
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(GatesOn);

void LstmStep(const LstmInputs& in, size_t begin, size_t end, const LstmOutputs& out) {
  constexpr size_t kAtOnce = 16;  // rows that share a pass over the weights
  const size_t width = 4 * in.hidden;
  std::vector<float> gates(std::min(kAtOnce, end - begin) * width);
  for (size_t r = begin; r < end; r += kAtOnce) {
    const size_t rows = std::min(kAtOnce, end - r);
    for (size_t k = 0; k < rows; ++k) std::copy_n(in.b, width, gates.data() + k * width);
    AddMatMul(in.x + r * in.inputs, rows, in.w, in.inputs, width, gates.data());
    AddMatMul(in.h + r * in.hidden, rows, in.w + in.inputs * width, in.hidden, width, gates.data());
    for (size_t k = 0; k < rows; ++k) {
      const size_t at = (r + k) * in.hidden;
      HWY_DYNAMIC_DISPATCH(GatesOn)(gates.data() + k * width, in.c + at, in.hidden, in.forget_bias, out, at);
    }
  }
}

}  // namespace mxrec
#endif  // HWY_ONCE
