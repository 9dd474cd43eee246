"""`mxrec.sparse_optimizer`: the optimizer of tables that goes with a TensorFlow optimizer, and what can be added to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from mxrec import _groups, _loader, _validate
from mxrec import table as table_lib
from mxrec.optimizer import RowRule
from mxrec.row_optimizer import RowOptimizer

_train = tf.compat.v1.train


def _adam(opt: Any) -> RowRule:
  return RowRule("adam", (opt._lr, opt._beta1, opt._beta2, opt._epsilon))


def _adagrad(opt: Any) -> RowRule:
  return RowRule("adagrad", (opt._learning_rate,), (("initial_accumulator_value", float(opt._initial_accumulator_value)),))


def _momentum(opt: Any) -> RowRule:
  return RowRule("momentum", (opt._learning_rate, opt._momentum), (("nesterov", float(opt._use_nesterov)),))


def _rmsprop(opt: Any) -> RowRule:
  kind = "rmsprop_centered" if opt._centered else "rmsprop"
  return RowRule(kind, (opt._learning_rate, opt._decay, opt._momentum, opt._epsilon))


def _ftrl(opt: Any) -> RowRule:
  return RowRule(
    "ftrl",
    (
      opt._learning_rate,
      opt._learning_rate_power,
      opt._l1_regularization_strength,
      opt._l2_regularization_strength,
      opt._l2_shrinkage_regularization_strength,
      opt._beta,
    ),
    (("initial_accumulator_value", float(opt._initial_accumulator_value)),),
  )


# Just these types: a subclass may compute something else.
_RULES: dict[type, Callable[[Any], RowRule]] = {
  _train.AdadeltaOptimizer: lambda opt: RowRule("adadelta", (opt._lr, opt._rho, opt._epsilon)),
  _train.AdagradOptimizer: _adagrad,
  _train.AdamOptimizer: _adam,
  _train.FtrlOptimizer: _ftrl,
  _train.GradientDescentOptimizer: lambda opt: RowRule("sgd", (opt._learning_rate,)),
  _train.MomentumOptimizer: _momentum,
  _train.RMSPropOptimizer: _rmsprop,
}
# Classes of TensorFlow 1's contrib, which TensorFlow 2 has not: copies of them keep name and attributes.
_RULES_BY_NAME: dict[str, tuple[tuple[str, ...], Callable[[Any], RowRule]]] = {
  "LazyAdamOptimizer": (("_lr", "_beta1", "_beta2", "_epsilon"), _adam),
}


def _rule_maker(optimizer: Any) -> Callable[[Any], RowRule] | None:
  made = _RULES.get(type(optimizer))
  if made is None and isinstance(optimizer, _train.Optimizer):
    attributes, by_name = _RULES_BY_NAME.get(type(optimizer).__name__, ((), None))
    if by_name is not None and all(hasattr(optimizer, attribute) for attribute in attributes):
      made = by_name
  return made


class SparseOptimizer(RowOptimizer):
  """What `mxrec.sparse_optimizer` returns: the rows' side of another optimizer, with options."""

  _called = "mxrec.sparse_optimizer"
  _mean_over_ranks = True

  def __init__(
    self,
    base: Any,
    make_rule: Callable[[Any], RowRule],
    options: tuple[tuple[str, float], ...],
    multipliers: Mapping[str, Any],
  ) -> None:
    rule = make_rule(base)
    _loader.check_optimizer(rule.kind, rule.options + options)
    for table in multipliers:
      if table in rule.multipliers:
        raise ValueError(f"learning_rate_multipliers has table '{table}' twice: here and in the optimizer that is given")
    super().__init__(base.get_name(), rule.hyper[0])
    self._base = base
    self._make_rule = make_rule
    self._options = options
    self._multipliers = dict(multipliers)
    self.dense_optimizer = base.dense_optimizer if isinstance(base, RowOptimizer) else base

  def row_rule(self) -> RowRule:
    """The engine's rule with the hyperparameters that the other optimizer has now."""
    rule = self._make_rule(self._base)
    rate = self._rate()
    hyper = rule.hyper if rate is self._given_learning_rate else (rate, *rule.hyper[1:])
    return RowRule(rule.kind, hyper, rule.options + self._options, {**rule.multipliers, **self._multipliers})


