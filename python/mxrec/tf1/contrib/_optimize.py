"""tf.contrib.layers.optimize_loss and the summaries of tensors; `layers` passes them on."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

OPTIMIZER_CLS_NAMES = {
  "Adagrad": tf.train.AdagradOptimizer,
  "Adam": tf.train.AdamOptimizer,
  "Ftrl": tf.train.FtrlOptimizer,
  "Momentum": lambda learning_rate: tf.train.MomentumOptimizer(learning_rate, momentum=0.9),
  "RMSProp": tf.train.RMSPropOptimizer,
  "SGD": tf.train.GradientDescentOptimizer,
}
OPTIMIZER_SUMMARIES = ["learning_rate", "loss", "gradients", "gradient_norm", "global_gradient_norm"]


def optimize_loss(
  loss: Any,
  global_step: Any,
  learning_rate: Any,
  optimizer: Any,
  gradient_noise_scale: Any = None,
  gradient_multipliers: Any = None,
  clip_gradients: Any = None,
  learning_rate_decay_fn: Any = None,
  update_ops: Any = None,
  variables: Any = None,
  name: Any = None,
  summaries: Any = None,
  colocate_gradients_with_ops: bool = False,
  increment_global_step: bool = True,
) -> Any:
  """One op that trains and returns the loss.

  Args:
    loss: scalar.
    global_step: variable, or None for the graph's.
    learning_rate: number, scalar tensor, or None when the optimizer has its own.
    optimizer: a name of OPTIMIZER_CLS_NAMES, a class, a function of the learning rate, or an optimizer.
    gradient_noise_scale: not supplied.
    gradient_multipliers: variable or its name -> factor of its gradient.
    clip_gradients: number: greatest global norm; or a function of the (gradient, variable) pairs.
    learning_rate_decay_fn: function of learning rate and step.
    update_ops: run before the gradients; default: collection UPDATE_OPS.
    variables: trained ones; default: all trainable.
    name: scope, default OptimizeLoss.
    summaries: names of OPTIMIZER_SUMMARIES; default: loss, learning rate and the global gradient norm.
    colocate_gradients_with_ops: as in compute_gradients.
    increment_global_step: whether a step counts.

  Raises:
    NotImplementedError: gradient_noise_scale.
    ValueError: an argument is of the wrong kind, or there is no gradient.
  """
  if gradient_noise_scale is not None:
    raise NotImplementedError("tf.contrib.layers.optimize_loss: gradient_noise_scale is not supplied by `mxrec run`")
  loss = tf.convert_to_tensor(loss)
  global_step = tf.train.get_global_step() if global_step is None else global_step
  summaries = ["loss", "learning_rate", "global_gradient_norm"] if summaries is None else summaries
  unknown = [summary for summary in summaries if summary not in OPTIMIZER_SUMMARIES]
  if unknown:
    raise ValueError(f"summaries must be of {', '.join(OPTIMIZER_SUMMARIES)}: got {unknown[0]!r}")
  with tf.variable_scope(name, "OptimizeLoss", [loss, global_step]):
    update_ops = set(tf.get_collection(tf.GraphKeys.UPDATE_OPS) if update_ops is None else update_ops)
    if update_ops:
      with tf.control_dependencies(list(update_ops)):
        loss = tf.identity(loss)
    rate = learning_rate
    if rate is not None:
      if tf.is_tensor(rate):
        if rate.shape.rank not in (0, None):
          raise ValueError(f"learning_rate must be a scalar: got shape {rate.shape}")
      elif isinstance(rate, (float, int)):
        if rate < 0:
          raise ValueError(f"learning_rate cannot be below 0: got {rate}")
        rate = tf.get_variable("learning_rate", [], trainable=False, initializer=tf.constant_initializer(float(rate)))
      else:
        raise ValueError(f"learning_rate must be a number or a scalar tensor: got {rate!r}")
    if learning_rate_decay_fn is not None:
      if rate is None or global_step is None:
        raise ValueError("learning_rate_decay_fn needs a learning rate and a global step")
      rate = learning_rate_decay_fn(rate, global_step)
    if rate is not None and "learning_rate" in summaries:
      tf.summary.scalar("learning_rate", rate)
    opt = _make_optimizer(optimizer, rate)
    pairs = opt.compute_gradients(
      loss, tf.trainable_variables() if variables is None else variables, colocate_gradients_with_ops=colocate_gradients_with_ops
    )
    if gradient_multipliers is not None:
      pairs = [_multiplied(gradient, variable, gradient_multipliers) for gradient, variable in pairs]
    if "global_gradient_norm" in summaries:
      tf.summary.scalar("global_norm/gradient_norm", tf.global_norm([gradient for gradient, _ in pairs]))
    if callable(clip_gradients):
      pairs = clip_gradients(pairs)
    elif isinstance(clip_gradients, numbers.Real):
      clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], clip_gradients)
      pairs = list(zip(clipped, [variable for _, variable in pairs]))
    elif clip_gradients is not None:
      raise ValueError(f"clip_gradients must be a number or a function: got {clip_gradients!r}")
    if "loss" in summaries:
      tf.summary.scalar("loss", loss)
    train = opt.apply_gradients(pairs, global_step=global_step if increment_global_step else None, name="train")
    with tf.control_dependencies([train]):
      return tf.identity(loss, "train_loss")


def _make_optimizer(optimizer: Any, rate: Any) -> Any:
  if isinstance(optimizer, str):
    if optimizer not in OPTIMIZER_CLS_NAMES:
      raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZER_CLS_NAMES)}: got {optimizer!r}")
    if rate is None:
      raise ValueError(f"learning_rate is None, but the optimizer {optimizer!r} needs one")
    return OPTIMIZER_CLS_NAMES[optimizer](learning_rate=rate)
  if isinstance(optimizer, type) and issubclass(optimizer, tf.train.Optimizer):
    return optimizer(learning_rate=rate)
  if isinstance(optimizer, tf.train.Optimizer):
    return optimizer
  if callable(optimizer):
    made = optimizer(rate) if rate is not None else optimizer()
    if isinstance(made, tf.train.Optimizer):
      return made
  raise ValueError(f"optimizer must be a name, a class, a function or an optimizer: got {optimizer!r}")


def _multiplied(gradient: Any, variable: Any, multipliers: Any) -> tuple[Any, Any]:
  by_name = {key if isinstance(key, str) else key.op.name: factor for key, factor in multipliers.items()}
  factor = by_name.get(variable.op.name, by_name.get(variable.name))
  if gradient is None or factor is None:
    return gradient, variable
  factor = tf.cast(factor, variable.dtype.base_dtype)
  if isinstance(gradient, tf.IndexedSlices):
    return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape), variable
  return gradient * factor, variable


# Summaries


def summarize_tensor(tensor: Any, tag: str | None = None) -> Any:
  """A scalar summary for rank 0, else a histogram."""
  write = tf.summary.scalar if tensor.shape.rank == 0 else tf.summary.histogram
  return write(tag or tensor.op.name, tensor)


def summarize_activation(op: Any) -> Any:
  """A histogram of an activation, and the fraction of zeros after relu."""
  if op.op.type in ("Relu", "Softplus", "Relu6"):
    tf.summary.scalar(f"{op.op.name}/zeros", tf.nn.zero_fraction(op))
  return tf.summary.histogram(f"{op.op.name}/activation", op)


def summarize_tensors(tensors: Any, summarizer: Callable[[Any], Any] = summarize_tensor) -> list[Any]:
  """summarize_tensor of each."""
  return [summarizer(tensor) for tensor in tensors]


def summarize_collection(
  collection: str, name_filter: str | None = None, summarizer: Callable[[Any], Any] = summarize_tensor
) -> list[Any]:
  """summarize_tensor of each member of a collection."""
  return summarize_tensors(tf.get_collection(collection, name_filter), summarizer)


def summarize_activations(name_filter: str | None = None, summarizer: Callable[[Any], Any] = summarize_activation) -> list[Any]:
  """summarize_activation of each member of the collection ACTIVATIONS."""
  return summarize_collection(tf.GraphKeys.ACTIVATIONS, name_filter, summarizer)
