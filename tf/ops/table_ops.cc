// The operations of sparse tables, with their shape functions and docs. Kernels: tf/kernels/.
//
// All but MxrecExpand are stateful: TensorFlow must neither fold nor merge them. A table is reached through the scalar resource
// handle that MxrecTable gives out.
#include <string>
#include <utility>
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

// Inputs [first, first + count) are scalars.
TfStatus CheckScalars(InferenceContext* c, int first, int count) {
  ShapeHandle unused;
  for (int i = first; i < first + count; ++i) MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  return TfStatus();
}

TfStatus DimAttr(InferenceContext* c, DimensionHandle* dim) {
  int64_t value = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("dim", &value));
  *dim = c->MakeDim(value);
  return TfStatus();
}

// Only handles in, nothing out.
TfStatus HandleShape(InferenceContext* c) { return CheckScalars(c, 0, 1); }

// Handle in, one scalar out.
TfStatus HandleToScalarShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckScalars(c, 0, 1));
  c->set_output(0, c->Scalar());
  return TfStatus();
}

// Handle and a vector of keys in, one scalar out.
TfStatus KeysToScalarShape(InferenceContext* c) {
  ShapeHandle unused;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
  return HandleToScalarShape(c);
}

// Shapes of the lookup that is the t-th of n in its op: its inputs and outputs lie n apart.
TfStatus OneLookupShape(InferenceContext* c, int n, int t, int64_t dim_value) {
  const DimensionHandle dim = c->MakeDim(dim_value);
  ShapeHandle default_row;
  MXREC_TF_RETURN_IF_ERROR(CheckScalars(c, t, 1));
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(2 * n + t), 1, &default_row));
  const DimensionHandle size = c->Dim(default_row, 0);
  if (c->ValueKnown(size) && c->Value(size) != 0 && c->Value(size) != dim_value) {
    return absl::InvalidArgumentError("default_row has " + std::to_string(c->Value(size)) + " values; expected 0 or " +
                                      std::to_string(dim_value));
  }
  const DimensionHandle unique = c->UnknownDim();
  c->set_output(t, c->Matrix(unique, dim));
  c->set_output(n + t, c->input(n + t));
  for (int vector : {2, 3, 4}) c->set_output(vector * n + t, c->Vector(unique));
  c->set_output(5 * n + t, c->Scalar());
  return TfStatus();
}

TfStatus LookupShape(InferenceContext* c) {
  int64_t dim = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  return OneLookupShape(c, 1, 0, dim);
}

// A list attribute with another number of entries than it stands for is an error.
TfStatus CheckEntries(const char* attribute, size_t found, int64_t expected) {
  if (static_cast<int64_t>(found) == expected) return TfStatus();
  return absl::InvalidArgumentError(std::string("attribute ") + attribute + " has " + std::to_string(found) +
                                    " entries; expected " + std::to_string(expected));
}

TfStatus LookupManyShape(InferenceContext* c) {
  int64_t n = 0;
  std::vector<int64_t> dims;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
  MXREC_TF_RETURN_IF_ERROR(CheckEntries("dims", dims.size(), n));
  MXREC_TF_RETURN_IF_ERROR(CheckEntries("Tids", static_cast<size_t>(c->num_inputs() - 2 * n), n));
  for (int t = 0; t < n; ++t) MXREC_TF_RETURN_IF_ERROR(OneLookupShape(c, static_cast<int>(n), t, dims[t]));
  std::vector<int64_t> expanded_of;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("expanded_of", &expanded_of));
  MXREC_TF_RETURN_IF_ERROR(CheckEntries("expanded_of", expanded_of.size(), c->num_outputs() - 6 * n));
  for (size_t e = 0; e < expanded_of.size(); ++e) {
    const int64_t t = expanded_of[e];
    if (t < 0 || t >= n) return absl::InvalidArgumentError("attribute expanded_of names lookup " + std::to_string(t));
    ShapeHandle shape;
    MXREC_TF_RETURN_IF_ERROR(c->Concatenate(c->input(static_cast<int>(n + t)), c->Vector(dims[t]), &shape));
    c->set_output(static_cast<int>(6 * n + static_cast<int64_t>(e)), shape);
  }
  return TfStatus();
}

