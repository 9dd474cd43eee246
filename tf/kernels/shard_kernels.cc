// MxrecRouteIds, MxrecExchangeKeys, MxrecExchangeRows, MxrecSumRouted, MxrecExchangeGradients: the way of a batch to the ranks that
// own its ids, and back. MxrecLookupReceived is in lookup_kernels.cc.
//
// One exchange carries the parts of all lookups of its op. On the wire, to each rank: keys as [keys of each lookup: N int64], then
// for each lookup its keys (int64) and counts (uint32); rows and gradients as the floats of each lookup, one after the other, whose
// numbers both sides know from the keys.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
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
#include "tf/kernels/step_watch.h"
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

  void Compute(OpKernelContext* ctx) override {
    const NotesFailure notes(ctx);
    OP_REQUIRES_OK(ctx, Route(ctx));
  }

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
    const NotesFailure notes(ctx);
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
    MXREC_TAKES_PART_IF_OK(ctx, *group, part.status(), done);
    Run(ctx, *group, One(std::move(*part)), std::move(done));
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

  // What a rank sends of its lookups: of each `rows[t]` rows of `dims[t]` floats, in the order of the ranks.
  struct Outgoing {
    std::vector<int64_t> rows, dims;
    // Writes `count` of the rows of lookup t, from row `first` on, to `to`.
    std::function<Status(size_t t, size_t first, size_t count, float* to)> write;
    // Where the rows of the only lookup lie as they travel; null: they are to be written.
    const float* whole = nullptr;
  };

  // Sends them to outputs [0, N). What this rank keeps is written there at once; the rest is written into one buffer, unless it
  // lies somewhere as it travels, and arrives in another, unless it belongs into one piece of an output.
  Result<Part> PackFloats(OpKernelContext* ctx, const Membership& group, const Outgoing& out, int send_list,
                          int receive_list) const {
    const size_t ranks = static_cast<size_t>(group.size()), n = static_cast<size_t>(n_), me = static_cast<size_t>(group.me);
    std::vector<std::span<const int64_t>> send, receive;
    std::vector<int64_t> to(ranks), from(ranks);
    for (size_t t = 0; t < n; ++t) {
      MXREC_ASSIGN_OR_RETURN(const auto sends, Splits(ctx, send_list, static_cast<int>(t), group, out.rows[t]));
      MXREC_ASSIGN_OR_RETURN(const auto receives, Splits(ctx, receive_list, static_cast<int>(t), group, -1));
      if (sends[me] != receives[me]) {
        return Wrong("lookup " + std::to_string(t) + " sends this rank " + std::to_string(sends[me]) +
                     " rows, which asks itself for " + std::to_string(receives[me]));
      }
      for (size_t r = 0; r < ranks; ++r) {
        if (r == me) continue;
        to[r] += sends[r] * out.dims[t];
        from[r] += receives[r] * out.dims[t];
      }
      send.push_back(sends);
      receive.push_back(receives);
    }

    std::vector<float*> outputs(n);
    for (size_t t = 0; t < n; ++t) {
      Tensor* output = nullptr;
      MXREC_RETURN_IF_ERROR(
          FromTf(ctx->allocate_output(static_cast<int>(t), TensorShape({Sum(receive[t]), out.dims[t]}), &output)));
      outputs[t] = MutableData<float>(output);
      const size_t kept = static_cast<size_t>(Sum(receive[t].first(me)) * out.dims[t]);
      MXREC_RETURN_IF_ERROR(
          out.write(t, static_cast<size_t>(Sum(send[t].first(me))), static_cast<size_t>(send[t][me]), outputs[t] + kept));
    }

    Part part;
    part.request.kind = Collective::kAllToAll;
    part.request.dtype = DType::kFloat32;
    part.request.shape = {Sum(to)};
    part.request.splits = to;
    // With what this rank keeps at its begin or its end, the rest of the only lookup is in one piece.
    const bool one_piece = n == 1 && (me == 0 || me + 1 == ranks);
    if (one_piece && out.whole != nullptr) {
      part.request.input = out.whole + (me == 0 ? send[0][0] * out.dims[0] : 0);
    } else {
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(tensorflow::DT_FLOAT, TensorShape({Sum(to)}), &part.packed)));
      part.request.input = part.packed.data();
      float* next = MutableData<float>(&part.packed);
      std::vector<int64_t> first(n);
      for (size_t r = 0; r < ranks; ++r) {
        for (size_t t = 0; t < n; ++t) {
          if (r != me) {
            MXREC_RETURN_IF_ERROR(out.write(t, static_cast<size_t>(first[t]), static_cast<size_t>(send[t][r]), next));
            next += send[t][r] * out.dims[t];
          }
          first[t] += send[t][r];
        }
      }
    }
    const auto check = [this, from](const Agreed& agreed) {
      for (size_t r = 0; r < from.size(); ++r) MXREC_RETURN_IF_ERROR(CheckReceived(r, from[r], agreed.received[r], "floats"));
      return OkStatus();
    };
    if (one_piece) {
      float* const place = outputs[0] + (me == 0 ? receive[0][0] * out.dims[0] : 0);
      part.allocate = [check, place](OpKernelContext*, const Agreed& agreed) -> Result<void*> {
        MXREC_RETURN_IF_ERROR(check(agreed));
        return static_cast<void*>(place);
      };
      return part;
    }
    const auto received = std::make_shared<Tensor>();
    part.allocate = [check, received, floats = Sum(from)](OpKernelContext* ctx, const Agreed& agreed) -> Result<void*> {
      MXREC_RETURN_IF_ERROR(check(agreed));
      MXREC_RETURN_IF_ERROR(FromTf(ctx->allocate_temp(tensorflow::DT_FLOAT, TensorShape({floats}), received.get())));
      return received->data();
    };
    part.finish = [received, receive, dims = out.dims, outputs, me](OpKernelContext*, const Agreed&) {
      const float* next = DataSpan<float>(*received).data();
      std::vector<float*> into = outputs;
      for (size_t r = 0; r < receive[0].size(); ++r) {
        for (size_t t = 0; t < dims.size(); ++t) {
          const size_t floats = static_cast<size_t>(receive[t][r] * dims[t]);
          if (r != me) {
            if (floats > 0) std::memcpy(into[t], next, floats * sizeof(float));
            next += floats;
          }
          into[t] += floats;
        }
      }
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
    Outgoing out;
    for (int t = 0; t < lookups(); ++t) {
      const Tensor &rows = ctx->input(t), &inverse = ctx->input(lookups() + t);
      if (rows.dims() != 2 || inverse.dims() != 1) {
        return Wrong("rows and inverse of lookup " + std::to_string(t) + " must have shapes [unique, dim] and [received], found " +
                     ShapeText(rows) + " and " + ShapeText(inverse));
      }
      out.rows.push_back(inverse.dim_size(0));
      out.dims.push_back(rows.dim_size(1));
    }
    out.write = [this, ctx](size_t t, size_t first, size_t count, float* to) {
      const Tensor& rows = ctx->input(static_cast<int>(t));
      const int32_t* const places = DataSpan<int32_t>(ctx->input(lookups() + static_cast<int>(t))).data() + first;
      const size_t done = ExpandRows(DataSpan<float>(rows).data(), static_cast<size_t>(rows.dim_size(0)),
                                     static_cast<size_t>(rows.dim_size(1)), places, count, to);
      if (done == count) return OkStatus();
      return Wrong("inverse[" + std::to_string(first + done) + "] of lookup " + std::to_string(t) + " is " +
                   std::to_string(places[done]) + ", expected 0 <= inverse < " + std::to_string(rows.dim_size(0)));
    };
    return PackFloats(ctx, group, out, /*send_list=*/2, /*receive_list=*/3);
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
    Outgoing out;
    for (int t = 0; t < lookups(); ++t) {
      const Tensor& gradients = ctx->input(t);
      if (gradients.dims() != 2) {
        return Wrong("gradients of lookup " + std::to_string(t) + " must have shape [keys, dim], found " + ShapeText(gradients));
      }
      out.rows.push_back(gradients.dim_size(0));
      out.dims.push_back(gradients.dim_size(1));
    }
    if (lookups() == 1 && !mean_[0]) out.whole = DataSpan<float>(ctx->input(0)).data();
    // Multiplied before they travel: the same product as after it.
    out.write = [this, ctx, share = 1.0f / static_cast<float>(group.size())](size_t t, size_t first, size_t count, float* to) {
      const Tensor& gradients = ctx->input(static_cast<int>(t));
      const size_t dim = static_cast<size_t>(gradients.dim_size(1)), floats = count * dim;
      const float* const from = DataSpan<float>(gradients).data() + first * dim;
      if (mean_[t]) {
        for (size_t i = 0; i < floats; ++i) to[i] = from[i] * share;
      } else if (floats > 0) {
        std::memcpy(to, from, floats * sizeof(float));
      }
      return OkStatus();
    };
    return PackFloats(ctx, group, out, /*send_list=*/1, /*receive_list=*/2);
  }

  std::vector<bool> mean_;
};
REGISTER_KERNEL_BUILDER(Name("MxrecExchangeGradients").Device(tensorflow::DEVICE_CPU), ExchangeGradientsOp);

}  // namespace
}  // namespace mxrec
