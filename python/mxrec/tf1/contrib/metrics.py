"""tf.contrib.metrics: old names of tf.metrics, with predictions before labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

__all__ = [
  "accuracy",
  "aggregate_metric_map",
  "aggregate_metrics",
  "streaming_accuracy",
  "streaming_auc",
  "streaming_concat",
  "streaming_mean",
  "streaming_mean_absolute_error",
  "streaming_mean_squared_error",
  "streaming_precision",
  "streaming_recall",
  "streaming_root_mean_squared_error",
]


def _swapped(metric: Callable[..., Any]) -> Callable[..., Any]:
  def streaming(predictions: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
    return metric(labels, predictions, *args, **kwargs)

  streaming.__doc__ = f"tf.metrics.{metric.__name__} with predictions before labels: (value, update op)."
  return streaming


streaming_accuracy = _swapped(tf.metrics.accuracy)
streaming_auc = _swapped(tf.metrics.auc)
streaming_mean = tf.metrics.mean
streaming_mean_absolute_error = _swapped(tf.metrics.mean_absolute_error)
streaming_mean_squared_error = _swapped(tf.metrics.mean_squared_error)
streaming_precision = _swapped(tf.metrics.precision)
streaming_recall = _swapped(tf.metrics.recall)
streaming_root_mean_squared_error = _swapped(tf.metrics.root_mean_squared_error)


def streaming_concat(values: Any, axis: int = 0, max_size: Any = None, **_: Any) -> tuple[Any, Any]:
  """All values so far, and the op that adds those of this step; only along axis 0."""
  if axis != 0 or max_size is not None:
    raise NotImplementedError("tf.contrib.metrics.streaming_concat: only axis 0 without max_size is supplied by `mxrec run`")
  shape = values.shape.as_list()
  with tf.variable_scope(None, "streaming_concat", [values]):
    kept = tf.get_variable(
      "array",
      initializer=tf.zeros([0, *shape[1:]], values.dtype),
      validate_shape=False,
      trainable=False,
      collections=[tf.GraphKeys.LOCAL_VARIABLES],
      use_resource=False,
    )
    update = tf.assign(kept, tf.concat([kept, values], 0), validate_shape=False)
    value = tf.identity(kept)
    value.set_shape([None, *shape[1:]])
    return value, update


def accuracy(predictions: Any, labels: Any, weights: Any = None, name: str | None = None) -> Any:
  """The share of equal elements in this batch."""
  with tf.name_scope(name, "accuracy", [predictions, labels]):
    correct = tf.cast(tf.equal(predictions, labels), tf.float32)
    if weights is None:
      return tf.reduce_mean(correct)
    weights = tf.cast(weights, tf.float32) * tf.ones_like(correct)
    return tf.reduce_sum(correct * weights) / tf.reduce_sum(weights)


def aggregate_metrics(*value_update_tuples: Any) -> tuple[list[Any], list[Any]]:
  """Pairs -> (values, updates)."""
  if not value_update_tuples:
    raise ValueError("aggregate_metrics needs at least one pair of value and update")
  values, updates = zip(*value_update_tuples)
  return list(values), list(updates)


def aggregate_metric_map(names_to_tuples: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
  """name -> pair becomes (name -> value, name -> update)."""
  return {name: pair[0] for name, pair in names_to_tuples.items()}, {name: pair[1] for name, pair in names_to_tuples.items()}
