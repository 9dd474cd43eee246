"""Pooled lookups: from ids and weights of any structure to bags, and the gradients of pooling and clipping.

A bag is a run of ids that share one row of the output: a row of a SparseTensor, a row of the innermost ragged dimension of a
RaggedTensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from mxrec import _graph, _loader

COMBINERS = ("sum", "mean", "sqrtn")
POOL_GRADIENT_OP = "MxrecPoolGradient"


@dataclasses.dataclass(frozen=True)
class Bags:
  """Ids in bags, and how the pooled rows become the output."""

  ids: tf.Tensor  # [n]
  offsets: tf.Tensor  # [bags + 1], int32 or int64
  weights: tf.Tensor | None  # [n] float32
  finish: Callable[[tf.Tensor], Any]  # of the pooled rows [bags, dim]


def is_sparse(ids: Any) -> bool:
  """Whether ids are a SparseTensor."""
  return isinstance(ids, tf.SparseTensor)


def is_ragged(ids: Any) -> bool:
  """Whether ids are a RaggedTensor."""
  return isinstance(ids, tf.RaggedTensor)


def _float_values(table: str, weights: Any) -> tf.Tensor:
  """float32 values of weights, of whatever floating type they are."""
  try:
    if not isinstance(weights, (tf.Tensor, tf.Variable)):
      weights = np.asarray(weights, np.float32) if np.asarray(weights).dtype.kind in "fiu" else weights
    weights = tf.convert_to_tensor(weights)
  except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
    raise ValueError(f"weights of a lookup in table '{table}' must be numbers: got {type(weights).__name__} ({error})") from error
  if not weights.dtype.base_dtype.is_floating:
    raise ValueError(f"weights of a lookup in table '{table}' must be of a floating type: got {weights.dtype.name}")
  return tf.cast(weights, tf.float32)


def _aligned(table: str, weights: Any, values: tf.Tensor, what: str) -> tf.Tensor:
  """Dense weights, one for each of the ids' values."""
  weights = _float_values(table, weights)
  if not weights.shape.is_compatible_with(values.shape[:1]):
    raise ValueError(
      f"weights of a lookup in table '{table}' must have one value for each of the {what}, shape {values.shape[:1]}: "
      f"got shape {weights.shape}"
    )
  return weights


def _structure_error(table: str, weights: Any, expected: str) -> ValueError:
  return ValueError(
    f"weights of a lookup in table '{table}' must be {expected} or a dense tensor with one value for each id: "
    f"got {type(weights).__name__}"
  )


def sparse_bags(table: str, ids: tf.SparseTensor, weights: Any, dim: int) -> Bags:
  """The rows of a SparseTensor of rank >= 2 as bags; all dimensions but the last stay."""
  rank = ids.dense_shape.shape[0]
  if rank is not None and rank < 2:
    raise ValueError(f"ids of table '{table}' must be a SparseTensor of rank 2 or more: got rank {rank}")
  weight_indices = ids.indices
  if isinstance(weights, tf.compat.v1.SparseTensorValue):
    weights = tf.SparseTensor.from_value(weights)
  if is_sparse(weights):
    if not weights.dense_shape.shape.is_compatible_with(ids.dense_shape.shape) or not weights.indices.shape.is_compatible_with(
      ids.indices.shape
    ):
      raise ValueError(
        f"weights of a lookup in table '{table}' must have the structure of the ids: indices of shape {ids.indices.shape}, "
        f"got {weights.indices.shape}"
      )
    weight_indices = weights.indices
    values = _float_values(table, weights.values)
  elif is_ragged(weights) or isinstance(weights, tf.compat.v1.ragged.RaggedTensorValue):
    raise _structure_error(table, weights, "a SparseTensor like the ids")
  else:
    values = None if weights is None else _aligned(table, weights, ids.values, "ids' values")
  offsets = _loader.ops.mxrec_sparse_offsets(ids.indices, ids.dense_shape, weight_indices, name="offsets")
  static = ids.shape

  def finish(pooled: tf.Tensor) -> tf.Tensor:
    if static.rank != 2:
      pooled = tf.reshape(pooled, tf.concat([ids.dense_shape[:-1], tf.constant([dim], tf.int64)], 0))
    if static.rank is not None:
      pooled.set_shape(static[:-1].concatenate([dim]))
    return pooled

  return Bags(ids.values, offsets, values, finish)


def _same_splits(table: str, ours: Any, theirs: Any, values: tf.Tensor) -> tf.Tensor:
  """The values, once a step has found the row splits of weights to be those of the ids."""
  message = f"weights of a lookup in table '{table}' must have the row splits of the ids"
  try:
    checks = [
      tf.compat.v1.debugging.assert_equal(tf.cast(a, tf.int64), tf.cast(b, tf.int64), message=message)
      for a, b in zip(ours, theirs)
      if a is not b
    ]
  except (tf.errors.InvalidArgumentError, ValueError) as error:  # known while the graph is built
    raise ValueError(message) from error
  if not checks:
    return values
  with tf.control_dependencies(checks):
    return tf.identity(values)