TfStatus ExpandShape(InferenceContext* c) {
  ShapeHandle rows;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
  ShapeHandle output;
  MXREC_TF_RETURN_IF_ERROR(c->Concatenate(c->input(1), c->Vector(c->Dim(rows, 1)), &output));
  c->set_output(0, output);
  return TfStatus();
}

// Shapes of an update of `tables` tables: their handles, then hyperparameters, then the lists of parts.
TfStatus PartsShape(InferenceContext* c, int64_t tables) {
  MXREC_TF_RETURN_IF_ERROR(CheckScalars(c, 0, static_cast<int>(tables)));
  int64_t hyper_count = 0, parts = 0;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("H", &hyper_count));
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("P", &parts));
  std::vector<bool> dense, shared;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("dense", &dense));
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("shared", &shared));
  if (static_cast<int64_t>(dense.size()) != parts || static_cast<int64_t>(shared.size()) != parts) {
    return absl::InvalidArgumentError("attributes dense and shared have " + std::to_string(dense.size()) + " and " +
                                      std::to_string(shared.size()) + " entries; expected one per part, " + std::to_string(parts));
  }
  MXREC_TF_RETURN_IF_ERROR(CheckScalars(c, static_cast<int>(tables), static_cast<int>(hyper_count)));
  const auto input = [&](int list, int64_t part) { return c->input(static_cast<int>(tables + hyper_count + list * parts + part)); };
  for (int64_t p = 0; p < parts; ++p) {
    ShapeHandle key, unused, rows, value;
    DimensionHandle unique, dim;
    MXREC_TF_RETURN_IF_ERROR(c->WithRank(input(0, p), 1, &key));
    unique = c->Dim(key, 0);
    for (int list : {1, 2}) {
      ShapeHandle vector;
      MXREC_TF_RETURN_IF_ERROR(c->WithRank(input(list, p), 1, &vector));
      MXREC_TF_RETURN_IF_ERROR(c->Merge(unique, c->Dim(vector, 0), &unique));
    }
    MXREC_TF_RETURN_IF_ERROR(c->WithRank(input(3, p), 0, &unused));
    MXREC_TF_RETURN_IF_ERROR(c->WithRank(input(4, p), 2, &rows));
    MXREC_TF_RETURN_IF_ERROR(c->Merge(unique, c->Dim(rows, 0), &unique));
    MXREC_TF_RETURN_IF_ERROR(c->WithRank(input(5, p), 2, &value));
    MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(rows, 1), c->Dim(value, 1), &dim));
    ShapeHandle index_shape;
    MXREC_TF_RETURN_IF_ERROR(c->WithRank(input(6, p), 1, &index_shape));
    DimensionHandle occurrences;
    ShapeHandle value_rows;
    MXREC_TF_RETURN_IF_ERROR(c->WithRank(input(7, p), 1, &value_rows));
    MXREC_TF_RETURN_IF_ERROR(c->WithRank(input(8, p), 1, &unused));
    if (dense[p]) {
      MXREC_TF_RETURN_IF_ERROR(c->Merge(unique, c->Dim(value, 0), &unique));
    } else if (shared[p]) {
      MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(index_shape, 0), c->Dim(value_rows, 0), &occurrences));
    } else {
      MXREC_TF_RETURN_IF_ERROR(c->Merge(c->Dim(index_shape, 0), c->Dim(value, 0), &occurrences));
    }
  }
  return TfStatus();
}

TfStatus ApplyShape(InferenceContext* c) { return PartsShape(c, 1); }

TfStatus ApplyManyShape(InferenceContext* c) {
  int64_t n = 0;
  std::vector<std::string> optimizers;
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
  MXREC_TF_RETURN_IF_ERROR(c->GetAttr("optimizers", &optimizers));
  MXREC_TF_RETURN_IF_ERROR(CheckEntries("optimizers", optimizers.size(), n));
  for (const auto& [attribute, total] : {std::pair{"hyper_counts", "H"}, {"part_counts", "P"}}) {
    std::vector<int64_t> counts;
    int64_t expected = 0, sum = 0;
    MXREC_TF_RETURN_IF_ERROR(c->GetAttr(attribute, &counts));
    MXREC_TF_RETURN_IF_ERROR(c->GetAttr(total, &expected));
    MXREC_TF_RETURN_IF_ERROR(CheckEntries(attribute, counts.size(), n));
    for (int64_t count : counts) sum += count;
    if (sum != expected) {
      return absl::InvalidArgumentError(std::string("attribute ") + attribute + " adds up to " + std::to_string(sum) +
                                        "; expected " + total + ", " + std::to_string(expected));
    }
  }
  return PartsShape(c, n);
}

