"""What optimizers of tables have in common: TensorFlow's Optimizer interface with looked-up rows as its variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from mxrec import _validate, optimizer


class RowOptimizer(tf.compat.v1.train.Optimizer):
  """An optimizer whose "variables" are looked-up rows.

  `apply_gradients(zip(tf.gradients(loss, rows), rows))` with `rows` from `get_sparse_embedding()`; `minimize(loss)` takes the
  rows that the loss depends on. Slots and step counter live in the tables, so any number of tables and of optimizer objects
  gives the same result. `_lr` (or `_learning_rate`) may be assigned anew until gradients are applied.
  """

  # The TensorFlow optimizer that trains dense variables in mxrec.minimize; None: there is none.
  dense_optimizer: Any = None

  def __init__(self, name: str, learning_rate: Any) -> None:
    super().__init__(use_locking=False, name=name)
    # Scripts assign one of the two, or both; the one that was assigned counts.
    self._lr = self._learning_rate = self._given_learning_rate = learning_rate

  def _rate(self) -> Any:
    return self._lr if self._lr is not self._given_learning_rate else self._learning_rate

  def row_rule(self) -> optimizer.RowRule:
    """The engine's rule with the hyperparameters of now."""
    raise NotImplementedError(f"{type(self).__name__}.row_rule")

  def compute_gradients(self, loss: Any, var_list: Any = None, *args: Any, **kwargs: Any) -> list[tuple[Any, tf.Tensor]]:
    """As tf.compat.v1.train.Optimizer.compute_gradients; `var_list` None means the looked-up rows that the loss depends on."""
    if var_list is None:
      var_list = optimizer.rows_behind(loss)
      if not var_list:
        raise ValueError("the loss depends on no looked-up rows of a table: No variables to optimize.")
    return super().compute_gradients(loss, var_list, *args, **kwargs)

  def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> tf.Operation:
    """Updates tables.

    Args:
      grads_and_vars: pairs (gradient, rows): tensor [U, dim], IndexedSlices over the U rows, or None (the pair is skipped).
      global_step: variable that is incremented after the updates.
      name: name of the op.

    Returns:
      The train op.

    Raises:
      NotImplementedError: a variable, or a tensor that is not looked-up rows.
      ValueError: no gradient at all; wrong shape or dtype; a lookup inside a loop or function.
    """
    gradients = optimizer.row_gradients(grads_and_vars)
    name = name or self.get_name()
    return optimizer.finish(optimizer.apply_rows(gradients, self.row_rule(), name), global_step, name)

  def _refuse(self, *args: Any) -> Any:
    raise NotImplementedError(f"{type(self).__name__} updates rows of tables, not dense variables")

  _apply_dense = _resource_apply_dense = _apply_sparse = _resource_apply_sparse = _refuse


class NamedRowOptimizer(RowOptimizer):
  """A RowOptimizer that scripts construct: hyperparameters in the engine's order, each a float or a scalar float tensor."""

  KIND = ""
  # Hyperparameter: lowest and highest value, whether the highest is allowed. The first is learning_rate.
  HYPER: tuple[tuple[str, float, float, bool], ...] = ()

  def __init__(self, name: str, hyper: tuple[Any, ...], options: tuple[tuple[str, float], ...] = ()) -> None:
    _validate.name("name", name)
    self._hyper = tuple(
      _validate.hyperparameter(label, value, low, high, high_allowed)
      for (label, low, high, high_allowed), value in zip(self.HYPER, hyper, strict=True)
    )
    self._options = options
    super().__init__(name, self._hyper[0])

  def row_rule(self) -> optimizer.RowRule:
    """The engine's rule with the hyperparameters of now."""
    return optimizer.RowRule(self.KIND, (self._rate(), *self._hyper[1:]), self._options)
