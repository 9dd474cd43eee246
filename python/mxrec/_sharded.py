"""Lookups of tables that several ranks train.

Rows spread over the ranks ("MP"): ids travel to their owners, rows come back, gradients travel to the owners. The looked-up
rows look like those of one process: rows [U, dim] of the rank's distinct ids, and the place of each id among them. What the
owner needs for the update stays in the graph, behind the op that hands out the rows. All rows at every rank ("DP"): lookups
stay at home, gradients are gathered, and every rank makes the same update.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from mxrec import _collective, _graph, _groups, _loader

ROWS_OP = "MxrecExchangeRows"
_FOUND_OP, _KEYS_OP, _ROUTE_OP = "MxrecLookupReceived", "MxrecExchangeKeys", "MxrecRouteIds"

for _op in (_ROUTE_OP, _KEYS_OP, _FOUND_OP, ROWS_OP, "MxrecSumRouted", "MxrecExchangeGradients"):
  tf_ops.NotDifferentiable(_op)


@dataclasses.dataclass(frozen=True)
class ShardedRecord(_graph.LookupRecord):
  """One lookup in a table that is spread over ranks. `op` hands out the rows."""

  @property
  def found(self) -> tf.Operation:
    """The lookup at the owner, of the keys that all ranks sent here."""
    return self.op.inputs[0].op

  @property
  def padded(self) -> bool:
    """Whether the lookup leaves some ids out of training."""
    return bool(self.found.get_attr("never_trained"))

  @property
  def received_splits(self) -> tf.Tensor:
    """How many of the received keys came from each rank."""
    return self.op.inputs[2]

  @property
  def splits(self) -> tf.Tensor:
    """How many of this rank's distinct ids each rank owns."""
    return self.op.inputs[3]

  def over_ranks(self, gradient: Any, mean: bool) -> tuple[Any, tuple[tf.Tensor, ...]]:
    """As in LookupRecord: the gradient as the owner gets it, a row for each key that it received, and the owner's lookup."""
    group = self.op.get_attr("group").decode()
    if isinstance(gradient, tf.IndexedSlices):
      gradient = _loader.ops.mxrec_sum_routed(gradient.values, tf.cast(gradient.indices, tf.int32), self.splits, name="summed")
    [received] = _loader.ops.mxrec_exchange_gradients(
      [gradient], [self.splits], [self.received_splits], mean=[mean], group=group, name=f"{self.op.name.split('/')[-2]}_gradients"
    )
    rows, inverse, *_ = self.found.outputs
    return tf.IndexedSlices(received, inverse, tf.shape(rows)), tuple(self.found.outputs)


@dataclasses.dataclass(frozen=True)
class ReplicatedRecord(_graph.LookupRecord):
  """One lookup in a table of which every rank holds all rows. `op` is MxrecLookup."""

  def over_ranks(self, gradient: Any, mean: bool) -> tuple[Any, tuple[tf.Tensor, ...]]:
    """As in LookupRecord: the gradients of all ranks one after another, and a lookup of their ids, both the same at every rank."""
    _, _, handles, keys, counts, _ = self.op.outputs
    if isinstance(gradient, tf.IndexedSlices):
      gradient = _loader.ops.mxrec_sum_routed(
        gradient.values, tf.cast(gradient.indices, tf.int32), tf.shape(keys, out_type=tf.int64), name="summed"
      )
    if mean:
      gradient = gradient / float(_groups.world().size)
    if self.padded:
      trained = tf.not_equal(handles, _graph.NEVER_TRAINED)
      keys, counts, gradient = (tf.boolean_mask(of_each, trained) for of_each in (keys, counts, gradient))
    (keys, counts, gradient), _ = _collective.allgather([keys, counts, gradient])
    found = _loader.ops.mxrec_lookup_received(
      self.table.handle, keys, tf.zeros([0], tf.float32), counts, dim=self.table.dimension, training=True, name="found"
    )
    return tf.IndexedSlices(gradient, found.inverse, tf.shape(found.rows)), tuple(found)


def look_up(
  table: Any, ids: tf.Tensor, default_row: tf.Tensor, training: bool, never_trained: list[int]
) -> tuple[tf.Tensor, tf.Tensor]:
  """The rows [U, dim] of the rank's distinct ids, and the place of each id among them (int32, the shape of ids)."""
  inverse, keys, counts, splits, *_ = _loader.ops.mxrec_route_ids(ids, owner=table.owner, name="route")
  [received], [times], [received_splits] = _loader.ops.mxrec_exchange_keys([keys], [counts], [splits], name="keys")
  found = _loader.ops.mxrec_lookup_received(
    table.handle,
    received,
    default_row,
    times,
    dim=table.dimension,
    training=training,
    never_trained=never_trained,
    name="found",
  )
  [rows] = _loader.ops.mxrec_exchange_rows(
    [found.rows], [found.inverse], [received_splits], [splits], training=training, name="lookup"
  )
  rows.set_shape([None, table.dimension])
  return rows, inverse


def adopt(op: tf.Operation, tables: dict[str, Any]) -> ShardedRecord | None:
  """The lookup behind an op of an imported graph that hands out rows; None when its table is not there."""
  table = table_of(op.inputs[0].op, tables)
  return None if table is None else ShardedRecord(table, op, op.get_attr("training"))


def table_of(found: tf.Operation, tables: dict[str, Any]) -> Any:
  """The table of a lookup at the owner, or None."""
  source = _graph.handle_op(found.inputs[0])
  return None if source is None else tables.get(json.loads(source.get_attr("config"))["name"])