TfStatus FindShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckScalars(c, 0, 1));
  ShapeHandle keys;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &keys));
  DimensionHandle dim;
  MXREC_TF_RETURN_IF_ERROR(DimAttr(c, &dim));
  c->set_output(0, c->Matrix(c->Dim(keys, 0), dim));
  c->set_output(1, keys);
  return TfStatus();
}

TfStatus ExportShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckScalars(c, 0, 1));
  DimensionHandle dim;
  MXREC_TF_RETURN_IF_ERROR(DimAttr(c, &dim));
  const DimensionHandle rows = c->UnknownDim();
  c->set_output(0, c->Vector(rows));
  c->set_output(1, c->Matrix(rows, dim));
  return TfStatus();
}

TfStatus InsertShape(InferenceContext* c) {
  ShapeHandle unused;
  MXREC_TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &unused));
  return KeysToScalarShape(c);
}

// All inputs are scalars, so is the one output.
TfStatus ScalarsToScalarShape(InferenceContext* c) {
  MXREC_TF_RETURN_IF_ERROR(CheckScalars(c, 0, c->num_inputs()));
  c->set_output(0, c->Scalar());
  return TfStatus();
}

TfStatus ScalarsShape(InferenceContext* c) { return CheckScalars(c, 0, c->num_inputs()); }

REGISTER_OP("MxrecTable")
    .Output("handle: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr("config: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Gives the handle of a sparse table, creating the table empty when the session has none of this name.

Fails with FailedPrecondition, naming table and field, when the session has one of another config.

container: Container of the resource; empty means the default one.
shared_name: Name of the resource in its container; empty means the name of the node. Handle ops of the same name share the table.
config: The table's settings as a JSON object (see mxrec/engine/embedding_table.h).
handle: Scalar handle of the table.
)doc");

REGISTER_OP("MxrecTableReset").Input("handle: resource").SetIsStateful().SetShapeFn(HandleShape).Doc(R"doc(
Empties the table: rows, slots, counts, optimizer and its step.

handle: The table.
)doc");

REGISTER_OP("MxrecLookup")
    .Input("handle: resource")
    .Input("ids: Tids")
    .Input("default_row: float")
    .Output("rows: float")
    .Output("inverse: int32")
    .Output("handles: int32")
    .Output("keys: int64")
    .Output("counts: int32")
    .Output("generation: int64")
    .Attr("Tids: {int64, int32, uint64}")
    .Attr("dim: int >= 1")
    .Attr("training: bool = true")
    .Attr("never_trained: list(int) = []")
    .Attr("static_ids: int = -1")
    .SetIsStateful()
    .SetShapeFn(LookupShape)
    .Doc(R"doc(
Reads the rows of the distinct ids. Never changes the table.

An unseen id is answered with its first row, which MxrecApply stores if the id is trained; an id below the table's admission
threshold, and with training = false any unseen id, is answered with default_row. The distinct ids come in an order that
does not depend on threads. MxrecExpand puts the rows back in the places of the ids.

handle: The table.
ids: Ids of any shape, empty allowed. int32 is sign-extended, uint64 taken by its bits; every value is an ordinary id.
default_row: [dim] values for ids without a row of their own, or [0] for zeros.
rows: [U, dim], the rows of the U distinct ids.
inverse: The shape of ids; inverse[i] is the place of ids[i] in keys and rows.
handles: [U], where each row is stored (for MxrecApply).
keys: [U], the distinct ids.
counts: [U], how often each occurs in ids.
generation: Tells MxrecApply whether the handles still hold.
Tids: Type of the ids.
dim: Values in a row; must be the table's.
training: Whether unseen ids are answered with their first row.
never_trained: Ids that are read only: unseen they are answered with default_row, and MxrecApply leaves them out.
static_ids: How many ids there are, if that is known before the graph runs; else -1. A hint: tells whether it pays to fuse the
  lookup with others (tf/graph/fuse_pass.h); nothing fails when it is wrong.
)doc");

