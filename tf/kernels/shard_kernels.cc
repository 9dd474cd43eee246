// MxrecRouteIds, MxrecExchangeKeys, MxrecExchangeRows, MxrecSumRouted, MxrecExchangeGradients: the way of a batch to the ranks that
// own its ids, and back. MxrecLookupReceived is in lookup_kernels.cc.
//
// One exchange carries the parts of all lookups of its op. On the wire, to each rank: keys as [keys of each lookup: N int64], then
// for each lookup its keys (int64) and counts (uint32); rows and gradients as the floats of each lookup, one after the other, whose
// numbers both sides know from the keys.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "mxrec/kernels/expand_rows.h"
#include "mxrec/shard/route.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tf/kernels/collective_kernel.h"
#include "tf/kernels/hcom_groups.h"
#include "tf/kernels/id_keys.h"
#include "tf/kernels/pool_executor.h"
#include "tf/kernels/table_resource.h"

namespace mxrec {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

int64_t Sum(std::span<const int64_t> numbers) { return std::accumulate(numbers.begin(), numbers.end(), int64_t{0}); }

class RouteIdsOp : public OpKernel {
 public:
  explicit RouteIdsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string owner;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("group", &group_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("owner", &owner));
    rule_ = owner == "hash" ? OwnerRule::kHash : OwnerRule::kMod;
    std::vector<int64_t> hot;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hot_keys", &hot));
    for (size_t i = 0; i < hot.size(); ++i) hot_.push_back({static_cast<uint64_t>(hot[i]), static_cast<int32_t>(i)});
    std::sort(hot_.begin(), hot_.end(), [](const HotKey& a, const HotKey& b) { return a.key < b.key; });
    const auto twice =
        std::adjacent_find(hot_.begin(), hot_.end(), [](const HotKey& a, const HotKey& b) { return a.key == b.key; });
    OP_REQUIRES(ctx, twice == hot_.end(),
                ToTf(InvalidArgumentError(name() + ": hot_keys holds " +
                                          std::to_string(twice == hot_.end() ? 0 : static_cast<int64_t>(twice->key)) + " twice")));
  }

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Route(ctx)); }

 private:
  TfStatus Route(OpKernelContext* ctx) {
    const Result<std::vector<int>> ranks = FindHcomGroup(group_);
    MXREC_TF_RETURN_IF_ERROR(ToTf(ranks.status()));
    const Tensor& ids = ctx->input(0);
    Tensor widened;
    std::span<const uint64_t> keys;
    MXREC_TF_RETURN_IF_ERROR(IdsAsKeys(ctx, ids, &widened, &keys));
    Tensor *inverse = nullptr, *splits = nullptr;
    const int64_t size = std::ssize(*ranks);
    const int64_t me = std::find(ranks->begin(), ranks->end(), GetHcomWorld().rank) - ranks->begin();
    if (me == size) {
      return ToTf(
          InvalidArgumentError(name() + ": rank " + std::to_string(GetHcomWorld().rank) + " is not in group '" + group_ + "'"));
    }
    std::vector<int32_t> found;
    const HotRoute hot{hot_, static_cast<int>(me), &found};
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(0, ids.shape(), &inverse));
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(3, TensorShape({size}), &splits));
    const auto outputs = [&](size_t unique) -> Result<RoutedKeys> {
      Tensor *unique_keys = nullptr, *counts = nullptr;
      const TensorShape shape({static_cast<int64_t>(unique)});
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(1, shape, &unique_keys)));
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(2, shape, &counts)));
      return RoutedKeys{MutableData<uint64_t>(unique_keys), MutableData<uint32_t>(counts)};
    };
    const Status status =
        RouteIds(keys, static_cast<int>(size), rule_, MutableData<int32_t>(inverse),
                 {MutableData<int64_t>(splits), static_cast<size_t>(size)}, outputs, hot_.empty() ? nullptr : &hot);
    if (!status.ok()) return ToTf(Status(status.code(), name() + ": " + std::string(status.message())));
    Tensor *hot_found = nullptr, *hot_begin = nullptr, *rank = nullptr;
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(4, TensorShape({std::ssize(found)}), &hot_found));
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(5, TensorShape({}), &hot_begin));
    MXREC_TF_RETURN_IF_ERROR(ctx->allocate_output(6, TensorShape({}), &rank));
    std::copy(found.begin(), found.end(), MutableData<int32_t>(hot_found));
    const std::span<const int64_t> given = DataSpan<int64_t>(*splits);
    *MutableData<int32_t>(hot_begin) = static_cast<int32_t>(Sum(given.first(static_cast<size_t>(me) + 1)) - std::ssize(found));
    *MutableData<int32_t>(rank) = static_cast<int32_t>(me);
    return TfStatus();
  }

  std::string group_;
  OwnerRule rule_ = OwnerRule::kMod;
  std::vector<HotKey> hot_;  // ascending
};
REGISTER_KERNEL_BUILDER(Name("MxrecRouteIds").Device(tensorflow::DEVICE_CPU), RouteIdsOp);

class SumRoutedOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor &values = ctx->input(0), &index = ctx->input(1), &splits = ctx->input(2);
    OP_REQUIRES(ctx, values.dims() == 2 && index.dims() == 1 && values.dim_size(0) == index.dim_size(0),
                ToTf(InvalidArgumentError(name() + ": values must have shape [n, dim] and index [n], found " + ShapeText(values) +
                                          " and " + ShapeText(index))));
    const int64_t unique = Sum(DataSpan<int64_t>(splits)), dim = values.dim_size(1);
    OP_REQUIRES(ctx, unique >= 0, ToTf(InvalidArgumentError(name() + ": splits add up to " + std::to_string(unique))));
    Tensor* sums = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({unique, dim}), &sums));
    PoolExecutor executor(ctx);
    const Status status = SumRoutedGradients(DataSpan<int32_t>(index), DataSpan<float>(values).data(), static_cast<size_t>(unique),
                                             static_cast<size_t>(dim), {MutableData<float>(sums)}, &executor);
    OP_REQUIRES(ctx, status.ok(), ToTf(Status(status.code(), name() + ": " + std::string(status.message()))));
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecSumRouted").Device(tensorflow::DEVICE_CPU), SumRoutedOp);

// What the exchanges share. Inputs and outputs of the N lookups lie N apart.
class ExchangeKernel : public CollectiveKernel {
 public:
  explicit ExchangeKernel(OpKernelConstruction* ctx) : CollectiveKernel(ctx) {
    int64_t n = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &n));
    n_ = static_cast<int>(n);
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) final {
    const Result<Membership> group = FindGroup();
    MXREC_REQUIRES_OK_ASYNC(ctx, group.status(), done);
    Result<Part> part = Pack(ctx, *group);
    MXREC_REQUIRES_OK_ASYNC(ctx, part.status(), done);
    std::vector<Part> parts;
    parts.push_back(std::move(*part));
    Run(ctx, *group, std::move(parts), std::move(done));
  }

 protected:
  virtual Result<Part> Pack(OpKernelContext* ctx, const Membership& group) = 0;

  int lookups() const { return n_; }

  // List `list` of the inputs, of lookup t: one number of keys a rank, adding up to `total` (negative: any).
  Result<std::span<const int64_t>> Splits(OpKernelContext* ctx, int list, int t, const Membership& group, int64_t total) const {
    const Tensor& tensor = ctx->input(list * n_ + t);
    const std::span<const int64_t> splits = DataSpan<int64_t>(tensor);
    if (tensor.dims() != 1 || std::ssize(splits) != group.size()) {
      return Wrong("splits of lookup " + std::to_string(t) + " must have one entry for each of the " +
                   std::to_string(group.size()) + " ranks of group '" + group_name() + "', found shape " + ShapeText(tensor) +
                   ": was the graph made for another number of ranks?");
    }
    for (const int64_t split : splits) {
      if (split < 0)
        return Wrong("splits of lookup " + std::to_string(t) + " must not be negative, found " + std::to_string(split));
    }
    if (total >= 0 && Sum(splits) != total) {
      return Wrong("splits of lookup " + std::to_string(t) + " add up to " + std::to_string(Sum(splits)) + ", but there are " +
                   std::to_string(total) + " keys");
    }
    return splits;
  }

  // Sends rows of floats, of each lookup a matrix [sum of send_splits, dim] in the order of the ranks, to outputs [0, N), each
  // times its factor.
  Result<Part> PackFloats(OpKernelContext* ctx, const Membership& group, std::vector<Tensor> sends, int send_list, int receive_list,
                          std::vector<float> factors) const {
    const size_t ranks = static_cast<size_t>(group.size());
    std::vector<std::span<const int64_t>> send_splits, receive_splits;
    for (int t = 0; t < n_; ++t) {
      MXREC_ASSIGN_OR_RETURN(const auto send, Splits(ctx, send_list, t, group, sends[static_cast<size_t>(t)].dim_size(0)));
      MXREC_ASSIGN_OR_RETURN(const auto receive, Splits(ctx, receive_list, t, group, -1));
      send_splits.push_back(send);
      receive_splits.push_back(receive);
    }
    Part part;
    part.request.kind = Collective::kAllToAll;
    part.request.dtype = DType::kFloat32;
    if (n_ == 1) {
      // Nothing to pack: rows lie in the order of the ranks at both ends.
      const Tensor& send = sends[0];
      part.request.shape = {send.dim_size(0), send.dim_size(1)};
      part.request.splits.assign(send_splits[0].begin(), send_splits[0].end());
      part.request.input = send.data();
      part.packed = send;
      part.output = 0;
      part.finish = [this, receive = receive_splits[0], factor = factors[0]](OpKernelContext* ctx, const Agreed& agreed) -> Status {
        for (size_t r = 0; r < receive.size(); ++r) MXREC_RETURN_IF_ERROR(CheckReceived(r, receive[r], agreed.received[r], "rows"));
        ScaleOutput(ctx, 0, factor);
        return OkStatus();
      };
      return part;
    }

    std::vector<int64_t> dims(static_cast<size_t>(n_)), to(ranks), from(ranks);
    for (int t = 0; t < n_; ++t) {
      dims[static_cast<size_t>(t)] = sends[static_cast<size_t>(t)].dim_size(1);
      for (size_t r = 0; r < ranks; ++r) {
        to[r] += send_splits[static_cast<size_t>(t)][r] * dims[static_cast<size_t>(t)];
        from[r] += receive_splits[static_cast<size_t>(t)][r] * dims[static_cast<size_t>(t)];
      }
    }
    Tensor packed;
    MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(tensorflow::DT_FLOAT, TensorShape({Sum(to)}), &packed)));
    float* next = MutableData<float>(&packed);
    std::vector<const float*> source;
    for (const Tensor& send : sends) source.push_back(DataSpan<float>(send).data());
    for (size_t r = 0; r < ranks; ++r) {
      for (size_t t = 0; t < source.size(); ++t) {
        const size_t floats = static_cast<size_t>(send_splits[t][r] * dims[t]);
        if (floats > 0) std::memcpy(next, source[t], floats * sizeof(float));
        next += floats;
        source[t] += floats;
      }
    }
    part.request.shape = {Sum(to)};
    part.request.splits = to;
    part.request.input = packed.data();
    part.packed = packed;
    const auto received = std::make_shared<Tensor>();
    part.allocate = [this, received, from](OpKernelContext* ctx, const Agreed& agreed) -> Result<void*> {
      for (size_t r = 0; r < from.size(); ++r) MXREC_RETURN_IF_ERROR(CheckReceived(r, from[r], agreed.received[r], "floats"));
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(tensorflow::DT_FLOAT, TensorShape({Sum(from)}), received.get())));
      return received->data();
    };
    part.finish = [this, received, receive_splits, dims, factors](OpKernelContext* ctx, const Agreed&) -> Status {
      std::vector<float*> into;
      for (size_t t = 0; t < dims.size(); ++t) {
        Tensor* output = nullptr;
        MXREC_RETURN_IF_ERROR(
            FromTf(ctx->allocate_output(static_cast<int>(t), TensorShape({Sum(receive_splits[t]), dims[t]}), &output)));
        into.push_back(MutableData<float>(output));
      }
      const float* next = DataSpan<float>(*received).data();
      for (size_t r = 0; r < receive_splits[0].size(); ++r) {
        for (size_t t = 0; t < dims.size(); ++t) {
          const size_t floats = static_cast<size_t>(receive_splits[t][r] * dims[t]);
          if (floats > 0) std::memcpy(into[t], next, floats * sizeof(float));
          next += floats;
          into[t] += floats;
        }
      }
      for (size_t t = 0; t < dims.size(); ++t) ScaleOutput(ctx, static_cast<int>(t), factors[t]);
      return OkStatus();
    };
    return part;
  }

 private:
  Status CheckReceived(size_t rank, int64_t expected, int64_t found, const char* what) const {
    if (found == expected) return OkStatus();
    return InternalError(name() + ": rank " + std::to_string(rank) + " of group '" + group_name() + "' sent " +
                         std::to_string(found) + " " + what + " for " + std::to_string(expected) + " that its keys ask for");
  }

  static void ScaleOutput(OpKernelContext* ctx, int index, float factor) {
    if (factor == 1.0f) return;
    Tensor* output = ctx->mutable_output(index);
    float* values = MutableData<float>(output);
    for (int64_t i = 0; i < output->NumElements(); ++i) values[i] *= factor;
  }

  int n_ = 0;
};

