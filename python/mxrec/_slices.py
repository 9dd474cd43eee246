"""Sparse gradients (tf.IndexedSlices of variables) over the ranks: duplicates are summed before they travel and after."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from mxrec import _collective, _groups

_HALVES = (tf.float16, tf.bfloat16)


def _merged(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """One row for each index, in the order of first occurrence; rows of one index are summed in their order."""
  unique, place = tf.unique(indices)
  return tf.math.unsorted_segment_sum(values, place, tf.size(unique)), unique


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
  dtype = slices.values.dtype.base_dtype
  with tf.name_scope("allreduce_slices"):
    values = tf.cast(slices.values, tf.float32) if dtype in _HALVES else slices.values
    values, indices = _merged(values, slices.indices)
    (values, indices), _ = _collective.allgather([values, indices], group, name)
    values, indices = _merged(values, indices)
    if average:
      values = divided(values, len(_groups.ranks_of(group)))
    return tf.IndexedSlices(tf.cast(values, dtype), indices, slices.dense_shape)


def divided(values: Any, size: int) -> Any:
  """values / size; integers are rounded down, half-precision values divided as float32."""
  dtype = values.dtype.base_dtype
  if dtype.is_integer:
    return tf.math.floordiv(values, tf.constant(size, tf.int64) if dtype == tf.int64 else tf.cast(size, dtype))
  if dtype in _HALVES:
    return tf.cast(tf.cast(values, tf.float32) / size, dtype)
  return values / tf.cast(size, dtype)