REGISTER_OP("MxrecLookupMany")
    .Input("tables: N * resource")
    .Input("ids: Tids")
    .Input("default_rows: N * float")
    .Output("rows: N * float")
    .Output("inverse: N * int32")
    .Output("handles: N * int32")
    .Output("keys: N * int64")
    .Output("counts: N * int32")
    .Output("generations: N * int64")
    .Output("expanded: E * float")
    .Attr("N: int >= 1")
    .Attr("E: int >= 0 = 0")
    .Attr("Tids: list({int64, int32, uint64}) >= 1")
    .Attr("dims: list(int)")
    .Attr("training: list(bool)")
    .Attr("never_trained: list(int) = []")
    .Attr("never_trained_counts: list(int)")
    .Attr("expanded_of: list(int) = []")
    .Attr("side_by_side: bool = true")
    .Attr("names: list(string)")
    .SetIsStateful()
    .SetShapeFn(LookupManyShape)
    .Doc(R"doc(
Several MxrecLookup in one op, and the MxrecExpand behind them: what a graph pass makes of lookups of a run.

tables: The tables, one for each lookup; a table may come several times.
ids: Ids of each lookup.
default_rows: Each as in MxrecLookup.
rows: Each as in MxrecLookup, as all outputs.
inverse: The shape of the ids.
handles: [U].
keys: [U].
counts: [U].
generations: Scalars.
expanded: Of some lookups, the row of each id: shape of the ids + [dim].
N: Number of lookups.
E: Number of lookups whose rows are expanded.
Tids: Types of the ids.
dims: Of each lookup, the values in a row.
training: Of each lookup, whether unseen ids are answered with their first row.
never_trained: The ids that are read only, one lookup's after the other's.
never_trained_counts: How many of them are of each lookup.
expanded_of: Which lookups are expanded, in the order of the outputs.
side_by_side: Whether the tables are read in parallel, or one after the other.
names: Of each lookup, the node that it stands for; errors name it.
)doc");

REGISTER_OP("MxrecExpand").Input("rows: float").Input("inverse: int32").Output("output: float").SetShapeFn(ExpandShape).Doc(R"doc(
Copies rows to the places of the ids: output[..., :] = rows[inverse[...], :].

rows: [U, dim].
inverse: Any shape S, each value in [0, U); others are InvalidArgument.
output: S + [dim].
)doc");

REGISTER_OP("MxrecApply")
    .Input("handle: resource")
    .Input("hyper: H * float")
    .Input("keys: P * int64")
    .Input("handles: P * int32")
    .Input("counts: P * int32")
    .Input("generations: P * int64")
    .Input("first_rows: P * float")
    .Input("values: P * float")
    .Input("index: P * int32")
    .Input("value_rows: P * int32")
    .Input("scales: P * float")
    .Attr("H: int >= 0")
    .Attr("P: int >= 0")
    .Attr("optimizer: string")
    .Attr("option_names: list(string) = []")
    .Attr("option_values: list(float) = []")
    .Attr("dense: list(bool)")
    .Attr("shared: list(bool)")
    .SetIsStateful()
    .SetShapeFn(ApplyShape)
    .Doc(R"doc(
One training step of one table: all gradients of the step's lookups (parts) at once.

New ids are inserted, uses counted, gradients of the same id summed over occurrences and parts in order, and each row
updated once. The optimizer's step advances by one, also when there are no ids. All or nothing: on an error the table is as
before. The result does not depend on threads.

handle: The table.
hyper: Scalars, the hyperparameters in the order of the optimizer.
keys: Per part: [U], as MxrecLookup gave them.
handles: Per part: [U], as MxrecLookup gave them.
counts: Per part: [U], as MxrecLookup gave them.
generations: Per part: scalar, as MxrecLookup gave it.
first_rows: Per part: [U, dim], the rows that MxrecLookup gave.
values: Per part: the gradient, [n, dim] per occurrence, or [U, dim] where dense, or [B, dim] where shared.
index: Per part: [n], occurrence j belongs to keys[index[j]]; [0] where dense.
value_rows: Per part: [n] where shared: occurrence j takes values[value_rows[j]]; else [0].
scales: Per part: [n] where shared: what occurrence j multiplies its values with; or [0] for 1.
H: Number of hyperparameters.
P: Number of parts.
optimizer: Kind: one that mxrec/optim registers, e.g. adagrad.
option_names: Names of options of the kind, e.g. initial_accumulator_value.
option_values: Their values.
dense: Per part, whether values has a row for each key.
shared: Per part, whether several occurrences take one row of values, as the ids of a bag do. Not with dense.
)doc");

