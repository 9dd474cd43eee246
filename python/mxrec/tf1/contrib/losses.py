"""tf.contrib.losses: old names of tf.losses, with predictions before labels."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

__all__ = [
  "absolute_difference",
  "add_loss",
  "compute_weighted_loss",
  "cosine_distance",
  "get_losses",
  "get_regularization_losses",
  "get_total_loss",
  "hinge_loss",
  "log_loss",
  "mean_pairwise_squared_error",
  "mean_squared_error",
  "sigmoid_cross_entropy",
  "softmax_cross_entropy",
  "sparse_softmax_cross_entropy",
]

add_loss = tf.losses.add_loss
compute_weighted_loss = tf.losses.compute_weighted_loss
get_losses = tf.losses.get_losses
get_regularization_losses = tf.losses.get_regularization_losses
get_total_loss = tf.losses.get_total_loss


def absolute_difference(predictions: Any, labels: Any = None, weights: Any = 1.0, scope: Any = None) -> Any:
  """tf.losses.absolute_difference."""
  return tf.losses.absolute_difference(labels, predictions, weights, scope)


def log_loss(predictions: Any, labels: Any = None, weights: Any = 1.0, epsilon: float = 1e-7, scope: Any = None) -> Any:
  """tf.losses.log_loss."""
  return tf.losses.log_loss(labels, predictions, weights, epsilon, scope)


def hinge_loss(logits: Any, labels: Any = None, scope: Any = None) -> Any:
  """tf.losses.hinge_loss, but one value per element."""
  return tf.losses.hinge_loss(labels, logits, scope=scope, reduction=tf.losses.Reduction.NONE)


def mean_squared_error(predictions: Any, labels: Any = None, weights: Any = 1.0, scope: Any = None) -> Any:
  """tf.losses.mean_squared_error."""
  return tf.losses.mean_squared_error(labels, predictions, weights, scope)


def mean_pairwise_squared_error(predictions: Any, labels: Any = None, weights: Any = 1.0, scope: Any = None) -> Any:
  """tf.losses.mean_pairwise_squared_error."""
  return tf.losses.mean_pairwise_squared_error(labels, predictions, weights, scope)


def cosine_distance(
  predictions: Any, labels: Any = None, axis: Any = None, weights: Any = 1.0, scope: Any = None, dim: Any = None
) -> Any:
  """tf.losses.cosine_distance."""
  return tf.losses.cosine_distance(labels, predictions, axis=dim if axis is None else axis, weights=weights, scope=scope)


def sigmoid_cross_entropy(
  logits: Any, multi_class_labels: Any, weights: Any = 1.0, label_smoothing: float = 0, scope: Any = None
) -> Any:
  """tf.losses.sigmoid_cross_entropy."""
  return tf.losses.sigmoid_cross_entropy(multi_class_labels, logits, weights, label_smoothing, scope)


def softmax_cross_entropy(
  logits: Any, onehot_labels: Any, weights: Any = 1.0, label_smoothing: float = 0, scope: Any = None
) -> Any:
  """tf.losses.softmax_cross_entropy."""
  return tf.losses.softmax_cross_entropy(onehot_labels, logits, weights, label_smoothing, scope)


def sparse_softmax_cross_entropy(logits: Any, labels: Any, weights: Any = 1.0, scope: Any = None) -> Any:
  """tf.losses.sparse_softmax_cross_entropy."""
  return tf.losses.sparse_softmax_cross_entropy(labels, logits, weights, scope)