class ExchangeKeysOp : public ExchangeKernel {
 public:
  using ExchangeKernel::ExchangeKernel;

 private:
  static constexpr int64_t kKeyBytes = sizeof(uint64_t) + sizeof(uint32_t);

  Result<Part> Pack(OpKernelContext* ctx, const Membership& group) override {
    const size_t n = static_cast<size_t>(lookups()), ranks = static_cast<size_t>(group.size());
    std::vector<std::span<const int64_t>> splits;
    std::vector<const uint64_t*> keys;
    std::vector<const uint32_t*> counts;
    Part part;
    part.request.splits.assign(ranks, static_cast<int64_t>(n * sizeof(int64_t)));
    for (int t = 0; t < lookups(); ++t) {
      const Tensor &key = ctx->input(t), &count = ctx->input(lookups() + t);
      if (key.dims() != 1 || count.shape() != key.shape()) {
        return Wrong("keys and counts of lookup " + std::to_string(t) + " must be vectors of one length, found shapes " +
                     ShapeText(key) + " and " + ShapeText(count));
      }
      MXREC_ASSIGN_OR_RETURN(const auto own, Splits(ctx, 2, t, group, key.dim_size(0)));
      splits.push_back(own);
      keys.push_back(KeySpan(key).data());
      counts.push_back(DataSpan<uint32_t>(count).data());
      for (size_t r = 0; r < ranks; ++r) part.request.splits[r] += own[r] * kKeyBytes;
    }
    const int64_t bytes = Sum(part.request.splits);
    MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(tensorflow::DT_UINT8, TensorShape({bytes}), &part.packed)));
    char* next = static_cast<char*>(part.packed.data());
    const auto put = [&next](const void* data, size_t size) {
      if (size > 0) std::memcpy(next, data, size);
      next += size;
    };
    for (size_t r = 0; r < ranks; ++r) {
      for (size_t t = 0; t < n; ++t) put(&splits[t][r], sizeof(int64_t));
      for (size_t t = 0; t < n; ++t) {
        const size_t count = static_cast<size_t>(splits[t][r]);
        put(keys[t], count * sizeof(uint64_t));
        put(counts[t], count * sizeof(uint32_t));
        keys[t] += count;
        counts[t] += count;
      }
    }
    part.request.kind = Collective::kAllToAll;
    part.request.dtype = DType::kUInt8;
    part.request.shape = {bytes};
    part.request.input = part.packed.data();
    const auto received = std::make_shared<Tensor>();
    part.allocate = [received](OpKernelContext* ctx, const Agreed& agreed) -> Result<void*> {
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(tensorflow::DT_UINT8, TensorShape({Sum(agreed.received)}), received.get())));
      return received->data();
    };
    part.finish = [this, received](OpKernelContext* ctx, const Agreed& agreed) { return Unpack(ctx, *received, agreed.received); };
    return part;
  }

  Status Unpack(OpKernelContext* ctx, const Tensor& received, std::span<const int64_t> bytes) const {
    const size_t n = static_cast<size_t>(lookups()), ranks = bytes.size();
    const char* begin = static_cast<const char*>(received.data());
    // First all numbers of keys, checked against the bytes that came.
    std::vector<std::vector<int64_t>> splits(n, std::vector<int64_t>(ranks));
    const char* from = begin;
    for (size_t r = 0; r < ranks; ++r) {
      const int64_t header = static_cast<int64_t>(n * sizeof(int64_t));
      int64_t left = bytes[r] - header;
      for (size_t t = 0; t < n && left >= 0; ++t) {
        std::memcpy(&splits[t][r], from + t * sizeof(int64_t), sizeof(int64_t));
        left = splits[t][r] < 0 || splits[t][r] > left / kKeyBytes ? -1 : left - splits[t][r] * kKeyBytes;
      }
      if (left != 0) {
        return DataLossError(name() + ": the " + std::to_string(bytes[r]) + " bytes of rank " + std::to_string(r) +
                             " are not the keys of " + std::to_string(n) + " lookups");
      }
      from += bytes[r];
    }
    std::vector<uint64_t*> keys;
    std::vector<uint32_t*> counts;
    for (int t = 0; t < lookups(); ++t) {
      const std::vector<int64_t>& own = splits[static_cast<size_t>(t)];
      Tensor *key = nullptr, *count = nullptr, *split = nullptr;
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(t, TensorShape({Sum(own)}), &key)));
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(lookups() + t, TensorShape({Sum(own)}), &count)));
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_output(2 * lookups() + t, TensorShape({std::ssize(own)}), &split)));
      std::copy(own.begin(), own.end(), MutableData<int64_t>(split));
      keys.push_back(MutableData<uint64_t>(key));
      counts.push_back(MutableData<uint32_t>(count));
    }
    from = begin;
    for (size_t r = 0; r < ranks; ++r) {
      from += n * sizeof(int64_t);
      for (size_t t = 0; t < n; ++t) {
        const size_t count = static_cast<size_t>(splits[t][r]);
        if (count == 0) continue;
        std::memcpy(keys[t], from, count * sizeof(uint64_t));
        from += count * sizeof(uint64_t);
        std::memcpy(counts[t], from, count * sizeof(uint32_t));
        from += count * sizeof(uint32_t);
        keys[t] += count;
        counts[t] += count;
      }
    }
    return OkStatus();
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecExchangeKeys").Device(tensorflow::DEVICE_CPU), ExchangeKeysOp);

