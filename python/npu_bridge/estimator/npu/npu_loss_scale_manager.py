"""Loss scales: one that stays, and one that follows the overflows of training."""

from __future__ import annotations

import abc
import numbers
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

_LARGEST = float(np.finfo(np.float32).max)


class LossScaleManager(abc.ABC):
  """What NPULossScaleOptimizer and NPUOptimizer ask of a loss scale."""

  @abc.abstractmethod
  def get_loss_scale(self) -> Any:
    """The loss scale: a float32 scalar, tensor or variable."""

  @abc.abstractmethod
  def update_loss_scale(self, finite_grads: Any) -> tf.Operation:
    """The op that takes note of a step.

    Args:
      finite_grads: bool scalar tensor, whether all gradients of the step were finite.
    """

  def get_enable_overflow_check(self) -> bool:
    """Whether steps are checked for overflow at all."""
    return True


class FixedLossScaleManager(LossScaleManager):
  """A loss scale that never changes."""

  def __init__(self, loss_scale: float, enable_overflow_check: bool = True) -> None:
    """Makes a manager.

    Args:
      loss_scale: at least 1.
      enable_overflow_check: False: every step is applied, whatever its gradients are.

    Raises:
      TypeError: loss_scale is no number.
      ValueError: loss_scale is below 1, or infinite in float32.
    """
    _check_number("FixedLossScaleManager", "loss_scale", loss_scale)
    if not 1 <= loss_scale <= _LARGEST:  # NaN too
      expected = "at least 1" if not loss_scale > 1 else "a finite float32"
      raise ValueError(f"loss_scale of FixedLossScaleManager must be {expected}: got {loss_scale!r}")
    self._loss_scale = tf.convert_to_tensor(loss_scale, dtype=tf.float32)
    self._enable_overflow_check = bool(enable_overflow_check)

  def get_loss_scale(self) -> tf.Tensor:
    """The loss scale, a float32 scalar."""
    return self._loss_scale

  def update_loss_scale(self, finite_grads: Any) -> tf.Operation:
    """An op that does nothing."""
    del finite_grads
    return tf.no_op()

  def get_enable_overflow_check(self) -> bool:
    """Whether steps are checked for overflow at all."""
    return self._enable_overflow_check


class ExponentialUpdateLossScaleManager(LossScaleManager):
  """A loss scale that grows after steps without overflow and shrinks after steps with one.

  After `incr_every_n_steps` finite steps in a row the scale is multiplied by `incr_ratio`, unless that would overflow float32. A
  step that is not finite ends the row; at the `decr_every_n_nan_or_inf`-th of them the scale is multiplied by `decr_ratio`, but
  stays at least 1. Either change resets both counters; a finite step alone does not reset the count of bad ones.

  Its three variables (`loss_scale`, `good_steps`, `bad_steps`; not trainable) are saved in checkpoints.
  """

  def __init__(
    self,
    init_loss_scale: float,
    incr_every_n_steps: int,
    decr_every_n_nan_or_inf: int = 2,
    incr_ratio: float = 2,
    decr_ratio: float = 0.8,
  ) -> None:
    """Makes a manager and its variables in the default graph.

    Raises:
      TypeError: an argument is no number, or a number of steps no int.
      ValueError: a number of steps below 1; another argument that is not above 0 and finite in float32.
    """
    who = "ExponentialUpdateLossScaleManager"
    for name, steps in (("incr_every_n_steps", incr_every_n_steps), ("decr_every_n_nan_or_inf", decr_every_n_nan_or_inf)):
      if isinstance(steps, bool) or not isinstance(steps, numbers.Integral):
        raise TypeError(f"{name} of {who} must be an int: got {steps!r}")
      if steps < 1:
        raise ValueError(f"{name} of {who} must be at least 1: got {steps!r}")
    for name, value in (("init_loss_scale", init_loss_scale), ("incr_ratio", incr_ratio), ("decr_ratio", decr_ratio)):
      _check_number(who, name, value)
      if not 0 < value <= _LARGEST:
        raise ValueError(f"{name} of {who} must be above 0 and a finite float32: got {value!r}")
    self._incr_every_n_steps = incr_every_n_steps
    self._decr_every_n_nan_or_inf = decr_every_n_nan_or_inf
    self._incr_ratio = incr_ratio
    self._decr_ratio = decr_ratio
    self._loss_scale = _variable("loss_scale", float(init_loss_scale), tf.float32)
    self._num_good_steps = _variable("good_steps", 0, tf.int32)
    self._num_bad_steps = _variable("bad_steps", 0, tf.int32)

  def get_loss_scale(self) -> tf.Variable:
    """The loss scale, a float32 variable."""
    return self._loss_scale

  def update_loss_scale(self, finite_grads: Any) -> tf.Operation:
    """The op that takes note of a step; see the class.

    Args:
      finite_grads: bool scalar tensor, whether all gradients of the step were finite.
    """
    with tf.name_scope("update_loss_scale"):
      finite = tf.convert_to_tensor(finite_grads, tf.bool)
      with tf.control_dependencies([finite]):
        scale, good, bad = (variable.read_value() for variable in (self._loss_scale, self._num_good_steps, self._num_bad_steps))
      good = tf.where(finite, good + 1, tf.zeros_like(good))
      bad = tf.where(finite, bad, bad + 1)
      grow = tf.logical_and(finite, good >= self._incr_every_n_steps)
      shrink = tf.logical_and(tf.logical_not(finite), bad >= self._decr_every_n_nan_or_inf)
      grown = scale * self._incr_ratio
      grown = tf.where(grown <= _LARGEST, grown, scale)
      new_scale = tf.where(grow, grown, tf.where(shrink, tf.maximum(scale * self._decr_ratio, 1.0), scale))
      changed = tf.logical_or(grow, shrink)
      good, bad = (tf.where(changed, tf.zeros_like(count), count) for count in (good, bad))
      # All three are read before the first is written.
      with tf.control_dependencies([new_scale, good, bad]):
        return tf.group(
          tf.assign(self._loss_scale, new_scale), tf.assign(self._num_good_steps, good), tf.assign(self._num_bad_steps, bad)
        )


def _check_number(who: str, name: str, value: Any) -> None:
  if isinstance(value, bool) or not isinstance(value, numbers.Real):
    raise TypeError(f"{name} of {who} must be a number: got {value!r}")


def _variable(name: str, value: Any, dtype: tf.DType) -> tf.Variable:
  return tf.Variable(value, name=name, dtype=dtype, trainable=False)
