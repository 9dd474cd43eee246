"""Optimizers for tables that TensorFlow 1 has no object for. Formulas and sources: docs/numerics.md."""

from __future__ import annotations

from typing import Any

from mxrec import _validate, row_optimizer
from mxrec.row_optimizer import BETAS, EPSILON, RATE, WEIGHT_DECAY

_ANY = float("inf")


class RowWiseAdagradOptimizer(row_optimizer.NamedRowOptimizer):
  """Adagrad with one accumulator a row, which takes the mean of the row's squared gradients.

  The state costs 4 bytes a row instead of 4 * dimension. Used as AdamWOptimizer.
  """

  KIND = "rowwise_adagrad"
  HYPER = (RATE, EPSILON)

  def __init__(
    self,
    learning_rate: Any = 0.01,
    initial_accumulator_value: float = 0.0,
    epsilon: Any = 1e-8,
    name: str = "RowWiseAdagradOptimizer",
  ) -> None:
    """Makes the optimizer.

    Args:
      learning_rate: [0, 10]; a float or a scalar float tensor or variable (not range-checked).
      initial_accumulator_value: at least 0.
      epsilon: [0, 1), added to the root; as learning_rate.
      name: 1..128 characters out of [0-9A-Za-z_.].

    Raises:
      ValueError: an argument is wrong; both initial_accumulator_value and epsilon are 0.
    """
    initial = _validate.number("initial_accumulator_value", initial_accumulator_value, 0.0)
    super().__init__(name, (learning_rate, epsilon), (("initial_accumulator_value", initial),))
    if initial == 0 and not _validate.is_tensor(epsilon) and epsilon == 0:
      raise ValueError("initial_accumulator_value and epsilon are both 0: a row without gradient would become NaN")


class AMSGradOptimizer(row_optimizer.NamedRowOptimizer):
  """Adam whose second moment never falls, on the rows of a step. Used as AdamWOptimizer."""

  KIND = "amsgrad"
  HYPER = (RATE, *BETAS, EPSILON)

  def __init__(
    self,
    learning_rate: Any = 0.001,
    beta_1: Any = 0.9,
    beta_2: Any = 0.999,
    epsilon: Any = 1e-8,
    name: str = "AMSGradOptimizer",
  ) -> None:
    """Makes the optimizer; each hyperparameter is a float or a scalar float tensor or variable (not range-checked).

    Args:
      learning_rate: [0, 10].
      beta_1: [0, 1).
      beta_2: [0, 1).
      epsilon: [0, 1).
      name: 1..128 characters out of [0-9A-Za-z_.].

    Raises:
      ValueError: an argument is wrong; an int is.
    """
    super().__init__(name, (learning_rate, beta_1, beta_2, epsilon))


class LambOptimizer(row_optimizer.NamedRowOptimizer):
  """Adam's direction plus weight decay, scaled by |row| / |direction|: LAMB with each row as a layer. Used as AdamWOptimizer."""

  KIND = "lamb"
  HYPER = (RATE, WEIGHT_DECAY, *BETAS, EPSILON)

  def __init__(
    self,
    learning_rate: Any = 0.001,
    weight_decay: Any = 0.0,
    beta_1: Any = 0.9,
    beta_2: Any = 0.999,
    epsilon: Any = 1e-6,
    name: str = "LambOptimizer",
  ) -> None:
    """Makes the optimizer; each hyperparameter is a float or a scalar float tensor or variable (not range-checked).

    Args:
      learning_rate: [0, 10].
      weight_decay: [0, 10].
      beta_1: [0, 1).
      beta_2: [0, 1).
      epsilon: [0, 1).
      name: 1..128 characters out of [0-9A-Za-z_.].

    Raises:
      ValueError: an argument is wrong; an int is.
    """
    super().__init__(name, (learning_rate, weight_decay, beta_1, beta_2, epsilon))


class GroupFtrlOptimizer(row_optimizer.NamedRowOptimizer):
  """FTRL with a sparse group lasso: the L21 term sets whole rows to zero. Used as AdamWOptimizer.

  With l21_regularization_strength 0 it is tf.compat.v1.train.FtrlOptimizer, to the bit.
  """

  KIND = "group_ftrl"
  HYPER = (
    RATE,
    ("l1_regularization_strength", 0.0, _ANY, False),
    ("l2_regularization_strength", 0.0, _ANY, False),
    ("l21_regularization_strength", 0.0, _ANY, False),
    ("beta", 0.0, _ANY, False),
  )

  def __init__(
    self,
    learning_rate: Any = 0.01,
    l1_regularization_strength: Any = 0.0,
    l2_regularization_strength: Any = 0.0,
    l21_regularization_strength: Any = 0.0,
    beta: Any = 0.0,
    initial_accumulator_value: float = 0.1,
    name: str = "GroupFtrlOptimizer",
  ) -> None:
    """Makes the optimizer; each hyperparameter but the last is a float or a scalar float tensor or variable (not range-checked).

    Args:
      learning_rate: [0, 10]; a step at 0 is an InvalidArgumentError.
      l1_regularization_strength: at least 0: sets single values to zero.
      l2_regularization_strength: at least 0.
      l21_regularization_strength: at least 0: sets whole rows to zero; multiplied with the root of the dimension.
      beta: at least 0, as in tf.compat.v1.train.FtrlOptimizer.
      initial_accumulator_value: at least 0.
      name: 1..128 characters out of [0-9A-Za-z_.].

    Raises:
      ValueError: an argument is wrong; an int is.
    """
    initial = _validate.number("initial_accumulator_value", initial_accumulator_value, 0.0)
    strengths = (l1_regularization_strength, l2_regularization_strength, l21_regularization_strength)
    super().__init__(name, (learning_rate, *strengths, beta), (("initial_accumulator_value", initial),))
