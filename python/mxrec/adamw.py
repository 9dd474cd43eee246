"""AdamW for tables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from mxrec import _validate, optimizer

INITIAL_STATES = ("zeros", "original")


class AdamWOptimizer(tf.compat.v1.train.Optimizer):
  """AdamW with decoupled weight decay on the rows of a step; formula in docs/numerics.md.

  Its "variables" are looked-up rows: `apply_gradients(zip(tf.gradients(loss, rows), rows))` with `rows` from
  `get_sparse_embedding()`; `minimize(loss)` takes the rows that the loss depends on. Moments and step counter live in the
  tables, so any number of tables and of optimizer objects gives the same result. `_lr` (or `_learning_rate`) may be assigned anew
  until gradients are applied.
  """

  def __init__(
    self,
    learning_rate: Any = 0.01,
    weight_decay: Any = 0.004,
    beta_1: Any = 0.9,
    beta_2: Any = 0.999,
    epsilon: Any = 1e-6,
    name: str = "AdamWOptimizer",
    *,
    initial_state: str = "zeros",
  ) -> None:
    """Makes the optimizer; each hyperparameter is a float or a scalar float tensor or variable (not range-checked).

    Args:
      learning_rate: [0, 10].
      weight_decay: [0, 10].
      beta_1: [0, 1).
      beta_2: [0, 1).
      epsilon: [0, 1).
      name: 1..128 characters out of [0-9A-Za-z_.].
      initial_state: "zeros": moments start at 0, beta powers at 1; "original": moments at 1, beta powers at 0.9, as the original.

    Raises:
      ValueError: an argument is wrong; an int is.
    """
    _validate.name("name", name)
    super().__init__(use_locking=False, name=name)
    learning_rate = _validate.hyperparameter("learning_rate", learning_rate, 0.0, 10.0, True)
    self._weight_decay = _validate.hyperparameter("weight_decay", weight_decay, 0.0, 10.0, True)
    self._beta_1 = _validate.hyperparameter("beta_1", beta_1, 0.0, 1.0, False)
    self._beta_2 = _validate.hyperparameter("beta_2", beta_2, 0.0, 1.0, False)
    self._epsilon = _validate.hyperparameter("epsilon", epsilon, 0.0, 1.0, False)
    self._initial_state = _validate.choice("initial_state", initial_state, INITIAL_STATES)
    # Scripts assign one of the two, or both; the one that was assigned counts.
    self._lr = self._learning_rate = self._given_learning_rate = learning_rate

  def row_rule(self) -> optimizer.RowRule:
    """The engine's rule with the hyperparameters of now."""
    learning_rate = self._lr if self._lr is not self._given_learning_rate else self._learning_rate
    return optimizer.RowRule(
      "adamw",
      (learning_rate, self._weight_decay, self._beta_1, self._beta_2, self._epsilon),
      (("initial_state", float(INITIAL_STATES.index(self._initial_state))),),
    )

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

  def _apply_dense(self, grad: Any, var: Any) -> Any:
    raise NotImplementedError("AdamWOptimizer updates rows of tables, not dense variables")

  _resource_apply_dense = _apply_dense

  def _apply_sparse(self, grad: Any, var: Any) -> Any:
    raise NotImplementedError("AdamWOptimizer updates rows of tables, not variables")

  def _resource_apply_sparse(self, grad: Any, handle: Any, indices: Any) -> Any:
    raise NotImplementedError("AdamWOptimizer updates rows of tables, not variables")
