// The kernels of LayerNorm, its gradients, and Centralization: TensorFlow's tensors to mxrec/kernels/moments.h.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "mxrec/kernels/moments.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/kernels/strided_index.h"
#include "tf/kernels/table_resource.h"
#include "tf/kernels/wide_tensors.h"

namespace mxrec {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// x as `rows` rows of `length` that are normalized, with `params` parameters that repeat along its elements.
struct Rows {
  size_t rows = 1, length = 1, params = 1;
  TensorShape statistics, parameters;

  // visit(element, parameter, count) for runs of elements [begin, end) whose parameters follow each other.
  template <typename Visit>
  void ForRuns(size_t begin, size_t end, const Visit& visit) const {
    if (begin == end) return;  // then there may be no parameters either
    for (size_t p = begin % params; begin < end; p = 0) {
      const size_t count = std::min(end - begin, params - p);
      visit(begin, p, count);
      begin += count;
    }
  }
};

class LayerNormBase : public OpKernel {
 public:
  explicit LayerNormBase(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("begin_norm_axis", &norm_axis_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("begin_params_axis", &params_axis_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
  }

 protected:
  Status Wrong(const std::string& text) const { return InvalidArgumentError(name() + ": " + text); }

  Status Axis(const char* what, int64_t axis, const Tensor& x, int* found) const {
    if (axis < -x.dims() || axis >= x.dims()) {
      return Wrong(std::string(what) + " is " + std::to_string(axis) + " for x of shape " + ShapeText(x));
    }
    *found = static_cast<int>(axis < 0 ? axis + x.dims() : axis);
    return OkStatus();
  }

  Status Describe(const Tensor& x, Rows* rows) const {
    int norm = 0, params = 0;
    MXREC_RETURN_IF_ERROR(Axis("begin_norm_axis", norm_axis_, x, &norm));
    MXREC_RETURN_IF_ERROR(Axis("begin_params_axis", params_axis_, x, &params));
    for (int d = 0; d < x.dims(); ++d) {
      const auto size = static_cast<size_t>(x.dim_size(d));
      (d < norm ? rows->rows : rows->length) *= size;
      rows->statistics.AddDim(d < norm ? x.dim_size(d) : 1);
      if (d >= params) {
        rows->params *= size;
        rows->parameters.AddDim(x.dim_size(d));
      }
    }
    return OkStatus();
  }

  Status Expect(const char* what, const Tensor& tensor, const TensorShape& shape) const {
    if (tensor.shape() == shape) return OkStatus();
    return Wrong(std::string(what) + " must have shape " + shape.DebugString() + ", found " + ShapeText(tensor));
  }

  double Scale(double variance) const { return 1 / std::sqrt(variance + static_cast<double>(epsilon_)); }

  // body(row) on the intra-op threads, a few rows an item.
  template <typename Body>
  static void ForRows(OpKernelContext* ctx, const Rows& rows, const Body& body) {
    const size_t each = std::max<size_t>(1, kFloatBlock / std::max<size_t>(1, rows.length));
    PoolExecutor executor(ctx);
    executor.ParallelFor((rows.rows + each - 1) / each, [&](size_t item) {
      const ScopedIeeeFloat ieee;
      for (size_t r = item * each; r < std::min(rows.rows, (item + 1) * each); ++r) body(r);
    });
  }

 private:
  int64_t norm_axis_ = 0, params_axis_ = 0;
  float epsilon_ = 0;
};

class LayerNormOp : public LayerNormBase {
 public:
  using LayerNormBase::LayerNormBase;

  void Compute(OpKernelContext* ctx) override {
    const Tensor &x = ctx->input(0), &gamma = ctx->input(1), &beta = ctx->input(2);
    Rows rows;
    OP_REQUIRES_OK(ctx, ToTf(Describe(x, &rows)));
    OP_REQUIRES_OK(ctx, ToTf(Expect("gamma", gamma, rows.parameters)));
    OP_REQUIRES_OK(ctx, ToTf(Expect("beta", beta, rows.parameters)));
    Tensor wide_x, wide_gamma, wide_beta;
    WideOutput y, mean, variance;
    OP_REQUIRES_OK(ctx, WidenTensor(ctx, x, &wide_x));
    OP_REQUIRES_OK(ctx, WidenTensor(ctx, gamma, &wide_gamma));
    OP_REQUIRES_OK(ctx, WidenTensor(ctx, beta, &wide_beta));
    OP_REQUIRES_OK(ctx, y.Allocate(ctx, 0, x.shape()));
    OP_REQUIRES_OK(ctx, mean.Allocate(ctx, 1, rows.statistics));
    OP_REQUIRES_OK(ctx, variance.Allocate(ctx, 2, rows.statistics));
    WithWideType(x.dtype(), [&]<typename T>(T) {
      Run(ctx, rows, DataSpan<T>(wide_x).data(), DataSpan<T>(wide_gamma).data(), DataSpan<T>(wide_beta).data(), y.data<T>(),
          mean.data<T>(), variance.data<T>());
    });
    y.Finish(ctx);
    mean.Finish(ctx);
    variance.Finish(ctx);
  }

 private:
  template <typename T>
  void Run(OpKernelContext* ctx, const Rows& rows, const T* x, const T* gamma, const T* beta, T* y, T* mean, T* variance) const {
    const size_t n = rows.length;
    const auto count = static_cast<double>(n);
    const auto write = [&](size_t begin, size_t size, double centre, double scale) {
      Standardize(x + begin, size, {centre, scale}, y + begin);
      rows.ForRuns(begin, begin + size, [&](size_t i, size_t p, size_t run) { ScaleAndShift(gamma + p, beta + p, run, y + i); });
    };
    if (n <= kFloatBlock) {
      ForRows(ctx, rows, [&](size_t r) {
        const T* row = x + r * n;
        const double centre = Sum(row, n) / count, square = SquareSum(row, n, centre) / count;
        mean[r] = static_cast<T>(centre);
        variance[r] = static_cast<T>(square);
        write(r * n, n, centre, Scale(square));
      });
      return;
    }
    for (size_t r = 0; r < rows.rows; ++r) {  // long rows: several threads a row
      const T* row = x + r * n;
      const double centre = BlockSum(ctx, n, [row](size_t begin, size_t size) { return Sum(row + begin, size); }) / count;
      const double square =
          BlockSum(ctx, n, [row, centre](size_t begin, size_t size) { return SquareSum(row + begin, size, centre); }) / count;
      mean[r] = static_cast<T>(centre);
      variance[r] = static_cast<T>(square);
      ForBlocks(ctx, n, [&](size_t begin, size_t size) { write(r * n + begin, size, centre, Scale(square)); });
    }
  }
};

// (dy, x, variance, mean, gamma[, dmean, dvariance]) to (pd_x, pd_gamma, pd_beta).
class LayerNormGradOp : public LayerNormBase {
 public:
  using LayerNormBase::LayerNormBase;

  void Compute(OpKernelContext* ctx) override {
    const Tensor &x = ctx->input(1), &gamma = ctx->input(4);
    const bool whole = ctx->num_inputs() == 7;
    Rows rows;
    OP_REQUIRES_OK(ctx, ToTf(Describe(x, &rows)));
    OP_REQUIRES_OK(ctx, ToTf(Expect("dy", ctx->input(0), x.shape())));
    OP_REQUIRES_OK(ctx, ToTf(Expect("variance", ctx->input(2), rows.statistics)));
    OP_REQUIRES_OK(ctx, ToTf(Expect("mean", ctx->input(3), rows.statistics)));
    OP_REQUIRES_OK(ctx, ToTf(Expect("gamma", gamma, rows.parameters)));
    if (whole) {
      OP_REQUIRES_OK(ctx, ToTf(Expect("dmean", ctx->input(5), rows.statistics)));
      OP_REQUIRES_OK(ctx, ToTf(Expect("dvariance", ctx->input(6), rows.statistics)));
    }
    Tensor wide[7];
    for (int i = 0; i < ctx->num_inputs(); ++i) OP_REQUIRES_OK(ctx, WidenTensor(ctx, ctx->input(i), &wide[i]));
    WideOutput dx, dgamma, dbeta;
    OP_REQUIRES_OK(ctx, dx.Allocate(ctx, 0, x.shape()));
    OP_REQUIRES_OK(ctx, dgamma.Allocate(ctx, 1, gamma.shape()));
    OP_REQUIRES_OK(ctx, dbeta.Allocate(ctx, 2, gamma.shape()));
    WithWideType(x.dtype(), [&]<typename T>(T) {
      const T* in[7] = {};
      for (int i = 0; i < ctx->num_inputs(); ++i) in[i] = DataSpan<T>(wide[i]).data();
      RowGradients(ctx, rows, in, dx.data<T>());
      ParameterGradients(ctx, rows, in, dgamma.data<T>(), dbeta.data<T>());
    });
    dx.Finish(ctx);
    dgamma.Finish(ctx);
    dbeta.Finish(ctx);
  }

 private:
  // dx = scale (g - avg(g) - z avg(g z)), g = dy gamma, z = (x - mean) scale; the statistics' own gradients are added.
  template <typename T>
  void RowGradients(OpKernelContext* ctx, const Rows& rows, const T* const* in, T* dx) const {
    const size_t n = rows.length;
    const auto count = static_cast<double>(n);
    ForRows(ctx, rows, [&](size_t r) {
      const NormScale norm = {static_cast<double>(in[3][r]), Scale(static_cast<double>(in[2][r]))};
      double sum = 0, product = 0;
      rows.ForRuns(r * n, (r + 1) * n, [&](size_t i, size_t p, size_t run) {
        AddNormSums(in[0] + i, in[4] + p, in[1] + i, run, norm, &sum, &product);
      });
      NormRowGradient row = {.average = sum / count, .slope = product / count};
      if (in[5] != nullptr) row.of_mean = static_cast<double>(in[5][r]) / count;
      if (in[6] != nullptr) row.of_variance = 2 * static_cast<double>(in[6][r]) / (count * norm.scale);
      rows.ForRuns(r * n, (r + 1) * n,
                   [&](size_t i, size_t p, size_t run) { NormGradient(in[0] + i, in[4] + p, in[1] + i, run, norm, row, dx + i); });
    });
  }

  // Sums over all elements of a parameter, in their order; a range of parameters an item.
  template <typename T>
  void ParameterGradients(OpKernelContext* ctx, const Rows& rows, const T* const* in, T* dgamma, T* dbeta) const {
    constexpr size_t kEach = 64;
    const size_t total = rows.rows * rows.length, repeats = rows.params == 0 ? 0 : total / rows.params;
    PoolExecutor executor(ctx);
    executor.ParallelFor((rows.params + kEach - 1) / kEach, [&](size_t item) {
      const ScopedIeeeFloat ieee;
      const size_t first = item * kEach, size = std::min(kEach, rows.params - first);
      double gamma[kEach] = {}, beta[kEach] = {};
      for (size_t k = 0; k < repeats; ++k) {
        const size_t base = k * rows.params + first;
        for (size_t c = 0; c < size;) {  // as far as one row goes
          const size_t r = (base + c) / rows.length, end = std::min(size, (r + 1) * rows.length - base);
          const NormScale norm = {static_cast<double>(in[3][r]), Scale(static_cast<double>(in[2][r]))};
          AddNormParameters(in[0] + base + c, in[1] + base + c, end - c, norm, gamma + c, beta + c);
          c = end;
        }
      }
      for (size_t c = 0; c < size; ++c) {
        dgamma[first + c] = static_cast<T>(gamma[c]);
        dbeta[first + c] = static_cast<T>(beta[c]);
      }
    });
  }
};

class CentralizationOp : public OpKernel {
 public:
  explicit CentralizationOp(OpKernelConstruction* ctx) : OpKernel(ctx) { OP_REQUIRES_OK(ctx, ctx->GetAttr("axes", &axes_)); }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    std::vector<size_t> sizes;
    std::vector<bool> own(static_cast<size_t>(x.dims()), true);
    size_t count = 1;
    for (int d = 0; d < x.dims(); ++d) sizes.push_back(static_cast<size_t>(x.dim_size(d)));
    for (const int64_t axis : axes_) {
      OP_REQUIRES(ctx, axis >= -x.dims() && axis < x.dims(),
                  ToTf(InvalidArgumentError(name() + ": axes has " + std::to_string(axis) + " for x of shape " + ShapeText(x))));
      const auto d = static_cast<size_t>(axis < 0 ? axis + x.dims() : axis);
      if (own[d]) count *= sizes[d];
      own[d] = false;
    }
    Tensor wide;
    WideOutput y;
    OP_REQUIRES_OK(ctx, WidenTensor(ctx, x, &wide));
    OP_REQUIRES_OK(ctx, y.Allocate(ctx, 0, x.shape()));
    const StridedIndex index(sizes, own);
    const auto n = static_cast<size_t>(x.NumElements());
    WithWideType(x.dtype(), [&]<typename T>(T) {
      const T* from = DataSpan<T>(wide).data();
      T* to = y.data<T>();
      std::vector<double> mean(index.small());
      SumToSmall(ctx, index, from, n, &mean);
      for (double& m : mean) m /= static_cast<double>(count);
      ForBlocks(ctx, n, [&](size_t begin, size_t size) {
        index.ForRuns(begin, begin + size, [&](size_t i, size_t run, size_t at, size_t stride) {
          if (stride == 0) return Standardize(from + i, run, {.centre = mean[at]}, to + i);
          SubtractEach(from + i, mean.data() + at, run, to + i);
        });
      });
    });
    y.Finish(ctx);
  }

 private:
  std::vector<int64_t> axes_;
};

REGISTER_KERNEL_BUILDER(Name("LayerNorm").Device(tensorflow::DEVICE_CPU), LayerNormOp);
REGISTER_KERNEL_BUILDER(Name("LayerNormGrad").Device(tensorflow::DEVICE_CPU), LayerNormGradOp);
REGISTER_KERNEL_BUILDER(Name("MxrecLayerNormGrad").Device(tensorflow::DEVICE_CPU), LayerNormGradOp);
REGISTER_KERNEL_BUILDER(Name("Centralization").Device(tensorflow::DEVICE_CPU), CentralizationOp);

}  // namespace
}  // namespace mxrec