REGISTER_OP("MxrecApplyMany")
    .Input("tables: N * resource")
    .Input("hyper: H * float")
    .Input("keys: P * int64")
    .Input("handles: P * int32")
    .Input("counts: P * int32")
    .Input("generations: P * int64")
    .Input("first_rows: P * float")
    .Input("values: P * float")
    .Input("index: P * int32")
    .Input("value_rows: P * int32")
    .Input("scales: P * float")
    .Attr("N: int >= 1")
    .Attr("H: int >= 0")
    .Attr("P: int >= 0")
    .Attr("optimizers: list(string)")
    .Attr("option_names: list(string) = []")
    .Attr("option_values: list(float) = []")
    .Attr("option_counts: list(int)")
    .Attr("hyper_counts: list(int)")
    .Attr("part_counts: list(int)")
    .Attr("dense: list(bool)")
    .Attr("shared: list(bool)")
    .Attr("side_by_side: bool = true")
    .Attr("names: list(string)")
    .SetIsStateful()
    .SetShapeFn(ApplyManyShape)
    .Doc(R"doc(
Several MxrecApply in one op, each with its own optimizer: what a graph pass makes of updates of a run. All or
nothing for each table: an error in one leaves that one as before, and the others are updated.

tables: The tables, each once.
hyper: Hyperparameters, one table's after the other's.
keys: Per part as in MxrecApply, as all that follow; one table's parts after the other's.
handles: Per part: [U].
counts: Per part: [U].
generations: Per part: scalar.
first_rows: Per part: [U, dim].
values: Per part: the gradient.
index: Per part: [n] or [0].
value_rows: Per part: [n] or [0].
scales: Per part: [n] or [0].
N: Number of tables.
H: Number of hyperparameters of all tables.
P: Number of parts of all tables.
optimizers: Kind of each table's optimizer.
option_names: Names of options, one table's after the other's.
option_values: Their values.
option_counts: How many of them are of each table.
hyper_counts: How many hyperparameters are of each table.
part_counts: How many parts are of each table.
dense: As in MxrecApply.
shared: As in MxrecApply.
side_by_side: Whether the tables are updated in parallel, or one after the other.
names: Of each table, the node that its update stands for; errors name it.
)doc");

REGISTER_OP("MxrecTableSize")
    .Input("handle: resource")
    .Output("size: int64")
    .SetIsStateful()
    .SetShapeFn(HandleToScalarShape)
    .Doc(R"doc(
Number of rows of the table.

handle: The table.
size: Scalar.
)doc");

REGISTER_OP("MxrecTableStats")
    .Input("handle: resource")
    .Output("json: string")
    .SetIsStateful()
    .SetShapeFn(HandleToScalarShape)
    .Doc(R"doc(
Figures about the table: rows, candidates, bytes, load, probe lengths, inserts, hits, misses, evictions, optimizer.

handle: The table.
json: Scalar, a JSON object.
)doc");

REGISTER_OP("MxrecTableFind")
    .Input("handle: resource")
    .Input("keys: int64")
    .Output("values: float")
    .Output("found: bool")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn(FindShape)
    .Doc(R"doc(
Reads rows by key, for tools. Changes nothing.

handle: The table.
keys: [n], duplicates allowed.
values: [n, dim]; a key without a row gives its first row.
found: [n], whether the key has a row.
dim: Values in a row; must be the table's.
)doc");

