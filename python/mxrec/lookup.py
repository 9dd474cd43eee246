"""Looking ids up, and the gradient of that."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from mxrec import _graph, _hot_keys, _loader, _pooling, _sharded, _validate
from mxrec import table as table_lib

for _op in (
  "MxrecTable",
  "MxrecTableReset",
  "MxrecLookup",
  "MxrecLookupMany",
  "MxrecApply",
  "MxrecApplyMany",
  "MxrecTableSize",
  "MxrecTableStats",
  "MxrecTableFind",
  "MxrecTableExport",
  "MxrecTableInsert",
  "MxrecTableErase",
  "MxrecTableEvict",
  "MxrecSave",
  "MxrecLoad",
  "MxrecSaverSave",
  "MxrecSaverRestore",
):
  tf_ops.NotDifferentiable(_op)


@tf_ops.RegisterGradient("MxrecExpand")
def _expand_gradient(op: tf.Operation, gradient: Any) -> list[Any]:
  """IndexedSlices over the looked-up rows: nothing is summed before the apply op, which sums and updates in one go."""
  rows, inverse = op.inputs
  values = tf.reshape(tf.convert_to_tensor(gradient), tf.stack([tf.size(inverse), rows.shape[-1]]))
  return [tf.IndexedSlices(values, tf.reshape(inverse, [-1]), tf.shape(rows)), None]


def _default_row(table: table_lib.EmbeddingTable, default: Any) -> tf.Tensor:
  """[0] for zeros, else [dimension]."""
  if default is None:
    return tf.zeros([0], tf.float32)
  row = tf.cast(tf.convert_to_tensor(_validate.default_row(table.name, table.dimension, default)), tf.float32)
  return tf.fill([table.dimension], row) if row.shape.rank == 0 else row


def _static_size(ids: tf.Tensor) -> int:
  """How many ids a tensor holds if its shape says so, else -1."""
  size = ids.shape.num_elements()
  return -1 if size is None else size


def _check_sharded_place(table: table_lib.EmbeddingTable, graph: tf.Graph) -> None:
  """ValueError where not every rank is sure to run the lookup: the others would wait for it."""
  place = None
  if _graph.root(graph) is not graph:
    place = "a function (tf.function, dataset.map, ...)"
  elif graph._get_control_flow_context() is not None:
    place = "tf.cond or tf.while_loop"
  if place is not None:
    raise ValueError(
      f"a lookup of table '{table.name}', whose rows are spread over the ranks, cannot stand inside {place}: every rank must run "
      'it when one does. Look the ids up outside, or make the table with distribution_strategy="DP"'
    )


def _check_pooling(table: str, ids: Any, weights: Any, combiner: str | None) -> str | None:
  """The combiner that holds for these ids (None: every id gets its own row); ValueError where an argument does not go with them."""
  if combiner is not None and combiner not in _pooling.COMBINERS:
    raise ValueError(
      f"combiner of a lookup in table '{table}' must be one of {', '.join(_pooling.COMBINERS)}: got {_validate.found(combiner)}"
    )
  if _pooling.is_sparse(ids):
    return combiner or "mean"
  if _pooling.is_ragged(ids):
    if combiner is None and weights is not None:
      raise ValueError(f"weights of a lookup in table '{table}' need a combiner: without one every id keeps its own row")
    return combiner
  for label, value in (("combiner", combiner), ("weights", weights)):
    if value is not None:
      raise ValueError(
        f"{label} of a lookup in table '{table}' is for ids in a SparseTensor or a RaggedTensor; these are dense: every id gets "
        "its own row, which tf.reduce_sum or tf.reduce_mean can pool"
      )
  return None


def embedding_lookup(
  table: table_lib.EmbeddingTable,
  ids: Any,
  *,
  weights: Any = None,
  combiner: str | None = None,
  max_norm: float | None = None,
  training: bool = True,
  default: Any = None,
  padding_id: Any = None,
  name: str | None = None,
) -> Any:
  """Looks ids up. Never changes the table: rows are inserted, counted and time-stamped when their gradients are applied.

  Args:
    table: from `get_embedding_table`.
    ids: int64, int32 (by value) or uint64 (by bit pattern); empty allowed. A dense tensor of any shape S, a tf.SparseTensor of rank
      2 or more, or a tf.RaggedTensor.
    weights: how much each id counts in its pooled row: like the ids in structure (SparseTensor, RaggedTensor), or dense with one
      value for each of the ids' values, of a floating type. Gradients flow to them. None: 1 each.
    combiner: "sum", "mean" (divided by the sum of weights) or "sqrtn" (by the root of the sum of squared weights): the rows of the
      last dimension's ids become one. SparseTensor: None means mean. RaggedTensor: None means that nothing is pooled. Rows without
      ids are zeros, and so are those whose divisor is zero.
    max_norm: rows with a larger Euclidean norm are scaled to this before they are pooled (number > 0).
    training: True: an unseen id is answered with its first row, or with `default` below the admission threshold, and gradients
      flow to the row. False: an unseen id is answered with `default`, and no gradient flows to rows.
    default: the row for ids that have none of their own: a number or [dimension]; None: zeros.
    padding_id: an id or a few that fill batches up: looked up, but neither inserted, counted nor trained by this lookup; unseen
      they are answered with `default`.
    name: name scope of the ops.

  Returns:
    float32. Dense ids: S + [dimension]. SparseTensor: its dense shape without the last dimension + [dimension], also where rows at
    the end have no ids. RaggedTensor: a RaggedTensor with a row for each id, or with a combiner a row for each row of the innermost
    ragged dimension (dense if that was the only one).

  Raises:
    ValueError: not a table, a table or ids of another graph, ids that are not integers, arguments that do not go with the ids'
      kind, weights of another structure, max_norm or combiner out of range; another argument is wrong.
  """
  if not isinstance(table, table_lib.EmbeddingTable):
    raise ValueError(f"Invalid parameter type: table is {_validate.found(table)}, expected a table of get_embedding_table")
  _validate.boolean("training", training)
  max_norm = _validate.max_norm(table.name, max_norm)
  padding = _validate.padding_ids(table.name, padding_id)
  _validate.scope_name("name", name)
  graph = tf.compat.v1.get_default_graph()
  if _graph.root(graph) is not table.graph:
    raise ValueError(f"table '{table.name}' belongs to another graph than the lookup; make it again after tf.reset_default_graph")
  if isinstance(ids, tf.Tensor) and _graph.root(getattr(ids, "graph", graph)) is not table.graph:
    raise ValueError(f"ids of table '{table.name}' must be a tensor of the table's graph: got {ids.name} of another graph")
  with tf.compat.v1.name_scope(name, f"lookup_{table.name}"):
    ids = _validate.ids(table.name, ids)
    combiner = _check_pooling(table.name, ids, weights, combiner)
    bags, flat = None, ids
    if combiner is not None:
      make = _pooling.sparse_bags if _pooling.is_sparse(ids) else _pooling.ragged_bags
      bags = make(table.name, ids, weights, table.dimension)
      flat = bags.ids
    elif _pooling.is_ragged(ids):
      flat = ids.flat_values
    if table.distribution == "MP":
      _check_sharded_place(table, graph)
      way = _hot_keys if "hot_keys" in table.config else _sharded
      rows, inverse = way.look_up(table, flat, _default_row(table, default), training, padding)
      kind = _hot_keys.HotRecord if way is _hot_keys else _sharded.ShardedRecord
    else:
      looked_up = _loader.ops.mxrec_lookup(
        table.handle,
        flat,
        _default_row(table, default),
        dim=table.dimension,
        training=training,
        never_trained=padding,
        static_ids=_static_size(flat),
        name="lookup",
      )
      rows, inverse = looked_up[0], looked_up[1]
      kind = _sharded.ReplicatedRecord if table.distribution == "DP" else _graph.LookupRecord
    values = rows if training else tf.stop_gradient(rows)
    if max_norm is not None:
      values = _loader.ops.mxrec_clip_rows(values, max_norm=max_norm, name="clipped")
    if bags is not None:
      output = _pooling.pool(values, inverse, bags, combiner)
    else:
      output = _loader.ops.mxrec_expand(values, inverse, name="rows")
      output = ids.with_flat_values(output) if _pooling.is_ragged(ids) else output
  table_lib.registry(graph).add_lookup(kind(table, rows.op, training))
  return output


def get_sparse_embedding() -> list[tf.Tensor]:
  """The looked-up rows [distinct ids, dimension] of each lookup in the default graph, in creation order.

  Lookups inside functions (dataset.map, tf.function) are not among them. tf.gradients gives None for lookups that the loss does
  not use; `apply_gradients` skips those.
  """
  graph = tf.compat.v1.get_default_graph()
  return [record.rows for record in table_lib.registry(graph).lookups if record.graph is graph]
