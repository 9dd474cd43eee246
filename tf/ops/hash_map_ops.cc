// The embedding hash-table operations of the original under their names, on tables of the engine; dense numbers for sparse ids, the
// places of sharded rows, and a cache of ids. Kernels: tf/kernels/hash_map_kernels.cc, id_kernels.cc.
#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

TfStatus NothingShape(InferenceContext*) { return TfStatus(); }

TfStatus SameShape(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
  return TfStatus();
}

TfStatus LookupShape(InferenceContext* c) {
  int64_t dim = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("embedding_dim", &dim));
  ShapeHandle output;
  MXREC_TF_RETURN_IF_ERROR(c->Concatenate(c->input(1), c->Vector(dim), &output));
  c->set_output(0, output);
  return TfStatus();
}

TfStatus ExportShape(InferenceContext* c) {
  std::vector<int32_t> dims;
  int64_t n = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("embedding_dims", &dims));
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("num", &n));
  if (static_cast<int64_t>(dims.size()) != n) {
    return absl::InvalidArgumentError("embedding_dims has " + std::to_string(dims.size()) + " entries, expected one for each of " +
                                      std::to_string(n) + " tables");
  }
  for (int i = 0; i < n; ++i) {
    const DimensionHandle rows = c->UnknownDim();
    for (int part = 0; part < 3; ++part) c->set_output(static_cast<int>(part * n) + i, c->Vector(rows));
    c->set_output(static_cast<int>(3 * n) + i, c->Matrix(rows, dims[i]));
  }
  return TfStatus();
}

TfStatus ApplyShape(InferenceContext* c) {
  for (int i = 0; i < 4; ++i) c->set_output(i, c->input(2 + i));
  return TfStatus();
}

TfStatus VectorsShape(InferenceContext* c) {
  const DimensionHandle in = c->UnknownDim(), out = c->UnknownDim();
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(i < 2 ? in : out));
  return TfStatus();
}

TfStatus RankIdShape(InferenceContext* c) {
  ShapeHandle table, index;
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->input(0), c->Matrix(c->UnknownDim(), 3), &table));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &index));
  c->set_output(0, c->Matrix(c->Dim(index, 0), 3));
  return TfStatus();
}

TfStatus LocalIndexShape(InferenceContext* c) {
  ShapeHandle table, index;
  MXREC_TF_RETURN_IF_ERROR(c->Merge(c->input(0), c->Matrix(c->UnknownDim(), 3), &table));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &index));
  c->set_output(0, index);
  c->set_output(1, c->Vector(c->Dim(table, 0)));
  c->set_output(2, index);
  return TfStatus();
}

