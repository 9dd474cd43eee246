"""Lookups of spread tables in which some keys, those that nearly every batch has, do not travel as the others do.

The rows of hot keys stay at their owners; tables, checkpoints and admission know nothing of them. But in a step
1. the ranks add up how often each hot key occurs, so that all know which of them are used: a reduction of a vector as long as the
   list, in place of keys that each rank sends to the owners;
2. the owners hand the rows of those to all ranks: every rank has a replica of them for the step, fresh as of its start;
3. the gradients of those are added up in one reduction, and the owner gets each sum once, not one part a rank.
So results are those without the option; only the order in which ranks are added may be another.

The tensors that an update needs have names in the lookup's scope, by which they are found again in an imported graph.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from mxrec import _collective, _loader, _sharded

_PLACE, _OWN, _KEYS_NAME, _FOUND_NAME, _ROUTE_NAME = "hot_place", "hot_own", "keys", "found", "route"


def look_up(
  table: Any, ids: tf.Tensor, default_row: tf.Tensor, training: bool, never_trained: list[int]
) -> tuple[tf.Tensor, tf.Tensor]:
  """As _sharded.look_up, for a table with hot keys."""
  owner, hot_keys = table.owner, table.config["hot_keys"]
  route = _loader.ops.mxrec_route_ids(ids, owner=owner, hot_keys=hot_keys, name=_ROUTE_NAME)
  begin, number = route.hot_begin, tf.size(route.hot)
  # The hot keys, owner after owner: the order in which the owners hand out their rows.
  listed = _loader.ops.mxrec_route_ids(tf.constant(hot_keys, tf.int64), owner=owner, name="hot_list")
  place = tf.gather(listed.inverse, route.hot)
  counts = _collective.allreduce(tf.scatter_nd(place[:, None], route.counts[begin : begin + number], [len(hot_keys)]))
  used = counts > 0
  before = tf.cumsum(tf.cast(used, tf.int32), exclusive=True)
  place = tf.identity(tf.gather(before, place), name=_PLACE)  # of each hot key of this rank, among the used ones

  splits = route.splits - tf.one_hot(route.rank, tf.size(route.splits), tf.cast(number, tf.int64), dtype=tf.int64)
  [received], [times], [received_splits] = _loader.ops.mxrec_exchange_keys(
    [_without(route.keys, begin, number)], [_without(route.counts, begin, number)], [splits], name=_KEYS_NAME
  )
  first = tf.cast(tf.reduce_sum(listed.splits[: route.rank]), tf.int32)
  own = slice(first, first + tf.cast(listed.splits[route.rank], tf.int32))
  own_keys = tf.boolean_mask(listed.keys[own], used[own])
  tf.stack([tf.reduce_sum(tf.cast(used[:first], tf.int32)), tf.size(own_keys)], name=_OWN)
  found = _loader.ops.mxrec_lookup_received(
    table.handle,
    tf.concat([received, own_keys], 0),
    default_row,
    tf.concat([times, tf.boolean_mask(counts[own], used[own])], 0),
    dim=table.dimension,
    training=training,
    never_trained=never_trained,
    name=_FOUND_NAME,
  )
  replica, _ = _collective.allgather(tf.gather(found.rows, found.inverse[tf.size(received) :]))
  # The replica stands for what this rank would answer itself: behind the keys that it sent to itself.
  end = tf.cast(tf.reduce_sum(received_splits[: route.rank + 1]), tf.int32)
  inverse = found.inverse[: tf.size(received)]
  [rows] = _loader.ops.mxrec_exchange_rows(
    [tf.concat([found.rows, replica], 0)],
    [tf.concat([inverse[:end], tf.shape(found.rows)[0] + place, inverse[end:]], 0)],
    [received_splits + route.splits - splits],
    [route.splits],
    training=training,
    name="lookup",
  )
  rows.set_shape([None, table.dimension])
  return rows, route.inverse


def _without(values: tf.Tensor, begin: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
  """All but `number` values from `begin` on."""
  return tf.concat([values[:begin], values[begin + number :]], 0)


@dataclasses.dataclass(frozen=True)
class HotRecord(_sharded.ShardedRecord):
  """One lookup in a table with hot keys. `op` hands out the rows."""

  def _named(self, name: str) -> tf.Operation:
    return self.graph.get_operation_by_name(f"{self.op.name.rpartition('/')[0]}/{name}")

  @property
  def found(self) -> tf.Operation:
    """The lookup at the owner: of the keys that all ranks sent here, then of the used hot keys that this rank owns."""
    return self._named(_FOUND_NAME)

  def over_ranks(self, gradient: Any, mean: bool) -> tuple[Any, tuple[tf.Tensor, ...]]:
    """As in LookupRecord."""
    route, keys, own = self._named(_ROUTE_NAME), self._named(_KEYS_NAME), self._named(_OWN).outputs[0]
    place = self._named(_PLACE).outputs[0]
    if isinstance(gradient, tf.IndexedSlices):
      gradient = _loader.ops.mxrec_sum_routed(gradient.values, tf.cast(gradient.indices, tf.int32), self.splits, name="summed")
    begin, number = route.outputs[5], tf.size(place)
    [received] = _loader.ops.mxrec_exchange_gradients(
      [_without(gradient, begin, number)],
      [keys.inputs[2]],
      [keys.outputs[2]],
      mean=[mean],
      group=self.op.get_attr("group").decode(),
      name=f"{self.op.name.split('/')[-2]}_gradients",
    )
    replica = self.op.inputs[0].op.inputs[1]
    hot = tf.scatter_nd(place[:, None], gradient[begin : begin + number], tf.shape(replica))
    hot = _collective.allreduce(hot, average=mean)
    outputs = tuple(self.found.outputs)
    values = tf.concat([received, hot[own[0] : own[0] + own[1]]], 0)
    return tf.IndexedSlices(values, outputs[1], tf.shape(outputs[0])), outputs


def adopt(op: tf.Operation, tables: dict[str, Any]) -> _sharded.ShardedRecord | None:
  """As _sharded.adopt, for lookups with hot keys too."""
  scope = op.name.rpartition("/")[0]
  try:
    found = op.graph.get_operation_by_name(f"{scope}/{_FOUND_NAME}")
    op.graph.get_operation_by_name(f"{scope}/{_PLACE}")
  except KeyError:
    return _sharded.adopt(op, tables)
  table = _sharded.table_of(found, tables)
  return None if table is None else HotRecord(table, op, op.get_attr("training"))
