#include "mxrec/kernels/matmul_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/kernels/matmul_rows.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Four rows times two vectors of columns stay in registers over the whole depth. (No arrays of vectors: those of some targets
// have no size.)
template <class D>
HWY_INLINE void FourRows(D d, const float* HWY_RESTRICT a, size_t depth, const float* HWY_RESTRICT w, size_t columns,
                         float* HWY_RESTRICT out) {
  const size_t lanes = hn::Lanes(d);
  const float *a1 = a + depth, *a2 = a1 + depth, *a3 = a2 + depth;
  float *out1 = out + columns, *out2 = out1 + columns, *out3 = out2 + columns;
  auto left0 = hn::LoadU(d, out), right0 = hn::LoadU(d, out + lanes);
  auto left1 = hn::LoadU(d, out1), right1 = hn::LoadU(d, out1 + lanes);
  auto left2 = hn::LoadU(d, out2), right2 = hn::LoadU(d, out2 + lanes);
  auto left3 = hn::LoadU(d, out3), right3 = hn::LoadU(d, out3 + lanes);
  for (size_t k = 0; k < depth; ++k, w += columns) {
    const auto w_left = hn::LoadU(d, w), w_right = hn::LoadU(d, w + lanes);
    const auto v0 = hn::Set(d, a[k]), v1 = hn::Set(d, a1[k]), v2 = hn::Set(d, a2[k]), v3 = hn::Set(d, a3[k]);
    left0 = hn::Add(left0, hn::Mul(v0, w_left));
    right0 = hn::Add(right0, hn::Mul(v0, w_right));
    left1 = hn::Add(left1, hn::Mul(v1, w_left));
    right1 = hn::Add(right1, hn::Mul(v1, w_right));
    left2 = hn::Add(left2, hn::Mul(v2, w_left));
    right2 = hn::Add(right2, hn::Mul(v2, w_right));
    left3 = hn::Add(left3, hn::Mul(v3, w_left));
    right3 = hn::Add(right3, hn::Mul(v3, w_right));
  }
  hn::StoreU(left0, d, out);
  hn::StoreU(right0, d, out + lanes);
  hn::StoreU(left1, d, out1);
  hn::StoreU(right1, d, out1 + lanes);
  hn::StoreU(left2, d, out2);
  hn::StoreU(right2, d, out2 + lanes);
  hn::StoreU(left3, d, out3);
  hn::StoreU(right3, d, out3 + lanes);
}

// One row and one vector of columns.
template <class D>
HWY_INLINE void OneRow(D d, const float* HWY_RESTRICT a, size_t depth, const float* HWY_RESTRICT w, size_t columns,
                       float* HWY_RESTRICT out) {
  auto sum = hn::LoadU(d, out);
  for (size_t k = 0; k < depth; ++k, w += columns) sum = hn::Add(sum, hn::Mul(hn::Set(d, a[k]), hn::LoadU(d, w)));
  hn::StoreU(sum, d, out);
}

void AddMatMulOn(const float* a, size_t rows, const float* w, size_t depth, size_t columns, float* out) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d), wide = columns - columns % (2 * lanes), tall = rows - rows % 4;
  for (size_t r = 0; r < tall; r += 4) {
    for (size_t c = 0; c < wide; c += 2 * lanes) FourRows(d, a + r * depth, depth, w + c, columns, out + r * columns + c);
  }
  // What is left over: rows by one, columns by a vector, then by one.
  const hn::CappedTag<float, 1> single;
  for (size_t r = 0; r < rows; ++r) {
    size_t c = r < tall ? wide : 0;
    for (; c + lanes <= columns; c += lanes) OneRow(d, a + r * depth, depth, w + c, columns, out + r * columns + c);
    for (; c < columns; ++c) OneRow(single, a + r * depth, depth, w + c, columns, out + r * columns + c);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(AddMatMulOn);

void AddMatMul(const float* a, size_t rows, const float* w, size_t depth, size_t columns, float* out) {
  HWY_DYNAMIC_DISPATCH(AddMatMulOn)(a, rows, w, depth, columns, out);
}

}  // namespace mxrec
#endif  // HWY_ONCE
