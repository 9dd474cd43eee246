"""Sparse gradients (tf.IndexedSlices of variables) over the ranks: duplicates are summed before they travel and after.

Up to three ranks give their merged rows to all (each sends its U rows to each other rank), which merge again: for float32 one op,
MxrecMergeSlices, which sums straight into its output and sends from there. From four ranks on,
rows go to the rank that owns their index (index modulo ranks), which merges them and gives the result to all: (U + rows of the
result) / ranks to each other rank, so that an index which many ranks have travels once from its owner. Both add in the order of
ranks: the same bits on all ranks.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import ops as _ops

from mxrec import _collective, _groups, _loader

_ops.NotDifferentiable("MxrecMergeSlices")

_HALVES = (tf.float16, tf.bfloat16)
_ROUTED_RANKS = 4


def _merged(values: tf.Tensor, indices: tf.Tensor, group: str) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
  """One row for each index; rows of one index are summed in their order.

  Returns:
    (values, indices, how many of them each rank of the group owns). float32: owner after owner, for one owner by first
    occurrence. Other types: all by first occurrence, and None.
  """
  if values.dtype != tf.float32:
    unique, place = tf.unique(indices)
    return tf.math.unsorted_segment_sum(values, place, tf.size(unique)), unique, None
  routed = _loader.ops.mxrec_route_ids(indices, group=group, name="route")
  shape = tf.shape(values)
  rows = tf.reshape(values, [shape[0], tf.reduce_prod(shape[1:])])
  rows = _loader.ops.mxrec_sum_routed(rows, routed.inverse, routed.splits, name="sum")
  summed = tf.reshape(rows, tf.concat([[-1], shape[1:]], 0))
  summed.set_shape([None, *values.shape[1:]])
  return summed, tf.cast(routed.keys, indices.dtype), routed.splits


def allreduce(slices: tf.IndexedSlices, average: bool, group: str = _groups.WORLD, name: str | None = None) -> tf.IndexedSlices:
  """The sum of IndexedSlices over the ranks, which may have different numbers of rows.

  Half-precision values travel, and are summed, as float32: what fits the type after the division need not fit before.

  Args:
    slices: indices [n], values [n, ...].
    average: divide by the number of ranks; integers are rounded down.
    group: name of the group of ranks.
    name: what the ranks call it; None: the name of the node.

  Returns:
    IndexedSlices with one row for each index that any rank has; the same on all ranks.
  """
  dtype, size = slices.values.dtype.base_dtype, len(_groups.ranks_of(group))
  with tf.name_scope("allreduce_slices"):
    values = tf.cast(slices.values, tf.float32) if dtype in _HALVES else tf.convert_to_tensor(slices.values)
    indices = tf.convert_to_tensor(slices.indices)
    if values.dtype == tf.float32 and 1 < size < _ROUTED_RANKS:
      arguments = _collective.arguments(group, name)
      values, indices = _collective.note_line(_loader.ops.mxrec_merge_slices(values, indices, **arguments))
      return tf.IndexedSlices(tf.cast(divided(values, size) if average else values, dtype), indices, slices.dense_shape)
    values, indices, splits = _merged(values, indices, group)
    if splits is not None and size >= _ROUTED_RANKS:
      names = [None, None] if name is None else [f"{name}/rows", f"{name}/indices"]
      values, _ = _collective.alltoall(values, splits, group, names[0])
      indices, _ = _collective.alltoall(indices, splits, group, names[1])
      values, indices, _ = _merged(values, indices, group)
      (values, indices), _ = _collective.allgather([values, indices], group, name)
    elif size > 1:
      (values, indices), _ = _collective.allgather([values, indices], group, name)
      values, indices, _ = _merged(values, indices, group)
    if average:
      values = divided(values, size)
    return tf.IndexedSlices(tf.cast(values, dtype), indices, slices.dense_shape)


def divided(values: Any, size: int) -> Any:
  """values / size; integers are rounded down, half-precision values divided as float32."""
  dtype = values.dtype.base_dtype
  if dtype.is_integer:
    return tf.math.floordiv(values, tf.constant(size, tf.int64) if dtype == tf.int64 else tf.cast(size, dtype))
  if dtype in _HALVES:
    return tf.cast(tf.cast(values, tf.float32) / size, dtype)
  return values / tf.cast(size, dtype)
