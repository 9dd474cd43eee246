"""What optimizers of tables have in common: TensorFlow's Optimizer interface with looked-up rows as its variables."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from mxrec import _graph, _validate, optimizer

# Hyperparameters that optimizers share: name, lowest and highest value, whether the highest is allowed.
RATE = ("learning_rate", 0.0, 10.0, True)
WEIGHT_DECAY = ("weight_decay", 0.0, 10.0, True)
BETAS = (("beta_1", 0.0, 1.0, False), ("beta_2", 0.0, 1.0, False))
EPSILON = ("epsilon", 0.0, 1.0, False)


class RowOptimizer(tf.compat.v1.train.Optimizer):
  """An optimizer whose "variables" are looked-up rows.

  `apply_gradients(zip(tf.gradients(loss, rows), rows))` with `rows` from `get_sparse_embedding()`; `minimize(loss)` takes the
  rows that the loss depends on. Slots and step counter live in the tables, so any number of tables and of optimizer objects
  gives the same result. `_lr` (or `_learning_rate`) may be assigned anew until gradients are applied.
  """

  # What scripts call it, for messages; None: the name of the class.
  _called: str | None = None

  # Whether the gradients of several ranks are averaged; else they are added, as the original does.
  _mean_over_ranks = False

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

  def minimize(
    self,
    loss: Any,
    global_step: Any = None,
    var_list: Any = None,
    gate_gradients: int = tf.compat.v1.train.Optimizer.GATE_OP,
    aggregation_method: int | None = None,
    colocate_gradients_with_ops: bool = False,
    name: str | None = None,
    grad_loss: Any = None,
  ) -> tf.Operation:
    """Trains the tables that `loss` depends on: `compute_gradients`, then `apply_gradients`.

    Trainable variables that the loss depends on stay as they are; when no op of another optimizer updates them yet, one warning
    says so. `var_list=mxrec.get_sparse_embedding()` says that it is meant.

    Args:
      loss: scalar float32 tensor.
      global_step: variable that is incremented after the updates.
      var_list: looked-up rows; None: those that the loss depends on.
      gate_gradients: as in tf.compat.v1.train.Optimizer.
      aggregation_method: the same.
      colocate_gradients_with_ops: the same.
      name: name of the op.
      grad_loss: tensor with the gradient of the loss; None: 1.

    Returns:
      The train op.

    Raises:
      NotImplementedError: a variable in `var_list`.
      ValueError: an argument is wrong; the loss depends on no rows; a lookup inside a loop or function.
    """
    _validate.global_step(global_step)
    _validate.scope_name("name", name)
    if var_list is None:
      var_list = self._rows_of(loss)
    return super().minimize(
      loss, global_step, var_list, gate_gradients, aggregation_method, colocate_gradients_with_ops, name, grad_loss
    )

  def compute_gradients(
    self,
    loss: Any,
    var_list: Any = None,
    gate_gradients: int = tf.compat.v1.train.Optimizer.GATE_OP,
    aggregation_method: int | None = None,
    colocate_gradients_with_ops: bool = False,
    grad_loss: Any = None,
  ) -> list[tuple[Any, Any]]:
    """The pairs (gradient, rows) for `apply_gradients`; arguments as for `minimize`."""
    _validate.loss(loss)
    _validate.boolean("colocate_gradients_with_ops", colocate_gradients_with_ops)
    _validate.tensor_or_none("grad_loss", grad_loss)
    if var_list is None:
      var_list = self._rows_of(loss)
    items = tf.nest.flatten(var_list)
    if not items:
      raise ValueError("No variables to optimize: var_list is empty, expected looked-up rows")
    for item in items:
      if not _validate.is_tensor(item):
        raise ValueError(f"var_list must hold looked-up rows, as get_sparse_embedding() returns: got {_validate.found(item)}")
    return super().compute_gradients(loss, var_list, gate_gradients, aggregation_method, colocate_gradients_with_ops, grad_loss)

  def _rows_of(self, loss: Any) -> list[tf.Tensor]:
    """The rows that a loss depends on; warns of variables that it depends on too."""
    rows = optimizer.rows_behind(_validate.loss(loss))
    if not rows:
      raise ValueError("loss depends on no looked-up rows of a table: No variables to optimize.")
    left_alone = optimizer.variables_without_update(loss)
    kind = self._called or type(self).__name__
    if left_alone and _graph.registry(loss.graph).first_warning("variables", kind):
      warnings.warn(
        f"{kind} trains tables only: {len(left_alone)} trainable variables that the loss depends on (first: "
        f"{left_alone[0].name}) are not trained by it. Use mxrec.minimize(loss, optimizer) with a TensorFlow optimizer for "
        "everything, or make a TensorFlow optimizer's train op for the variables first and run both; "
        "var_list=mxrec.get_sparse_embedding() says that it is meant",
        UserWarning,
        stacklevel=3,
      )
    return rows

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
      ValueError: an argument is wrong; no gradient at all; wrong shape or dtype; a lookup inside a loop or function.
    """
    _validate.global_step(global_step)
    _validate.scope_name("name", name)
    gradients = optimizer.row_gradients(grads_and_vars, self._mean_over_ranks)
    name = name or self.get_name()
    return optimizer.finish(optimizer.apply_rows(gradients, self.row_rule(), name), global_step, name)

  def _refuse(self, *args: Any) -> Any:
    raise NotImplementedError(f"{self._called or type(self).__name__} updates rows of tables, not dense variables")

  _apply_dense = _resource_apply_dense = _apply_sparse = _resource_apply_sparse = _refuse


class NamedRowOptimizer(RowOptimizer):
  """A RowOptimizer that scripts construct: hyperparameters in the engine's order, each a float or a scalar float tensor."""

  KIND = ""
  # As above; the first is learning_rate.
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