class ExchangeRowsOp : public ExchangeKernel {
 public:
  using ExchangeKernel::ExchangeKernel;

 private:
  Result<Part> Pack(OpKernelContext* ctx, const Membership& group) override {
    std::vector<Tensor> sends(static_cast<size_t>(lookups()));
    for (int t = 0; t < lookups(); ++t) {
      const Tensor &rows = ctx->input(t), &inverse = ctx->input(lookups() + t);
      if (rows.dims() != 2 || inverse.dims() != 1) {
        return Wrong("rows and inverse of lookup " + std::to_string(t) + " must have shapes [unique, dim] and [received], found " +
                     ShapeText(rows) + " and " + ShapeText(inverse));
      }
      Tensor& send = sends[static_cast<size_t>(t)];
      const int64_t received = inverse.dim_size(0);
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(tensorflow::DT_FLOAT, TensorShape({received, rows.dim_size(1)}), &send)));
      const std::span<const int32_t> places = DataSpan<int32_t>(inverse);
      const size_t done =
          ExpandRows(DataSpan<float>(rows).data(), static_cast<size_t>(rows.dim_size(0)), static_cast<size_t>(rows.dim_size(1)),
                     places.data(), static_cast<size_t>(received), MutableData<float>(&send));
      if (done != static_cast<size_t>(received)) {
        return Wrong("inverse[" + std::to_string(done) + "] of lookup " + std::to_string(t) + " is " +
                     std::to_string(places[done]) + ", expected 0 <= inverse < " + std::to_string(rows.dim_size(0)));
      }
    }
    return PackFloats(ctx, group, std::move(sends), /*send_list=*/2, /*receive_list=*/3,
                      std::vector<float>(static_cast<size_t>(lookups()), 1.0f));
  }
};
REGISTER_KERNEL_BUILDER(Name("MxrecExchangeRows").Device(tensorflow::DEVICE_CPU), ExchangeRowsOp);