REGISTER_OP("InitEmbeddingHashmapV2")
    .Input("table_id: Tid")
    .Output("table_handle: int64")
    .Attr("bucket_size: int >= 1")
    .Attr("embedding_dim: int >= 1")
    .Attr("Tid: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(SameShape)
    .Doc(R"doc(
Makes the table of that number in the session, unless it is there with the same sizes.

table_id: Scalar.
table_handle: Scalar, what the other ops take.
bucket_size: Most rows; more are ResourceExhausted.
embedding_dim: Values in a row.
Tid: Type of the number.
)doc");

REGISTER_OP("DeinitEmbeddingHashmapV2")
    .Input("table_id: Tid")
    .Attr("Tid: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(NothingShape)
    .Doc(
        R"doc(
Deletes the table of that number from the session; none there is fine.

table_id: Scalar.
Tid: Type of the number.
)doc");

REGISTER_OP("TableToResourceV2")
    .Input("table_id: Tid")
    .Output("table_handle: int64")
    .Attr("Tid: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(SameShape)
    .Doc(R"doc(
The handle of a table that was made. FailedPrecondition when it was not.

table_id: Scalar.
table_handle: Scalar.
Tid: Type of the number.
)doc");

REGISTER_OP("InitEmbeddingHashTable")
    .Input("table_handle: int64")
    .Input("sampled_values: float")
    .Attr("bucket_size: int >= 1")
    .Attr("embedding_dim: int >= 1")
    .Attr("initializer_mode: {'random', 'constant'} = 'random'")
    .Attr("constant_value: float = 0.0")
    .SetIsStateful()
    .SetShapeFn(NothingShape)
    .Doc(R"doc(
Empties a table and sets what new rows begin with.

table_handle: One element.
sampled_values: [rows, embedding_dim], rows >= 1 under 'random'; ignored under 'constant'.
bucket_size: The table's.
embedding_dim: The table's.
initializer_mode: 'random': a new key takes a row of sampled_values by its hash, one that no other key took while there are such;
  'constant': constant_value everywhere.
constant_value: See there.
)doc");

REGISTER_OP("EmbeddingHashTableLookupOrInsert")
    .Input("table_handle: int64")
    .Input("keys: int64")
    .Output("values: float")
    .Attr("bucket_size: int >= 1")
    .Attr("embedding_dim: int >= 1")
    .Attr("filter_mode: {'no_filter', 'counter'} = 'no_filter'")
    .Attr("filter_freq: int >= 0 = 1")
    .Attr("default_key_or_value: bool = false")
    .Attr("default_key: int = 0")
    .Attr("default_value: float = 0.0")
    .Attr("filter_key_flag: bool = false")
    .Attr("filter_key: int = -1")
    .SetIsStateful()
    .SetShapeFn(LookupShape)
    .Doc(R"doc(
Rows of keys; absent keys are inserted and every occurrence is counted, also in evaluation. All or nothing.

table_handle: One element.
keys: Any shape S.
values: S + [embedding_dim].
bucket_size: The table's.
embedding_dim: The table's.
filter_mode: 'counter': a key owns a row once it occurred filter_freq times, this lookup's occurrences included; till then it is
  answered with the default. All lookups of a filled table must agree.
filter_freq: See there.
default_key_or_value: Whether the default is the row of default_key (if it has one), else default_value everywhere.
default_key: See there.
default_value: See there.
filter_key_flag: Whether filter_key is neither inserted nor counted; absent it is answered with the default.
filter_key: See there.
)doc");

REGISTER_OP("EmbeddingHashTableApplyAdamW")
    .Input("table_handle: int64")
    .Input("keys: int64")
    .Input("m: float")
    .Input("v: float")
    .Input("beta1_power: float")
    .Input("beta2_power: float")
    .Input("lr: float")
    .Input("weight_decay: float")
    .Input("beta1: float")
    .Input("beta2: float")
    .Input("epsilon: float")
    .Input("grad: float")
    .Input("max_grad_norm: num_max * float")
    .Output("m_out: float")
    .Output("v_out: float")
    .Output("beta1_power_out: float")
    .Output("beta2_power_out: float")
    .Attr("embedding_dim: int >= 1")
    .Attr("bucket_size: int >= 1")
    .Attr("num_max: int >= 0 = 0")
    .Attr("amsgrad: bool = false")
    .Attr("maximize: bool = false")
    .SetIsStateful()
    .SetShapeFn(ApplyShape)
    .Doc(R"doc(
One AdamW step on the rows of keys (docs/numerics.md). Keys without a row and the key -1 are skipped; gradients of a key that comes
several times are summed in order. The moments are kept in the table, beside their rows.

table_handle: One element.
keys: [n].
m: Its first element is what first moments of rows begin with; the others must equal it.
v: The same for second moments.
beta1_power: One element; multiplied by beta1 before use.
beta2_power: One element; multiplied by beta2 before use.
lr: One element.
weight_decay: One element.
beta1: One element.
beta2: One element.
epsilon: One element.
grad: [n, embedding_dim].
max_grad_norm: At most one tensor, used with amsgrad: as m, for the largest second moment so far; none: 0.
m_out: m as it came.
v_out: v as it came.
beta1_power_out: The power for the next step.
beta2_power_out: The power for the next step.
embedding_dim: The table's.
bucket_size: The table's.
num_max: How many max_grad_norm there are.
amsgrad: Whether to divide by the largest second moment so far.
maximize: Whether the gradient is taken negative.
)doc");

REGISTER_OP("EmbeddingHashTableExport")
    .Input("table_handles: num * int64")
    .Output("keys: num * int64")
    .Output("counters: num * uint64")
    .Output("filter_flags: num * uint8")
    .Output("values: num * float")
    .Attr("num: int >= 1")
    .Attr("embedding_dims: list(int) >= 1")
    .Attr("filtered_export_flag: bool = false")
    .SetIsStateful()
    .SetShapeFn(ExportShape)
    .Doc(R"doc(
What tables hold, each as of one moment and in an order that depends only on the contents.

table_handles: One element each.
keys: [n].
counters: [n], how often each key occurred in lookups.
filter_flags: [n], 1 for a key with a row; 0 for one that is counted but did not pass the filter yet.
values: [n, embedding_dim]; zeros where the flag is 0.
num: Number of tables.
embedding_dims: Of each table.
filtered_export_flag: Whether keys that did not pass the filter are left out.
)doc");

REGISTER_OP("EmbeddingHashTableImport")
    .Input("table_handles: num * int64")
    .Input("keys: num * int64")
    .Input("counters: num * uint64")
    .Input("filter_flags: num * uint8")
    .Input("values: num * float")
    .Attr("num: int >= 1")
    .SetIsStateful()
    .SetShapeFn(NothingShape)
    .Doc(R"doc(
Replaces the contents of tables by what EmbeddingHashTableExport gave. Moments begin anew.

table_handles: One element each.
keys: [n], distinct.
counters: [n].
filter_flags: [n].
values: [n, embedding_dim], or as many values in one dimension.
num: Number of tables.
)doc");

REGISTER_OP("EmbeddingHashmapSize")
    .Input("table_ids: Tid")
    .Output("size: int64")
    .Attr("filter_export_flag: bool = false")
    .Attr("Tid: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(SameShape)
    .Doc(R"doc(
How many keys tables hold.

table_ids: Any shape.
size: The same shape.
filter_export_flag: Whether keys that did not pass the filter are left out.
Tid: Type of the numbers.
)doc");

REGISTER_OP("HostFeatureMapping")
    .Input("feature_id: int64")
    .Output("offset_id: int32")
    .Attr("threshold: int >= 1 = 1")
    .Attr("table_name: string = 'default_table_name'")
    .SetIsStateful()
    .SetShapeFn(SameShape)
    .Doc(R"doc(
Dense numbers 0, 1, 2, ... for ids, in the order in which they are first given one. A mapping belongs to the session.

feature_id: Any shape.
offset_id: The same shape; -1 for ids that did not occur `threshold` times yet, this call's occurrences included.
threshold: All uses of one mapping must agree.
table_name: Which mapping.
)doc");

REGISTER_OP("EmbeddingRankId")
    .Input("addr_table: uint64")
    .Input("index: T")
    .Output("rank_id: uint64")
    .Attr("T: {int32, int64, uint64}")
    .Attr("row_memory: int >= 1 = 320")
    .Attr("mode: {'mod', 'order'} = 'mod'")
    .SetShapeFn(RankIdShape)
    .Doc(R"doc(
Where the rows of a sharded table lie: shard, address and bytes of each.

addr_table: [shards, 3]: rank, first address, bytes of each shard.
index: [n], row numbers of the whole table.
rank_id: [n, 3]: rank, address of the row, row_memory.
T: Type of the index.
row_memory: Bytes of a row.
mode: 'mod': row i is row i / shards of shard i mod shards; 'order': the shards follow each other, as many rows in each as fit.
)doc");

REGISTER_OP("EmbeddingLocalIndex")
    .Input("addr_table: uint64")
    .Input("index: T")
    .Output("local_idx: T")
    .Output("nums: T")
    .Output("recover_idx: T")
    .Attr("T: {int32, int64, uint64}")
    .Attr("row_memory: int >= 1 = 320")
    .Attr("mode: {'mod', 'order'} = 'mod'")
    .SetShapeFn(LocalIndexShape)
    .Doc(R"doc(
Row numbers within their shards, grouped by shard.

addr_table: [shards, 3], as in EmbeddingRankId.
index: [n], row numbers of the whole table.
local_idx: [n], the rows of the first shard, then of the second, and so on, in each in the order of index.
nums: [shards], how many there are of each.
recover_idx: [n]: index[recover_idx[j]] went to place j of local_idx.
T: Type of the index.
row_memory: Bytes of a row.
mode: As in EmbeddingRankId.
)doc");

REGISTER_OP("LruCache")
    .Output("cache: resource")
    .Attr("cache_size: int >= 1 = 100000")
    .Attr("load_factor: float = 1.0")
    .Attr("dtype: {int32, uint32, int64, uint64}")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return TfStatus();
    })
    .Doc(R"doc(
The handle of a cache of ids, made when it is first asked for.

cache: Scalar.
cache_size: Places, times load_factor.
load_factor: Above 0, at most 1.
dtype: Type of the ids.
container: As for all resources.
shared_name: As for all resources.
)doc");

REGISTER_OP("CacheAdd")
    .Input("cache: resource")
    .Input("ids: T")
    .Output("swap_in_id: T")
    .Output("swap_in_idx: T")
    .Output("swap_out_id: T")
    .Output("swap_out_idx: T")
    .Attr("T: {int32, uint32, int64, uint64}")
    .SetIsStateful()
    .SetShapeFn(VectorsShape)
    .Doc(R"doc(
Makes ids present in a cache; those not used for the longest time give way. More distinct ids than places are ResourceExhausted.

cache: The cache.
ids: Any shape.
swap_in_id: [a], ids that came in.
swap_in_idx: [a], the places they got.
swap_out_id: [b], ids that gave way.
swap_out_idx: [b], the places they had.
T: Type of the ids.
)doc");

REGISTER_OP("CacheRemoteIndexToLocal")
    .Input("cache: resource")
    .Input("ids: T")
    .Output("local_idx: T")
    .Attr("T: {int32, uint32, int64, uint64}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      return TfStatus();
    })
    .Doc(R"doc(
The places of ids in a cache; an absent one is NotFound.

cache: The cache.
ids: Any shape.
local_idx: The same shape.
T: Type of the ids.
)doc");

REGISTER_OP("CacheAllIndexToLocal")
    .Input("cache: resource")
    .Output("local_idx: dtype")
    .Attr("dtype: {int32, uint32, int64, uint64}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return TfStatus();
    })
    .Doc(R"doc(
All ids of a cache, by place.

cache: The cache.
local_idx: [ids], the id at place 0, 1, ...
dtype: Type of the ids.
)doc");

}  // namespace
}  // namespace mxrec
