"""SyncBatchNormalization: batch normalization over the batches of all ranks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mxrec.horovod import _basics, _ops


def _moments(values: tf.Tensor, axes: Sequence[int], keep_dims: bool, weights: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
  """Mean and variance of the values of all ranks, which may have batches of different sizes, empty ones too.

  The mean travels first, then the squares of the distances from it, so nothing is lost where the mean is far from zero. Gradients
  go through both exchanges: each rank gets what its values do to the losses of all.

  Args:
    values: of the same rank and the same sizes along other axes on all ranks.
    axes: those that are reduced.
    keep_dims: reduced axes stay, with size 1.
    weights: what each value counts, of a shape that broadcasts to that of `values`; None: 1.
  """
  dtype = values.dtype.base_dtype
  values = tf.cast(values, tf.float32) if dtype.size == 2 else tf.convert_to_tensor(values)
  counts = tf.ones_like(values) if weights is None else tf.broadcast_to(tf.cast(weights, values.dtype), tf.shape(values))

  def total(*parts: tf.Tensor) -> tf.Tensor:
    return _ops.allreduce(tf.stack([tf.reduce_sum(part, axes, keepdims=True) for part in parts]), op=_ops.Sum)

  sums = total(values * counts, counts)
  mean = tf.math.divide_no_nan(sums[0], sums[1])
  squares = total(tf.math.squared_difference(values, mean) * counts)
  variance = tf.math.divide_no_nan(squares[0], sums[1])
  if not keep_dims:
    mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
  return tf.cast(mean, dtype), tf.cast(variance, dtype)


class _OfTfKeras:
  """For tf_keras."""

  def _moments(self, inputs: Any, reduction_axes: Any, keep_dims: bool, mask: Any = None) -> Any:
    if _basics.size() == 1:
      return super()._moments(inputs, reduction_axes, keep_dims, mask=mask)
    weights = None if mask is None else tf.expand_dims(mask, -1)
    return _moments(inputs, [int(axis) for axis in reduction_axes], keep_dims, weights)


class _OfKeras3:
  """For Keras 3 on TensorFlow."""

  def _moments(self, inputs: Any, mask: Any) -> Any:
    if _basics.size() == 1:
      return super()._moments(inputs, mask)
    weights = None if mask is None else tf.expand_dims(mask, -1)
    return _moments(inputs, list(self._reduction_axes), False, weights)


@functools.cache
def made_from(layer: type) -> type:
  """The synchronized form of a class of BatchNormalization layers: of tf_keras or of Keras 3."""
  tf_keras = hasattr(layer, "_fused_batch_norm")

  class SyncBatchNormalization(_OfTfKeras if tf_keras else _OfKeras3, layer):  # type: ignore[misc, valid-type]
    """Batch normalization in which mean and variance are those of the batches of all ranks together.

    In training only; the moving averages, used otherwise, are then the same on all ranks. Arguments as for
    tf.keras.layers.BatchNormalization.

    Args:
      fused: must be False.

    Raises:
      ValueError: fused=True or None; in training, before hvd.init().
    """

    def __init__(self, fused: Any = False, **kwargs: Any):
      if fused in (True, None):
        raise ValueError("SyncBatchNormalization has no fused form: leave out fused, or give fused=False")
      super().__init__(**({"fused": False} if tf_keras else {}), **kwargs)

  SyncBatchNormalization.__module__ = "mxrec.horovod.tensorflow"
  SyncBatchNormalization.__qualname__ = "SyncBatchNormalization"
  return SyncBatchNormalization


def layer_class() -> type:
  """The layer for the Keras that tf.keras is; imports it."""
  return made_from(tf.keras.layers.BatchNormalization)