class ExchangeGradientsOp : public ExchangeKernel {
 public:
  explicit ExchangeGradientsOp(OpKernelConstruction* ctx) : ExchangeKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("mean", &mean_));
    OP_REQUIRES(ctx, std::ssize(mean_) == lookups(),
                ToTf(InvalidArgumentError(name() + ": attribute mean has " + std::to_string(mean_.size()) +
                                          " entries; expected one a lookup, " + std::to_string(lookups()))));
  }

 private:
  Result<Part> Pack(OpKernelContext* ctx, const Membership& group) override {
    std::vector<Tensor> sends;
    std::vector<float> factors;
    for (int t = 0; t < lookups(); ++t) {
      const Tensor& gradients = ctx->input(t);
      if (gradients.dims() != 2) {
        return Wrong("gradients of lookup " + std::to_string(t) + " must have shape [keys, dim], found " + ShapeText(gradients));
      }
      sends.push_back(gradients);
      factors.push_back(mean_[static_cast<size_t>(t)] ? 1.0f / static_cast<float>(group.size()) : 1.0f);
    }
    return PackFloats(ctx, group, std::move(sends), /*send_list=*/1, /*receive_list=*/2, std::move(factors));
  }

  std::vector<bool> mean_;
};
REGISTER_KERNEL_BUILDER(Name("MxrecExchangeGradients").Device(tensorflow::DEVICE_CPU), ExchangeGradientsOp);

}  // namespace
}  // namespace mxrec
