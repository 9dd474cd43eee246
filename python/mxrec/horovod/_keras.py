"""Optimizers of Keras whose gradients are reduced over the ranks: those of tf_keras, new and legacy, and of Keras 3."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from mxrec.horovod._reduce import Accumulator, Reducer


def _kinds() -> dict[str, type]:
  """The base classes of the optimizers of Keras that are imported."""
  found = {}
  tf_keras = sys.modules.get("tf_keras")
  if tf_keras is not None:
    found["new"] = tf_keras.optimizers.Optimizer
    found["legacy"] = tf_keras.optimizers.legacy.Optimizer
  keras = sys.modules.get("keras")
  if keras is not None and hasattr(keras, "optimizers") and not str(getattr(keras, "__version__", "")).startswith("2."):
    found["keras3"] = keras.optimizers.Optimizer
  return found


def is_optimizer(optimizer: Any) -> bool:
  """Whether this is an optimizer of Keras."""
  return isinstance(optimizer, tuple(_kinds().values()))


class _Distributed:
  """What the optimizers have in common."""

  _hvd_reducer: Reducer
  _hvd_accumulator: Accumulator | None

  def register_local_var(self, var: Any) -> None:
    """The gradient of this variable stays on its rank."""
    self._hvd_reducer.register_local(var)

  def _hvd_reduced(self, gradients: list[Any], variables: list[Any]) -> tuple[list[Any], Any]:
    """The gradients after the exchange; and whether they are to be applied, None: always."""
    reducer, accumulator = self._hvd_reducer, self._hvd_accumulator
    reducer.check_membership()
    if accumulator is None:
      return reducer(gradients, variables), None
    if reducer.sparse_as_dense:
      gradients = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    given = [variable for gradient, variable in zip(gradients, variables) if gradient is not None]
    return accumulator.add(gradients, variables, lambda sums: reducer(sums, given))


class _DistributedTfKeras(_Distributed):
  """Of tf_keras."""

  @tf.autograph.experimental.do_not_convert
  def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
    """The other optimizer's, with gradients reduced over the ranks."""
    pairs = list(grads_and_vars)
    variables = [variable for _, variable in pairs]
    gradients, last = self._hvd_reduced([gradient for gradient, _ in pairs], variables)
    apply = super().apply_gradients
    if last is None:
      return apply(list(zip(gradients, variables)), *args, **kwargs)
    given = [variable for gradient, variable in zip(gradients, variables) if gradient is not None]
    with tf.init_scope():  # variables are made outside of the branch that uses them
      _ = self.iterations
      getattr(self, "_create_all_weights", self.build if hasattr(self, "build") else None)(given)

    def step() -> tf.Tensor:
      done = apply(list(zip(gradients, variables)), *args, **kwargs)
      with tf.control_dependencies([] if done is None or tf.executing_eagerly() else [done]):
        return tf.constant(True)

    def skip() -> tf.Tensor:
      counted = self.iterations.assign_add(1)
      with tf.control_dependencies([] if tf.executing_eagerly() else [counted]):
        return tf.constant(False)

    return tf.cond(last, step, skip)


class _DistributedKeras3(_Distributed):
  """Of Keras 3 on TensorFlow."""

  @tf.autograph.experimental.do_not_convert
  def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
    """The other optimizer's, with gradients reduced over the ranks."""
    variables = list(trainable_variables if trainable_variables is not None else self._trainable_variables)
    gradients, last = self._hvd_reduced(list(grads), variables)
    apply = super().apply
    if last is None:
      return apply(gradients, variables)
    if not self.built:
      with tf.init_scope():
        self.build(variables)

    def step() -> tf.Tensor:
      apply(gradients, variables)
      return tf.constant(True)

    def skip() -> tf.Tensor:
      self.iterations.assign_add(1)
      return tf.constant(False)

    tf.cond(last, step, skip)
    return None


def _class_of(optimizer: Any) -> type:
  """A subclass of the optimizer's, of the same name: models that are saved with it load without this package."""
  kinds = _kinds()
  keras3 = kinds.get("keras3")
  mixin = _DistributedKeras3 if keras3 is not None and isinstance(optimizer, keras3) else _DistributedTfKeras
  return type(type(optimizer).__name__, (mixin, type(optimizer)), {"__module__": type(optimizer).__module__})


def distributed(optimizer: Any, name: str, reducer: Reducer, accumulator: Accumulator | None, in_place: bool = False) -> Any:
  """An optimizer like the given one that reduces gradients.

  Args:
    optimizer: of Keras.
    name: of the result; unused where Keras takes its names from configurations.
    reducer: how gradients are reduced.
    accumulator: how they are added up over steps before; None: not at all.
    in_place: change the optimizer itself, which keeps what it has learned, instead of making one from its configuration.

  Raises:
    ValueError: it is one already.
  """
  if isinstance(optimizer, _Distributed):
    raise ValueError(f"{type(optimizer).__name__} is a distributed optimizer already")
  kind = _class_of(optimizer)
  if in_place:
    optimizer.__class__ = kind
    made = optimizer
  else:
    made = kind.from_config(optimizer.get_config())
  object.__setattr__(made, "_hvd_reducer", reducer)
  object.__setattr__(made, "_hvd_accumulator", accumulator)
  return made