def ragged_bags(table: str, ids: tf.RaggedTensor, weights: Any, dim: int) -> Bags:
  """The rows of the innermost ragged dimension as bags; outer ragged dimensions stay."""
  if ids.flat_values.shape.rank not in (None, 1):
    raise ValueError(
      f"ids of table '{table}' must be a RaggedTensor whose innermost dimension is ragged to be pooled: "
      f"got flat_values of shape {ids.flat_values.shape}"
    )
  splits = ids.nested_row_splits
  values = None
  if isinstance(weights, tf.compat.v1.ragged.RaggedTensorValue):
    weights = ragged(weights)
  if is_ragged(weights):
    if weights.ragged_rank != ids.ragged_rank or weights.flat_values.shape.rank not in (None, 1):
      raise ValueError(
        f"weights of a lookup in table '{table}' must have the structure of the ids, ragged rank {ids.ragged_rank}: got ragged "
        f"rank {weights.ragged_rank}, shape {weights.shape}"
      )
    values = _aligned(table, weights.flat_values, ids.flat_values, "ids")
    values = _same_splits(table, splits, weights.nested_row_splits, values)
  elif is_sparse(weights) or isinstance(weights, tf.compat.v1.SparseTensorValue):
    raise _structure_error(table, weights, "a RaggedTensor like the ids")
  elif weights is not None:
    values = _aligned(table, weights, ids.flat_values, "ids")

  def finish(pooled: tf.Tensor) -> Any:
    if len(splits) == 1:
      return pooled
    return tf.RaggedTensor.from_nested_row_splits(pooled, splits[:-1], validate=False)

  return Bags(ids.flat_values, splits[-1], values, finish)


def ragged(value: Any) -> tf.RaggedTensor:
  """A RaggedTensor of a fed or fetched one's value."""
  if not isinstance(value, tf.compat.v1.ragged.RaggedTensorValue):
    return value
  splits, values = [], value
  while isinstance(values, tf.compat.v1.ragged.RaggedTensorValue):
    splits.append(values.row_splits)
    values = values.values
  return tf.RaggedTensor.from_nested_row_splits(values, splits)


def pool(rows: tf.Tensor, inverse: tf.Tensor, bags: Bags, combiner: str) -> Any:
  """One row a bag out of the looked-up rows [U, dim]."""
  weights = tf.zeros([0], tf.float32) if bags.weights is None else bags.weights
  return bags.finish(_loader.ops.mxrec_pool(rows, inverse, bags.offsets, weights, combiner=combiner, name="pooled"))


@dataclasses.dataclass(frozen=True)
class Shared:
  """The gradient of a pooled lookup as an update op takes it: one row a bag."""

  gradient: tf.Tensor  # [bags, dim]
  offsets: tf.Tensor
  weights: tf.Tensor  # [n] or [0]
  combiner: str

  def shares(self, inverse: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The bag of each id, and its share ([0]: all 1)."""
    bags, shares = _loader.ops.mxrec_pool_shares(inverse, self.offsets, self.weights, combiner=self.combiner)
    return bags, shares


def shared_gradient(record: _graph.LookupRecord, gradient: Any) -> Shared | None:
  """What a gradient of a lookup's rows was made from, when it is the gradient of pooling them, perhaps times scalars; else None."""
  if not isinstance(gradient, tf.Tensor):
    return None
  op, factors = gradient.op, []
  while True:
    if op.type == "Identity":  # gated gradients, as TensorFlow's optimizers make them
      op = op.inputs[0].op
    elif op.type == "Mul" and op.inputs[1].shape.rank == 0:  # free of a loss scale again, or clipped
      factors.append(op.inputs[1])
      op = op.inputs[0].op
    else:
      break
  if op.type != POOL_GRADIENT_OP:
    return None
  of_output, rows, inverse, offsets, weights = op.inputs
  if rows is not record.op.outputs[0] or inverse is not record.op.outputs[1]:
    return None
  for factor in reversed(factors):
    of_output = of_output * factor
  return Shared(of_output, offsets, weights, op.get_attr("combiner").decode())


@tf_ops.RegisterGradient("MxrecPool")
def _pool_gradient(op: tf.Operation, gradient: Any) -> list[Any]:
  """Gradients for rows [U, dim] and weights [n]. An optimizer of ours takes the first one's inputs and does not run it."""
  rows, inverse, offsets, weights = op.inputs
  combiner = op.get_attr("combiner").decode()
  gradient = tf.convert_to_tensor(gradient)
  by_row = _loader.ops.mxrec_pool_gradient(gradient, rows, inverse, offsets, weights, combiner=combiner)
  by_weight = None
  if weights.op.type != "Const" or weights.shape.num_elements() != 0:
    by_weight = _loader.ops.mxrec_pool_weight_gradient(gradient, op.outputs[0], rows, inverse, offsets, weights, combiner=combiner)
  return [by_row, None, None, by_weight]


@tf_ops.RegisterGradient("MxrecClipRows")
def _clip_gradient(op: tf.Operation, gradient: Any) -> tf.Tensor:
  """Gradient for rows [U, dim], through the scaling to max_norm."""
  rows = op.inputs[0]
  if isinstance(gradient, tf.IndexedSlices):
    gradient = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, tf.shape(rows)[0])
  return _loader.ops.mxrec_clip_rows_gradient(rows, gradient, max_norm=op.get_attr("max_norm"))


for _op in ("MxrecSparseOffsets", "MxrecPoolShares"):
  tf_ops.NotDifferentiable(_op)
