"""Looking ids up, and the gradient of that."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from mxrec import _graph, _loader, _validate
from mxrec import table as table_lib

for _op in (
  "MxrecTable",
  "MxrecTableReset",
  "MxrecLookup",
  "MxrecApply",
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
  if not _validate.is_tensor(default):
    default = np.asarray(default)
    if default.dtype.kind not in "fiu":
      raise ValueError(f"default of a lookup in table '{table.name}' must be numbers: got dtype {default.dtype}")
  default = tf.cast(tf.convert_to_tensor(default), tf.float32)
  if default.shape.rank == 0:
    return tf.fill([table.dimension], default)
  if not default.shape.is_compatible_with([table.dimension]):
    raise ValueError(
      f"default of a lookup in table '{table.name}' must be a number or have shape [{table.dimension}]: got {default.shape}"
    )
  return default


def embedding_lookup(
  table: table_lib.EmbeddingTable, ids: Any, *, training: bool = True, default: Any = None, name: str | None = None
) -> tf.Tensor:
  """Looks ids up. Never changes the table: rows are inserted, counted and time-stamped when their gradients are applied.

  Args:
    table: from `get_embedding_table`.
    ids: int64, int32 (by value) or uint64 (by bit pattern) of any shape S; empty allowed.
    training: True: an unseen id is answered with its first row, or with `default` below the admission threshold, and gradients
      flow to the row. False: an unseen id is answered with `default`, and no gradient flows.
    default: the row for ids that have none of their own: a number or [dimension]; None: zeros.
    name: name scope of the ops.

  Returns:
    float32 tensor S + [dimension].

  Raises:
    ValueError: not a table, ids that are not dense or not integers, a table of another graph.
  """
  if not isinstance(table, table_lib.EmbeddingTable):
    raise ValueError(f"Invalid parameter type: table is {type(table).__name__}, expected a table of get_embedding_table")
  _validate.boolean("training", training)
  graph = tf.compat.v1.get_default_graph()
  if _graph.root(graph) is not table.graph:
    raise ValueError(f"table '{table.name}' belongs to another graph than the lookup; make it again after tf.reset_default_graph")
  with tf.compat.v1.name_scope(name, f"lookup_{table.name}"):
    ids = _validate.ids(table.name, ids)
    looked_up = _loader.ops.mxrec_lookup(
      table.handle, ids, _default_row(table, default), dim=table.dimension, training=training, name="lookup"
    )
    rows, inverse = looked_up[0], looked_up[1]
    output = _loader.ops.mxrec_expand(rows if training else tf.stop_gradient(rows), inverse, name="rows")
  table_lib.registry(graph).add_lookup(_graph.LookupRecord(table, rows.op, training))
  return output


def get_sparse_embedding() -> list[tf.Tensor]:
  """The looked-up rows [distinct ids, dimension] of each lookup in the default graph, in creation order.

  Lookups inside functions (dataset.map, tf.function) are not among them. tf.gradients gives None for lookups that the loss does
  not use; `apply_gradients` skips those.
  """
  graph = tf.compat.v1.get_default_graph()
  return [record.rows for record in table_lib.registry(graph).lookups if record.graph is graph]