REGISTER_OP("MxrecTableExport")
    .Input("handle: resource")
    .Output("keys: int64")
    .Output("values: float")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn(ExportShape)
    .Doc(R"doc(
All rows of the table as of one moment, in an order that depends only on the contents.

handle: The table.
keys: [n].
values: [n, dim].
dim: Values in a row; must be the table's.
)doc");

REGISTER_OP("MxrecTableInsert")
    .Input("handle: resource")
    .Input("keys: int64")
    .Input("values: float")
    .Output("inserted: int64")
    .SetIsStateful()
    .SetShapeFn(InsertShape)
    .Doc(R"doc(
Inserts keys that are absent and overwrites the values of those that are present. All or nothing.

handle: The table.
keys: [n]; of duplicates the last one wins.
values: [n, dim]; [0, dim] gives new keys their first rows and leaves present ones alone.
inserted: Scalar, how many keys are new.
)doc");

REGISTER_OP("MxrecTableErase")
    .Input("handle: resource")
    .Input("keys: int64")
    .Output("erased: int64")
    .SetIsStateful()
    .SetShapeFn(KeysToScalarShape)
    .Doc(R"doc(
Erases rows; absent keys are ignored.

handle: The table.
keys: [n].
erased: Scalar, how many rows went.
)doc");

REGISTER_OP("MxrecTableEvict")
    .Input("handle: resource")
    .Output("evicted: int64")
    .SetIsStateful()
    .SetShapeFn(HandleToScalarShape)
    .Doc(R"doc(
Erases rows that were not trained for more than the table's max_cold_secs.

handle: The table.
evicted: Scalar, how many rows went.
)doc");

REGISTER_OP("MxrecSave")
    .Input("handles: N * resource")
    .Input("directory: string")
    .Input("step: int64")
    .Input("keep: int64")
    .Output("bytes: int64")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn(ScalarsToScalarShape)
    .Doc(R"doc(
Saves tables as one checkpoint, after erasing their cold rows. A save that fails, is cancelled or killed publishes nothing.

handles: The tables, each once.
directory: Scalar, the folder of checkpoints; made when missing.
step: Scalar >= 0.
keep: Scalar, newest checkpoints to keep; 0 keeps all.
bytes: Scalar, bytes of the table files written.
N: Number of tables.
)doc");

REGISTER_OP("MxrecLoad")
    .Input("handles: N * resource")
    .Input("directory: string")
    .Input("step: int64")
    .Output("report: string")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn(ScalarsToScalarShape)
    .Doc(R"doc(
Loads tables from a checkpoint of MxrecSave. Every file is verified before a filled table is touched.

handles: The tables, each once.
directory: Scalar, the folder of checkpoints.
step: Scalar, the step to load; -1 means the latest.
report: Scalar, a JSON object: the step, and per table its name, rows, candidates, whether its optimizer slots are fresh, whether
  its seed is another than the file's, and the file's optimizer.
N: Number of tables.
)doc");

REGISTER_OP("MxrecSaverSave")
    .Input("handle: resource")
    .Input("prefix: string")
    .Output("marker: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarsToScalarShape)
    .Doc(R"doc(
Writes a table beside a checkpoint of tf.train.Saver, after erasing its cold rows.

The file is <prefix>.data-<tag>-of-mxrec, the tag being five characters made from its contents. A missing folder is made.

handle: The table.
prefix: Scalar, the checkpoint's prefix.
marker: Scalar, the content tag: what the saver stores, and what MxrecSaverRestore finds the file by.
)doc");

REGISTER_OP("MxrecSaverRestore")
    .Input("handle: resource")
    .Input("prefix: string")
    .Input("marker: int64")
    .Attr("rows_only: bool = false")
    .SetIsStateful()
    .SetShapeFn(ScalarsShape)
    .Doc(R"doc(
Loads a table from the file that MxrecSaverSave wrote beside a checkpoint. NotFound or DataLoss names the file.

handle: The table.
prefix: Scalar, the checkpoint's prefix.
marker: Scalar, the content tag that the saver stored.
rows_only: Whether optimizer slots and step are left out, so that the table starts with fresh ones.
)doc");

}  // namespace
}  // namespace mxrec
