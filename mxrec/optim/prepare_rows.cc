// Clipping by the norm of a row, L2 regularization, decoupled weight decay: in that order (docs/numerics.md).
#include "mxrec/optim/prepare_rows.h"

#include <cmath>

#include "mxrec/optim/reference_loop.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mxrec/optim/prepare_rows.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#ifndef MXREC_OPTIM_PREPARE_ROWS_ONCE_
#define MXREC_OPTIM_PREPARE_ROWS_ONCE_
namespace mxrec::internal {

// Places in StepConstants.
enum : size_t { kClipNorm = 12, kL2 = 13, kKeep = 14 };

// What a gradient is multiplied with, from the sum of its squares.
inline float ClipScale(float clip, float sum_of_squares, const float* g, size_t dim) {
  if (sum_of_squares <= std::numeric_limits<float>::max()) {
    const float norm = std::sqrt(sum_of_squares);
    return norm > clip ? clip / norm : 1.0f;
  }
  // The sum overflowed (or there is a NaN, which stays one): the same of the numbers divided by 2^70.
  constexpr float kSmall = 0x1p-70f;
  const float sum = SumOverRow(dim, [g](size_t c) { return (g[c] * kSmall) * (g[c] * kSmall); });
  return (clip * kSmall) / std::sqrt(sum);
}

}  // namespace mxrec::internal
#endif  // MXREC_OPTIM_PREPARE_ROWS_ONCE_

HWY_BEFORE_NAMESPACE();
namespace mxrec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE void PrepareColumns(D d, const float* k, float scale, const float* g, float* w, float* to, size_t c) {
  auto grad = hn::LoadU(d, g + c);
  const auto value = hn::LoadU(d, w + c);
  if (k[internal::kClipNorm] != 0) grad = hn::Mul(grad, hn::Set(d, scale));
  if (k[internal::kL2] != 0) grad = hn::Add(grad, hn::Mul(hn::Set(d, k[internal::kL2]), value));
  hn::StoreU(grad, d, to + c);
  hn::StoreU(hn::Mul(value, hn::Set(d, k[internal::kKeep])), d, w + c);
}

void PrepareRowsSimd(const StepConstants& constants, const RowBatch& batch, float* prepared) {
  constexpr size_t kLanes = internal::kSumLanes;
  const hn::CappedTag<float, kLanes> full;
  const hn::CappedTag<float, 1> one;
  const StepConstants k = constants;
  const size_t dim = batch.dim, lanes = hn::Lanes(full), full_end = dim - dim % lanes;
  for (size_t i = 0; i < batch.count; ++i) {
    const float* const g = batch.grads[i];
    float* const w = batch.rows[i];
    float* const to = prepared + i * dim;
    float scale = 1;
    if (k[internal::kClipNorm] != 0) {
      HWY_ALIGN float partial[kLanes] = {};
      size_t c = 0;
      for (; c < full_end; c += lanes) {
        const auto grad = hn::LoadU(full, g + c);
        float* const at = partial + c % kLanes;
        hn::StoreU(hn::Add(hn::LoadU(full, at), hn::Mul(grad, grad)), full, at);
      }
      for (; c < dim; ++c) partial[c % kLanes] = partial[c % kLanes] + g[c] * g[c];
      scale = internal::ClipScale(k[internal::kClipNorm], internal::FoldPartialSums(partial), g, dim);
    }
    size_t c = 0;
    for (; c < full_end; c += lanes) PrepareColumns(full, k.data(), scale, g, w, to, c);
    for (; c < dim; ++c) PrepareColumns(one, k.data(), scale, g, w, to, c);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mxrec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mxrec {

HWY_EXPORT(PrepareRowsSimd);

namespace internal {

void SetPrepareConstants(const CommonOptions& options, float learning_rate, StepConstants* constants) {
  (*constants)[kClipNorm] = options.row_clip_norm;
  (*constants)[kL2] = options.l2_regularization;
  (*constants)[kKeep] = options.weight_decay != 0 ? 1.0f - learning_rate * options.weight_decay : 1.0f;
}

void PrepareRows(const StepConstants& constants, const RowBatch& batch, float* prepared) {
  HWY_DYNAMIC_DISPATCH(PrepareRowsSimd)(constants, batch, prepared);
}

void PrepareRowsReference(const StepConstants& constants, const RowBatch& batch, float* prepared) {
  const float clip = constants[kClipNorm], l2 = constants[kL2], keep = constants[kKeep];
  for (size_t i = 0; i < batch.count; ++i) {
    const float* const g = batch.grads[i];
    float* const w = batch.rows[i];
    float scale = 1;
    if (clip != 0) scale = ClipScale(clip, SumOverRow(batch.dim, [g](size_t c) { return g[c] * g[c]; }), g, batch.dim);
    for (size_t c = 0; c < batch.dim; ++c) {
      float grad = g[c];
      if (clip != 0) grad = grad * scale;
      if (l2 != 0) grad = grad + l2 * w[c];
      prepared[i * batch.dim + c] = grad;
      w[c] = w[c] * keep;
    }
  }
}

}  // namespace internal
}  // namespace mxrec
#endif  // HWY_ONCE