def sparse_optimizer(
  optimizer: Any,
  *,
  weight_decay: float = 0.0,
  l2_regularization: float = 0.0,
  row_clip_norm: float | None = None,
  learning_rate_multipliers: Mapping[Any, Any] | None = None,
) -> RowOptimizer:
  """The optimizer of tables with the same formula as `optimizer`.

  Its minimize, compute_gradients and apply_gradients work on looked-up rows; `mxrec.minimize` takes it too, and then trains dense
  variables with `optimizer` itself. Hyperparameters (floats, tensors or callables) are read when gradients are applied. Only rows
  of the step move. Where several ranks train a table, their gradients are averaged.

  Formulas, and the order of what the options do: docs/numerics.md.

  Args:
    optimizer: a tf.compat.v1.train.GradientDescentOptimizer, MomentumOptimizer, AdagradOptimizer, AdadeltaOptimizer,
      RMSPropOptimizer, AdamOptimizer or FtrlOptimizer object, a LazyAdamOptimizer of tf.contrib.opt (or a copy of it), or one of
      mxrec's own.
    weight_decay: at least 0; decoupled: rows of the step are multiplied by 1 - learning_rate * weight_decay. Not for AdamW, LAMB
      and FTRL, which have their own.
    l2_regularization: at least 0; l2_regularization * row is added to the row's gradient. Not for FTRL.
    row_clip_norm: above 0: the summed gradient of each row is scaled so that its norm is at most this.
    learning_rate_multipliers: dict from a table, or its name, to a number of at least 0 or a scalar float tensor, by which that
      table's learning rate is multiplied. With FTRL a step at a rate of 0 is an error: the formula divides by it.

  Returns:
    A RowOptimizer; `optimizer` itself when it is one already and no option is given.

  Raises:
    ValueError: an optimizer without a twin; a wrong option; one that the optimizer has already, by itself or from an earlier call.
  """
  options = []
  if decay := _validate.number("weight_decay", weight_decay, 0.0):
    options.append(("weight_decay", decay))
  if l2 := _validate.number("l2_regularization", l2_regularization, 0.0):
    options.append(("l2_regularization", l2))
  if row_clip_norm is not None:
    options.append(("row_clip_norm", _validate.number("row_clip_norm", row_clip_norm, 0.0, low_allowed=False)))
  multipliers: dict[str, Any] = {}
  if learning_rate_multipliers is not None:
    given = learning_rate_multipliers
    if not isinstance(given, Mapping):
      raise ValueError(f"learning_rate_multipliers must be a dict from tables to numbers, or None: got {_validate.found(given)}")
    for key, value in given.items():
      if _table_name(key) in multipliers:
        raise ValueError(f"learning_rate_multipliers has table '{_table_name(key)}' twice: as a table and by its name")
      multipliers[_table_name(key)] = _multiplier(key, value)
  if isinstance(optimizer, RowOptimizer):
    if not options and not multipliers and (optimizer._mean_over_ranks or _groups.world().size == 1):
      return optimizer
    return SparseOptimizer(optimizer, lambda base: base.row_rule(), tuple(options), multipliers)
  make_rule = _rule_maker(optimizer)
  if make_rule is None:
    known = ", ".join(sorted(kind.__name__ for kind in _RULES))
    raise ValueError(
      f"optimizer must be a tf.compat.v1.train object out of {known}, a LazyAdamOptimizer, or an optimizer of mxrec: "
      f"got {_validate.found(optimizer)}"
    )
  return SparseOptimizer(optimizer, make_rule, tuple(options), multipliers)


def _table_name(key: Any) -> str:
  if isinstance(key, table_lib.EmbeddingTable):
    return key.name
  if isinstance(key, str):
    return key
  raise ValueError(f"learning_rate_multipliers must be keyed by tables or their names: got {_validate.found(key)}")


def _multiplier(key: Any, value: Any) -> Any:
  label = f"learning_rate_multipliers['{_table_name(key)}']"
  if _validate.is_tensor(value):
    return _validate.hyperparameter(label, value, 0.0, 0.0, True)
  return _validate.number(label, value, 0.0)
